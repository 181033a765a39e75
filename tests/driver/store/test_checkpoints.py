"""Checkpoints: what is saved comes back, what is damaged is named, what fails changes nothing."""

import errno

import pytest
import torch

from nbrl.driver.store import RunFolder, files
from nbrl.driver.store import checkpoints as store
from nbrl.errors import ConfigError, StoreError, UnknownNameError
from tests.faults import FaultyOS

PARTS = ("trainer", "session")


def facts(version, automatic=True, **metrics):
    return {"version": version, "automatic": automatic, "metrics": metrics}


def state(value):
    weights = {"w": torch.full((2, 3), value), "b": torch.tensor(value, dtype=torch.bfloat16)}
    learner = {"parameters": weights, "lr": 0.1, "schedule": {"last_epoch": 3}}
    return {"trainer": {"learners": [learner], "updates": 3}, "session": {"cursor": 12}}


def save(folder, tag, value, version=1, **more):
    return store.save_checkpoint(folder, tag, state(value), facts(version, **more))


def value_of(folder, tag=None):
    loaded = store.load_state(store.find_checkpoint(folder, tag), PARTS)
    return float(loaded["trainer"]["learners"][0]["parameters"]["w"][0, 0])


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path)


def test_a_state_comes_back_with_its_types(folder):
    save(folder, "a", 0.5)
    loaded = store.load_state(store.find_checkpoint(folder, "a"), PARTS)
    learner = loaded["trainer"]["learners"][0]
    assert torch.equal(learner["parameters"]["w"], torch.full((2, 3), 0.5))
    assert learner["parameters"]["b"].dtype == torch.bfloat16
    assert learner["schedule"] == {"last_epoch": 3}
    assert loaded["session"] == {"cursor": 12}
    names = {path.suffix for path in (folder.path / "checkpoints" / "a").iterdir()}
    assert names == {".json", ".safetensors"}


def test_large_states_are_cut_into_files(folder, monkeypatch):
    monkeypatch.setattr(store, "MOST_BYTES_A_FILE", 25)
    save(folder, "a", 0.5)
    assert len(list((folder.path / "checkpoints" / "a").glob("*.safetensors"))) == 2
    assert value_of(folder) == 0.5


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_the_latest_stays_wherever_the_disk_fails(folder, monkeypatch, error):
    save(folder, "a", 1.0, version=1)
    counting = FaultyOS()
    with monkeypatch.context() as patched:
        patched.setattr(files, "os", counting)
        save(folder, "b", 2.0, version=2)
    assert counting.calls > 20
    for at in range(counting.calls):
        fresh = RunFolder(folder.path / f"at-{at}")
        fresh.path.mkdir()
        save(fresh, "a", 1.0, version=1)
        with monkeypatch.context() as patched:
            patched.setattr(files, "os", FaultyOS(at, error))
            with pytest.raises(StoreError, match=r"latest checkpoint is still '[ab]'"):
                save(fresh, "b", 2.0, version=2)
        assert value_of(fresh) == {"a": 1.0, "b": 2.0}[store.latest_tag(fresh)]
        save(fresh, "b", 3.0, version=2)
        assert value_of(fresh) == 3.0


def test_a_tag_that_is_saved_again_is_replaced_whole(folder, monkeypatch):
    save(folder, "a", 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(files, "os", FaultyOS(9))
        with pytest.raises(StoreError, match="still 'a'"):
            save(folder, "a", 2.0)
    assert value_of(folder, "a") == 1.0
    save(folder, "a", 3.0)
    assert value_of(folder, "a") == 3.0
    assert len(list((folder.path / "checkpoints" / "a").iterdir())) == 4


def test_a_half_saved_one_is_none(folder):
    save(folder, "a", 1.0)
    half = folder.path / "checkpoints" / "b"
    half.mkdir()
    (half / "policy-parameters-00.safetensors").write_bytes(b"half")
    assert [c.tag for c in store.checkpoints_of(folder)] == ["a"]
    with pytest.raises(UnknownNameError, match="known: a"):
        store.find_checkpoint(folder, "b")


@pytest.mark.parametrize("name", ["policy-parameters", "session", "trainer"])
def test_what_is_absent_or_changed_is_named(folder, name):
    checkpoint = save(folder, "a", 1.0)
    [file] = [p["file"] for p in checkpoint.manifest["parts"] if p["name"] == name]
    path = checkpoint.path / file
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    with pytest.raises(StoreError, match=f"{name} was changed or cut"):
        store.load_state(checkpoint, PARTS)
    path.unlink()
    with pytest.raises(StoreError, match=f"{name} is absent"):
        store.load_state(checkpoint, PARTS)
    path.write_bytes(whole)
    with pytest.raises(StoreError, match=r"lacks the parts \['random'\]"):
        store.load_state(checkpoint, (*PARTS, "random"))


@pytest.mark.parametrize("tag", ["", "../x", "a/b", "a@b", ".hidden", "x y"])
def test_a_tag_is_a_plain_word(folder, tag):
    with pytest.raises(ConfigError, match="letters, digits"):
        save(folder, tag, 1.0)


def test_a_version_finds_its_checkpoint(folder):
    save(folder, "a", 1.0, version=4)
    save(folder, "b", 2.0, version=7)
    assert store.find_checkpoint(folder, "4").tag == "a"
    assert store.find_checkpoint(folder, 7).tag == "b"
    assert store.find_checkpoint(folder, None).tag == "b"


def test_the_newest_the_best_and_the_named_stay(folder):
    for version, reward in enumerate([0.1, 0.9, 0.2, 0.3, 0.4]):
        save(folder, f"s{version}", 1.0, version=version, reward=reward)
    save(folder, "mine", 1.0, version=0, automatic=False)
    save(folder, "s5", 1.0, version=5, reward=0.1)
    gone = store.retain(folder, keep=3, most_bytes=None, best="reward")
    assert gone == ["s0", "s2", "s3"]
    assert {c.tag for c in store.checkpoints_of(folder)} == {"mine", "s1", "s4", "s5"}
    size = store.find_checkpoint(folder, "s5").size
    assert store.retain(folder, keep=None, most_bytes=2 * size, best="reward") == ["s4"]
    assert store.retain(folder, keep=1, most_bytes=1, best=None) == ["s1"]
