"""Supervised fine-tuning by nbrl against TRL's SFTTrainer: rows of skewed length, same start.

    python -m benchmarks.sft_vs_trl [--steps 30] [--batch 32]

Most rows are short and a few are long, as conversations are. Prints how far the losses are apart
and the tokens that each learns a second, by the median time of a step, one run after the other.

TRL is not a dependency of nbrl: ``pip install --no-deps -r requirements/bench.txt``.
"""

import argparse
import random
import sys
import warnings

from benchmarks import beside_trl
from benchmarks.beside_trl import LARGEST_GAP, Course, tell_losses

AIM = 1.5


def rows(count: int) -> list[dict[str, str]]:
    """Sums, one in eight of them with a long working behind it."""
    draw = random.Random(0)
    found = []
    for _ in range(count):
        a, b = draw.randrange(100), draw.randrange(100)
        long = draw.random() < 1 / 8
        working = "+".join("1" for _ in range(draw.randrange(60, 110))) if long else ""
        found.append({"prompt": f"{a}+{b}=", "completion": f"{a + b}{working}"})
    return found


def both(texts: list[dict[str, str]], steps: int) -> tuple[Course, Course]:
    """The steps of nbrl and of TRL."""
    from trl import SFTConfig, SFTTrainer

    import nbrl

    batch = len(texts) // steps
    batches = [nbrl.load_conversations(texts[i * batch : (i + 1) * batch]) for i in range(steps)]
    return (
        beside_trl.by_nbrl(batches, nbrl.SFT()),
        beside_trl.by_trl(SFTTrainer, SFTConfig, texts, steps=steps),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = rows(asked.steps * asked.batch)
    ours, theirs = both(texts, asked.steps)
    gap = tell_losses(ours, theirs)
    tokens = sum(len(t["completion"]) + 1 for t in texts) / asked.steps
    ours_t, theirs_t = (tokens / course.median_seconds for course in (ours, theirs))
    print(f"learned tokens a second: nbrl {ours_t:,.0f}, TRL {theirs_t:,.0f}")
    print(f"nbrl learns {ours_t / theirs_t:.2f} times as many (aim {AIM})")
    return 0 if gap <= LARGEST_GAP and ours_t > theirs_t else 1


if __name__ == "__main__":
    sys.exit(main())
