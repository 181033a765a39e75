"""What the cluster's layer can be held to without one: refusals, and weights on their way."""

import dataclasses

import pytest
import torch

from nbrl.config import Engine, Model, Trainer
from nbrl.config.placement import Placement, Ranks, placement_problems
from nbrl.errors import ConfigError

pytestmark = pytest.mark.ray


def test_packed_weights_arrive_as_they_were_and_damage_is_seen():
    from nbrl.remote.weights import pack, unpack

    sent = [
        ("a", torch.arange(6.0).view(2, 3)),
        ("b", torch.tensor(2.0)),
        ("c", torch.ones(3, dtype=torch.bfloat16) / 3),
    ]
    packed = pack(sent)
    arrived, digest = unpack(packed)
    assert digest == packed.digest
    assert packed.nbytes == 24 + 4 + 6
    for (name, tensor), (other, here) in zip(sent, arrived, strict=True):
        assert name == other
        assert tensor.dtype == here.dtype
        assert torch.equal(tensor, here)
    damaged = [array.copy() for array in packed.arrays]
    damaged[0][0] ^= 1
    assert unpack(dataclasses.replace(packed, arrays=tuple(damaged)))[1] != packed.digest


@pytest.mark.parametrize(
    ("placement", "engine", "ranks", "said"),
    [
        (Placement(colocate="all"), Engine("vllm", sleep=True), Ranks(count=2), "same number"),
        (Placement(colocate="all"), Engine("vllm"), Ranks(count=1), "sleep=True"),
        (Placement(), Engine("vllm", sleep=True), Ranks(), "no effect without"),
        (Placement(colocate="critic_reward"), Engine("vllm"), Ranks(), "no critic"),
    ],
)
def test_sizes_that_cannot_be_are_refused_and_nothing_is_turned_off(placement, engine, ranks, said):
    assert said in " ".join(placement_problems(placement, engine, ranks))


def test_without_a_connection_the_ways_to_get_one_are_named():
    from nbrl.remote.cluster import open_cluster

    with pytest.raises(ConfigError, match=r"ray\.init.*'auto'"):
        open_cluster(
            "ray",
            model=Model("tiny"),
            engine=Engine("hf"),
            trainer=Trainer(),
            ranks=Ranks(),
            placement=Placement(),
            seed=0,
        )
