"""Metrics of a step: means weighed by what they are means over, and what the batch itself says."""

import numpy as np
import pyarrow as pa
import pytest
import torch

from nbrl.driver.metrics import batch_metrics, merge_terms, step_record, token_table
from nbrl.protocols import LossTerms
from nbrl.stages.advantages import compute_advantages
from nbrl.stages.batching import make_batches
from nbrl.types import Metric, StepResult
from tests.values import make_prompts, make_rollouts, make_scored


def terms(**metrics: Metric) -> LossTerms:
    return LossTerms(metrics=metrics, tokens=[])


def test_means_are_weighed_by_their_counts_and_plain_numbers_are_not():
    first = terms(
        loss=Metric(value=1.0, count=30, of="tokens"),
        lr=Metric(value=0.5),
        tokens=Metric(value=30.0),
        ratio_max=Metric(value=3.0),
    )
    second = terms(
        loss=Metric(value=5.0, count=10, of="tokens"),
        lr=Metric(value=0.25),
        tokens=Metric(value=10.0),
        ratio_max=Metric(value=2.0),
        kl=Metric(value=0.1, count=10, of="tokens"),
    )
    merged = merge_terms([first, second])
    assert merged["loss"] == Metric(value=2.0, count=40, of="tokens")
    assert merged["lr"].value == 0.375
    assert merged["tokens"].value == 40
    assert merged["ratio_max"].value == 3
    assert merged["kl"] == second.metrics["kl"]


def a_batch():
    """Two groups of two: one live, one dead; answers of 3, 1, 2 and 2 tokens, one cut."""
    cut = {"truncated": pa.array([True, False, False, False])}
    rollouts = make_rollouts(make_prompts(2), [3, 1, 2, 2]).with_columns(cut)
    return compute_advantages(make_scored(rollouts, [1.0, 0.0, 0.5, 0.5]), "dr_grpo")


def test_what_the_batch_says():
    found = batch_metrics(a_batch())
    values = {name: (m.value, m.count, m.of) for name, m in found.items()}
    assert values == {
        "reward": (0.5, 4, "samples"),
        "shaped_reward": (0.5, 4, "samples"),
        "group_reward_std": (pytest.approx(0.5**0.5 / 2), 2, "groups"),
        "live_groups": (0.5, 2, "groups"),
        "response_length": (2.0, 4, "samples"),
        "truncated": (0.25, 4, "samples"),
    }


def test_tokens_of_several_epochs_are_the_last_ones():
    batch = a_batch()
    whole = make_batches(batch.scored.rollouts, {}, max_tokens=1000)
    said = [
        LossTerms(metrics={}, tokens=[{"ratio": torch.full(b.mask.shape, x)} for b in whole])
        for x in (1.0, 2.0)
    ]
    table = token_table(batch, [whole, whole], said)
    assert table["sample_id"].equals(batch.table["sample_id"])
    rows = table["ratio"].to_pylist()
    assert rows == [[0.0] + [2.0] * n for n in (3, 1, 2, 2)]


def test_a_record_is_flat():
    result = StepResult(
        version_before=4,
        version_after=5,
        metrics={"loss": Metric(value=-0.5, count=8, of="tokens")},
        tokens=pa.table({"sample_id": np.array([], str)}),
        seconds={"train": 0.25},
    )
    assert step_record(result) == {"version": 5, "loss": -0.5, "seconds_train": 0.25}
