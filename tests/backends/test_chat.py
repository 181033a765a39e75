"""Prompts to ids: no special token twice, none missing, and ids that are given are kept."""

import json

import pyarrow as pa
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from nbrl.backends.chat import decode, encode_prompts
from nbrl.backends.sources import prompts_table
from nbrl.errors import ConfigError, DataError
from nbrl.types import Prompts

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
BOS, EOS, HE, LLO, HELLO, UNK = 0, 1, 2, 3, 4, 5


def word_tokenizer(adds: str) -> PreTrainedTokenizerFast:
    """Words ``he``, ``llo``, ``hello``, roles; ``adds`` is what it puts around a text ``$A``."""
    vocab = {"<s>": BOS, "</s>": EOS, "he": HE, "llo": LLO, "hello": HELLO, "<unk>": UNK}
    vocab |= {"<user>": 6, "<assistant>": 7}
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.decoder = decoders.Fuse()
    words.add_special_tokens(["<s>", "</s>", "<user>", "<assistant>"])
    words.post_processor = processors.TemplateProcessing(
        single=adds, special_tokens=[("<s>", BOS), ("</s>", EOS)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def prompts_of(*rows: dict) -> Prompts:
    full = [
        {"prompt_id": f"p-{i}", "metadata": "{}", "prompt": "", **r} for i, r in enumerate(rows)
    ]
    return Prompts(table=prompts_table(full))


def chat(text: str) -> dict:
    return {"prompt": text, "messages": json.dumps([{"role": "user", "content": text}])}


@pytest.mark.parametrize(
    ("adds", "text", "ids"),
    [
        ("$A", "hello", (HELLO,)),
        ("<s> $A", "hello", (BOS, HELLO)),
        ("<s> $A </s>", "hello", (BOS, HELLO)),
        ("$A </s>", "he llo", (HE, LLO)),
        ("<s> $A", "<s> hello", (BOS, HELLO)),
        ("$A", "hello </s>", (HELLO, EOS)),
    ],
)
def test_a_text_begins_as_the_tokenizer_begins_it_and_is_left_open(adds, text, ids):
    assert encode_prompts(prompts_of({"prompt": text}), word_tokenizer(adds)) == [ids]


@pytest.mark.parametrize("adds", ["$A", "<s> $A", "<s> $A </s>"])
def test_a_conversation_has_the_templates_special_tokens_only(adds):
    tokenizer = word_tokenizer(adds)
    tokenizer.chat_template = TEMPLATE
    assert encode_prompts(prompts_of(chat("hello")), tokenizer) == [(BOS, 6, HELLO, 7)]


def test_texts_and_conversations_stand_side_by_side():
    tokenizer = word_tokenizer("<s> $A")
    tokenizer.chat_template = TEMPLATE
    mixed = prompts_of({"prompt": "he"}, chat("hello"), {"prompt": "llo"})
    assert encode_prompts(mixed, tokenizer) == [(BOS, HE), (BOS, 6, HELLO, 7), (BOS, LLO)]


def test_ids_that_are_given_are_not_made_again_from_text():
    # 'he' 'llo' decodes to 'hello', which the vocabulary also has as one token.
    prompts = prompts_of({"prompt": "hello"})
    table = prompts.table.append_column("token_ids", pa.array([[HE, LLO]], pa.list_(pa.int32())))
    tokenizer = word_tokenizer("$A")
    assert encode_prompts(Prompts(table=table), tokenizer) == [(HE, LLO)]
    assert decode(tokenizer, [[HE, LLO, EOS], [HELLO]]) == ["hello", "hello"]


def test_messages_without_a_template_are_refused_before_anything_is_encoded():
    with pytest.raises(ConfigError, match="has no chat template"):
        encode_prompts(prompts_of({"prompt": "hello"}, chat("hello")), word_tokenizer("$A"))


def test_the_prompt_that_cannot_be_encoded_is_named():
    strict = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"7+5=": 0})))
    assert encode_prompts(prompts_of({"prompt": "7+5="}), strict) == [(0,)]
    with pytest.raises(DataError, match=r"prompt 'p-1' cannot be encoded.*7\+5=\?"):
        encode_prompts(prompts_of({"prompt": "7+5="}, {"prompt": "7+5=?"}), strict)
    with pytest.raises(DataError, match="1 prompts have no tokens, or a null among them: p-0"):
        encode_prompts(prompts_of({"prompt": ""}), word_tokenizer("$A"))
    tokenizer = word_tokenizer("$A")
    tokenizer.chat_template = "{{ raise_exception('user must speak first') }}"
    with pytest.raises(DataError, match=r"prompt 'p-0'.*user must speak first"):
        encode_prompts(prompts_of(chat("hello")), tokenizer)


def test_prompts_without_text_or_with_a_null_token_are_named(random_policy):
    columns = {
        "prompt_id": pa.array([f"p-{i}" for i in range(8)]),
        "prompt": pa.array(["1+1=", *[None] * 7], pa.string()),
        "messages": pa.nulls(8, pa.string()),
        "label": pa.nulls(8, pa.string()),
        "metadata": pa.array(["{}"] * 8),
    }
    with pytest.raises(
        DataError, match=r"7 prompts have neither text nor messages: p-1, .* 2 more"
    ):
        encode_prompts(Prompts(table=pa.table(columns)), random_policy.tokenizer)
    tokens = pa.array([[1], [], None, [1, None], *[[2]] * 4], pa.list_(pa.int32()))
    given = Prompts(table=pa.table(columns | {"token_ids": tokens}))
    with pytest.raises(DataError, match=r"3 prompts have no tokens.*: p-1, p-2, p-3"):
        encode_prompts(given, random_policy.tokenizer)
