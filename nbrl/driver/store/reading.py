"""Reads a run folder, while it is written too: nothing is loaded before it is asked for.

May import ``types``, ``errors`` and its neighbours.
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from nbrl.driver.store.checkpoints import checkpoints_of, latest_tag
from nbrl.driver.store.files import read_json, read_lines
from nbrl.driver.store.folder import RunFolder
from nbrl.driver.store.recording import KINDS, whole_files
from nbrl.driver.store.samples import drawn_at, opened, read_rollouts, read_scored
from nbrl.errors import DataError, StoreError, unknown_name
from nbrl.types import History, Rollouts, Scored

TRIES = 3
"""Times that a column is asked for again where files were removed while it was read."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run folder, for reading.

    Example::

        run = nbrl.open_run("runs/20260101-120000-tiny")
        run.history().to_pandas()["reward"].plot()
        run.sample("arithmetic-0@3#1")["response"]
        session.score(run.rollouts(4), another_reward)
    """

    folder: RunFolder

    @property
    def path(self) -> Path:
        """The folder."""
        return self.folder.path

    @property
    def spec(self) -> Mapping[str, Any]:
        """The resolved settings of the session, and its parent where it is a fork."""
        return self.folder.read_config()

    @property
    def environment(self) -> Mapping[str, Any]:
        """Versions, source revision, host and devices; empty where they are not written yet."""
        path = self.folder.environment_path
        return read_json(path) if path.is_file() else {}

    def history(self) -> History:
        """The metrics of every step."""
        return History(records=tuple(self.folder.read_metrics()), spec=self.spec)

    def events(self) -> pd.DataFrame:
        """What else happened, one row each."""
        return pd.DataFrame(read_lines(self.folder.events_path))

    def results(self) -> dict[str, Any]:
        """What cells recorded with ``nbrl.record``, by name; the last one of each."""
        return {row["name"]: row["value"] for row in read_lines(self.folder.results_path)}

    def checkpoints(self) -> pd.DataFrame:
        """One row a checkpoint: tag, version, bytes, whether it is the latest."""
        latest = latest_tag(self.folder)
        rows = [
            {"tag": c.tag, "version": c.version, "bytes": c.size, "latest": c.tag == latest}
            for c in checkpoints_of(self.folder)
        ]
        return pd.DataFrame(rows, columns=["tag", "version", "bytes", "latest"])

    def steps(self) -> list[int]:
        """The steps whose samples are kept, named by the policy version after them."""
        return [row["step"] for row in self._files("rollouts")]

    def rollouts(self, step: int) -> Rollouts:
        """The rollouts of a step, ready to be scored again.

        Raises:
            UnknownNameError: That step's samples are not kept.
        """
        self._check_step(step)
        return read_rollouts(self.folder.table_path("rollouts", step))

    def scored(self, step: int) -> Scored:
        """The rollouts of a step with the scores that they had, ready for advantages.

        Raises:
            UnknownNameError: That step's samples are not kept.
        """
        self._check_step(step)
        paths = (self.folder.table_path(kind, step) for kind in ("rollouts", "scores"))
        return read_scored(*paths)

    def sample(self, which: str | int) -> dict[str, Any]:
        """One sample, rollout and scores together, by its id or its place among all.

        Raises:
            DataError: There is no such sample.
        """
        step, row = self._place(which) if isinstance(which, int) else self._find(which)
        found: dict[str, Any] = {"step": step}
        for kind in ("scores", "rollouts"):
            with opened(self.folder.table_path(kind, step)) as file:
                found = {**_row(file, row), **found}
        return found

    def column(self, name: str) -> pa.ChunkedArray:
        """A column of all samples in order of their steps; null where a step has none.

        Raises:
            UnknownNameError: No step has it.
        """
        for _ in range(TRIES):
            # the writer may remove old steps meanwhile, as its quota says
            with contextlib.suppress(FileNotFoundError):
                return self._column(name)
        return self._column(name)

    def _column(self, name: str) -> pa.ChunkedArray:
        for kind in ("scores", "rollouts"):
            paths = [str(self.path / row["file"]) for row in self._files(kind)]
            # the ends first: a column that only steps between them have is rare
            for asked in (paths[:1] + paths[1:][-1:], paths):
                schemas = (pq.read_schema(path) for path in asked)
                schema = pa.unify_schemas([s.remove_metadata() for s in schemas])
                if name in schema.names:
                    data = pads.dataset(paths, schema=schema, format="parquet")
                    return data.to_table(columns=[name]).column(0)
        raise unknown_name("column", name, self.columns())

    def columns(self) -> list[str]:
        """The columns that the newest step has."""
        steps = self.steps()
        if not steps:
            return []
        paths = [self.folder.table_path(kind, steps[-1]) for kind in ("rollouts", "scores")]
        return list(dict.fromkeys(n for path in paths for n in pq.read_schema(path).names))

    def __len__(self) -> int:
        """How many samples are kept."""
        return sum(row["rows"] for row in self._files("rollouts"))

    def __repr__(self) -> str:
        steps = self.steps()
        kept = f"samples of {len(steps)} steps ({len(self):,})" if steps else "no samples"
        name = self.spec["name"]
        return f"Run({name!r}, {len(self.folder.read_metrics())} steps, {kept}, {self.path})"

    def _files(self, kind: str) -> Sequence[Mapping[str, Any]]:
        path = self.folder.manifest_path
        if not path.is_file():
            return ()
        facts = path.stat()
        return _files_of(self.folder, facts.st_size, facts.st_mtime_ns)[kind]

    def _check_step(self, step: int) -> None:
        if step not in self.steps():
            raise unknown_name("step", step, map(str, self.steps()))

    def _place(self, index: int) -> tuple[int, int]:
        rows = self._files("rollouts")
        ends = np.cumsum([row["rows"] for row in rows], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        if not -total <= index < total:
            raise DataError(f"sample {index} of {total}: pass a place inside, or a sample id.")
        at = int(np.searchsorted(ends, index % total, side="right"))
        return rows[at]["step"], index % total - (int(ends[at]) - rows[at]["rows"])

    def _find(self, sample_id: str) -> tuple[int, int]:
        for step in self._likely(sample_id):
            with opened(self.folder.table_path("scores", step)) as file:
                ids = file.read(columns=["sample_id"]).column(0)
            row = pc.call_function("index", [ids], pc.IndexOptions(pa.scalar(sample_id))).as_py()
            if row >= 0:
                return step, row
        raise DataError(f"no sample {sample_id!r} among {len(self):,} of {self.path}.")

    def _likely(self, sample_id: str) -> list[int]:
        """The kept steps that may have a sample of this id, those soon after it was drawn first."""
        drawn, rows = drawn_at(sample_id), self._files("scores")
        if drawn is None:
            return [row["step"] for row in rows]
        spans = {row["step"]: row.get("drawn") or (drawn, drawn) for row in rows}
        inside = [step for step, (low, high) in spans.items() if low <= drawn <= high]
        return sorted(inside, key=lambda step: (step <= drawn, abs(step - drawn)))


def open_run(path: str | os.PathLike) -> Run:
    """A run folder, for reading: lazily, and while another process writes it.

    Raises:
        StoreError: There is no run.
    """
    folder = RunFolder(Path(path).resolve())
    if not folder.config_path.is_file():
        raise StoreError(f"{path} is no run folder: it has no {folder.config_path.name}.")
    return Run(folder)


@lru_cache(maxsize=32)
def _files_of(
    folder: RunFolder, size: int, modified: int
) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The files of the steps that are whole; read again where the manifest has changed."""
    rows = sorted(whole_files(folder).values(), key=lambda row: row["step"])
    files = {kind: [r for r in rows if r["file"].startswith(f"{kind}/")] for kind in KINDS}
    whole = set.intersection(*({row["step"] for row in mine} for mine in files.values()))
    return {kind: tuple(r for r in mine if r["step"] in whole) for kind, mine in files.items()}


def _row(file: pq.ParquetFile, row: int) -> dict[str, Any]:
    """A row as a dict, by reading the group that it stands in."""
    for group in range(file.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        if row < size:
            return file.read_row_group(group, use_threads=False).slice(row, 1).to_pylist()[0]
        row -= size
    raise DataError(f"row {row} lies beyond the file.")
