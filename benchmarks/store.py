"""The run folder: rows written a second, milliseconds to open a sample, bytes a token.

    python -m benchmarks.store [--rows 100000] [--a-step 1000] [--tokens 64] [--scan 1000000]

Samples are opened at random places and by random ids; a column is scanned over steps of
``--a-step`` scores. Bytes are compared with the same rows as JSON lines, plain and zipped.
"""

import argparse
import gzip
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import nbrl
from nbrl.driver.store import RunFolder
from nbrl.driver.store.reading import Run
from nbrl.driver.store.recording import KINDS, Recorder
from nbrl.driver.store.samples import scores_file
from nbrl.types import Prompts, Rollouts, Scored
from nbrl.types.columns import ragged_column
from nbrl.types.schemas import PROMPT_COLUMNS


def scored(step: int, rows: int, tokens: int) -> Scored:
    """Samples of random tokens and log-probs, eight to a prompt."""
    rng = np.random.default_rng(step)
    ids = [f"p{i // 8}@{step - 1}#{i % 8}" for i in range(rows)]
    prompt_ids = [f"p{i // 8}" for i in range(rows)]
    offsets = np.arange(0, rows * tokens + 1, tokens)

    def flat(values: np.ndarray, kind: pa.DataType) -> pa.ListArray:
        return ragged_column(values, offsets, kind)

    size = rows * tokens
    table = pa.table(
        {
            "sample_id": ids,
            "prompt_id": prompt_ids,
            "group_id": [f"{p}@{step - 1}" for p in prompt_ids],
            "response": [" ".join(map(str, rng.integers(0, 1000, tokens // 2))) for _ in ids],
            "finish_reason": ["stop"] * rows,
            "truncated": [False] * rows,
            "temperature": [1.0] * rows,
            "seed": pa.array(rng.integers(0, 2**62, rows), pa.uint64()),
            "version_min": pa.array([step - 1] * rows, pa.int64()),
            "version_max": pa.array([step - 1] * rows, pa.int64()),
            "num_turns": pa.array([1] * rows, pa.int32()),
            "seconds": rng.random(rows),
            "error": pa.array([None] * rows, pa.string()),
            "token_ids": flat(rng.integers(0, 32_000, size).astype(np.int32), pa.int32()),
            "source": flat((np.arange(size) % tokens > 8).astype(np.int8), pa.int8()),
            "rollout_logprobs": flat(-rng.random(size).astype(np.float32), pa.float32()),
            "policy_version": flat(np.full(size, step - 1), pa.int64()),
        }
    )
    names = dict.fromkeys(prompt_ids)
    prompts = pa.table(
        {
            "prompt_id": list(names),
            "prompt": [f"What is {n}?" for n in names],
            "messages": pa.array([None] * len(names), pa.string()),
            "label": list(names),
            "metadata": ["{}"] * len(names),
        },
        schema=PROMPT_COLUMNS,
    )
    total = rng.random(rows)
    scores = pa.table(
        {
            "sample_id": ids,
            "total": total,
            "status": ["ok"] * rows,
            "error": pa.array([None] * rows, pa.string()),
            "reward": total,
        }
    )
    return Scored(table=scores, rollouts=Rollouts(table=table, prompts=Prompts(table=prompts)))


def opened(run: Run, which: Sequence[int | str]) -> list[float]:
    """Milliseconds to open each sample, the first of all with nothing read before."""
    taken = []
    for each in which:
        start = time.perf_counter()
        run.sample(each)
        taken.append(1e3 * (time.perf_counter() - start))
    return taken


def scanned(rows: int, a_step: int) -> float:
    """Seconds to read one column of so many scores, a file a step."""
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.write_config({"name": "bench", "run": "bench"})
        data, lines = scores_file(scored(1, a_step, 1)).to_pybytes(), []
        for step in range(1, rows // a_step + 1):
            path = folder.table_path("scores", step)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
            facts = {"step": step, "rows": a_step}
            # a step is whole with both; the rollouts are not read here
            lines += [json.dumps({"file": f"{k}/{path.name}", **facts}) for k in KINDS]
        folder.manifest_path.write_text("\n".join(lines), encoding="utf-8")
        run = nbrl.open_run(name)
        start = time.perf_counter()
        assert len(run.column("total")) == rows
        return time.perf_counter() - start


def main() -> None:
    """Print one figure a line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--a-step", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--scan", type=int, default=1_000_000)
    parser.add_argument("--opens", type=int, default=300)
    options = parser.parse_args()
    steps = options.rows // options.a_step
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.write_config({"name": "bench", "run": "bench"})
        recorder = Recorder(folder, nbrl.Store(), {})
        writing = 0.0
        for step in range(1, steps + 1):
            value = scored(step, options.a_step, options.tokens)
            start = time.perf_counter()
            recorder.samples(value, step)
            recorder.flush()
            writing += time.perf_counter() - start
        assert recorder.said() == []
        recorder.close()
        run = nbrl.open_run(name)
        draw = np.random.default_rng(0)
        places = draw.integers(0, len(run), options.opens).tolist()
        steps_of, rows_of = np.divmod(draw.integers(0, len(run), options.opens), options.a_step)
        ids = [f"p{row // 8}@{step}#{row % 8}" for step, row in zip(steps_of, rows_of, strict=True)]
        opening = {"place": opened(run, places), "id": opened(run, ids)}
        size = sum(path.stat().st_size for path in Path(name).rglob("*.parquet"))
        lines = "\n".join(map(json.dumps, run.scored(steps).to_arrow().to_pylist())).encode()
        tokens = len(run) * options.tokens
        per_step = options.a_step * options.tokens
    print(f"{options.rows:,} samples of {options.tokens} tokens, {steps} steps")
    print(f"written: {options.rows / writing:,.0f} rows/s, {1e3 * writing / steps:.1f} ms a step")
    for how, taken in opening.items():
        middle, worst = statistics.median(taken), max(taken)
        print(f"open one sample by its {how}: {middle:.1f} ms, worst of {len(taken)}: {worst:.1f}")
    scanning = scanned(options.scan, options.a_step)
    print(f"scan one column of {options.scan:,} rows: {1e3 * scanning:.0f} ms")
    print(
        f"bytes a token: {size / tokens:.1f} Parquet, {len(lines) / per_step:.1f} JSONL, "
        f"{len(gzip.compress(lines)) / per_step:.1f} JSONL zipped"
    )


if __name__ == "__main__":
    main()
