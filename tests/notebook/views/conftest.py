"""A real browser for pages and widgets, and values with every column that a view can show."""

import shutil

import pyarrow as pa
import pytest

from tests.notebook.conftest import make_advantaged, make_prompts, make_rollouts, make_scored

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
NASTY = [
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "\" onmouseover='window.hacked=1' x=\"",
    "</script></style></textarea><b>bold",
    "\x1b[31mred\x1b[0m\x00\x07",
    "\u202eright to left\u202c \u200b\ufeff",
    "&lt;&amp;&#60;script&#62;",
    "\u0639\u0631\u0628\u064a \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "${window.hacked=1}`'\\",
    "x" * 1_000_000,
]
"""Text that a page must show as text."""


@pytest.fixture(scope="module")
def chromium():
    """One browser for a file's tests; its event loop must not run beside other files' tests."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(chromium):
    """A page that fails the test on any error, and on any request that leaves the machine."""
    opened = chromium.new_page(viewport={"width": 1400, "height": 900}, reduced_motion="reduce")
    wrong = []
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda m: wrong.append(m.text) if m.type == "error" else None)
    opened.on("request", lambda r: None if is_here(r.url) else wrong.append(r.url))
    yield opened
    opened.close()
    assert wrong == []


def is_here(url):
    """Nothing but this file and this machine."""
    return url.startswith(("file:", "data:", "blob:", "about:", "http://127.0.0.1"))


def with_nasty_text():
    """An Advantaged whose prompts, answers, labels, ids and errors are hostile."""
    prompts = make_prompts(NASTY, NASTY)
    rollouts = make_rollouts(prompts, [[text[:40], text[:20]] for text in NASTY])
    rollouts = rollouts.with_columns(
        {"response": pa.array([t for t in NASTY for _ in range(2)], pa.string())}
    )
    scored = make_scored(rollouts, [1.0, None] * len(NASTY))
    errors = pa.array([None if i % 2 == 0 else NASTY[i // 2] for i in range(len(rollouts))])
    table = scored.table.set_column(3, "error", errors)
    scored = type(scored)(table=table, rollouts=rollouts)
    fine = make_scored(rollouts, [1.0, 0.0] * len(NASTY))
    return scored, make_advantaged(fine, [1.0, -1.0] * len(NASTY), [True] * len(rollouts))
