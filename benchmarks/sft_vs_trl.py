"""Supervised fine-tuning by nbrl against TRL's SFTTrainer: rows of skewed length, same start.

    python -m benchmarks.sft_vs_trl [--steps 30] [--batch 32]

Both train the bundled model on the same batches in the same order; most rows are short and a few
are long, as conversations are. Prints how far the losses are apart and the tokens that each learns
a second, by the median time of a step, one run after the other.

TRL is not a dependency of nbrl: ``pip install --no-deps -r requirements/bench.txt``.
"""

import argparse
import random
import sys
import tempfile
import time
import warnings
from typing import Any

LEARNING_RATE = 1e-4
LARGEST_GAP = 1e-3
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


def by_nbrl(texts: list[dict[str, str]], steps: int, batch: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step."""
    import nbrl

    trainer = nbrl.Trainer(optimizer=nbrl.Optimizer(lr=LEARNING_RATE, betas=(0.9, 0.999)))
    with tempfile.TemporaryDirectory() as folder:
        session = nbrl.connect(trainer=trainer, run_dir=folder, progress="quiet")
        ready = session.tokenize(nbrl.load_conversations(texts))
        losses, seconds = [], []
        for at in range(steps):
            start = time.perf_counter()
            part: Any = ready[at * batch : (at + 1) * batch]
            result = session.train_step(part, nbrl.SFT())
            seconds.append(time.perf_counter() - start)
            losses.append(result.metrics["loss"].value)
        session.close()
    return losses, seconds


def by_trl(texts: list[dict[str, str]], steps: int, batch: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step."""
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from nbrl.backends.checkpoints import ASSETS

    class InOrder(SFTTrainer):
        def _get_train_sampler(self, dataset=None):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            seconds.append(time.perf_counter() - self.start)

    seconds: list[float] = []
    place = str(ASSETS / "tiny")
    with tempfile.TemporaryDirectory() as folder:
        settings = SFTConfig(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            gradient_checkpointing=False,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
        )
        trainer = InOrder(
            AutoModelForCausalLM.from_pretrained(place),
            args=settings,
            train_dataset=datasets.Dataset.from_list(texts),
            processing_class=AutoTokenizer.from_pretrained(place),
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--batch", type=int, default=32)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = rows(asked.steps * asked.batch)
    ours, our_seconds = by_nbrl(texts, asked.steps, asked.batch)
    theirs, their_seconds = by_trl(texts, asked.steps, asked.batch)
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    half = len(our_seconds) // 2
    tokens = sum(len(t["completion"]) + 1 for t in texts) / asked.steps
    ours_t, theirs_t = (tokens / sorted(s)[half] for s in (our_seconds, their_seconds))
    print(f"loss, first -> last: nbrl {ours[0]:.4f} -> {ours[-1]:.4f}, ", end="")
    print(f"TRL {theirs[0]:.4f} -> {theirs[-1]:.4f}")
    print(f"gap: last step {gaps[-1]:.2e}, largest {max(gaps):.2e} (limit {LARGEST_GAP:.0e})")
    print(f"learned tokens a second: nbrl {ours_t:,.0f}, TRL {theirs_t:,.0f}")
    print(f"nbrl learns {ours_t / theirs_t:.2f} times as many (aim {AIM})")
    return 0 if gaps[-1] <= LARGEST_GAP and ours_t > theirs_t else 1


if __name__ == "__main__":
    sys.exit(main())
