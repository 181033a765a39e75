"""DPO by nbrl against TRL's DPOTrainer: same model, pairs, batches, optimizer and start.

    python -m benchmarks.dpo_vs_trl [--steps 50] [--batch 16]

Both train the bundled model on the same batches in the same order, with reference log-probs taken
before the clock starts and no dropout. Prints how far the losses are apart, at the last step and at
most, and nbrl's median time a step over TRL's, on the clock, one run after the other.

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
BETA = 0.1
LARGEST_GAP = 1e-3


def rows(count: int) -> list[dict[str, str]]:
    """Sums with a right and a wrong answer."""
    draw = random.Random(0)
    found = []
    for _ in range(count):
        a, b = draw.randrange(100), draw.randrange(100)
        wrong = str(a + b + draw.choice([-10, -1, 1, 10])) + "0" * draw.randrange(20)
        found.append({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": wrong})
    return found


def by_nbrl(pairs: list[dict[str, str]], steps: int, batch: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step."""
    import nbrl

    trainer = nbrl.Trainer(optimizer=nbrl.Optimizer(lr=LEARNING_RATE, betas=(0.9, 0.999)))
    with tempfile.TemporaryDirectory() as folder:
        session = nbrl.connect(trainer=trainer, run_dir=folder, progress="quiet")
        data = session.tokenize(nbrl.load_pairs(pairs))
        from nbrl.driver.learning import with_reference

        ready = with_reference(session._runtime, data)
        losses, seconds = [], []
        for at in range(steps):
            start = time.perf_counter()
            part: Any = ready[at * batch : (at + 1) * batch]
            result = session.train_step(part, nbrl.DPO(beta=BETA))
            seconds.append(time.perf_counter() - start)
            losses.append(result.metrics["loss"].value)
        session.close()
    return losses, seconds


def by_trl(pairs: list[dict[str, str]], steps: int, batch: int) -> tuple[list[float], list[float]]:
    """Losses and seconds of each step."""
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    from nbrl.backends.checkpoints import ASSETS

    class InOrder(DPOTrainer):
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
        settings = DPOConfig(
            output_dir=folder,
            per_device_train_batch_size=batch,
            max_steps=steps,
            learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant",
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            beta=BETA,
            precompute_ref_log_probs=True,
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
            train_dataset=datasets.Dataset.from_list(pairs),
            processing_class=AutoTokenizer.from_pretrained(place),
            callbacks=[Clock()],
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return losses, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=16)
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    pairs = rows(asked.steps * asked.batch)
    ours, our_seconds = by_nbrl(pairs, asked.steps, asked.batch)
    theirs, their_seconds = by_trl(pairs, asked.steps, asked.batch)
    gaps = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    half = len(our_seconds) // 2
    ours_s, theirs_s = (sorted(s)[half] for s in (our_seconds, their_seconds))
    print(f"loss, first -> last: nbrl {ours[0]:.4f} -> {ours[-1]:.4f}, ", end="")
    print(f"TRL {theirs[0]:.4f} -> {theirs[-1]:.4f}")
    print(f"gap: last step {gaps[-1]:.2e}, largest {max(gaps):.2e} (limit {LARGEST_GAP:.0e})")
    print(f"median step: nbrl {ours_s * 1e3:.1f} ms, TRL {theirs_s * 1e3:.1f} ms")
    print(f"nbrl takes {ours_s / theirs_s:.2f} of TRL's time")
    return 0 if gaps[-1] <= LARGEST_GAP and ours_s < theirs_s else 1


if __name__ == "__main__":
    sys.exit(main())
