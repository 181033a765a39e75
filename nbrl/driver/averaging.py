"""The running average of the policy's weights, where a verb is to work with it.

May import what ``runtime`` may.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from nbrl.driver.runtime import Runtime
from nbrl.protocols import Averaging
from nbrl.rules import kind_problems


def averaging_problems(runtime: Runtime, averaged: object) -> Iterator[str]:
    """Why the average cannot be asked for; none where it is not."""
    yield from kind_problems({"averaged": (averaged, bool)})
    if averaged is True and not keeps_average(runtime):
        yield (
            "averaged=True: this session's trainer keeps no average of the weights; connect with "
            "trainer=Trainer(ema_decay=0.999)"
        )


def keeps_average(runtime: Runtime) -> bool:
    """Whether the trainer keeps one."""
    return isinstance(runtime.trainer, Averaging) and runtime.trainer.keeps_average


@contextmanager
def averaged_policy(runtime: Runtime) -> Iterator[None]:
    """Trainer and engine hold the average in this block, and the policy's own weights after it.

    However it ends, and wherever an interrupt strikes, the engine has its weights back.
    """
    trainer = runtime.trainer
    assert isinstance(trainer, Averaging)
    given_back = False

    def give_back() -> None:
        nonlocal given_back
        if not given_back:
            runtime.engine.load_weights(runtime.weights_to_send(), runtime.version)
            given_back = True

    try:
        try:
            with trainer.averaged():
                runtime.engine.load_weights(runtime.weights_to_send(), runtime.version)
                yield
        finally:
            give_back()
    finally:
        give_back()
