"""``import nbrl`` is quick and light; every public name is where it is said to be."""

import inspect
import json
import subprocess
import sys

import pytest

import nbrl

HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "pandas", "pyarrow", "matplotlib")
MEASURE = f"""
import json, sys, time
start = time.perf_counter()
import nbrl
seconds = time.perf_counter() - start
print(json.dumps([seconds, [m for m in {HEAVY!r} if m in sys.modules]]))
"""


def fresh(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


def test_import_is_quick_and_loads_nothing_heavy():
    seconds, heavy = json.loads(fresh(MEASURE))
    assert heavy == []
    assert seconds < 1.5


@pytest.mark.slow
def test_no_public_name_loads_an_engine_or_a_cluster():
    code = (
        "import nbrl, sys; [getattr(nbrl, n) for n in nbrl.__all__];"
        "print([m for m in ('ray', 'vllm', 'deepspeed') if m in sys.modules])"
    )
    assert fresh(code).strip() == "[]"


@pytest.mark.parametrize("name", nbrl.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    value = getattr(nbrl, name)
    if name != "__version__":
        assert inspect.getdoc(value)
    assert getattr(nbrl, name) is value


def test_dir_is_what_is_public():
    assert dir(nbrl) == sorted(nbrl.__all__)
    assert len(set(nbrl.__all__)) == len(nbrl.__all__)
    assert {*nbrl._HOMES, *nbrl._MODULES, "__version__"} == set(nbrl.__all__)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(AttributeError, match=r"no public name 'rollout'.*compute_advantages"):
        _ = nbrl.rollout
    with pytest.raises(ImportError, match="rollout"):
        exec("from nbrl import rollout")


FUNCTIONAL = (
    "masked_mean", "whiten", "aggregate", "token_logprobs", "entropy", "kl", "estimate",
    "Estimator", "surrogate", "value_loss", "importance_weights", "pass_at_k",
    "bootstrap_interval", "paired_difference",
)  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_the_maths_is_reached_through_one_name(name):
    assert callable(getattr(nbrl.functional, name))
