"""The live host: an anywidget whose page asks the kernel for texts, tokens and searches.

May import anywidget, traitlets, IPython and its neighbours.
"""

import uuid
from typing import Any

import anywidget
import numpy as np
import traitlets
from IPython.display import display

from nbrl.notebook.views.bundle import javascript, stylesheet
from nbrl.notebook.views.chain import Samples
from nbrl.notebook.views.saved import saved_html
from nbrl.notebook.views.source import SampleSource

FIRST = 30
MOST_ASKED = 256


class Browser(anywidget.AnyWidget):
    """A browser of samples; a ``DOMWidget``, so that boxes hold it and ``observe`` hears it.

    ``selected`` are the ticked rows, in the page and here.
    """

    _esm = javascript("live.js")
    _css = stylesheet()
    data = traitlets.Dict().tag(sync=True)
    selected = traitlets.List(traitlets.Int()).tag(sync=True)
    picture = traitlets.Unicode().tag(sync=True)

    def __init__(self, source: SampleSource, plot: tuple[str, str] | None) -> None:
        self._source = source
        self._plot = plot
        data = {
            "header": source.header(plot),
            "buffers": source.buffers(),
            "first": source.texts(range(min(len(source.value), FIRST))),
        }
        anywidget.AnyWidget.__init__(self, data=data, picture=uuid.uuid4().hex)
        self.on_msg(self._answer)

    @property
    def value(self) -> Samples:
        """What is browsed."""
        return self._source.value

    @property
    def selection(self) -> Any:
        """The ticked samples as a value of the same type."""
        return self._source.select(self.selected)

    def to_html(self) -> str:
        """The view as one piece of HTML that needs no kernel and no network."""
        return saved_html(self._source, self._plot)

    def _answer(self, _: Any, content: dict[str, Any], buffers: Any) -> None:
        """Reply to a message of the page; only frozen values are read, in any thread."""
        reply = {"ticket": content["ticket"]}
        if content["ask"] == "search":
            found = np.packbits(self._source.search(content["text"]), bitorder="little")
            self.send({**reply, "found": True}, [found.tobytes()])
        elif content["ask"] == "sample":
            self.send({**reply, "answer": self._source.samples([content["row"]])[0]})
        else:
            rows = content["rows"][:MOST_ASKED]
            self.send({**reply, "answer": self._source.texts(rows, content["most"])})

    def _ipython_display_(self) -> None:
        """Two outputs: the picture that files keep, and the live view, which hides it."""
        picture = saved_html(self._source, self._plot, self.picture)
        display({"text/html": picture, "text/plain": repr(self)}, raw=True)
        bundle = self._repr_mimebundle_()
        display(bundle[0] if isinstance(bundle, tuple) else bundle, raw=True)

    def __repr__(self) -> str:
        return f"Browser({self._source.value!r}, {len(self.selected)} selected)"
