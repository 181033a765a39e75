"""Writes the samples of each step beside the training, and bounds what they take.

May import ``types``, ``config``, ``errors`` and its neighbours. One thread writes in order, so a
step waits for the disk only where that is a few steps behind.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any

import pyarrow as pa

from nbrl.config import Store
from nbrl.driver.store.environment import environment
from nbrl.driver.store.files import append_line, read_lines, write_json, write_whole
from nbrl.driver.store.folder import RunFolder
from nbrl.driver.store.mirrors import Mirrors
from nbrl.driver.store.samples import drawn_span, rollouts_file, scores_file
from nbrl.driver.store.secrets import without_secrets
from nbrl.errors import DataError, StoreError
from nbrl.types import Scored

MOST_WAITING = 4
"""Writes that may wait before a step waits for them."""
KINDS = ("rollouts", "scores")


class Recorder:
    """The one writer of a run folder."""

    def __init__(self, folder: RunFolder, settings: Store, spec: Mapping[str, Any]) -> None:
        """Take the folder's lock; what is whole in it is known from its manifest.

        Raises:
            StoreError: Another session writes there, or the folder cannot be written.
        """
        self.folder, self.settings = folder, settings
        self._lock: IO[bytes] = folder.lock()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="nbrl-store")
        self._waiting: list[Future[None]] = []
        self._said: list[str] = []
        self._held = whole_files(folder)
        shown = json.loads(without_secrets(json.dumps(spec, default=str)))
        self._mirrors = Mirrors(settings.mirrors, folder.path, shown)

    def describe_environment(self) -> None:
        """Write down where the run is made, beside the work that follows."""
        self._submit(
            lambda: write_json(self.folder.environment_path, environment()),
            "the environment",
        )

    def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Note that something happened; in order with the samples."""
        self._submit(lambda: self.folder.append_event(kind, facts), f"the event {kind!r}")

    def samples(self, scored: Scored, step: int) -> None:
        """Write the rollouts and scores of a step, if samples are to be kept."""
        if self.settings.samples:
            self._submit(lambda: self._write(scored, step), f"the samples of step {step}")

    def mirror(self, record: Mapping[str, Any], step: int) -> None:
        """Show the metrics of a step wherever else they are wanted."""
        if self.settings.mirrors:
            self._submit(lambda: self._said.extend(self._mirrors.log(record, step)), "the mirrors")

    def flush(self) -> None:
        """Wait until all is on the disk."""
        for future in self._waiting:
            future.result()
        self._waiting.clear()

    def said(self) -> list[str]:
        """What a reader should know since it was asked last: failed writes, removed samples."""
        found, self._said = self._said, []
        return found

    def close(self) -> None:
        """Write what waits and let another writer in; what failed meanwhile is in :meth:`said`."""
        self.flush()
        self._thread.shutdown()
        self._said += self._mirrors.close()
        self._lock.close()

    def forget(self, step: int) -> None:
        """No file of a step after this one is counted any more."""
        self._held = {name: row for name, row in self._held.items() if row["step"] <= step}

    def _submit(self, write: Callable[[], Any], what: str) -> None:
        def guarded() -> None:
            try:
                write()
            except (StoreError, DataError) as error:
                self._said.append(f"{what} could not be kept: {error}")

        if len(self._waiting) >= MOST_WAITING:
            self._waiting.pop(0).result()
        self._waiting = [f for f in self._waiting if not f.done()]
        self._waiting.append(self._thread.submit(guarded))

    def _write(self, scored: Scored, step: int) -> None:
        rows = len(scored)
        facts = {"step": step, "rows": rows, "drawn": drawn_span(scored.rollouts)}
        self._put("rollouts", rollouts_file(scored.rollouts), facts)
        self._put("scores", scores_file(scored), facts)
        if self.settings.quota is not None:
            self._keep_within(self.settings.quota, step)

    def _put(self, kind: str, data: pa.Buffer, facts: Mapping[str, Any]) -> None:
        path = self.folder.table_path(kind, facts["step"])
        try:
            path.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise StoreError(f"could not make {path.parent}: {error}") from error
        write_whole(path, memoryview(data))
        name = str(path.relative_to(self.folder.path))
        row = {
            "file": name,
            **facts,
            "bytes": data.size,
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        append_line(self.folder.manifest_path, row)
        self._held[name] = row

    def _keep_within(self, quota: int, step: int) -> None:
        """Remove the samples of the oldest steps until the rest fits."""
        total = sum(row["bytes"] for row in self._held.values())
        steps = sorted({row["step"] for row in self._held.values()})
        removable = [s for s in steps if s <= step - self.settings.keep_steps]
        gone, freed = [], 0
        while removable and total - freed > quota:
            oldest = removable.pop(0)
            for name in [n for n, row in self._held.items() if row["step"] == oldest]:
                freed += self._held.pop(name)["bytes"]
                append_line(self.folder.manifest_path, {"file": name, "removed": True})
                with contextlib.suppress(OSError):
                    (self.folder.path / name).unlink(missing_ok=True)
            gone.append(oldest)
        if gone:
            facts = {"steps": gone, "bytes": freed, "quota": quota}
            self.folder.append_event("samples removed", facts)
            self._said.append(
                f"the samples of steps {gone} were removed ({freed:,} bytes) to stay within "
                f"Store.quota={quota:,}"
            )


def whole_files(folder: RunFolder) -> dict[str, dict[str, Any]]:
    """The Parquet files that are whole, by name, with step, rows, bytes and hash."""
    held: dict[str, dict[str, Any]] = {}
    for row in read_lines(folder.manifest_path):
        if row.get("removed"):
            held.pop(row["file"], None)
        else:
            held[row["file"]] = row
    return held
