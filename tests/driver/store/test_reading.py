"""Run folders that are read: any sample, any column, while they are written, and again."""

import time

import numpy as np
import pyarrow as pa
import pytest

import nbrl
from nbrl.config import PolicyLoss, Recipe
from nbrl.driver.store import RunFolder
from nbrl.driver.store.files import append_line, write_whole
from nbrl.driver.store.samples import rollouts_file, scores_file
from nbrl.errors import DataError, StepError, StoreError, UnknownNameError
from nbrl.types import Scored
from tests.driver.conftest import SHORT, exact
from tests.values import make_chain

RECIPE = Recipe(rewards=exact, prompts=4, n=4, sampling=SHORT)


def half(response: str, label: str) -> float:
    """Another reward."""
    return 0.5 * float(response.strip() == label)


@pytest.fixture
def trained(open_tiny):
    """A session with three steps, and its run folder opened by a reader."""
    session = open_tiny()
    session.run(3, RECIPE)
    session._runtime.recorder.flush()
    return session, nbrl.open_run(session.run_dir)


def test_everything_can_be_read_while_it_is_written(trained):
    session, run = trained
    assert run.spec["run"] == session.spec["run"]
    assert run.history().records == session.history.records
    assert run.steps() == [1, 2, 3]
    assert len(run) == 48
    assert run.environment["versions"]["nbrl"] == nbrl.__version__
    assert {"created", "source", "host", "devices"} <= set(run.environment)
    session.save("a")
    assert run.checkpoints()["tag"].tolist() == ["a"]
    assert "3 steps, samples of 3 steps (48)" in repr(run)


def test_a_sample_is_found_by_its_id_or_its_place(trained):
    _, run = trained
    scored = run.scored(2)
    wanted = scored[5]
    for which in (wanted["sample_id"], 16 + 5, -48 + 16 + 5):
        found = run.sample(which)
        assert found["step"] == 2
        assert found["response"] == wanted["response"]
        assert (found["total"], found["label"]) == (wanted["total"], wanted["label"])
    with pytest.raises(DataError, match="no sample 'x'"):
        run.sample("x")
    with pytest.raises(DataError, match="sample 48 of 48"):
        run.sample(48)


def test_columns_are_scanned_over_all_steps(trained):
    _, run = trained
    assert len(run.column("total")) == 48
    assert run.column("response")[0].as_py() == run.rollouts(1)[0]["response"]
    with pytest.raises(UnknownNameError, match=r"known: .*total"):
        run.column("gone")
    with pytest.raises(UnknownNameError, match="known: 1, 2, 3"):
        run.rollouts(7)


def test_stored_rollouts_go_through_the_verbs_again(trained):
    session, run = trained
    old = run.rollouts(3)
    again = session.score(old, exact)
    assert again.table.column("total").equals(run.scored(3).table.column("total"))
    batch = session.compute_advantages(session.score(old, half), "rloo")
    probes = session.probe(batch, {"ppo": PolicyLoss()})
    assert probes["ppo"].version == 3
    with pytest.raises(StepError, match="expect_version=2"):
        session.train_step(batch)
    assert session.train_step(batch, expect_version=2).version_after == 4
    fresh = session.compute_advantages(session.score(run.rollouts(2), half), "dr_grpo")
    assert session.train_step(fresh, PolicyLoss(correction="tis")).version_after == 5


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="is no run folder"):
        nbrl.open_run(tmp_path)


@pytest.mark.slow
def test_any_sample_of_100_000_opens_in_50_ms_and_a_column_is_scanned_in_1_s(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_config({"name": "big", "run": "x"})
    ready = make_chain().scored
    count, steps = 10_000, 10
    rows = pa.array(np.arange(count) % len(ready))
    for step in range(1, steps + 1):
        ids = pa.array([f"p{i}@{step - 1}#0" for i in range(count)])
        rollouts, scores = (t.take(rows) for t in (ready.rollouts.table, ready.table))
        named = [t.set_column(0, "sample_id", ids) for t in (rollouts, scores)]
        assert all(t.column_names[0] == "sample_id" for t in (rollouts, scores))
        value = Scored(
            table=named[1],
            rollouts=nbrl.Rollouts(table=named[0], prompts=ready.rollouts.prompts),
        )
        for kind, data in (
            ("rollouts", rollouts_file(value.rollouts)),
            ("scores", scores_file(value)),
        ):
            path = folder.table_path(kind, step)
            path.parent.mkdir(exist_ok=True)
            write_whole(path, memoryview(data))
            name = str(path.relative_to(tmp_path))
            row = {"file": name, "step": step, "rows": count, "bytes": data.size}
            append_line(folder.manifest_path, row)
    run = nbrl.open_run(tmp_path)
    assert len(run) == 100_000
    run.sample(0)
    taken = []
    for which in ("p9000@9#0", 55_555, "p1@0#0", -1, "p5000@4#0"):
        start = time.perf_counter()
        assert run.sample(which)["sample_id"]
        taken.append(time.perf_counter() - start)
    assert sorted(taken)[2] < 0.05
    start = time.perf_counter()
    assert len(run.column("total")) == 100_000
    assert time.perf_counter() - start < 1.0
