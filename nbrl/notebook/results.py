"""What a cell says of its run by name, where a machine reads it.

May import ``driver.store`` and ``errors``.
"""

import os
from pathlib import Path
from typing import Any

from nbrl.driver.store.files import append_line
from nbrl.driver.store.folder import RunFolder
from nbrl.errors import DataError
from nbrl.types.storage import plain

FOLDER_VARIABLE = "NBRL_RUN_FOLDER"
"""Where a batch run tells its notebook what folder is its own."""


def record(name: str, value: Any, folder: str | os.PathLike | None = None) -> None:
    """Record a result under a name: a number, a text, a list or a dict of these.

    In a batch run it stands in the run's folder, in its one-line summary and in the sweep's table;
    by hand, in ``results.jsonl`` of the working folder, so that a cell does the same everywhere.
    Recording a name again replaces its value.

    Args:
        name: A word.
        value: Plain data; NumPy's and torch's scalars are taken as numbers.
        folder: Where, if not in the batch run's own folder.

    Raises:
        DataError: It is not plain data, or the name is empty.
    """
    if not isinstance(name, str) or not name.strip():
        raise DataError(f"record: a name must be a non-empty text; got {name!r}.")
    if not isinstance(value, str | bytes | list | tuple | dict) and "item" in dir(value):
        value = value.item()
    row = {"name": name, "value": plain(value, f"record({name!r})")}
    where = Path(folder or os.environ.get(FOLDER_VARIABLE, "."))
    append_line(RunFolder(where).results_path, row)
