"""The sample browser: every sample of a value, its group, its tokens and all their numbers.

May import ``types``, ``errors`` and its neighbours; anywidget inside a function.
"""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from nbrl.errors import ConfigError, DataError
from nbrl.notebook.reprs import register
from nbrl.notebook.views.chain import Chain, Samples, chain_of
from nbrl.notebook.views.saved import saved_html
from nbrl.notebook.views.source import SampleSource
from nbrl.notebook.views.tokens import Decode, bundled_decoder
from nbrl.types import Probe, StepResult
from nbrl.types.columns import indices_of

MODES = ("auto", "live", "static")
# Set by JupyterLab's server, VS Code and Colab for the kernels that they show.
FRONT_ENDS = ("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD", "COLAB_RELEASE_TAG")
MODE_VARIABLE = "NBRL_DISPLAY"


def browse(
    value: Samples,
    *,
    step: StepResult | Probe | None = None,
    columns: Mapping[str, Sequence[float]] | pd.DataFrame | None = None,
    plot: tuple[str, str] | None = None,
    decode: Decode | None = None,
    mode: str = "auto",
) -> Any:
    """A browser of the samples: table, filters, plot, groups, and tokens coloured by any number.

    Shown as the last expression of a cell. ``browser.selection`` is a value of the same type with
    the samples that are ticked in it; ``browser.to_html()`` is the picture for files. Where a
    front end is there, it is a live widget (an ``ipywidgets.DOMWidget``), else a saved view.

    Args:
        value: ``Rollouts``, ``Scored`` or ``Advantaged``.
        step: A step or a probe of these samples, for ``ratio``, ``clipped`` and ``loss`` a token.
        columns: Further numbers to sort, filter and plot by: lists in the samples' order, or a
            frame indexed by ``sample_id``.
        plot: The two columns that a plot starts with.
        decode: Lists of token ids to texts; by default the tokenizer of the model that sampled,
            where it lies on this machine.
        mode: ``"live"``, ``"static"``, or ``"auto"``: the variable ``NBRL_DISPLAY``, else live
            where JupyterLab, VS Code or Colab runs this kernel and anywidget is installed.

    Raises:
        ConfigError: An unknown mode or plot column, or a live one without anywidget.
        DataError: ``value`` has no samples' kind, or columns do not fit it.
    """
    register()
    chain = chain_of(value)
    source = SampleSource(
        value,
        columns=_numbers(chain, columns),
        step=None if step is None else step.tokens,
        decode=_decoder(chain) if decode is None else decode,
    )
    _check_plot(source, plot)
    if display_mode(mode) == "static":
        return SavedBrowser(source, plot)
    from nbrl.notebook.views.widget import Browser

    return Browser(source, plot)


class SavedBrowser:
    """The browser without a kernel: what a live one leaves in files."""

    def __init__(self, source: SampleSource, plot: tuple[str, str] | None) -> None:
        self._source = source
        self._plot = plot
        self.selected: list[int] = []

    @property
    def value(self) -> Samples:
        """What is browsed."""
        return self._source.value

    @property
    def selection(self) -> Any:
        """The samples of ``selected`` as a value of the same type."""
        return self._source.select(self.selected)

    def to_html(self) -> str:
        """The view as one piece of HTML that needs no kernel and no network."""
        return saved_html(self._source, self._plot)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return f"Browser({self._source.value!r}, {len(self.selected)} selected)"


def display_mode(asked: str = "auto") -> str:
    """``"live"`` or ``"static"``: what is asked for, else what ``NBRL_DISPLAY`` or the place says.

    Raises:
        ConfigError: An unknown word, or live without anywidget.
    """
    mode = os.environ.get(MODE_VARIABLE, "auto") if asked == "auto" else asked
    if mode not in MODES:
        raise ConfigError(f"display mode {mode!r} is none of {', '.join(MODES)}.")
    installed = importlib.util.find_spec("anywidget") is not None
    if mode == "auto":
        seen = any(name in os.environ for name in FRONT_ENDS)
        return "live" if seen and installed else "static"
    if mode == "live" and not installed:
        raise ConfigError(
            "a live view needs anywidget, which is not installed; run pip install 'nbrl[notebook]' "
            "or pass mode='static'."
        )
    return mode


def _numbers(
    chain: Chain, columns: Mapping[str, Sequence[float]] | pd.DataFrame | None
) -> dict[str, np.ndarray]:
    if columns is None:
        return {}
    if not isinstance(columns, pd.DataFrame):
        return {name: np.asarray(values, dtype=float) for name, values in columns.items()}
    ids = chain.rollouts.table.column("sample_id")
    if not columns.index.is_unique:
        raise DataError("browse: the frame's index must be sample ids, each once.")
    rows = indices_of(ids, list(map(str, columns.index)))
    found = {}
    for name in map(str, columns.columns):
        values = np.full(len(ids), np.nan)
        values[rows] = columns[name].to_numpy(dtype=float)
        found[name] = values
    return found


def _decoder(chain: Chain) -> Decode | None:
    path = chain.rollouts.spec.get("tokenizer")
    return bundled_decoder(path) if isinstance(path, str) else None


def _check_plot(source: SampleSource, plot: tuple[str, str] | None) -> None:
    names = [d["name"] for d, _ in source.index if d["kind"] == "number"]
    unknown = [name for name in plot or () if name not in names]
    if unknown:
        raise ConfigError(f"browse: plot of {unknown}; the number columns are {', '.join(names)}.")
