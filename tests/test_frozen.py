"""Every public value refuses a change, whatever the name, and says what to do instead."""

import dataclasses
import pickle

import pytest

import nbrl
from nbrl.frozen import frozen
from tests.values import make_chain

PUBLIC = [
    value
    for value in (getattr(nbrl, name) for name in nbrl.__all__)
    if isinstance(value, type) and dataclasses.is_dataclass(value)
]


@frozen()
class Pair:
    left: int
    right: int = 2


@pytest.mark.parametrize("name", ["left", "nothing"])
def test_a_value_says_that_it_does_not_change(name):
    pair = Pair(left=1)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"set '{name}'.*left, right.*repl"):
        setattr(pair, name, 3)
    with pytest.raises(dataclasses.FrozenInstanceError, match=f"delete '{name}'"):
        delattr(pair, name)
    assert pickle.loads(pickle.dumps(pair)) == pair == dataclasses.replace(pair)


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda k: k.__name__)
def test_every_public_value_says_it(kind):
    value = object.__new__(kind)
    for name in ("x", dataclasses.fields(kind)[0].name):
        with pytest.raises(dataclasses.FrozenInstanceError, match=kind.__name__):
            setattr(value, name, 1)


def test_a_new_name_on_rollouts_is_refused_by_a_sentence():
    with pytest.raises(dataclasses.FrozenInstanceError, match=r"Rollouts.*table, prompts"):
        make_chain().scored.rollouts.x = 1
