"""What a reward file defines, and the answers that are sent to hurt it."""

import runpy
from pathlib import Path
from types import SimpleNamespace

REWARD_FNS = Path(__file__).parents[2] / "reward_fns"
LONG = "x" * 10_000_000
HOSTILE = [
    "",
    " \n\t ",
    "\0",
    "\ud800 \udfff",
    "<think>" * 1000,
    "</think>" * 1000,
    "{" * 50_000,
    r"\boxed{" * 50_000,
    "```python\n" * 20_000,
    "<answer>" * 50_000,
    "(" * 50_000 + ")" * 50_000,
    LONG,
]


def defined(name: str) -> SimpleNamespace:
    """The names of ``reward_fns/<name>.py``, as it is run anew."""
    return SimpleNamespace(**runpy.run_path(str(REWARD_FNS / f"{name}.py")))
