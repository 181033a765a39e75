"""Kills a run at random instants, resumes it, and compares what comes out with a run left alone.

    python -m benchmarks.crash [--kills 50] [--steps 20] [--seed 0]

Each trial starts a run that saves after every step, kills it with SIGKILL at a random instant,
resumes it from its latest checkpoint and lets it finish. Weights, optimizer and schedule must be
equal bit by bit, and so must be the metrics of every step (but for seconds) and every sample. A
trial that is killed before its first checkpoint starts anew, as a user would.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pyarrow as pa
import pyarrow.parquet as pq

import nbrl

RESULT = "result.json"


def exact(response: str, label: str) -> float:
    """1 for the right sum."""
    return float(response.strip() == label)


def train(folder: Path, steps: int) -> None:
    """Train up to ``steps``, from the latest checkpoint where there is one; write the digest."""
    resumed = (folder / "checkpoints" / "latest.json").is_file()
    if folder.is_dir() and not resumed:
        shutil.rmtree(folder)
    store = nbrl.Store(save_every=1, keep_checkpoints=2)
    trainer = nbrl.Trainer(optimizer=nbrl.Optimizer(lr=1e-3, schedule="linear", total_steps=100))
    with (
        nbrl.connect(resume=folder, progress="quiet")
        if resumed
        else nbrl.connect(run_dir=folder, trainer=trainer, store=store, progress="quiet")
    ) as session:
        sampling = nbrl.Sampling(max_new_tokens=6)
        recipe = nbrl.Recipe(rewards=exact, prompts=4, n=4, sampling=sampling)
        if session.version < steps:
            session.run(steps - session.version, recipe)
        digest = session._runtime.trainer.digest()
        state = {"digest": digest, "cursor": session._runtime.cursor, "version": session.version}
    (folder / RESULT).write_text(json.dumps(state), encoding="utf-8")


def child(folder: Path, steps: int) -> int:
    """A process of its own that trains; its id. The modules are loaded already."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            train(folder, steps)
            status = 0
        finally:
            os._exit(status)
    return process


def outcome(folder: Path) -> dict[str, Any]:
    """All that must be equal."""
    metrics = [
        {k: v for k, v in json.loads(line).items() if not k.startswith("seconds")}
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    samples = {
        f"{kind}/{path.name}": without_seconds(pq.read_table(path))
        for kind in ("rollouts", "scores")
        for path in sorted((folder / kind).glob("*.parquet"))
    }
    state = json.loads((folder / RESULT).read_text(encoding="utf-8"))
    return {**state, "metrics": metrics, "samples": samples}


def without_seconds(table: pa.Table) -> pa.Table:
    """The columns that do not tell how long something took."""
    kept = [n for n in table.column_names if "seconds" not in n]
    return table.select(kept).replace_schema_metadata(None)


def differences(straight: dict[str, Any], resumed: dict[str, Any]) -> list[str]:
    """The names of what is not equal."""
    return [name for name, value in straight.items() if resumed[name] != value]


def wait(process: int) -> int:
    """The exit status of a child; negative where a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> int:
    """0 where every trial came out equal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        # The children inherit what is loaded, so that little of their time goes into that.
        nbrl.connect(run_dir=root / "warm", progress="quiet").close()
        start = time.monotonic()
        assert wait(child(root / "straight", options.steps)) == 0
        seconds = time.monotonic() - start
        straight = outcome(root / "straight")
        failed, struck, versions = 0, 0, []
        for trial in range(options.kills):
            folder = root / f"trial-{trial}"
            process = child(folder, options.steps)
            time.sleep(draw.uniform(0.2, 1.0) * seconds)
            os.kill(process, signal.SIGKILL)
            struck += wait(process) == -signal.SIGKILL
            latest = folder / "checkpoints" / "latest.json"
            versions.append(json.loads(latest.read_text())["tag"] if latest.is_file() else "none")
            assert wait(child(folder, options.steps)) == 0, f"trial {trial} did not resume"
            found = differences(straight, outcome(folder))
            failed += bool(found)
            if found:
                print(f"trial {trial}, killed after {versions[-1]}: differs in {found}")
            shutil.rmtree(folder)
    print(f"straight run: {seconds:.1f} s; killed {struck} of {options.kills} times")
    print(f"latest checkpoint when killed: {len(set(versions))} different ones")
    print(f"equal after resume: {options.kills - failed} of {options.kills}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
