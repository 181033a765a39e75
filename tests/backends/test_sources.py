"""The cursor over epochs: nothing is lost, and the order is the same on every machine."""

import hashlib

import numpy as np
import pytest

from nbrl.backends.sources import prompts_source, prompts_table, seeded_order
from nbrl.errors import ConfigError
from nbrl.types import Prompts


def column(prompts: Prompts, name: str) -> list:
    return prompts.table.column(name).to_pylist()


def test_the_seeded_order_is_the_same_everywhere():
    # The order that sorts the first eight numbers of SplitMix64, by integers of Python.
    start, mixed = int.from_bytes(hashlib.sha256(b"nbrl").digest()[:8], "little"), []
    for i in range(1, 9):
        z = (start + i * 0x9E3779B97F4A7C15) % 2**64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
        mixed.append(z ^ (z >> 31))
    wanted = sorted(range(8), key=mixed.__getitem__)
    assert seeded_order(8, "nbrl").tolist() == wanted == [7, 0, 4, 1, 5, 3, 6, 2]
    assert sorted(seeded_order(1000, "x").tolist()) == list(range(1000))
    firsts = np.array([seeded_order(10, f"{i}")[0] for i in range(2000)])
    counts = np.bincount(firsts, minlength=10)
    # 200 each are expected, with a standard deviation of 13.
    assert counts.min() > 140
    assert counts.max() < 260


def numbered(count: int) -> Prompts:
    rows = [{"prompt_id": f"row-{i}", "prompt": f"{i}", "metadata": "{}"} for i in range(count)]
    return Prompts(table=prompts_table(rows))


def test_a_source_walks_each_epoch_once_and_loses_no_leftover():
    source = prompts_source(numbered(10), seed=1)
    walked = [source.take(4, cursor) for cursor in range(0, 40, 4)]
    texts = [t for p in walked for t in column(p, "prompt")]
    epochs = [texts[i : i + 10] for i in range(0, 40, 10)]
    assert all(sorted(e, key=int) == [str(i) for i in range(10)] for e in epochs)
    assert len({tuple(e) for e in epochs}) == 4
    assert column(source.take(3, 7), "prompt") == texts[7:10]


def test_a_prompt_that_comes_twice_in_one_draw_is_two_groups():
    source = prompts_source(numbered(5), seed=0)
    drawn = source.take(5, 3)
    ids = column(drawn, "prompt_id")
    assert len(set(ids)) == 5
    for prompt_id, text in zip(ids, column(drawn, "prompt"), strict=True):
        assert prompt_id in (f"row-{text}", f"row-{text}+1")
    assert any(
        i.endswith("+1") for c in range(1, 5) for i in column(source.take(5, c), "prompt_id")
    )


def test_more_than_there_is_cannot_be_drawn_at_once():
    source = prompts_source(numbered(3), seed=0, name="mine")
    with pytest.raises(ConfigError, match="4 prompts were asked for at once, 'mine' has 3"):
        source.take(4, 0)
    with pytest.raises(ConfigError, match="no prompts to draw from"):
        prompts_source(numbered(0), seed=0)


def test_fingerprints_tell_data_apart():
    one, same = prompts_source(numbered(3), seed=0), prompts_source(numbered(3), seed=1)
    assert one.fingerprint == same.fingerprint
    assert one.fingerprint != prompts_source(numbered(4), seed=0).fingerprint
    assert one.fingerprint != prompts_source(numbered(3)[::-1], seed=0).fingerprint
