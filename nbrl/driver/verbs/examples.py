"""The verbs that learn from data which nobody sampled.

May import ``types``, ``config`` and the rest of ``driver``.
"""

import os
from pathlib import Path

from nbrl.config import HeldOut, Objective
from nbrl.driver import exporting, fitting, learning
from nbrl.driver.verbs.calling import Opened, call
from nbrl.types import Examples, History


def tokenize(
    session: Opened,
    examples: Examples,
    max_length: int | None = None,
    *,
    turns: str = "all",
    placeholder: str = "\n",
) -> Examples:
    """The examples with token columns: which tokens are there, and which of them are learned.

    Args:
        examples: What to learn from. Rows that do not fit are left out, counted and named.
        max_length: The longest row in tokens; the model's context by default.
        turns: Learn ``"all"`` answers of a conversation, or the ``"last"`` one.
        placeholder: What follows each step of a solution; one token.
    """
    return call(session, "tokenize", learning.tokenize, examples, max_length, turns, placeholder)


def fit(
    session: Opened,
    data: Examples,
    objective: Objective,
    epochs: int = 1,
    *,
    batch_size: int = 32,
    held_out: HeldOut | Examples | None = None,
) -> History:
    """Steps over all examples, epoch after epoch. After Ctrl-C: those taken.

    Args:
        data: What to learn from; tokenized by default settings where it is not yet.
        objective: ``nbrl.SFT()``, ``DPO()``, ``KTO()``, ``RewardLoss()``, ...
        epochs: Passes over the data, each in its own order.
        batch_size: Examples a step; the last batch of an epoch is as short as it is.
        held_out: Examples to measure the objective on, or ``nbrl.HeldOut`` with when to look
            and which weights to keep. Where the trainer keeps an average of the weights, it is
            measured beside them (``held_out_averaged_loss``).
    """
    return call(
        session,
        "fit",
        fitting.fit,
        data,
        objective,
        epochs=epochs,
        batch_size=batch_size,
        held_out=held_out,
    )


def export(
    session: Opened,
    path: str | os.PathLike,
    *,
    adapter: bool = False,
    scale_on: Examples | None = None,
    averaged: bool = False,
) -> Path:
    """The folder with the trained model, as transformers and vLLM load it.

    A reward model becomes a sequence classifier with one label; its config holds the mean and
    std of its scores, and of what.

    Args:
        path: A folder that does not exist, or is empty.
        adapter: Write the LoRA adapter alone instead of merging it, in float32.
        scale_on: Pairs to take a reward model's scale from; the training data by default.
        averaged: Write the running average of the weights that ``Trainer.ema_decay`` keeps.
    """
    return call(
        session,
        "export",
        exporting.export,
        path,
        adapter=adapter,
        scale_on=scale_on,
        averaged=averaged,
    )
