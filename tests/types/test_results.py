"""Steps, probes and evaluations: tables and one-line reprs."""

import numpy as np
import pyarrow as pa
import pytest

from nbrl.errors import DataError
from nbrl.types import Evaluation, History, Metric, Probe, StepResult, load
from tests.types.test_storage import assert_same
from tests.values import make_chain

NO_TOKENS = pa.table({"sample_id": pa.array([], pa.string())})


def make_probe(sketch: list[float], version: int = 3) -> Probe:
    metrics = {
        "loss": Metric(value=-0.01, count=8, of="tokens"),
        "grad_norm": Metric(value=2.0),
    }
    return Probe(
        name="ppo",
        version=version,
        metrics=metrics,
        tokens=NO_TOKENS,
        sketch=np.array(sketch, np.float32),
    )


def test_a_step_as_a_frame_and_as_a_line():
    result = StepResult(
        version_before=0,
        version_after=1,
        metrics={"loss": Metric(value=-0.5, count=10, of="tokens"), "lr": Metric(value=1e-6)},
        tokens=NO_TOKENS,
        seconds={"step": 0.1},
        warnings=("no signal",),
    )
    frame = result.to_pandas()
    assert frame.loc["loss"].tolist() == [-0.5, 10, "tokens"]
    assert frame.loc["lr"].tolist() == [1e-6, 1, "step"]
    assert repr(result) == "StepResult(version 0 -> 1, loss -0.5, 1 warnings)"


def test_cosine_is_that_of_the_sketches():
    a = make_probe([1.0, 0.0])
    assert a.cosine(make_probe([2.0, 2.0])) == pytest.approx(2**-0.5)
    assert a.cosine(make_probe([-3.0, 0.0])) == pytest.approx(-1.0)
    assert a.cosine(make_probe([0.0, 0.0])) == 0.0
    assert repr(a) == "Probe('ppo', version 3, loss -0.01, grad_norm 2)"


@pytest.mark.parametrize("other", [make_probe([1.0, 0.0], version=4), make_probe([1.0])])
def test_cosine_refuses_gradients_of_another_policy(other):
    with pytest.raises(DataError, match="gradients of one policy"):
        make_probe([1.0, 0.0]).cosine(other)


def test_an_evaluation_as_a_frame_and_as_a_line():
    evaluation = Evaluation(
        version=2,
        pass_at={1: (0.5, 0.4, 0.6), 8: (0.9, 0.8, 1.0)},
        reward=(0.55, 0.5, 0.6),
        scored=make_chain().scored,
    )
    frame = evaluation.to_pandas()
    assert frame.loc["pass@8"].tolist() == [0.9, 0.8, 1.0]
    assert frame.loc["reward", "estimate"] == 0.55
    assert "pass@1 0.500 [0.400, 0.600]" in repr(evaluation)
    assert "\n" not in repr(evaluation)


TOKENS = pa.table(
    {
        "sample_id": pa.array(["p0@0#0", "p0@0#1"]),
        "ratio": pa.array([[0.0, 1.5], [1.0]], pa.list_(pa.float32())),
        "clipped": pa.array([[False, True], [False]], pa.list_(pa.bool_())),
    }
)
SPEC = {"loss": {"surrogate": "ppo"}, "parents": {"batch": "ab12", "version": 3}}
METRICS = {
    "loss": Metric(value=0.1 + 0.2, count=2**40, of="tokens"),
    "grad_norm": Metric(value=2.0),
    "explained_variance": Metric(value=float("-inf")),
}
RESULTS = {
    "step": StepResult(
        version_before=3,
        version_after=4,
        metrics=METRICS,
        tokens=TOKENS,
        seconds={"rollout": 1 / 3, "train": 0.25},
        spec=SPEC,
        warnings=["every group has equal rewards"],
    ),
    "probe": Probe(
        name="ppo",
        version=3,
        metrics=METRICS,
        tokens=TOKENS,
        sketch=np.array([1 / 3, -1e-30, 0.0], np.float32),
        spec=SPEC,
    ),
    "evaluation": Evaluation(
        version=2,
        pass_at={1: (0.1 + 0.2, 0.25, 0.5), 4: (0.5, 0.25, float("nan"))},
        reward=(0.5, 0.25, 0.75),
        scored=make_chain().scored,
        spec=SPEC,
    ),
    "history": History(
        records=[
            {"version": 1, "reward": 0.5, "tokens": 2.0},
            {"version": 2, "reward": float("nan"), "kl": 1 / 3},
        ],
        interrupted=True,
        spec=SPEC,
    ),
    "no history": History(records=[]),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_comes_back_from_the_disk_as_it_was(name, tmp_path):
    value = RESULTS[name]
    value.save(tmp_path / "value")
    loaded = load(tmp_path / "value")
    assert_same(loaded, value)
    assert repr(loaded) == repr(value)
    assert loaded.spec == value.spec


def test_what_is_no_column_comes_back_too(tmp_path):
    for name, value in RESULTS.items():
        value.save(tmp_path / name)
    step, probe, evaluation, history, empty = (load(tmp_path / name) for name in RESULTS)
    assert (step.version_before, step.version_after) == (3, 4)
    assert step.metrics == METRICS
    assert step.seconds == {"rollout": 1 / 3, "train": 0.25}
    assert step.warnings == ["every group has equal rewards"]
    assert (probe.name, probe.version) == ("ppo", 3)
    assert probe.sketch.dtype == np.float32
    assert probe.cosine(RESULTS["probe"]) == pytest.approx(1.0)
    assert evaluation.pass_at[1] == (0.1 + 0.2, 0.25, 0.5)
    assert evaluation.reward == (0.5, 0.25, 0.75)
    assert repr(evaluation.scored) == repr(RESULTS["evaluation"].scored)
    assert repr(step.to_pandas()) == repr(RESULTS["step"].to_pandas())
    assert repr(list(history.records)) == repr(list(RESULTS["history"].records))
    assert history.interrupted
    assert (len(empty), empty.interrupted) == (0, False)


def test_a_result_takes_the_place_of_another(tmp_path):
    for name in RESULTS:
        RESULTS[name].save(tmp_path / "value")
    assert len(load(tmp_path / "value")) == 0
    assert len(list((tmp_path / "value").iterdir())) == 2
