"""The bench as a form of ipywidgets: pick a sample, edit its answer, read the reward again.

Callbacks may run in any thread; they take the bench's lock and use no global state. May import
ipywidgets and its neighbours.
"""

import html
from typing import Any

import ipywidgets as widgets
import numpy as np

from nbrl.errors import NbrlError
from nbrl.notebook.lab import bench as benches
from nbrl.notebook.reprs.text import plain

MOST_SAMPLES = 500
MOST_NAME = 60


def bench_form(bench: "benches.RewardBench") -> widgets.VBox:
    """A box of controls over the bench; what they show is text, whatever an answer holds."""
    ids = bench.rollouts.table.column("sample_id").to_pylist()[:MOST_SAMPLES]
    pick = widgets.Dropdown(
        options=[(plain(name, MOST_NAME), row) for row, name in enumerate(ids)],
        description="sample",
    )
    prompt, shown = widgets.HTML(), widgets.HTML()
    answer = widgets.Textarea(
        description="answer", layout=widgets.Layout(width="98%", height="7em")
    )
    again = widgets.Button(description="read reward again")
    edits = widgets.Button(description="small edits")

    def load(_: Any = None) -> None:
        table = bench.rollouts.take(np.array([chosen()])).to_arrow()
        row = table.select(["prompt", "label", "response"]).to_pylist()[0]
        text = html.escape(plain(str(row["prompt"]), 2000))
        label = html.escape(plain(str(row["label"]), 200))
        prompt.value = f"<b>prompt</b> {text} <b>label</b> {label}"
        answer.set_trait("value", row["response"] or "")
        rescore()

    def chosen() -> int:
        return int(str(pick.value))

    def rescore(_: Any = None) -> None:
        shown.value = _guarded(
            lambda: benches.tried_table([bench.try_answer(chosen(), str(answer.value))])
        )

    def reread(_: Any) -> None:
        def act() -> str:
            bench.try_reward()
            return bench._repr_html_()

        shown.value = _guarded(act)

    def perturb(_: Any) -> None:
        shown.value = _guarded(lambda: benches.tried_table(bench.perturb(chosen())))

    pick.observe(load, "value")
    answer.observe(rescore, "value")
    again.on_click(reread)
    edits.on_click(perturb)
    if ids:
        load()
    return widgets.VBox([widgets.HBox([pick, again, edits]), prompt, answer, shown])


def _guarded(act: Any) -> str:
    try:
        return act()
    except NbrlError as error:
        return f"<pre>{html.escape(plain(benches.explain(error), 2000))}</pre>"
