"""The progress output: what it says, its escaping, and the one output left in the saved file."""

import re
import subprocess
import sys
from html.parser import HTMLParser

import nbformat
import pytest
from nbclient import NotebookClient

from nbrl.driver.progress import PlainLines
from nbrl.notebook import progress
from nbrl.protocols import Bar

OUTER = Bar(
    name="run", unit="steps", total=30, done=12, tokens=24000, seconds=6.0, note="reward 0.61"
)
INNER = Bar(name="rollout", unit="samples", total=256, done=256, seconds=0.5, outcome="done")


class Tags(HTMLParser):
    """Collects the elements and the words that a reader sees with all style gone."""

    def __init__(self) -> None:
        HTMLParser.__init__(self)
        self.elements: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)

    def handle_data(self, data):
        self.words.append(data.strip())


def parsed(markup):
    tags = Tags()
    tags.feed(markup)
    return tags


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_every_number_is_there_once_without_style():
    words = " ".join(parsed(progress.to_html([OUTER, INNER])).words)
    for wanted in (
        "12/30 steps",
        "2.0 steps/s",
        "4,000 tokens/s",
        "9.0 s",
        "256/256 samples",
        "reward 0.61",
    ):
        assert words.count(wanted) == 1, wanted
    assert "running" in words
    assert "done" in words


def test_share_of_the_bar():
    shares = re.findall(r'progress value="([0-9.]+)"', progress.to_html([OUTER, INNER]))
    assert shares == ["0.4000", "1.0000"]


def test_empty_total_counts_as_full():
    bar = Bar(name="score", unit="samples", total=0, outcome="done")
    assert 'value="1.0000"' in progress.to_html([bar])


@pytest.mark.parametrize("payload", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'])
def test_names_units_and_notes_are_escaped(payload):
    markup = progress.to_html([Bar(name=payload, unit=payload, total=2, note=payload)])
    assert {"script", "img"}.isdisjoint(parsed(markup).elements)
    assert payload in " ".join(parsed(markup).words)


def test_state_colours_have_contrast_with_their_white_words():
    for colour in progress.STATE_COLOURS.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5


def test_plain_text_has_one_indented_line_a_bar():
    first, second = progress.to_text([OUTER, INNER]).splitlines()
    assert first.startswith("run: 12/30 steps in 6.0 s")
    assert second.startswith("  rollout: 256/256 samples")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "0.4 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.7, "1 min 00 s"),
        (185.0, "3 min 05 s"),
        (7800.0, "2 h 10 min"),
    ],
)
def test_durations_read_well(seconds, text):
    assert progress.seconds_text(seconds) == text


def test_outside_a_kernel_plain_lines_are_used():
    assert isinstance(progress.make_sink(), PlainLines)


def test_choosing_a_sink_does_not_import_ipython():
    code = (
        "import sys; from nbrl.notebook import progress; progress.make_sink(); "
        "print('IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


CELL = """
import time
from nbrl.driver.progress import Progress
from nbrl.notebook.progress import make_sink
bars = Progress(make_sink)
with bars.phase("run", 3, "steps") as step:
    for _ in range(3):
        with bars.phase("rollout", 4, "samples") as sample:
            for _ in range(4):
                time.sleep(0.03)
                sample(1, 10)
        step(1, 40)
"""


@pytest.mark.slow
def test_saved_notebook_holds_one_output_with_the_last_state():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = notebook.cells[0].outputs
    assert [o.output_type for o in outputs] == ["display_data"]
    assert set(outputs[0].data) == {"text/html", "text/plain"}
    words = " ".join(parsed(outputs[0].data["text/html"]).words)
    assert "3/3 steps" in words
    assert "12/12 samples" in words
    assert "tokens/s" in words
    assert outputs[0].data["text/plain"].startswith("run: 3/3 steps in")
    assert "widgets" not in notebook.metadata
