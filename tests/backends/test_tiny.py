"""The model that ships: it is the script's, it knows sums, and it has something to unlearn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from nbrl.assets import make_tiny
from nbrl.backends.arithmetic import arithmetic_prompts, pairs

TINY = Path(make_tiny.__file__).parent / "tiny"


def answers(split: str, *, sample: bool) -> list[tuple[str, str]]:
    """The bundled model's answers to 256 sums, with the labels."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    table = arithmetic_prompts(256, start=0, seed=5, split=split).table
    batch = tokenizer(table.column("prompt").to_pylist(), padding=True, return_tensors="pt")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ids = model.generate(**batch, max_new_tokens=6, do_sample=sample)
    texts = tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    return list(zip(texts, table.column("label").to_pylist(), strict=True))


def share_right(pairs_of: list[tuple[str, str]]) -> float:
    return sum(text == label for text, label in pairs_of) / len(pairs_of)


def test_every_byte_is_one_id_and_comes_back():
    for tokenizer in (make_tiny.make_tokenizer(), AutoTokenizer.from_pretrained(TINY)):
        text = "".join(map(chr, range(128))) + "  a  b ,c \n\r\n I'm"
        ids = tokenizer(text)["input_ids"]
        assert ids == [ord(c) + 2 for c in text]
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(tokenizer("\u00e9\u2212\U0001f642")["input_ids"]) == (
            "\u00e9\u2212\U0001f642"
        )
        assert len(tokenizer) == 258
        assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 1)
        assert tokenizer("7<eos>")["input_ids"] == [57, 1]
        assert tokenizer.decode([57, 1, 0], skip_special_tokens=True) == "7"


def test_the_shipped_files_are_what_the_script_describes():
    made = make_tiny.make_model(make_tiny.make_tokenizer())
    shipped = load_file(TINY / "model.safetensors")
    wanted = {n: p.shape for n, p in made.named_parameters()}
    assert {n: t.shape for n, t in shipped.items()} == wanted
    assert sum(p.numel() for p in made.parameters()) == 329_088
    assert (TINY / "model.safetensors").stat().st_size < 1_400_000
    # Rounded, so that float32 and bfloat16 hold the same weights.
    assert all(torch.equal(t, t.bfloat16().float()) for t in shipped.values())


def test_the_book_holds_no_held_out_sum_and_is_the_seeds():
    page = make_tiny.book_page(np.random.default_rng(0), 2000)
    assert page == make_tiny.book_page(np.random.default_rng(0), 2000)
    held_out = {f"{a}+{b}" for a, b in pairs("held_out").tolist()}
    assert not held_out & {line.partition("=")[0] for line in page}
    doubts = sum("?" in line for line in page) / len(page)
    assert doubts == pytest.approx(make_tiny.DOUBTS, abs=0.04)
    assert all(line.endswith("<eos>") for line in page)


@pytest.mark.slow
def test_the_script_makes_the_same_model_twice(tmp_path):
    for name in ("a", "b"):
        make_tiny.make(tmp_path / name, steps=2)
    one, two = (load_file(tmp_path / n / "model.safetensors") for n in ("a", "b"))
    assert all(torch.equal(one[n], two[n]) for n in one)


@pytest.mark.slow
@pytest.mark.parametrize("split", ["train", "held_out"])
def test_it_knows_sums_and_blunders_when_sampled(split):
    assert share_right(answers(split, sample=False)) > 0.9
    # Below 0.45 before reinforcement learning; above 0.3, so that nearly every group has signal.
    assert 0.3 < share_right(answers(split, sample=True)) < 0.45
