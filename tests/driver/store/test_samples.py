"""Samples in the run folder: they come back as they were, and other tools read them."""

import duckdb
import pandas as pd
import pyarrow.parquet as pq
import pytest

import nbrl
from nbrl.config import Shaping, Store
from nbrl.driver.store import recording
from nbrl.driver.store.samples import read_rollouts, read_scored
from nbrl.errors import ConfigError, StoreError
from tests.driver.conftest import SHORT, exact


def train(session, steps=1, **settings):
    results = []
    for _ in range(steps):
        rollouts = session.rollout(session.next_prompts(6), n=4, sampling=SHORT)
        batch = session.compute_advantages(session.score(rollouts, exact), **settings)
        results.append(session.train_step(batch))
    session._runtime.recorder.flush()
    return batch, results


def test_the_samples_of_a_step_come_back_as_they_were(session):
    batch, _ = train(session)
    folder = session._runtime.folder
    back = read_scored(folder.table_path("rollouts", 1), folder.table_path("scores", 1))
    assert back.table.equals(batch.scored.table)
    assert back.rollouts.table.equals(batch.scored.rollouts.table)
    assert back.rollouts.prompts.table.equals(batch.scored.rollouts.prompts.table)
    assert dict(back.rollouts.spec) == dict(batch.scored.rollouts.spec)
    assert dict(back.spec) == dict(batch.scored.spec)


def test_duckdb_and_pandas_read_the_files(session):
    train(session, steps=2)
    pattern = f"{session.run_dir}/{{}}/*.parquet"
    joined = duckdb.sql(
        f"select count(*), avg(s.total) from '{pattern.format('rollouts')}' r "
        f"join '{pattern.format('scores')}' s using (sample_id)"
    ).fetchall()
    assert joined[0][0] == 48
    frame = pd.read_parquet(session.run_dir / "scores" / "step-000002.parquet")
    assert list(frame["reward"]) == list(frame["total"])
    codecs = {
        pq.ParquetFile(path).metadata.row_group(0).column(0).compression
        for path in session.run_dir.glob("rollouts/*.parquet")
    }
    assert codecs == {"ZSTD"}


def test_samples_that_a_filter_dropped_are_kept_too(session):
    batch, _ = train(session, shaping=Shaping(reward_range=(0.1, 0.9)))
    assert len(batch) < 24
    path = session._runtime.folder.table_path("rollouts", 1)
    assert len(read_rollouts(path)) == 24


def test_the_quota_removes_the_oldest_and_says_so(open_tiny):
    session = open_tiny(store=Store(quota=1, keep_steps=2))
    _, results = train(session, steps=4)
    left = sorted(path.name for path in (session.run_dir / "rollouts").iterdir())
    assert left == ["step-000003.parquet", "step-000004.parquet"]
    whole = recording.whole_files(session._runtime.folder)
    assert {row["step"] for row in whole.values()} == {3, 4}
    _, more = train(session)
    said = [w for r in (*results, *more) for w in r.warnings if "Store.quota" in w]
    assert any("steps [1]" in w for w in said)
    with pytest.raises(StoreError, match="were not kept"):
        read_rollouts(session._runtime.folder.table_path("rollouts", 1))


def test_samples_may_be_left_out(open_tiny):
    session = open_tiny(store=Store(samples=False))
    train(session)
    assert not (session.run_dir / "rollouts").exists()


def test_a_disk_that_refuses_samples_is_a_warning_of_the_next_step(session):
    (session.run_dir / "rollouts").write_text("in the way")
    train(session)
    _, [result] = train(session)
    assert session.version == 2
    assert any("samples of step 1 could not be kept" in w for w in result.warnings)


def test_damaged_and_foreign_files_are_named(session, tmp_path):
    train(session)
    path = session._runtime.folder.table_path("rollouts", 1)
    with pytest.raises(StoreError, match="holds rollouts, not scores"):
        read_scored(path, path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match="is damaged"):
        read_rollouts(path)
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(StoreError, match="was not written by nbrl"):
        read_rollouts(tmp_path / "other.parquet")


def test_settings_without_effect_or_sense_are_refused(tmp_path):
    with pytest.raises(ConfigError) as raised:
        nbrl.connect(
            run_dir=tmp_path / "x",
            store=Store(samples=False, quota=10, keep_steps=0, mirrors=("excel",)),
        )
    for said in ("no effect with samples=False", "keep_steps must be", "'excel' is unknown"):
        assert said in str(raised.value)
    assert not (tmp_path / "x").exists()


def test_one_writer_at_a_time(session):
    with pytest.raises(StoreError, match=r"being written by process \d+"):
        session._runtime.folder.lock()
    session.close()
    session._runtime.folder.lock().close()


def test_the_environment_is_written_without_its_secrets(open_tiny, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_0123")
    session = open_tiny(name="hf_very_secret_0123")
    train(session)
    session.save("a")
    session.close()
    files = [p for p in session.run_dir.rglob("*") if p.is_file()]
    assert {"environment.json", "config.json", "metrics.jsonl", "events.jsonl"} <= {
        p.name for p in files
    }
    assert [p for p in files if b"hf_very_secret_0123" in p.read_bytes()] == []
