"""Files to start from, each of which runs as it stands: ``nbrl new``. May import ``errors`` only.

The templates lie among the assets.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from nbrl.errors import ConfigError, StoreError, all_problems, unknown_name

FOLDER = Path(__file__).parents[1] / "assets" / "templates"
TEMPLATES: Mapping[str, str] = {
    "reward": "reward.py.txt",
    "math-reward": "math_reward.py.txt",
    "multiturn": "multiturn.py.txt",
    "vlm-multiturn": "vlm_multiturn.py.txt",
    "notebook": "notebook.ipynb.txt",
}
"""The kinds of file by name, and their templates."""


def create(kind: str, output: str | os.PathLike, *, force: bool = False) -> Path:
    """The path of a new file of this kind; folders on the way are made.

    Args:
        kind: One of ``TEMPLATES``.
        output: Where it goes; ``.ipynb`` for a notebook, ``.py`` for the rest.
        force: Overwrite a file that is there.

    Raises:
        ConfigError: No such kind, a name with another ending, or a file that is there.
        StoreError: It cannot be written.
    """
    if kind not in TEMPLATES:
        raise unknown_name("template", kind, TEMPLATES)
    path = Path(output)
    suffix = Path(TEMPLATES[kind].removesuffix(".txt")).suffix
    problems = []
    if path.suffix != suffix:
        problems.append(f"a {kind} is a {suffix} file; got {str(path)!r}")
    if path.is_dir():
        problems.append(f"{str(path)!r} is a folder; name a file in it")
    elif path.exists() and not force:
        problems.append(f"{str(path)!r} is there already; pass --force to overwrite it")
    if problems:
        raise all_problems(f"new {kind}", problems)
    text = (FOLDER / TEMPLATES[kind]).read_text(encoding="utf-8").replace("THIS_FILE", path.name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # "x" and not the look from above: another process may have been quicker
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise ConfigError(f"new {kind}: {error.filename!r} is in the way; pass --force.") from error
    except OSError as error:
        raise StoreError(f"new {kind}: {str(path)!r} cannot be written: {error}") from error
    return path
