"""Losses over some steps from one start, beside TRL's trainers where those are installed."""

import importlib.util

import pytest

from benchmarks import dpo_vs_trl, sft_vs_trl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("trl") is None, reason="needs TRL, a bench requirement"
    ),
]


@pytest.mark.parametrize("bench", [dpo_vs_trl, sft_vs_trl], ids=["dpo", "sft"])
def test_the_losses_are_trls(bench):
    data = bench.rows(4 * 6)
    ours, _ = bench.by_nbrl(data, 4, 6)
    theirs, _ = bench.by_trl(data, 4, 6)
    assert len(ours) == len(theirs) == 4
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert ours[0] != pytest.approx(ours[-1], abs=1e-3)
