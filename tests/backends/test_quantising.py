"""QLoRA: a base of 4 bits under an adapter, and what is said where it cannot be."""

import importlib.util

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import nbrl
from nbrl.backends.models import load_policy
from nbrl.backends.quantising import plain_weight
from nbrl.config import Lora, Model
from nbrl.errors import ConfigError

HERE = importlib.util.find_spec("bitsandbytes") is not None
needs_it = pytest.mark.skipif(not HERE, reason="needs bitsandbytes, the extra qlora")
SMALL = Model("tiny", lora=Lora(rank=4, base_bits=4), device="cpu")
IDS = torch.tensor([[5, 9, 3, 17, 40]])


@pytest.mark.skipif(HERE, reason="bitsandbytes is installed")
def test_what_is_missing_is_said_before_anything_is_made(tmp_path):
    with pytest.raises(ConfigError) as error:
        nbrl.connect(model=SMALL, engine=nbrl.Engine("vllm"), run_dir=tmp_path / "run")
    assert "needs the package bitsandbytes" in str(error.value)
    assert "needs Engine('hf')" in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bits", [8, 0, True])
def test_four_bits_or_none(bits):
    with pytest.raises(ConfigError, match="base_bits must be 4 or None"):
        nbrl.connect(model=Model("tiny", lora=Lora(base_bits=bits)))


@needs_it
def test_the_base_is_the_checkpoint_to_four_bits():
    loaded, plain = load_policy(SMALL), load_policy(Model("tiny", device="cpu"))
    held = dict(loaded.module.get_base_model().named_parameters())
    layer = "model.layers.0.mlp.up_proj"
    weight = held[f"{layer}.base_layer.weight"]
    wanted = dict(plain.module.named_parameters())[f"{layer}.weight"]
    assert weight.dtype == torch.uint8
    assert weight.numel() == wanted.numel() / 2
    gap = (plain_weight(weight) - wanted).abs()
    assert 0 < gap.max() < 0.2 * wanted.abs().max()
    trained = [n for n, p in loaded.module.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


@needs_it
def test_it_learns_and_exports_what_it_has_become(tmp_path):
    rows = [{"prompt": f"{i}+1=", "response": str(i + 1)} for i in range(8)]
    trainer = nbrl.Trainer(optimizer=nbrl.Optimizer(lr=3e-3), ema_decay=0.5)
    data = nbrl.load_conversations(rows)
    session = nbrl.connect(model=SMALL, trainer=trainer, run_dir=tmp_path / "run", progress="quiet")
    with session:
        history = session.fit(data, nbrl.SFT(), 4, batch_size=8, held_out=data)
        assert history.records[-1]["loss"] < history.records[0]["loss"]
        session.rollout(session.next_prompts(2), n=2, sampling=nbrl.Sampling(max_new_tokens=4))
        session.train_step(
            nbrl.load_pairs([{"prompt": "1+1=", "chosen": "2", "rejected": "3"}]), nbrl.DPO()
        )
        session.export(tmp_path / "out")
        module = session._runtime.trainer._models.policy
        with torch.no_grad():
            wanted = module(IDS).logits
        session.save()
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert "quantization_config" not in back.config.to_dict()
    torch.testing.assert_close(back(IDS).logits, wanted, atol=2e-3, rtol=1e-3)
    resumed = nbrl.connect(resume=tmp_path / "run", progress="quiet")
    with resumed, torch.no_grad():
        torch.testing.assert_close(resumed._runtime.trainer._models.policy(IDS).logits, wanted)


@needs_it
def test_a_reward_model_keeps_its_head_whole(tmp_path):
    model = Model("tiny", lora=Lora(rank=4, base_bits=4), head="reward", device="cpu")
    pairs = nbrl.load_pairs([{"prompt": f"{i}+1=", "chosen": "2", "rejected": "3"} for i in "123"])
    for place in ("first", "second"):
        session = nbrl.connect(model=model, run_dir=tmp_path / f"run-{place}", progress="quiet")
        with session:
            session.fit(pairs, nbrl.RewardLoss())
            session.export(tmp_path / place)
            with torch.no_grad():
                wanted = session._runtime.trainer._models.policy(IDS)[:, -1]
        back = AutoModelForSequenceClassification.from_pretrained(tmp_path / place)
        torch.testing.assert_close(back(IDS).logits[:, 0], wanted, atol=2e-3, rtol=1e-3)
        # the second starts from the first, a classifier with a head of its own
        model = Model(str(tmp_path / place), lora=model.lora, head="reward", device="cpu")
