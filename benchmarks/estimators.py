"""Seconds for the advantages of 100,000 samples of up to 512 tokens, beside a row-by-row loop.

``python -m benchmarks.estimators``. The loop is timed in the same run on a slice of the rows and
its time multiplied up. Bars: every critic-free estimator under 1 s, GAE under 3 s, each at least
20 times as fast as the loop. The best of a few repeats is judged, because what else runs on the
machine only adds. Exits with 1 where a bar is missed.
"""

import functools
import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from nbrl.functional.estimators import ESTIMATORS, estimate
from tests import naive

NUM_ROWS, WIDTH, GROUP = 100_000, 512, 8
SLICE = 160
REPEATS = 5
FREE_BAR, GAE_BAR, RATIO_BAR = 1.0, 3.0, 20.0


def main() -> int:
    """Print the table; the exit code says whether all bars are met."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, WIDTH + 1, (NUM_ROWS,), generator=generator)
    mask = torch.arange(WIDTH) < lengths.unsqueeze(1)
    rewards = torch.randint(0, 2, (NUM_ROWS,), generator=generator).float()
    group_ids = torch.arange(NUM_ROWS) // GROUP
    values = torch.rand(NUM_ROWS, WIDTH, generator=generator)
    print(
        f"{NUM_ROWS} samples x {WIDTH} tokens, groups of {GROUP}, {torch.get_num_threads()} threads"
    )
    print(f"{'estimator':<24}{'median s':>10}{'best s':>10}{'loop s':>10}{'ratio':>8}  bars")
    good = True
    for name, row in ESTIMATORS.items():
        critic = values if row.needs_values else None
        median, best = _timed(
            functools.partial(estimate, name, rewards, group_ids, mask, values=critic)
        )
        loop = _loop_seconds(name, rewards, group_ids, mask, critic)
        met = best < (GAE_BAR if row.needs_values else FREE_BAR) and loop / best >= RATIO_BAR
        good &= met
        verdict = "met" if met else "MISSED"
        print(f"{name:<24}{median:>10.3f}{best:>10.3f}{loop:>10.1f}{loop / best:>7.0f}x  {verdict}")
    return 0 if good else 1


def _timed(work: Callable[[], object]) -> tuple[float, float]:
    """Median and best seconds after one warm-up."""
    work()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken), min(taken)


def _loop_seconds(
    name: str, rewards: Tensor, group_ids: Tensor, mask: Tensor, values: Tensor | None
) -> float:
    """Seconds the plain Python loop would take for all rows, from a slice of them."""
    start = time.perf_counter()
    naive.estimate(
        ESTIMATORS[name],
        rewards[:SLICE].tolist(),
        group_ids[:SLICE].tolist(),
        mask[:SLICE].tolist(),
        values=None if values is None else values[:SLICE].tolist(),
    )
    return (time.perf_counter() - start) * NUM_ROWS / SLICE


if __name__ == "__main__":
    sys.exit(main())
