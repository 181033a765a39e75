"""DPO by nbrl against TRL's DPOTrainer: same model, pairs, batches, optimizer and start.

    python -m benchmarks.dpo_vs_trl [--steps 50] [--batch 16]

Prints how far the losses are apart, at the last step and at most, and nbrl's median time a step
over TRL's, on the clock, one run after the other.

TRL is not a dependency of nbrl: ``pip install --no-deps -r requirements/bench.txt``.
"""

import argparse
import random
import sys
import warnings
from functools import partial

from benchmarks import beside_trl
from benchmarks.beside_trl import LARGEST_GAP, Course, tell_losses

BETA = 0.1


def rows(count: int) -> list[dict[str, str]]:
    """Sums with a right and a wrong answer."""
    draw = random.Random(0)
    found = []
    for _ in range(count):
        a, b = draw.randrange(100), draw.randrange(100)
        wrong = str(a + b + draw.choice([-10, -1, 1, 10])) + "0" * draw.randrange(20)
        found.append({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": wrong})
    return found


def both(pairs: list[dict[str, str]], steps: int) -> tuple[Course, Course]:
    """The steps of nbrl and of TRL."""
    from trl import DPOConfig, DPOTrainer

    import nbrl

    batch = len(pairs) // steps
    batches = [nbrl.load_pairs(pairs[i * batch : (i + 1) * batch]) for i in range(steps)]
    settings = partial(DPOConfig, beta=BETA, precompute_ref_log_probs=True)
    return (
        beside_trl.by_nbrl(batches, nbrl.DPO(beta=BETA)),
        beside_trl.by_trl(DPOTrainer, settings, pairs, steps=steps),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    ours, theirs = both(rows(asked.steps * asked.batch), asked.steps)
    gap = tell_losses(ours, theirs)
    ours_s, theirs_s = ours.median_seconds, theirs.median_seconds
    print(f"median step: nbrl {ours_s * 1e3:.1f} ms, TRL {theirs_s * 1e3:.1f} ms")
    print(f"nbrl takes {ours_s / theirs_s:.2f} of TRL's time")
    return 0 if gap <= LARGEST_GAP and ours_s < theirs_s else 1


if __name__ == "__main__":
    sys.exit(main())
