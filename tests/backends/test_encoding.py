"""Which tokens are learned: spans, templates, EOS, white space, windows, borders of answers."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import nbrl
from nbrl.backends.encoding import Writer, tokenize_examples
from nbrl.errors import ConfigError, DataError

WORDS = ["<pad>", "<eos>", "<bos>", "<|user|>", "<|assistant|>", "<|end|>", "<think>", "</think>"]
CHARACTERS = [chr(c) for c in range(32, 127)] + ["\n"]
EOS, BOS, END = 1, 2, 5
CHAT = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BOS_CHAT = "<bos>" + CHAT
FORGETFUL = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_tokenizer(template=None, *, add_bos=False, pad="<pad>"):
    vocabulary = {token: i for i, token in enumerate([*WORDS, *CHARACTERS])}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    if add_bos:
        characters.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", BOS)]
        )
    made = PreTrainedTokenizerFast(
        tokenizer_object=characters, eos_token="<eos>", bos_token="<bos>", pad_token=pad,
        additional_special_tokens=WORDS[3:],
    )  # fmt: skip
    made.chat_template = template
    return made


def tokenized(examples, template=None, *, eos=(EOS, END), max_length=200, **settings):
    tokenizer = make_tokenizer(
        template, **{k: settings.pop(k) for k in ("add_bos", "pad") if k in settings}
    )
    writer = Writer(tokenizer=tokenizer, eos_ids=eos, max_length=max_length, **settings)
    return tokenize_examples(examples, writer), tokenizer


def learned(row, tokenizer, side=""):
    """The text of each run of tokens that is learned."""
    runs, run = [], []
    for token, keep in zip(row[f"{side}token_ids"], row[f"{side}mask"], strict=True):
        if keep:
            run.append(token)
        elif run:
            runs.append(run)
            run = []
    return [tokenizer.decode(r) for r in [*runs, run] if r]


def chat(*contents):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": c} for i, c in enumerate(contents)]


def test_an_answer_is_learned_with_its_end_and_its_prompt_is_not():
    examples, tokenizer = tokenized(nbrl.load_conversations([{"prompt": "7+5=", "response": "12"}]))
    row = examples[0]
    assert tokenizer.decode(row["token_ids"]) == "7+5=12<eos>"
    assert row["mask"] == [False] * 4 + [True] * 3


def test_b01_the_end_is_learned_where_it_is_also_the_pad():
    examples, _ = tokenized(
        nbrl.load_conversations([{"prompt": "a", "response": "b"}]), pad="<eos>"
    )
    assert examples[0]["token_ids"][-1] == EOS
    assert examples[0]["mask"] == [False, True, True]


@pytest.mark.parametrize("prompt", ["a ", "a\n", "a\t ", " "])
def test_a_prompt_that_ends_in_white_space_keeps_its_border(prompt):
    examples, tokenizer = tokenized(nbrl.load_conversations([{"prompt": prompt, "response": " b"}]))
    assert learned(examples[0], tokenizer) == [" b<eos>"]
    assert examples[0]["mask"].count(False) == len(prompt)


def test_a_text_is_learned_from_its_second_token_in_windows():
    examples, tokenizer = tokenized(nbrl.load_conversations([{"text": "abcdefg"}]), max_length=3)
    assert [tokenizer.decode(r) for r in examples.table.column("token_ids").to_pylist()] == [
        "abc",
        "def",
        "g<eos>",
    ]
    assert examples.table.column("mask").to_pylist() == [[False, True, True]] * 2 + [[False, True]]
    assert len(set(examples.table.column("example_id").to_pylist())) == 3


def test_every_turn_of_the_assistant_is_learned_up_to_its_end():
    messages = chat("q1", "a1", "q2", "a2")
    examples, tokenizer = tokenized(nbrl.load_conversations([{"messages": messages}]), CHAT)
    assert learned(examples[0], tokenizer) == ["a1<|end|>", "a2<|end|>"]
    text = tokenizer.decode(examples[0]["token_ids"])
    assert (
        text
        == "<|user|>q1<|end|>\n<|assistant|>a1<|end|>\n<|user|>q2<|end|>\n<|assistant|>a2<|end|>"
    )
    last, tokenizer = tokenized(
        nbrl.load_conversations([{"messages": messages}]), CHAT, turns="last"
    )
    assert learned(last[0], tokenizer) == ["a2<|end|>"]


def test_a_template_without_an_end_gets_one_only_at_the_very_end():
    examples, tokenizer = tokenized(
        nbrl.load_conversations([{"messages": chat("q1", "a1", "q2", "a2")}]), CHAT, eos=(EOS,)
    )
    assert learned(examples[0], tokenizer) == ["a1<|end|>\n", "a2<|end|>\n<eos>"]


def test_one_bos_whoever_writes_it():
    rows = [{"messages": chat("q", "a")}]
    by_template, _ = tokenized(nbrl.load_conversations(rows), BOS_CHAT, add_bos=True)
    assert by_template[0]["token_ids"].count(BOS) == 1
    plain, _ = tokenized(nbrl.load_conversations([{"prompt": "q", "response": "a"}]), add_bos=True)
    assert plain[0]["token_ids"].count(BOS) == 1
    assert plain[0]["token_ids"][0] == BOS


def test_a_template_that_rewrites_history_is_found_out():
    two = chat("q1", "<think>x</think>a1", "q2", "<think>y</think>a2")
    rows = [{"messages": two}, {"messages": two[:2]}]
    with pytest.warns(UserWarning, match="not prefix-stable at message 1"):
        examples, _ = tokenized(nbrl.load_conversations(rows), FORGETFUL)
    assert len(examples) == 1
    assert "turns='last'" in examples.spec["dropped"][0]["reason"]
    last, tokenizer = tokenized(nbrl.load_conversations(rows), FORGETFUL, turns="last")
    assert learned(last[0], tokenizer) == ["<think>y</think>a2<|end|>"]


def test_messages_without_a_template_are_refused():
    with pytest.raises(ConfigError, match="no chat template"):
        tokenized(nbrl.load_conversations([{"messages": chat("q", "a")}]))


def test_pairs_learn_what_follows_their_common_beginning():
    chosen, rejected = chat("q1", "a1", "q2", "good"), chat("q1", "a1", "q2", "bad")
    examples, tokenizer = tokenized(
        nbrl.load_pairs([{"chosen": chosen, "rejected": rejected}]), CHAT
    )
    assert learned(examples[0], tokenizer, "chosen_") == ["good<|end|>"]
    assert learned(examples[0], tokenizer, "rejected_") == ["bad<|end|>"]


def test_b58_a_pair_that_is_too_long_is_left_out_and_none_left_is_an_error():
    pairs = nbrl.load_pairs(
        [
            {"prompt": "q" * 6, "chosen": "aaa", "rejected": "b"},
            {"prompt": "q", "chosen": "a", "rejected": "b"},
        ]
    )
    with pytest.warns(UserWarning, match=r"1 of 2 rows.*chosen: 10 tokens, over max_length=6"):
        examples, _ = tokenized(pairs, max_length=6)
    assert len(examples) == 1
    assert len(examples.spec["dropped"]) == 1
    with pytest.raises(DataError, match="no row is one to learn from"):
        tokenized(pairs[:1], max_length=6)


def test_equal_answers_stay_a_pair():
    examples, _ = tokenized(nbrl.load_pairs([{"prompt": "q", "chosen": "a", "rejected": "a"}]))
    assert examples[0]["chosen_token_ids"] == examples[0]["rejected_token_ids"]


def labelled(*prompts):
    return nbrl.load_labelled([{"prompt": p, "response": f"{p}!", "label": True} for p in prompts])


def test_a_labelled_answer_is_matched_with_another_prompts():
    examples, tokenizer = tokenized(labelled("a", "a", "b", "c"))
    strange = [learned(row, tokenizer, "mismatched_")[0] for row in examples.table.to_pylist()]
    assert strange == ["b!<eos>", "b!<eos>", "c!<eos>", "a!<eos>"]
    own = examples.table.column("token_ids").to_pylist()
    starts = [row["mismatched_token_ids"][0] for row in examples.table.to_pylist()]
    assert starts == [row[0] for row in own]


def test_equal_prompts_are_matched_with_the_next_row():
    examples, _ = tokenized(labelled("a", "a"))
    assert len(examples) == 2
    with pytest.raises(DataError, match="no other row"):
        tokenized(labelled("a"))


def test_each_step_is_judged_at_the_placeholder_behind_it():
    steps = nbrl.load_steps([{"prompt": "q", "steps": ["ab", "c"], "labels": [1, 0.25]}])
    examples, tokenizer = tokenized(steps)
    row = examples[0]
    assert tokenizer.decode(row["token_ids"]) == "qab\nc\n"
    assert [i for i, m in enumerate(row["mask"]) if m] == [3, 5]
    assert row["step_labels"] == [0, 0, 0, 1.0, 0, 0.25]
    with pytest.raises(ConfigError, match="is 2 tokens"):
        tokenized(steps, placeholder="##")


def test_other_columns_come_along():
    examples, _ = tokenized(nbrl.load_conversations([{"prompt": "a", "response": "b", "id": 3}]))
    assert json.loads(examples[0]["metadata"]) == {"id": 3}
    assert examples.spec["tokens"] == {"max_length": 200, "turns": "all"}


@pytest.mark.parametrize("template", [None, CHAT, BOS_CHAT])
def test_tokens_are_the_same_whatever_the_tokenizer_pads_and_cuts(template):
    rows = [{"prompt": "7+5= ", "chosen": "12", "rejected": "13\n"}]
    pairs = nbrl.load_pairs(rows, apply_chat_template=template is not None)
    found = []
    for pad, side in (("<pad>", "right"), ("<eos>", "left"), (None, "left")):
        tokenizer = make_tokenizer(template, add_bos=True, pad=pad)
        tokenizer.padding_side = tokenizer.truncation_side = side
        tokenizer.model_max_length = 4
        writer = Writer(tokenizer=tokenizer, eos_ids=(EOS, END), max_length=200)
        found.append(tokenize_examples(pairs, writer).table)
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])
    row = found[0].slice(0, 1).to_pylist()[0]
    ends = EOS if template is None else END
    for side in ("chosen_", "rejected_"):
        ids, mask = row[f"{side}token_ids"], row[f"{side}mask"]
        assert (ids[-1], mask[-1]) == (ends, True)
        assert ids.count(BOS) == (template != CHAT)


@pytest.mark.parametrize(
    ("load", "row"),
    [
        (nbrl.load_conversations, {"prompt": "q", "response": "a"}),
        (nbrl.load_labelled, {"prompt": "q", "response": "a", "label": 1}),
        (nbrl.load_steps, {"prompt": "q", "steps": ["a", "b"], "labels": [1, 0]}),
    ],
)
def test_b58_too_long_is_counted_and_named_in_every_kind(load, row):
    examples = load([{**row, "prompt": "q" * 20}, row, {**row, "prompt": "p"}])
    with pytest.warns(UserWarning, match=r"1 of 3 rows.*over max_length=8"):
        kept, _ = tokenized(examples, max_length=8)
    assert len(kept) == 2
    (dropped,) = kept.spec["dropped"]
    assert dropped["row"] == examples[0]["example_id"]
    with pytest.raises(DataError, match="no row is one to learn from"):
        tokenized(examples, max_length=2)


@pytest.mark.parametrize("eos", [(EOS, END), (END, EOS)])
def test_of_several_ends_the_one_that_is_there_stays(eos):
    plain, _ = tokenized(nbrl.load_conversations([{"prompt": "q", "response": "a"}]), eos=eos)
    assert plain[0]["token_ids"][-1] == eos[0]
    rows = [{"messages": chat("q", "a")}]
    spoken, tokenizer = tokenized(nbrl.load_conversations(rows), CHAT, eos=eos)
    assert learned(spoken[0], tokenizer) == ["a<|end|>"]
