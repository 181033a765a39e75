"""What the cluster's layer can be held to without one: refusals, and weights on their way."""

import dataclasses

import pytest
import torch

from nbrl.config import Critic, Engine, Lora, Model, Placement, Trainer, placement_problems
from nbrl.errors import ConfigError
from nbrl.notebook.connect import connect

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
        (Placement(colocate="all"), Engine("vllm", sleep=True), 2, "same number"),
        (Placement(colocate="all"), Engine("vllm"), 1, "sleep=True"),
        (Placement(colocate="all"), Engine("vllm", tensor_parallel=2, sleep=True), 1, "beside"),
        (Placement(), Engine("vllm", sleep=True), 1, "no effect without"),
    ],
)
def test_sizes_that_cannot_be_are_refused_and_nothing_is_turned_off(placement, engine, ranks, said):
    trainer = Trainer("deepspeed", ranks=ranks)
    assert said in " ".join(placement_problems(placement, engine, trainer))


REFUSED = [
    ({"trainer": Trainer("local")}, r"Trainer\('local'\) works in one process"),
    ({"placement": Placement(colocate="critic_reward")}, "Placement.colocate.*actor_ref, all"),
    ({"model": Model(head="reward")}, "Model.head='reward' is trained in one process"),
    ({"trainer": Trainer("deepspeed", zero_stage=4)}, "zero_stage must be one of"),
    ({"trainer": Trainer("deepspeed", critic=Critic())}, "trains no critic"),
    ({"trainer": Trainer("deepspeed", ema_decay=0.9)}, "keeps no average"),
    ({"trainer": Trainer("deepspeed", packed=True)}, "pads its rows"),
    ({"model": Model(attention="varlen")}, "attention='varlen' is trained in one process"),
    ({"model": Model(lora=Lora(base_bits=4))}, "base_bits=4 is trained in one process"),
    ({"model": Model(device="cpu")}, "devices of a cluster are given out by Ray"),
    ({"engine": Engine("vllm", sleep=True)}, "no effect without Placement"),
    ({"resume": "nowhere"}, "resume goes on in this process, not at 'ray'"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_cannot_run_on_a_cluster_is_refused_before_one_is_looked_for(asked, said):
    import ray

    with pytest.raises(ConfigError, match=said):
        connect("ray", **asked)
    assert not ray.is_initialized()


def test_what_needs_a_cluster_is_refused_in_one_process():
    asked = {"trainer": Trainer("deepspeed", ranks=2), "placement": Placement()}
    with pytest.raises(ConfigError, match=r"2 problems[\s\S]*placement has no effect[\s\S]*ray"):
        connect("local", **asked)


@pytest.mark.parametrize("where", ["cluster", "ray://", "Ray"])
def test_a_place_that_is_none_is_named_with_those_that_are(where):
    with pytest.raises(ConfigError, match="is unknown; known: local, ray, auto, ray://host:port"):
        connect(where)
