"""Steps of nbrl and of a trainer of TRL from the same start on the same batches.

What the benches beside TRL share. Batches come in the same order, and both train the bundled model
without dropout, by AdamW with a constant learning rate and gradients clipped to norm 1; reference
log-probs are there before the clock starts. TRL is not a dependency of nbrl.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.config import Objective
from nbrl.types import Examples

LEARNING_RATE = 1e-4
LARGEST_GAP = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """The loss and the seconds of each step."""

    losses: list[float]
    seconds: list[float]

    @property
    def median_seconds(self) -> float:
        """Of a step."""
        return sorted(self.seconds)[len(self.seconds) // 2]


def by_nbrl(
    batches: Sequence[Examples], objective: Objective, *, model: str = "tiny", head: str = "lm"
) -> Course:
    """A step on each batch, in a session of its own."""
    import nbrl
    from nbrl.driver.learning import prepared

    trainer = nbrl.Trainer(optimizer=nbrl.Optimizer(lr=LEARNING_RATE, betas=(0.9, 0.999)))
    losses, seconds = [], []
    with tempfile.TemporaryDirectory() as folder:
        session = nbrl.connect(
            model=nbrl.Model(model, head=head), trainer=trainer, run_dir=folder, progress="quiet"
        )
        ready = [prepared(session._runtime, batch, objective) for batch in batches]
        for batch in ready:
            start = time.perf_counter()
            result = session.train_step(batch, objective)
            seconds.append(time.perf_counter() - start)
            losses.append(result.metrics["loss"].value)
        session.close()
    return Course(losses=losses, seconds=seconds)


def by_trl(
    trainer: Any, settings: Any, rows: list[dict[str, Any]], *, steps: int, model: Any = None
) -> Course:
    """As many steps of a trainer of TRL, on the rows in their order.

    Args:
        trainer: Its class.
        settings: Makes its config from keyword arguments; what all benches share is added here.
        rows: Of its data set.
        steps: How many, each of an equal share of the rows.
        model: What it trains; by default the bundled language model.
    """
    import datasets
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback

    class InOrder(trainer):
        def _get_train_sampler(self, dataset=None):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    class Clock(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            seconds.append(time.perf_counter() - self.start)

    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        config = settings(
            output_dir=folder,
            per_device_train_batch_size=len(rows) // steps,
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
        made = InOrder(
            AutoModelForCausalLM.from_pretrained(tiny()) if model is None else model,
            args=config,
            train_dataset=datasets.Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(tiny()),
            callbacks=[Clock()],
        )
        made.remove_callback(PrinterCallback)
        made.train()
    losses = [line["loss"] for line in made.state.log_history if "loss" in line]
    return Course(losses=losses, seconds=seconds)


def tiny() -> str:
    """The folder of the bundled model."""
    from nbrl.backends.checkpoints import ASSETS

    return str(Path(ASSETS) / "tiny")


def tell_losses(ours: Course, theirs: Course) -> float:
    """Print how both losses went; how far they are apart at the last step."""
    gaps = [abs(a - b) for a, b in zip(ours.losses, theirs.losses, strict=True)]
    print(f"loss, first -> last: nbrl {ours.losses[0]:.4f} -> {ours.losses[-1]:.4f}, ", end="")
    print(f"TRL {theirs.losses[0]:.4f} -> {theirs.losses[-1]:.4f}")
    print(f"gap: last step {gaps[-1]:.2e}, largest {max(gaps):.2e} (limit {LARGEST_GAP:.0e})")
    return gaps[-1]
