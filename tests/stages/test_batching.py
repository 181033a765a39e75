"""Micro-batches hold every token of every row once, tightly, and results find their way back."""

import time

import numpy as np
import pyarrow as pa
import pytest
import torch

from nbrl.errors import ConfigError, DataError
from nbrl.stages.batching import make_batches, scatter, split_minibatches
from nbrl.types.columns import ragged_column
from tests.values import rollouts_of

PROMPT, POLICY, ENVIRONMENT = 0, 1, 2


def random_rollouts(n, seed=0, longest_prompt=9, longest_response=30, least_response=0):
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, longest_prompt + 1, n)
    responses = rng.integers(least_response, longest_response + 1, n)
    offsets = np.concatenate([[0], np.cumsum(prompts + responses)])
    sources = [
        [PROMPT] * p + [POLICY] * min(r, 1) + [int(s) for s in rng.integers(1, 3, max(r - 1, 0))]
        for p, r in zip(prompts, responses, strict=True)
    ]
    ids = [rng.integers(1, 50, p + r) for p, r in zip(prompts, responses, strict=True)]
    flat = ragged_column(rng.normal(size=offsets[-1]).astype(np.float32), offsets, pa.float32())
    return rollouts_of(sources, ids), flat


def test_protocol_example():
    rollouts = rollouts_of([[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]], [[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]])
    (batch,) = make_batches(rollouts, {}, max_tokens=100)
    order = np.argsort(batch.rows)
    assert batch.prompt_width == 4
    assert batch.input_ids[order].tolist() == [[0, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 0]]
    assert batch.attention_mask[order].tolist() == [[False] + [True] * 5, [True] * 5 + [False]]
    assert batch.mask[order].tolist() == [[True, True], [True, False]]


def shifted(batch):
    """The mask over predicted tokens 1..L-1 that other libraries call the shifted loss mask."""
    lead = batch.prompt_width - 1
    return [0] * lead + batch.mask[0].int().tolist()


def test_first_answer_token_and_eos_both_count():
    # B03: prompt 3 tokens, total 6.
    (batch,) = make_batches(rollouts_of([[0, 0, 0, 1, 1, 1]]), {}, max_tokens=100)
    assert shifted(batch) == [0, 0, 1, 1, 1]


@pytest.mark.parametrize(("length", "expected"), [(8, [0, 1, 1, 1, 0, 0, 1]), (6, [0, 1, 1, 1, 0])])
def test_environment_tokens_are_masked(length, expected):
    # B08: policy ranges [2, 5) and [7, 8).
    source = [0, 0, 1, 1, 1, 2, 2, 1][:length]
    (batch,) = make_batches(rollouts_of([source]), {}, max_tokens=100)
    assert shifted(batch) == expected


def test_eos_counts_where_it_also_pads():
    # B01: ids [5, 9, 2] were sampled, 2 is both EOS and pad; a longer neighbour makes padding.
    rollouts = rollouts_of([[0, 1, 1, 1], [0, 1, 1, 1, 1, 1]], [[7, 5, 9, 2], [7, 1, 1, 1, 1, 2]])
    (batch,) = make_batches(rollouts, {}, max_tokens=100)
    row = int(np.flatnonzero(batch.rows == 0)[0])
    assert batch.mask[row].int().tolist() == [1, 1, 1, 0, 0]
    assert batch.attention_mask[row].int().tolist() == [1, 1, 1, 1, 0, 0]


def test_every_token_arrives_once_and_comes_back():
    rollouts, flat = random_rollouts(200)
    batches = make_batches(rollouts, {"advantages": flat}, max_tokens=300)
    assert sorted(np.concatenate([b.rows for b in batches]).tolist()) == list(range(200))
    ids = rollouts.table.column("token_ids").to_pylist()
    for batch in batches:
        assert batch.input_ids.numel() <= 300 or len(batch.rows) == 1
        for i, row in enumerate(batch.rows):
            assert batch.input_ids[i][batch.attention_mask[i]].tolist() == ids[row]
    back = scatter(batches, [b.columns["advantages"] for b in batches], rollouts)
    sources = rollouts.table.column("source").to_pylist()
    expected = [
        [v if s == POLICY else 0.0 for v, s in zip(values, source, strict=True)]
        for values, source in zip(flat.to_pylist(), sources, strict=True)
    ]
    assert back.to_pylist() == expected


def test_padding_holds_zero_and_false():
    rollouts, flat = random_rollouts(50)
    for batch in make_batches(rollouts, {"advantages": flat}, max_tokens=10_000):
        tail = batch.attention_mask[:, batch.prompt_width :]
        assert not batch.columns["advantages"][~tail].any()
        assert not batch.mask[~tail].any()
        assert not batch.input_ids[~batch.attention_mask].any()


def test_a_given_mask_and_chosen_rows():
    rollouts = rollouts_of([[0, 1, 1], [0, 0, 1, 1], [0, 1]])
    mask = pa.array([[False, True, False], [False] * 4, [False, True]], pa.list_(pa.bool_()))
    (batch,) = make_batches(rollouts, {}, mask=mask, rows=np.array([0, 2]), max_tokens=100)
    order = np.argsort(batch.rows)
    assert batch.rows[order].tolist() == [0, 2]
    assert batch.mask[order].tolist() == [[True, False], [True, False]]
    ones = torch.ones(2, 2, dtype=torch.int64)
    assert scatter([batch], [ones], rollouts).to_pylist() == [[0, 1, 1], [0, 0, 0, 0], [0, 1]]


def test_rows_without_answer_are_kept_harmless():
    rollouts = rollouts_of([[0, 0], [0, 1, 1], [0, 0, 0]])
    batches = make_batches(rollouts, {}, max_tokens=100)
    assert sorted(np.concatenate([b.rows for b in batches]).tolist()) == [0, 1, 2]
    assert sum(int(b.mask.sum()) for b in batches) == 2
    (alone,) = make_batches(rollouts, {}, rows=np.array([0]), max_tokens=100)
    assert alone.mask.tolist() == [[False]]


def test_no_rows_no_batches():
    assert make_batches(rollouts_of([[0, 1]]), {}, rows=np.array([], np.int64), max_tokens=9) == []


def test_a_row_longer_than_the_bound_stands_alone():
    rollouts = rollouts_of([[0, 1], [0] + [1] * 40, [0, 1]])
    widths = {
        tuple(sorted(b.rows)): b.input_ids.shape[1]
        for b in make_batches(rollouts, {}, max_tokens=10)
    }
    assert widths == {(0, 2): 2, (1,): 41}


def test_temperature_travels_with_the_row_and_greedy_is_one():
    rollouts = rollouts_of([[0, 1], [0, 1, 1], [0, 1, 1, 1]], temperature=pa.array([0.5, 0.0, 2.0]))
    for batch in make_batches(rollouts, {}, max_tokens=100):
        assert batch.temperature.tolist() == [[0.5, 1.0, 2.0][r] for r in batch.rows]


def test_bool_columns_come_back_as_bool():
    rollouts = rollouts_of([[0, 1, 1]])
    batches = make_batches(rollouts, {}, max_tokens=100)
    column = scatter(batches, [torch.tensor([[True, False]])], rollouts)
    assert column.type == pa.list_(pa.bool_())
    assert column.to_pylist() == [[False, True, False]]


def test_bad_columns_are_refused():
    rollouts = rollouts_of([[0, 1, 1], [0, 1]])
    short = pa.array([[0.0, 1.0], [0.0, 1.0, 2.0]], pa.list_(pa.float32()))
    with pytest.raises(DataError, match="'advantages' has rows of other lengths"):
        make_batches(rollouts, {"advantages": short}, max_tokens=100)
    mask = pa.array([[False, True, True], [True, True]], pa.list_(pa.bool_()))
    with pytest.raises(DataError, match=r"first in 'p0@0#1' at 0"):
        make_batches(rollouts, {}, mask=mask, max_tokens=100)
    with pytest.raises(DataError, match=r"1 samples start with a policy token, e.g. 'p0@0#0'"):
        make_batches(rollouts_of([[1, 1], [0, 1]]), {}, max_tokens=100)


def test_little_padding_and_few_passes():
    rollouts, _ = random_rollouts(2000, longest_prompt=7, longest_response=200)
    lengths = np.array([len(r) for r in rollouts.table.column("token_ids").to_pylist()])
    batches = make_batches(rollouts, {}, max_tokens=16384)
    assert sum(b.input_ids.numel() for b in batches) < 1.10 * lengths.sum()
    assert len(batches) < 2 * lengths.sum() / 16384 + 12


def test_packed_rows_fill_the_bound_and_none_is_lost():
    rollouts, _ = random_rollouts(200)
    batches = make_batches(rollouts, {}, max_tokens=100, packed=True)
    tokens = [int(b.attention_mask.sum()) for b in batches]
    lengths = [len(ids) for ids in rollouts.table.column("token_ids").to_pylist()]
    assert sum(tokens) == sum(lengths)
    assert sorted(row for b in batches for row in b.rows) == list(range(200))
    assert max(tokens) <= 100
    # no neighbour would still have fitted: rows come by length
    assert all(
        a + max(lengths) > 100 or a + lengths[b.rows[0]] > 100
        for a, b in zip(tokens[:-1], batches[1:], strict=True)
    )


def test_a_packed_row_longer_than_the_bound_stands_alone():
    rollouts = rollouts_of([[0, 1], [0, *[1] * 9], [0, 1, 1]], [[1] * 2, [2] * 10, [3] * 3])
    batches = make_batches(rollouts, {}, max_tokens=4, packed=True)
    assert [b.rows.tolist() for b in batches] == [[0], [2], [1]]


def test_ten_thousand_rows_are_quick():
    rollouts, flat = random_rollouts(10_000, longest_response=60)
    begin = time.process_time()
    batches = make_batches(rollouts, {"advantages": flat}, max_tokens=16384)
    scatter(batches, [b.columns["advantages"] for b in batches], rollouts)
    # Processor time, as the machine may be busy. About 0.3 s; loops over rows take several seconds.
    assert time.process_time() - begin < 2.5


@pytest.mark.parametrize(
    ("n", "parts", "sizes"), [(9, 4, [3, 2, 2, 2]), (10, 3, [4, 3, 3]), (4, 4, [1] * 4)]
)
def test_minibatches_lose_nothing(n, parts, sizes):
    # B26: leftovers are spread, not dropped.
    split = split_minibatches(n, parts, seed=3)
    assert [len(part) for part in split] == sizes
    assert sorted(np.concatenate(split).tolist()) == list(range(n))


def test_minibatches_follow_the_seed():
    as_lists = [[p.tolist() for p in split_minibatches(40, 4, seed)] for seed in (1, 1, 2)]
    assert as_lists[0] == as_lists[1] != as_lists[2]
    assert [p.tolist() for p in split_minibatches(5, 1, 7)] == [[0, 1, 2, 3, 4]]


def test_more_minibatches_than_rows_is_refused():
    with pytest.raises(ConfigError, match="minibatches=5 of a batch of 4 samples"):
        split_minibatches(4, 5, 0)
