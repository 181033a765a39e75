"""The balance of experts of small mixture-of-experts models, against transformers' own value."""

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

from nbrl.backends import forward
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import DPO, SFT, Optimizer
from nbrl.errors import StepError
from tests.backends.trainers.small import VOCABULARY, make_batch, make_policy, part, still

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "num_experts_per_tok": 2,
}
KINDS = {
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**SHAPE, intermediate_size=32, num_local_experts=4)
    ),
    "qwen2_moe": lambda: Qwen2MoeForCausalLM(
        Qwen2MoeConfig(
            **SHAPE,
            intermediate_size=32,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            num_experts=4,
        )
    ),
}


def make_experts(kind):
    torch.manual_seed(0)
    return KINDS[kind]().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradient_are_transformers(kind):
    """One row that is learned but for its first token, as transformers does by ``labels``."""
    ours, theirs = make_experts(kind), make_experts(kind)
    theirs.config.router_aux_loss_coef = theirs.router_aux_loss_coef = 0.3
    batch = make_batch([7], prompt_widths=[1], columns=())
    (terms,) = LocalTrainer(ours, optimizer=Optimizer(lr=0.0)).step(
        [[batch]], SFT(aux_coef=0.3), still
    )
    said = theirs(batch.input_ids, labels=batch.input_ids, output_router_logits=True)
    assert terms.metrics["loss"].value == pytest.approx(said.loss.item(), abs=1e-5)
    assert terms.metrics["aux_loss"].value == pytest.approx(said.aux_loss.item(), abs=1e-5)
    said.loss.backward()
    norm = torch.cat([p.grad.flatten() for p in theirs.parameters() if p.grad is not None]).norm()
    assert terms.metrics["grad_norm"].value == pytest.approx(float(norm), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_does_not_count(kind):
    policy = make_experts(kind)
    batch = make_batch([3, 6], prompt_widths=[4, 1], columns=())
    logits, balance = forward.response_logits_and_balance(policy, batch, wanted=True)
    said = policy(
        batch.input_ids, attention_mask=batch.attention_mask.long(), output_router_logits=True
    )
    assert balance.item() == pytest.approx(said.aux_loss.item(), abs=1e-5)
    for row in range(2):
        alone = part(batch, [row])
        wanted, own = forward.response_logits_and_balance(policy, alone, wanted=True)
        length = int(alone.mask.sum())
        torch.testing.assert_close(logits[row, :length], wanted[0, :length], atol=1e-4, rtol=1e-4)
        assert own.item() != pytest.approx(balance.item(), abs=1e-6)


def test_dpo_adds_it_to_its_pairs():
    policy = make_experts("mixtral")
    batch = make_batch([3, 5], prompt_widths=[2, 2], columns=("ref_logprobs",))
    with torch.no_grad():
        _, balance = forward.response_logits_and_balance(policy, batch, wanted=True)
    losses = []
    for coef in (0.0, 0.5):
        trainer = LocalTrainer(make_experts("mixtral"), optimizer=Optimizer(lr=0.0))
        (terms,) = trainer.step([[batch]], DPO(aux_coef=coef), still)
        losses.append(terms.metrics["loss"].value)
    assert losses[1] - losses[0] == pytest.approx(0.5 * float(balance), abs=1e-4)


def test_a_model_without_experts_says_so():
    trainer = LocalTrainer(make_policy(), optimizer=Optimizer(lr=1e-3))
    before = trainer.digest()
    with pytest.raises(StepError, match="balance of experts"):
        trainer.step([[make_batch([3], columns=())]], SFT(aux_coef=0.1), still)
    assert trainer.digest() == before
    assert not forward.balances_experts(make_policy())
    assert forward.balances_experts(make_experts("qwen2_moe"))
