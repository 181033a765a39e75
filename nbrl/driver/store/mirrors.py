"""Metrics shown elsewhere too: one small opener a service, each loaded when it is asked for.

May import ``config``. The run folder is the record; a mirror that fails is reported and left out,
and never stops a run.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.config import Store

Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Mirror:
    """A service that is open: ``log(values, step)`` and ``close()``."""

    log: Callable[[Values, int], object]
    close: Callable[[], object]


def _tensorboard(folder: Path, spec: Mapping[str, Any]) -> Mirror:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))

    def log(values: Values, step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return Mirror(log, writer.close)


def _wandb(folder: Path, spec: Mapping[str, Any]) -> Mirror:
    import wandb  # pyright: ignore[reportMissingImports] -- optional

    # Offline unless WANDB_MODE says otherwise: nothing leaves the machine unasked.
    mode = os.environ.get("WANDB_MODE", "offline")
    run = wandb.init(name=folder.name, dir=str(folder), config=dict(spec), mode=mode)
    return Mirror(lambda values, step: run.log(dict(values), step=step), run.finish)


def _mlflow(folder: Path, spec: Mapping[str, Any]) -> Mirror:
    import mlflow  # pyright: ignore[reportMissingImports] -- optional

    client = mlflow.MlflowClient(tracking_uri=(folder / "mlflow").as_uri())
    found = client.get_experiment_by_name("nbrl")
    experiment = found.experiment_id if found else client.create_experiment("nbrl")
    run = client.create_run(experiment, run_name=folder.name).info.run_id

    def log(values: Values, step: int) -> None:
        for name, value in values.items():
            client.log_metric(run, name, value, step=step)

    return Mirror(log, lambda: client.set_terminated(run))


def _trackio(folder: Path, spec: Mapping[str, Any]) -> Mirror:
    import trackio  # pyright: ignore[reportMissingImports] -- optional

    run = trackio.init(project="nbrl", name=folder.name, config=dict(spec))
    return Mirror(lambda values, step: run.log(dict(values), step=step), run.finish)


OPENERS: dict[str, Callable[[Path, Mapping[str, Any]], Mirror]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "trackio": _trackio,
}


def mirror_problems(store: Store) -> Iterator[str]:
    """A problem for each mirror whose package is not installed."""
    for name in store.mirrors:
        if name in OPENERS and importlib.util.find_spec(name) is None:
            yield f"Store.mirrors: {name!r} is not installed; run pip install {name}, or drop it"


class Mirrors:
    """The mirrors of a run; each is opened at its first values, and left out once it failed."""

    def __init__(self, names: Sequence[str], folder: Path, spec: Mapping[str, Any]) -> None:
        self._waiting = {name: OPENERS[name] for name in names}
        self._open: dict[str, Mirror] = {}
        self._folder, self._spec = folder, spec

    def log(self, record: Mapping[str, Any], step: int) -> list[str]:
        """What failed, in words."""
        values = {k: float(v) for k, v in record.items() if isinstance(v, int | float)}
        said = []
        for name in list(self._waiting):
            opener = self._waiting.pop(name)
            said += self._guarded(name, lambda n=name, o=opener: self._begin(n, o))
        for name, mirror in list(self._open.items()):
            said += self._guarded(name, lambda m=mirror: m.log(values, step))
        return said

    def close(self) -> list[str]:
        """What failed, in words."""
        return [
            text
            for name, mirror in list(self._open.items())
            for text in self._guarded(name, mirror.close)
        ]

    def _begin(self, name: str, opener: Callable[[Path, Mapping[str, Any]], Mirror]) -> None:
        self._open[name] = opener(self._folder, self._spec)

    def _guarded(self, name: str, work: Callable[[], object]) -> list[str]:
        try:
            work()
        except Exception as error:  # noqa: BLE001 -- whatever a service throws, the run goes on
            self._open.pop(name, None)
            return [f"mirror {name!r} failed and is left out from here on: {error!r}"]
        return []
