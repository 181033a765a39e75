"""Freezing by patterns: what it freezes stands still, and a pattern without effect is an error."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from nbrl.backends.freezing import freeze
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Optimizer, PolicyLoss
from nbrl.errors import ConfigError
from tests.backends.trainers.small import make_batch, make_policy, still


def test_what_is_frozen_stands_still_and_the_rest_moves():
    policy = make_policy()
    frozen = freeze(policy, ("model.embed_tokens.*", "*layers.0.mlp*"))
    assert frozen == [
        "model.embed_tokens.weight",
        *(f"model.layers.0.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    ]
    before = {n: p.detach().clone() for n, p in policy.named_parameters()}
    trainer = LocalTrainer(policy, optimizer=Optimizer(lr=1e-2, weight_decay=0.1))
    trainer.step([[make_batch([3, 5, 2])]], PolicyLoss(), still)
    for name, parameter in policy.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in frozen), name
    assert set(trainer.state()["learners"][0]["parameters"]) == set(before) - set(frozen)
    assert trainer.describe()["trainable"] == sum(
        p.numel() for n, p in before.items() if n not in frozen
    )


def test_a_tied_head_is_frozen_by_either_name():
    policy = make_policy()
    policy.config.tie_word_embeddings = True
    policy.tie_weights()
    if policy.lm_head.weight is not policy.model.embed_tokens.weight:
        policy.lm_head.weight = policy.model.embed_tokens.weight
    assert freeze(policy, ["lm_head.*"]) == ["lm_head.weight"]
    assert not policy.model.embed_tokens.weight.requires_grad


def test_patterns_without_effect_are_all_named_and_nothing_is_changed():
    policy = make_policy()
    with pytest.raises(ConfigError) as error:
        freeze(policy, ["*visual*", "model.norm.weight", "lm.head"])
    said = str(error.value)
    assert "2 problems" in said
    assert "'*visual*' matches none of the" in said
    assert "model.embed_tokens.weight" in said
    assert "'lm.head' matches none" in said
    assert all(p.requires_grad for p in policy.parameters())


def test_something_must_be_left_to_train():
    with pytest.raises(ConfigError, match="nothing is left to train"):
        freeze(make_policy(), ["*"])


def test_of_an_adapter_only_its_own_parameters_can_be_frozen():
    adapted = get_peft_model(make_policy(), LoraConfig(r=2, target_modules="all-linear"))
    with pytest.raises(ConfigError, match="not trained anyway"):
        freeze(adapted, ["*embed_tokens*"])
    frozen = freeze(adapted, ["*layers.0.*lora_*"])
    assert frozen
    assert all("layers.0" in name and "lora_" in name for name in frozen)
