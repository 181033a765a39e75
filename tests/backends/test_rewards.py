"""Rewards: found, bound by name, judged; a failure names the sample and is never a number."""

import asyncio
import functools
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import numpy as np
import pytest
import torch

from nbrl.backends.rewards import Outcome, Reward, load_reward, score_samples
from nbrl.errors import ConfigError, RewardError

ROWS = [
    {
        "sample_id": f"s-{i}",
        "prompt": f"{i}+1=",
        "response": f"{i + 1}",
        "label": f"{i + 1}",
        "messages": None,
        "metadata": {"level": i},
        "rollout": {"finish_reason": "stop"},
    }
    for i in range(4)
]
FACTOR = 2.0


def outcomes(reward, rows=ROWS, on_error="raise", units=None) -> list[Outcome]:
    done = [] if units is None else units
    return score_samples(
        load_reward(reward), rows, on_error=on_error, advance=lambda n, _: done.append(n)
    )


def values(reward, rows=ROWS, on_error="raise") -> list[float | None]:
    return [o.value for o in outcomes(reward, rows, on_error)]


# ---- binding ------------------------------------------------------------------------------------


def test_one_sample_functions_get_what_they_name():
    def everything(prompt, response, label, messages, metadata, rollout):
        assert (prompt, messages) == (f"{metadata['level']}+1=", None)
        assert rollout == {"finish_reason": "stop"}
        return float(response == label) + metadata["level"]

    assert values(everything) == [1.0, 2.0, 3.0, 4.0]
    assert values(lambda response: len(response)) == [1.0] * 4
    assert values(lambda response, tolerance=0.5: tolerance) == [0.5] * 4
    assert values(lambda **given: len(given)) == [6.0] * 4


def test_objects_methods_and_partials_are_callables_too():
    class Scorer:
        def __call__(self, response: str) -> float:
            return 1.0

        def half(self, response: str) -> float:
            return 0.5

    def weighed(response, weight):
        return weight

    assert values(Scorer()) == [1.0] * 4
    assert values(Scorer().half) == [0.5] * 4
    assert values(functools.partial(weighed, weight=3)) == [3.0] * 4
    assert load_reward(Scorer()).name == "Scorer"
    assert load_reward(functools.partial(weighed, weight=3)).name == "weighed"
    with pytest.raises(ConfigError, match="got the class"):
        load_reward(Scorer)


def test_a_batch_in_trls_form_gets_lists_and_columns():
    def reward(completions, prompts, level, **others):
        assert sorted(others) == ["label"]
        assert prompts == ["0+1=", "1+1=", "2+1=", "3+1="]
        return [n + len(c) for n, c in zip(level, completions, strict=True)]

    assert values(reward) == [1.0, 2.0, 3.0, 4.0]
    chats = [{**r, "messages": [{"role": "user", "content": r["prompt"]}]} for r in ROWS]
    assert values(lambda completions: [float(c[0]["content"]) for c in completions], chats) == [
        1.0,
        2.0,
        3.0,
        4.0,
    ]
    assert values(lambda prompts, completions: [len(p) for p in prompts], chats) == [1.0] * 4


def test_a_column_that_the_data_lacks_is_named_before_any_call():
    called = []

    def reward(completions, answer):
        called.append(1)
        return [0.0] * len(completions)

    with pytest.raises(ConfigError, match=r"asks for \['answer'\].*'level'"):
        outcomes(reward)
    assert not called


def test_a_batch_in_openrlhfs_form_is_called_by_position():
    def reward_func(queries, prompts, labels):
        right = torch.tensor([q == p + x for q, p, x in zip(queries, prompts, labels, strict=True)])
        return {
            "rewards": right.float() * 2,
            "scores": right.float(),
            "extra_logs": {"length": torch.tensor([float(len(q)) for q in queries]), "epoch": 3},
        }

    found = outcomes(reward_func)
    assert [o.value for o in found] == [2.0] * 4
    assert found[1].extras == {"scores": 1.0, "length": 5.0, "epoch": 3}
    unlabelled = [{**r, "label": None} for r in ROWS]
    assert (
        values(lambda queries, prompts, labels: {"rewards": list(map(len, labels))}, unlabelled)
        == [0.0] * 4
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda answer, response: 0.0, r"\['answer'\] cannot be bound.*prompt, response, label"),
        (lambda: 0.0, "none of them can be bound"),
        (lambda *args: 0.0, "none of them can be bound"),
        (lambda response, /: 0.0, r"\['response'\] cannot be bound by name"),
        (lambda queries, prompts, labels, images: 0.0, r"\['images'\] cannot be bound"),
        (len, "cannot be bound"),
        (42, "a callable, a path to a .py file, .*; got int 42"),
    ],
)
def test_parameters_that_no_form_has_are_refused_when_loaded(function, message):
    with pytest.raises(ConfigError, match=message):
        load_reward(function)


# ---- what is returned ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [1, 1.0, True, np.float32(1), np.int64(1), np.bool_(True), np.array(1.0), torch.tensor(1.0),
     torch.tensor([1]), torch.tensor(True)],
)  # fmt: skip
def test_every_kind_of_number_is_a_float(given):
    found = values(lambda response: given)
    assert found == [1.0] * 4
    assert all(type(v) is float for v in found)
    assert values(lambda completions: [given] * 4) == [1.0] * 4


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (None, "NoneType None"),
        ("1.0", "str '1.0'"),
        (math.nan, "the reward is nan"),
        (math.inf, "the reward is inf"),
        (-math.inf, "the reward is -inf"),
        (10**400, "int 1000"),
        ([1.0], r"list \[1.0\]"),
        (torch.tensor([1.0, 2.0]), "Tensor"),
        (np.zeros(2), "ndarray"),
        (1j, "complex"),
        ({}, "an empty dict"),
        ({1: 0.5, "1": 0.5}, r"the component names \[1\] are no texts"),
        ({"": 0.5}, r"the component names \[''\] are no texts"),
        ({"format": None}, "component 'format' is NoneType None"),
        ({"format": math.nan}, "component 'format' is nan"),
        (Reward(math.nan), "the reward is nan"),
        (Reward(1.0, extras={"tree": object()}), "extras that JSON cannot hold"),
    ],
)
def test_what_is_no_reward_is_refused_with_reward_and_sample(given, shown):
    def mine(response):
        return given if response == "3" else 0.5

    with pytest.raises(RewardError, match=rf"reward 'mine' on sample 's-2': .*{shown}"):
        outcomes(mine)
    found = outcomes(mine, on_error="exclude")
    assert [o.value for o in found] == [0.5, 0.5, None, 0.5]
    assert [o.status for o in found] == ["ok", "ok", "error", "ok"]


@pytest.mark.parametrize("on_error", ["raise", "exclude"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([1.0], "must return 3 numbers, one a sample; got 1"),
        ([1.0, 2.0], "must return 3 numbers, one a sample; got 2"),
        ([], "must return 3 numbers, one a sample; got 0"),
        (torch.ones(4), "must return 3 numbers, one a sample; got 4"),
        (1.0, "must return a list of 3 numbers, one a sample; got float 1.0"),
        (torch.tensor(1.0), "must return a list of 3 numbers"),
        (None, "must return a list of 3 numbers, one a sample; got NoneType"),
        ("abc", "must return a list of 3 numbers, one a sample; got str"),
        ({"rewards": [1, 1, 1]}, "must return a list of 3 numbers, one a sample; got dict"),
    ],
)
def test_nothing_is_broadcast(given, message, on_error):
    def too_few(completions):
        return given

    with pytest.raises(RewardError, match=rf"'too_few' {message}"):
        outcomes(too_few, ROWS[:3], on_error)
    if not isinstance(given, dict):

        def theirs(queries, prompts, labels):
            return {"rewards": given}

        with pytest.raises(RewardError, match=rf"'theirs' {message}"):
            outcomes(theirs, ROWS[:3], on_error)


def test_components_add_up_and_extras_are_kept():
    def parts(response):
        return Reward({"right": 1, "short": np.float64(0.25)}, extras={"parsed": np.int64(7)})

    found = outcomes(parts)
    assert found[0].value == 1.25
    assert found[0].components == {"right": 1.0, "short": 0.25}
    assert found[0].extras == {"parsed": 7.0}
    assert found[0].seconds > 0


# ---- failures -----------------------------------------------------------------------------------


def fails_on_the_second(response: str) -> float:
    if response == "2":
        raise KeyError("no such answer")
    return 1.0


def test_a_reward_that_raises_stops_at_once_and_shows_its_own_traceback():
    units: list[int] = []
    with pytest.raises(
        RewardError, match=r"'fails_on_the_second' on sample 's-1' raised KeyErr"
    ) as e:
        outcomes(fails_on_the_second, units=units)
    assert units == [1]
    assert isinstance(e.value.__cause__, KeyError)
    frames = e.traceback if e.value.__cause__ is None else e.value.__cause__.__traceback__
    assert frames.tb_next.tb_frame.f_code.co_name == "fails_on_the_second"
    assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)


def test_a_sample_that_could_not_be_scored_is_marked_and_never_zero():
    units: list[int] = []
    found = outcomes(fails_on_the_second, on_error="exclude", units=units)
    assert [o.value for o in found] == [1.0, None, 1.0, 1.0]
    assert [o.status for o in found] == ["ok", "error", "ok", "ok"]
    assert found[1].error == "KeyError: 'no such answer'"
    assert sum(units) == 4


def test_a_batch_that_raises_does_not_blame_a_sample():
    def together(completions):
        return [1 / 0 for _ in completions]

    with pytest.raises(RewardError, match="on a batch of 4 samples raised ZeroDivisionError"):
        outcomes(together)
    assert values(together, on_error="exclude") == [None] * 4


def test_an_interrupt_is_not_a_failed_sample():
    def interrupted(response):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        outcomes(interrupted, on_error="exclude")


def test_no_samples_are_no_calls():
    assert outcomes(lambda completions, answer: 1 / 0, []) == []


# ---- async --------------------------------------------------------------------------------------


async def later(response: str) -> float:
    await asyncio.sleep(0.01)
    if response == "3":
        raise ValueError("late")
    return float(response)


def test_async_rewards_run_together_also_inside_a_running_loop():
    assert values(later, on_error="exclude") == [1.0, 2.0, None, 4.0]

    async def cell() -> list[float | None]:
        return values(later, on_error="exclude")

    assert asyncio.run(cell()) == [1.0, 2.0, None, 4.0]
    with pytest.raises(RewardError, match=r"'later' on sample 's-2' raised ValueError: late"):
        outcomes(later)


def test_async_objects_and_batches_are_awaited():
    class Judge:
        async def __call__(self, response: str) -> float:
            return 2.0

    async def together(completions):
        return [len(completions)] * len(completions)

    assert values(Judge()) == [2.0] * 4
    assert values(together) == [4.0] * 4


# ---- files --------------------------------------------------------------------------------------


def test_a_file_is_run_anew_so_that_an_edit_counts(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def reward(response):\n    return 1\n")
    first = load_reward(str(file))
    file.write_text("def reward(response):\n    return 2\n")
    second = load_reward(file)
    assert values(str(file)) == [2.0] * 4
    assert first.function(response="") == 1
    assert first.fingerprint != second.fingerprint
    assert (first.name, first.form) == ("mine", "sample")


def test_a_file_may_name_its_function_and_hold_dataclasses(tmp_path):
    file = tmp_path / "many.py"
    file.write_text(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Parsed:\n    text: str\n"
        "def length(response):\n    return len(Parsed(response).text)\n"
        "def reward_func(queries, prompts, labels):\n    return {'rewards': [5] * len(queries)}\n"
    )
    assert values(f"{file}:length") == [1.0] * 4
    assert values(str(file)) == [5.0] * 4
    assert load_reward(f"{file}:length").fingerprint != load_reward(str(file)).fingerprint
    with pytest.raises(
        ConfigError, match=r"no function 'width'; it defines \['dataclass', 'Parsed"
    ):
        load_reward(f"{file}:width")


def test_files_that_are_not_there_or_do_not_run_are_clear(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("def reward(response:\n")
    empty = tmp_path / "empty.py"
    empty.write_text("import math\n")
    for given, kind, message in [
        (str(tmp_path / "none.py"), ConfigError, "there is no Python file"),
        (str(tmp_path), ConfigError, "there is no Python file"),
        ("http://127.0.0.1:0/get_reward", ConfigError, "must begin with http"),
        (str(broken), RewardError, "broken.py cannot be run: SyntaxError"),
        (str(empty), ConfigError, "no function 'reward' or 'reward_func'"),
    ]:
        with pytest.raises(kind, match=message):
            load_reward(given)
    assert not [n for n in sys.modules if n.startswith("nbrl_reward_broken")]


# ---- fingerprints -------------------------------------------------------------------------------


def helper(x: float) -> float:
    return x * FACTOR


def uses_helper(response: str) -> float:
    return helper(len(response))


def print_of(function) -> str:
    return load_reward(function).fingerprint


class Scorer:
    def __init__(self, weight: float):
        self.weight = weight

    def __call__(self, response: str) -> float:
        return self.weight


class Slotted:
    __slots__ = ("weight",)
    __init__ = Scorer.__init__
    __call__ = Scorer.__call__


class Inherited(Scorer):
    pass


def scaled(response: str, scale: float) -> float:
    return scale


def with_default(weight: float):
    def reward(response, w=weight):
        return w

    return reward


MADE_WITH_A_WEIGHT = {
    "closure": lambda weight: lambda response: weight,
    "default": with_default,
    "attribute": Scorer,
    "slot": Slotted,
    "inherited": Inherited,
    "partial": lambda weight: functools.partial(scaled, scale=weight),
}


@pytest.mark.parametrize("make", MADE_WITH_A_WEIGHT.values(), ids=MADE_WITH_A_WEIGHT)
def test_a_fingerprint_follows_the_values_a_reward_holds(make):
    assert print_of(make(1.0)) == print_of(make(1.0))
    assert print_of(make(1.0)) != print_of(make(2.0))


def test_a_fingerprint_follows_what_the_function_names(monkeypatch):
    before = print_of(uses_helper)
    assert before == print_of(uses_helper)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert print_of(uses_helper) != before
    monkeypatch.setitem(globals(), "FACTOR", 2.0)
    assert print_of(uses_helper) == before
    monkeypatch.setitem(globals(), "helper", len)
    assert print_of(uses_helper) != before


def from_text(text: str) -> FunctionType:
    """A function without a source file, as from a cell whose source is lost."""
    scope: dict = {"__name__": "cell"}
    exec(text, scope)
    return scope["reward"]


def test_a_function_without_source_is_known_by_its_code():
    one, same, other = (
        from_text(f"def reward(response):\n    return sum({n} for _ in response)")
        for n in (1, 1, 2)
    )
    assert values(one) == [1.0] * 4
    assert print_of(one) == print_of(same) != print_of(other)


@pytest.mark.slow
def test_a_fingerprint_is_the_same_in_another_process():
    code = (
        "from nbrl.backends.rewards import load_reward\n"
        "s = {}\n"
        "exec('def reward(response):\\n    return sum(x in {1, 2, \"a\"} for x in response)', s)\n"
        "class Judge:\n"
        "    def __init__(self): self.names = {'a', 'b', 'c'}; self.model = object()\n"
        "    def __call__(self, response): return 1\n"
        "print(load_reward(s['reward']).fingerprint, load_reward(Judge()).fingerprint)"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_functions_that_call_each_other_have_one_too():
    def reward(response):
        return 0.0 if not response else reward(response[1:])

    assert len(print_of(reward)) == 64


# ---- the files that come with nbrl --------------------------------------------------------------

FILES = Path(__file__).parents[2] / "reward_fns"


def graded(file: str, response: str, label: str) -> float | None:
    (value,) = values(str(FILES / file), [{**ROWS[0], "response": response, "label": label}])
    return value


def test_shipped_files_need_no_nbrl():
    for file in FILES.glob("*.py"):
        assert not [line for line in file.read_text().splitlines() if "import nbrl" in line]
        assert "\nfrom nbrl" not in file.read_text()
        assert load_reward(file).form == "sample"


@pytest.mark.parametrize(
    ("response", "value"), [("49", 1.0), (" 49\n", 1.0), ("49?", 0.0), ("049", 0.0), ("", 0.0)]
)
def test_arithmetic_is_exact(response, value):
    assert graded("arithmetic.py", response, "49") == value


@pytest.mark.parametrize(
    ("response", "label", "value"),
    [
        ("7 + 5 = 12", "12", 1.0),
        ("The answer is 1,234.", "1234", 1.0),
        ("12.0", "12", 1.0),
        ("it is -3", "-3", 1.0),
        ("15-3", "3", 1.0),
        ("12, or 13", "12", 0.0),
        ("none", "12", 0.0),
    ],
)
def test_the_last_number_counts(response, label, value):
    assert graded("last_number.py", response, label) == value


@pytest.mark.parametrize(
    ("response", "label", "value"),
    [("it is 12", "12", 1.0), ("3, or 4", "5", 0.5), ("-1", "2", 0.25), ("none", "12", 0.0)],
)
def test_a_near_number_counts_in_part(response, label, value):
    assert graded("near_number.py", response, label) == value


@pytest.mark.parametrize(
    ("label", "response", "value"),
    json.loads(
        r"""[
        ["1/2", "\\boxed{\\frac{1}{2}}", 1.0],
        ["\\frac{1}{3}", "\\boxed{0.33}", 0.0],
        ["42", "first \\boxed{41}, so finally \\boxed{42}", 1.0],
        ["42", "\\boxed{42", 0.0],
        ["42", "\\boxed{\\boxed{42}", 1.0],
        ["42", "42", 0.0],
        ["0", "\\boxed{-0}", 1.0],
        ["7", "\\boxed{\\boxed{7}}", 1.0],
        ["10", "\\boxed{}", 0.0],
        ["5", "<think>\\boxed{5}</think> The answer is \\boxed{6}", 0.0],
        ["5", "<think>\\boxed{6}</think> The answer is \\boxed{5}", 1.0],
        ["(1,2)", "\\boxed{(2,1)}", 0.0]
        ]"""
    ),
)
def test_mathematics_is_judged_by_its_value(label, response, value):
    assert graded("math.py", response, label) == value
