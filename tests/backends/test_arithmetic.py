"""Sums on the fly: each pair once a round, none of them in both splits."""

import itertools

import pytest

from nbrl.backends.arithmetic import arithmetic_prompts, arithmetic_source, pairs
from nbrl.errors import ConfigError, UnknownNameError
from nbrl.types import Prompts


def column(prompts: Prompts, name: str) -> list:
    return prompts.table.column(name).to_pylist()


def test_arithmetic_depends_on_index_and_seed_only():
    whole = arithmetic_prompts(20, start=0, seed=3)
    part = arithmetic_prompts(8, start=12, seed=3)
    assert whole[12:].table.equals(part.table)
    assert column(whole, "prompt") != column(arithmetic_prompts(20, start=0, seed=4), "prompt")
    assert column(part, "prompt_id")[0] == "arithmetic-train-12"
    for text, label in zip(column(whole, "prompt"), column(whole, "label"), strict=True):
        a, b = text.rstrip("=").split("+")
        assert int(a) + int(b) == int(label)


def test_each_round_of_arithmetic_has_each_pair_once_and_no_held_out_one():
    train, held_out = (set(map(tuple, pairs(s).tolist())) for s in ("train", "held_out"))
    assert not train & held_out
    assert train | held_out == set(itertools.product(range(100), repeat=2))
    assert len(held_out) == 1250
    size = len(train)
    texts = column(arithmetic_prompts(2 * size, start=0, seed=0), "prompt")
    assert set(texts[:size]) == set(texts[size:]) == {f"{a}+{b}=" for a, b in train}
    assert texts[:size] != texts[size:]


def test_unknown_splits_and_counts_are_refused():
    with pytest.raises(UnknownNameError, match="split 'test'; known: held_out, train"):
        arithmetic_source(seed=0, split="test")
    with pytest.raises(ConfigError, match="k must be >= 1"):
        arithmetic_prompts(0, start=0, seed=0)
    with pytest.raises(ConfigError, match="cursor >= 0"):
        arithmetic_source(seed=0).take(4, -1)
