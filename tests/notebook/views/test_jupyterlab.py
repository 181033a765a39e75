"""The browser in a real JupyterLab: page and kernel agree, saved notebooks keep a picture."""

import os
from pathlib import Path

import nbformat
import pytest

from tests.notebook.views.labserver import (
    ROOT,
    lab_server,
    open_notebook,
    run_command,
    write_notebook,
)

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MAKE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import nbrl, numpy as np
from tests.notebook.views.test_page import graded
value = graded()
"""
WAIT = """
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.05)
print("woken")
"""
SHOTS = os.environ.get("NBRL_SCREENSHOTS")
"""A folder for pictures of what the tests saw, to be looked at."""


@pytest.fixture(scope="module")
def lab(tmp_path_factory, chromium):
    """A page on a running JupyterLab, and the folder of its notebooks."""
    folder = tmp_path_factory.mktemp("lab")
    with lab_server(folder) as address:
        page = chromium.new_page(viewport={"width": 1400, "height": 1000})
        yield page, address, folder
        page.close()


def shoot(page, name):
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


def output(page, cell):
    return page.locator(".jp-Notebook .jp-Cell").nth(cell).locator(".jp-OutputArea")


def run_cells(page):
    run_command(page, "notebook:run-all-cells")


def test_page_and_kernel_agree(lab):
    page, address, folder = lab
    told = "print(browser.selection, browser.selection.table['sample_id'].to_pylist())"
    cells = [MAKE, "browser = nbrl.browse(value)\nbrowser", told]
    write_notebook(folder / "browse.ipynb", cells)
    open_notebook(page, address, "browse.ipynb")
    asked = []
    page.on("request", lambda r: asked.append(r.url))
    run_command(page, "notebook:run-cell-and-select-next")
    run_command(page, "notebook:run-cell-and-select-next")
    view = output(page, 1).locator(".nbrl-view:visible")
    view.locator("tr[data-row='0']").wait_for()
    assert view.count() == 1
    view.locator("[data-sort=total]").click()
    view.locator("tr[data-row] .nb-id", has_text="@0#").nth(14).wait_for()
    ids = view.locator("tr[data-row] .nb-id").all_inner_texts()[:2]
    for row in range(2):
        view.locator("tr[data-row] input").nth(row).click()
    view.get_by_label("next page").click()
    view.locator("tr[data-row] .nb-id", has_text="p").first.wait_for()
    view.get_by_role("searchbox").fill("q7")
    page.wait_for_function(
        "[...document.querySelectorAll('.nb-status')].some(e => e.textContent.startsWith('4 of'))"
    )
    view.locator("tr[data-row]").first.click()
    view.locator(".nb-t").first.wait_for()
    view.locator(".nb-t").nth(3).hover()
    assert "logprob -0.5" in view.locator(".nb-readout").inner_text()
    shoot(page, "lab_light")
    # a click in an output makes its cell the active one
    page.evaluate("window.jupyterapp.shell.currentWidget.content.activeCellIndex = 2")
    run_command(page, "notebook:run-cell")
    output(page, 2).locator("text=Advantaged(2 samples").first.wait_for()
    shown = output(page, 2).inner_text()
    assert all(name in shown for name in ids)
    run_command(page, "docmanager:save")
    assert [url for url in asked if not url.startswith((address, "blob:", "data:"))] == []


def test_saved_notebook_keeps_a_picture_and_no_widget_state(lab):
    page, address, folder = lab
    page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    book = nbformat.read(folder / "browse.ipynb", as_version=4)
    html = "".join(o["data"].get("text/html", "") for o in book.cells[1].outputs if "data" in o)
    assert "p0@0#0" in html
    assert len(nbformat.writes(book)) < 1_000_000
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
    page.goto(f"{address}/lab/tree/browse.ipynb?reset", wait_until="domcontentloaded")
    page.locator(".jp-Notebook .jp-Cell").nth(1).wait_for()
    page.locator("text=p0@0#0").first.wait_for()


def test_dark_theme_is_followed(lab):
    page, address, folder = lab
    write_notebook(folder / "dark.ipynb", [MAKE, "nbrl.browse(value)"])
    open_notebook(page, address, "dark.ipynb")
    page.evaluate(
        "window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.set_viewport_size({"width": 800, "height": 1000})
    run_cells(page)
    view = output(page, 1).locator(".nbrl-view:visible")
    view.locator("tr[data-row='1']").click()
    view.locator(".nb-t").first.wait_for()
    page.wait_for_function("document.body.dataset.jpThemeLight === 'false'")
    ground, ink = view.evaluate(
        "e => [getComputedStyle(e).backgroundColor, getComputedStyle(e).color]"
    )
    assert sum(map(int, ground.split("(")[1].rstrip(")").split(",")[:3])) < 150
    assert ink != ground
    shoot(page, "lab_dark_800")
    page.set_viewport_size({"width": 1400, "height": 1000})


def test_busy_kernel_leaves_sorting_to_the_page(lab):
    page, address, folder = lab
    cells = [MAKE, "nbrl.browse(value)", WAIT]
    write_notebook(folder / "busy.ipynb", cells)
    open_notebook(page, address, "busy.ipynb")
    # not awaited: the last cell ends only when this test lets it
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    view = output(page, 1).locator(".nbrl-view:visible")
    view.locator("tr[data-row='0']").wait_for()
    page.wait_for_function(
        "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"
    )
    view.locator("[data-sort=total]").click()
    assert view.locator("tr[data-row] td.nb-number").first.is_visible()
    busy = page.evaluate(
        "window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.status"
    )
    assert busy == "busy"
    (folder / "go").touch()
    output(page, 2).locator("text=woken").wait_for()
