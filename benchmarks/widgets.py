"""What the sample browser costs: first paint, sort and filter, bytes over the wire, saved bytes.

Run: ``python -m benchmarks.widgets [counts ...]``. Needs Chromium. Answers of 64 tokens; the page
is given what a kernel would send, so that only the view is timed.
"""

import base64
import json
import resource
import shutil
import sys
import time

import numpy as np
import pyarrow as pa

from nbrl.notebook.views.browse import browse
from nbrl.notebook.views.bundle import javascript
from nbrl.notebook.views.source import SampleSource
from nbrl.types import Prompts, Rollouts, Scored
from nbrl.types.columns import ragged_column
from nbrl.types.schemas import PROMPT_COLUMNS

COUNTS = (1_000, 10_000, 100_000)
GROUP = 8
TOKENS = 64
PAINT = """async ([code, header, packed, first]) => {
    const url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    const { default: view } = await import(url);
    const unpack = (b) => new DataView(Uint8Array.from(atob(b), (c) => c.charCodeAt(0)).buffer);
    const data = { header, first, buffers: packed.map(unpack) };
    const held = { data, selected: [], picture: "" };
    const model = { get: (n) => held[n], on() {}, off() {}, send() {} };
    const start = performance.now();
    view.render({ model, el: document.body });
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
}"""
SORT = """() => { const t = performance.now(); document.querySelector("[data-sort=total]").click();
    return performance.now() - t; }"""
FILTER = """() => { const t = performance.now();
    const i = document.querySelector("[data-filter=total]");
    i.value = "> 0.5"; i.dispatchEvent(new Event("input")); return performance.now() - t; }"""


def make_scored(count: int) -> Scored:
    """Scored answers, all of one length."""
    groups = -(-count // GROUP)
    prompt_ids = [f"p{i}" for i in range(groups)]
    rows = {
        "prompt_id": prompt_ids,
        "prompt": ["what is asked here? " * 15] * groups,
        "messages": [None] * groups,
        "label": ["1"] * groups,
        "metadata": ["{}"] * groups,
    }
    prompts = Prompts(table=pa.table(rows, schema=PROMPT_COLUMNS))
    at = np.arange(count)
    offsets = np.arange(0, (count + 1) * TOKENS, TOKENS)
    flat = np.zeros(count * TOKENS)
    ids = pa.array([f"p{i // GROUP}@0#{i % GROUP}" for i in range(count)])
    asked = pa.array([prompt_ids[i // GROUP] for i in range(count)])
    table = pa.table(
        {
            "sample_id": ids,
            "prompt_id": asked,
            "group_id": asked,
            "response": pa.array([f"answer {i} " * 30 for i in range(count)]),
            "finish_reason": pa.array(["stop"] * count),
            "truncated": pa.array(at % 9 == 0),
            "temperature": np.ones(count),
            "seed": pa.array(at, pa.uint64()),
            "version_min": pa.array(at * 0, pa.int64()),
            "version_max": pa.array(at * 0, pa.int64()),
            "num_turns": pa.array(at * 0 + 1, pa.int32()),
            "seconds": np.ones(count),
            "error": pa.nulls(count, pa.string()),
            "token_ids": ragged_column(flat, offsets, pa.int32()),
            "source": ragged_column(flat + 1, offsets, pa.int8()),
            "rollout_logprobs": ragged_column(flat, offsets, pa.float32()),
            "policy_version": ragged_column(flat, offsets, pa.int64()),
        }
    )
    totals = np.random.default_rng(0).random(count)
    scores = pa.table(
        {
            "sample_id": ids,
            "total": totals,
            "status": pa.array(["ok"] * count),
            "error": pa.nulls(count, pa.string()),
        }
    )
    return Scored(table=scores, rollouts=Rollouts(table=table, prompts=prompts))


def measure(page, scored: Scored) -> dict[str, float]:
    """Seconds, milliseconds and megabytes for one size."""
    start = time.perf_counter()
    source = SampleSource(scored, columns={}, step=None, decode=None)
    header, buffers, first = source.header(), source.buffers(), source.texts(range(30))
    made = time.perf_counter() - start
    wire = len(json.dumps([header, first])) + sum(map(len, buffers)) + len(javascript("live.js"))
    start = time.perf_counter()
    saved = browse(scored, mode="static").to_html()
    kept = time.perf_counter() - start
    page.goto("about:blank")
    packed = [base64.b64encode(b).decode() for b in buffers]
    painted = page.evaluate(PAINT, [javascript("live.js"), header, packed, first])
    start = time.perf_counter()
    source.search("answer 77")
    searched = time.perf_counter() - start
    return {
        "kernel s": made,
        "saved view s": kept,
        "first paint s": painted / 1000,
        "sort ms": page.evaluate(SORT),
        "filter ms": page.evaluate(FILTER),
        "search ms": searched * 1000,
        "wire MB": wire / 1e6,
        "saved MB": len(saved.encode()) / 1e6,
        "kernel peak MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def main() -> None:
    """Print one line a size."""
    from playwright.sync_api import sync_playwright

    counts = [int(c) for c in sys.argv[1:]] or COUNTS
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        place = shutil.which("chromium")
        chromium = playwright.chromium.launch(executable_path=place, args=flags)
        page = chromium.new_page(viewport={"width": 1400, "height": 900})
        for count in counts:
            found = measure(page, make_scored(count))
            print(f"{count:>8,}", "  ".join(f"{k} {v:.3g}" for k, v in found.items()))
        chromium.close()


if __name__ == "__main__":
    main()
