"""Steps, probes and evaluations: tables and one-line reprs."""

import numpy as np
import pyarrow as pa
import pytest

from nbrl.errors import DataError
from nbrl.types import Evaluation, Metric, Probe, StepResult
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
