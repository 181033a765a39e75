"""Examples to micro-batches: who stands beside whom, and nothing is lost."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nbrl.errors import DataError
from nbrl.stages.sequences import scatter_rows, sequence_batches, sequences_of, side_columns
from nbrl.types import KINDS
from tests.examples import make_examples, make_tokenized


def tokens_of(batch, row):
    return batch.input_ids[row][batch.attention_mask[row]].tolist()


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(1, 9), st.integers(1, 60), st.integers(0, 99))
def test_every_row_comes_once_whole_and_beside_its_neighbour(kind, count, max_tokens, seed):
    examples = make_tokenized(kind, count, seed=seed)
    table = examples.table.to_pylist()
    first = sequences_of(examples)[0]
    batches = sequence_batches(first, np.arange(count), max_tokens=max_tokens)
    seen = np.concatenate([b.rows for b in batches])
    assert sorted(seen.tolist()) == list(range(count * first.unit))
    sides = KINDS[kind].sides[: first.unit]
    for batch in batches:
        assert batch.rows.tolist() == [
            r - r % first.unit + i % first.unit for i, r in enumerate(batch.rows.tolist())
        ]
        for at, row in enumerate(batch.rows.tolist()):
            example, side = table[row // first.unit], sides[row % first.unit]
            tail = [0] if kind == "steps" else []
            assert tokens_of(batch, at) == example[f"{side}token_ids"] + tail
            assert int(batch.mask[at].sum()) == sum(example[f"{side}mask"])


def test_rows_know_their_margin_and_their_label():
    pairs = make_tokenized("pairs", 3)
    (batch,) = sequence_batches(sequences_of(pairs)[0], np.arange(3), max_tokens=10_000)
    margins = pairs.table.column("margin").to_pylist()
    by_row = [margins[row // 2] for row in batch.rows.tolist()]
    assert batch.per_row["margin"].tolist() == pytest.approx(by_row)
    labelled = make_tokenized("labelled", 4)
    own, other = sequences_of(labelled)
    assert list(own.per_row) == ["desirable"]
    assert other.per_row["mismatched"].tolist() == [1.0] * 4


def test_the_step_after_a_placeholder_is_what_is_scored():
    steps = make_tokenized("steps", 1)
    (batch,) = sequence_batches(sequences_of(steps)[0], np.arange(1), max_tokens=100)
    mask, labels = steps[0]["mask"], steps[0]["step_labels"]
    places = [batch.prompt_width + int(t) for t in batch.mask[0].nonzero()]
    # what scores the token at a place is read from the place before it
    assert [p - 1 for p in places] == [i for i, m in enumerate(mask) if m]
    got = batch.columns["step_labels"][0][batch.mask[0]].tolist()
    assert got == pytest.approx([x for x, m in zip(labels, mask, strict=True) if m])


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["conversations", "pairs"]), st.integers(1, 7), st.integers(1, 60))
def test_a_column_scattered_comes_back_to_its_rows(kind, count, max_tokens):
    examples = make_tokenized(kind, count)
    (sequences,) = sequences_of(examples)
    batches = sequence_batches(sequences, np.arange(count), max_tokens=max_tokens)
    flat = scatter_rows(sequences, batches, [b.columns["ref_logprobs"] for b in batches])
    back = side_columns(sequences, flat, examples.sides, "ref_logprobs")
    for name, column in back.items():
        wanted = examples.table.column(name).to_pylist()
        assert column.to_pylist() == [pytest.approx(row) for row in wanted]


def test_what_is_not_tokenized_is_refused():
    with pytest.raises(DataError, match=r"no token columns; call session\.tokenize"):
        sequences_of(make_examples("pairs", 2))


def test_a_first_token_that_is_learned_is_refused():
    examples = make_tokenized("conversations", 2)
    column = [[True] * len(row) for row in examples.table.column("mask").to_pylist()]
    wrong = examples.with_columns({"mask": pa.array(column)})
    with pytest.raises(DataError, match="nothing predicts"):
        sequences_of(wrong)


def test_margins_are_float32():
    (sequences,) = sequences_of(make_tokenized("pairs", 2))
    (batch,) = sequence_batches(sequences, np.arange(2), max_tokens=100)
    assert batch.per_row["margin"].dtype == torch.float32
