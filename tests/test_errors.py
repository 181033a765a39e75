"""Errors are ours and a builtin's, can be sent between processes, and say what to do."""

import copy
import inspect
import pickle

import pytest

from nbrl import errors

CLASSES = [
    c
    for c in vars(errors).values()
    if inspect.isclass(c) and issubclass(c, errors.NbrlError) and c is not errors.NbrlError
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda c: c.__name__)
def test_errors_survive_pickling_and_copying(kind):
    error = kind("asked, given, allowed")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == "asked, given, allowed"


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.UnknownNameError, ValueError),
        (errors.DataError, ValueError),
        (errors.RolloutError, RuntimeError),
        (errors.RewardError, RuntimeError),
        (errors.StepError, RuntimeError),
        (errors.SessionError, RuntimeError),
        (errors.StoreError, OSError),
    ],
)
def test_each_error_is_a_builtin_too(kind, builtin):
    with pytest.raises(builtin, match="why"):
        raise kind("why")
    assert kind in CLASSES


def test_an_unknown_name_lists_the_known_ones_in_order():
    error = errors.unknown_name("estimator", "gpro", {"rloo": 1, "grpo": 2})
    assert isinstance(error, errors.ConfigError)
    assert str(error) == ("unknown estimator 'gpro'; known: grpo, rloo. Pass one of these names.")


@pytest.mark.parametrize(
    ("problems", "text"),
    [
        (["one"], "rollout: 1 problem\n  - one"),
        (iter(["one", "two"]), "rollout: 2 problems\n  - one\n  - two"),
    ],
)
def test_all_problems_come_in_one_message(problems, text):
    error = errors.all_problems("rollout", problems)
    assert type(error) is errors.ConfigError
    assert str(error) == text
