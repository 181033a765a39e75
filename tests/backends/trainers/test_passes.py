"""What can be known of the modules before they are asked anything."""

import pytest
import torch

from nbrl.backends.trainers.passes import gather_models
from nbrl.errors import ConfigError
from tests.backends.trainers.small import make_policy


def test_checkpointing_finds_the_layers_of_policy_and_leaves_them_in_evaluation_mode():
    policy = make_policy()
    models = gather_models(policy, None, gradient_checkpointing=True)
    assert [type(m).__name__ for m in models.checkpointed] == ["Qwen2DecoderLayer"] * 2
    assert not any(m.training for m in policy.modules())
    assert gather_models(make_policy(), None, gradient_checkpointing=False).checkpointed == ()


def test_checkpointing_that_no_layer_supports_is_refused_in_words():
    class Plain(torch.nn.Linear):
        def gradient_checkpointing_enable(self, options):
            pass

    with pytest.raises(ConfigError, match="Plain has no layers that support it"):
        gather_models(Plain(1, 1), None, gradient_checkpointing=True)
