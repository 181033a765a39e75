"""The notebooks that look: executed without a window, and read with the kernel gone."""

from pathlib import Path

import nbformat
import pytest
from nbconvert import HTMLExporter

from tests.headless import run_notebook
from tests.notebook.views.conftest import chromium, page

__all__ = ["chromium", "page"]

ROOT = Path(__file__).parents[3]
SMALL = {"num_prompts": 6, "n": 4}
CASES = {
    "06_estimator_lab": (SMALL, "A grpo"),
    "07_inspect_samples": (SMALL | {"steps": 1}, "advantage"),
}

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.mark.parametrize("name", CASES)
def test_notebook_runs_and_its_views_outlive_the_kernel(name, tmp_path, page, monkeypatch):
    monkeypatch.delenv("MPLBACKEND", raising=False)
    parameters, column = CASES[name]
    notebook = ROOT / "notebooks" / f"{name}.ipynb"
    executed = run_notebook(notebook, tmp_path, parameters)
    for plot in executed.summary["plots"]:
        assert (executed.run_folder / plot).read_bytes().startswith(b"\x89PNG")
    book = nbformat.read(executed.notebook, as_version=4)
    assert "widgets" not in book.metadata
    text = nbformat.writes(book)
    assert "widget-view" not in text
    assert len(text) < 3_000_000
    exporter = HTMLExporter()
    exporter.mathjax_url = exporter.require_js_url = exporter.jquery_url = ""
    saved = tmp_path / "saved.html"
    saved.write_text(exporter.from_notebook_node(book)[0], encoding="utf-8")
    page.route("http*://**", lambda route: route.abort())
    page.goto(saved.as_uri())
    view = page.locator(".nbrl-view").first
    view.locator(f"[data-sort='{column}']").wait_for()
    view.locator("tr[data-row='0']").click()
    view.locator(".nb-t").first.wait_for()
    assert view.locator(".nb-t").count() > 3
