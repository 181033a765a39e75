"""Reward code in processes of its own against a bare loop: what isolation costs.

    python -m benchmarks.scoring [--workers 2]
    python -m benchmarks.scoring --soak 20000

Two bars: 10,000 calls of a plain function take less than 2 s on two cores, and functions of 1 ms
at most 1.3 times as long as a bare loop over them. ``--soak`` scores that many samples of which
1 % hang, 1 % crash and 1 % raise, and checks each verdict, the memory and what is left running.
"""

import argparse
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

from nbrl.backends.rewards import RewardPool, load_reward

CALLS = {"plain": 10_000, "1 ms": 2_000}
MOST_SECONDS, MOST_RATIO = 2.0, 1.3
HANGS, CRASHES, RAISES = range(3)
EXPECTED = {HANGS: "timeout", CRASHES: "error", RAISES: "error"}


def plain(response: str, label: str) -> float:
    """1 for the label."""
    return float(response.strip() == label)


def a_millisecond(response: str, label: str) -> float:
    """1 for the label, after 1 ms of work."""
    end = time.perf_counter() + 1e-3
    while time.perf_counter() < end:
        pass
    return float(response.strip() == label)


def faulty(response: str) -> float:
    """Hangs, crashes or raises on three in a hundred."""
    kind = int(response) % 100
    while kind == HANGS:
        time.sleep(1.0)
    if kind == CRASHES:
        os._exit(1)
    if kind == RAISES:
        raise ValueError("one in a hundred")
    return float(response)


def rows_of(count: int) -> list[dict[str, Any]]:
    """Stored samples."""
    return [
        {
            "sample_id": f"s-{i}",
            "prompt": f"{i} + 1 = ",
            "response": str(i),
            "label": str(i),
            "messages": None,
            "metadata": {},
        }
        for i in range(count)
    ]


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(workers: int) -> bool:
    """Print both bars; whether they hold."""
    pool, held = RewardPool(), []
    for name, function in {"plain": plain, "1 ms": a_millisecond}.items():
        rows = rows_of(CALLS[name])
        reward = load_reward(function)

        def isolated(reward: Any = reward, rows: Any = rows) -> object:
            return pool.score(
                reward, rows, workers=workers, timeout=30.0, advance=lambda done, tokens: None
            )

        cold = seconds(isolated)
        warm = min(seconds(isolated) for _ in range(3))
        bare = min(
            seconds(lambda f=function, r=rows: [f(row["response"], row["label"]) for row in r])
            for _ in range(3)
        )
        small = min(seconds(lambda i=isolated, r=rows: i(rows=r[:256])) for _ in range(5))
        held.append(warm < MOST_SECONDS if name == "plain" else warm <= MOST_RATIO * bare)
        print(
            f"{name}: {len(rows)} calls, bare loop {bare:.3f} s, {workers} workers {warm:.3f} s "
            f"(first time {cold:.3f} s, 256 calls {small * 1e3:.1f} ms) "
            f"{'holds' if held[-1] else 'FAILS'}"
        )
    pool.close()
    return all(held)


def soak(count: int, workers: int) -> bool:
    """Whether each of ``count`` samples gets its verdict, and memory stays flat."""
    pool, rows = RewardPool(), rows_of(count)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    found = pool.score(
        load_reward(faulty), rows, workers=workers, timeout=0.5, advance=lambda done, tokens: None
    )
    took = time.perf_counter() - start
    pool.close()
    wrong = [
        i
        for i, outcome in enumerate(found)
        if outcome.status != EXPECTED.get(i % 100, "ok")
        or (outcome.value != float(i) and outcome.status == "ok")
    ]
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{count} calls in {took:.1f} s, {len(wrong)} wrong verdicts {wrong[:5]}, "
        f"memory grew by {grown:.0f} MiB"
    )
    return not wrong and len(found) == count and grown < 200


def main() -> None:
    """Measure; exit 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description="Reward workers against a bare loop.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--soak", type=int, default=0, metavar="CALLS")
    asked = parser.parse_args()
    held = soak(asked.soak, asked.workers) if asked.soak else compare(asked.workers)
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
