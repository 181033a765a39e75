"""What is exported is what was trained, in the form that others load."""

import shutil

import pytest
import torch
from peft import PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from nbrl.backends.exporting import export_adapter, export_model
from nbrl.backends.models import load_critic, load_policy
from nbrl.backends.trainers.passes import merged_weights
from nbrl.config import Lora, Model
from nbrl.errors import ConfigError, StoreError

IDS = torch.tensor([[5, 9, 3, 17, 40]])


def shaken(module, seed=0):
    """The module with every weight moved a little."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return module


def weights_of(module):
    return ((name, p.detach()) for name, p in module.named_parameters())


def test_a_policy_loads_as_it_was_trained(random_checkpoint, tmp_path):
    loaded = load_policy(Model(random_checkpoint))
    shaken(loaded.module)
    export_model(loaded, weights_of(loaded.module), tmp_path / "out", scale=None)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(back(IDS).logits, loaded.module(IDS).logits, atol=0, rtol=0)
    assert back.generation_config.eos_token_id == loaded.module.generation_config.eos_token_id
    text = "7+5="
    assert AutoTokenizer.from_pretrained(tmp_path / "out")(text) == loaded.tokenizer(text)
    again = load_policy(Model(str(tmp_path / "out")))
    assert again.eos_ids == loaded.eos_ids


def test_an_adapter_is_merged_or_written_alone(random_checkpoint, tmp_path):
    loaded = load_policy(Model(random_checkpoint, lora=Lora(rank=4)))
    shaken(loaded.module)
    export_model(loaded, merged_weights(loaded.module), tmp_path / "whole", scale=None)
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    torch.testing.assert_close(back(IDS).logits, loaded.module(IDS).logits, atol=2e-4, rtol=1e-4)
    export_adapter(loaded, tmp_path / "adapter")
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    base = AutoModelForCausalLM.from_pretrained(random_checkpoint)
    alone = PeftModel.from_pretrained(base, tmp_path / "adapter")
    # the base's own weights were moved too, and are no part of an adapter
    lora = {n: p for n, p in loaded.module.named_parameters() if "lora_" in n}
    for name, parameter in alone.named_parameters():
        if "lora_" in name:
            assert torch.equal(parameter, lora[name]), name
    with pytest.raises(ConfigError, match="only a language model with a LoRA adapter"):
        export_adapter(load_policy(Model(random_checkpoint)), tmp_path / "none")


def test_b86_an_update_that_bfloat16_cannot_hold_is_merged_in_float32():
    from peft import LoraConfig, get_peft_model
    from torch import nn

    class One(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)

    inner = One()
    nn.init.ones_(inner.layer.weight)
    adapted = get_peft_model(inner, LoraConfig(r=1, lora_alpha=1, target_modules=["layer"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.fill_(1.0 if "lora_A" in name else 0.003)
    for _ in range(2):
        ((name, weight),) = merged_weights(adapted)
        assert name == "layer.weight"
        assert weight.dtype == torch.float32
        assert weight.item() == pytest.approx(1.003, abs=1e-5)


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
def test_a_reward_model_loads_as_a_sequence_classifier(random_checkpoint, tmp_path, lora):
    loaded = load_policy(Model(random_checkpoint, head="reward", lora=lora), head_seed=3)
    shaken(loaded.module)
    weights = weights_of(loaded.module) if lora is None else merged_weights(loaded.module)
    scale = {"mean": 0.5, "std": 2.0, "origin": {"role": "training", "data": "here"}}
    export_model(loaded, weights, tmp_path / "rm", scale=scale)
    back = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
    wanted = loaded.module(IDS)[:, -1]
    torch.testing.assert_close(back(IDS).logits[:, 0], wanted, atol=2e-4, rtol=1e-4)
    assert (back.config.num_labels, back.config.value_head_prefix) == (1, "score")
    assert (back.config.mean, back.config.std) == (0.5, 2.0)
    assert back.config.score_scale == scale
    # and here again, to train on or as a critic
    here = load_policy(Model(str(tmp_path / "rm"), head="reward"))
    torch.testing.assert_close(here.module(IDS)[:, -1], wanted, atol=2e-4, rtol=1e-4)
    critic = load_critic(Model(random_checkpoint), str(tmp_path / "rm"))
    torch.testing.assert_close(critic(IDS)[:, -1], wanted, atol=2e-4, rtol=1e-4)


def test_a_score_does_not_depend_on_padding(random_checkpoint, tmp_path):
    loaded = load_policy(Model(random_checkpoint, head="reward"))
    export_model(loaded, weights_of(loaded.module), tmp_path / "rm", scale=None)
    back = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
    padded = torch.cat([IDS, torch.full((1, 3), loaded.pad_id)], 1)
    mask = torch.tensor([[1] * 5 + [0] * 3])
    torch.testing.assert_close(back(padded, attention_mask=mask).logits, back(IDS).logits)
    assert "mean" not in back.config.to_dict()


def with_special_tokens(folder, path, **named):
    """The checkpoint with other special tokens, as a loaded reward model."""
    shutil.copytree(folder, path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    for name, token in named.items():
        setattr(tokenizer, name, token)
    tokenizer.save_pretrained(path)
    return load_policy(Model(str(path), head="reward"))


@pytest.mark.parametrize("pad", ["<eos>", None])
def test_the_end_of_a_text_is_no_padding(random_checkpoint, tmp_path, pad):
    loaded = with_special_tokens(
        random_checkpoint, tmp_path / "base", pad_token=pad, bos_token="<pad>"
    )
    assert loaded.pad_id in loaded.eos_ids
    export_model(loaded, weights_of(shaken(loaded.module)), tmp_path / "rm", scale=None)
    back = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "rm")
    texts = ["7+5=12<eos>", "1+1=2<eos>"]
    rows = tokenizer(texts, padding=True, return_tensors="pt")
    scores = back(**{k: rows[k] for k in ("input_ids", "attention_mask")}).logits[:, 0]
    wanted = [
        loaded.module(loaded.tokenizer(t, return_tensors="pt").input_ids)[0, -1] for t in texts
    ]
    torch.testing.assert_close(scores, torch.stack(wanted), atol=2e-4, rtol=1e-4)


def test_without_any_padding_rows_side_by_side_are_refused(random_checkpoint, tmp_path):
    loaded = with_special_tokens(random_checkpoint, tmp_path / "base", pad_token=None)
    export_model(loaded, weights_of(loaded.module), tmp_path / "rm", scale=None)
    back = AutoModelForSequenceClassification.from_pretrained(tmp_path / "rm")
    assert back.config.pad_token_id is None
    torch.testing.assert_close(back(IDS).logits[:, 0], loaded.module(IDS)[:, -1])
    with pytest.raises(ValueError, match="no padding token"):
        back(IDS.repeat(2, 1))


def test_what_is_there_is_not_overwritten(random_checkpoint, tmp_path):
    loaded = load_policy(Model(random_checkpoint))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="is there already"):
        export_model(loaded, weights_of(loaded.module), tmp_path / "taken", scale=None)
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]
    (tmp_path / "empty").mkdir()
    export_model(loaded, weights_of(loaded.module), tmp_path / "empty", scale=None)
    assert (tmp_path / "empty" / "config.json").is_file()


def test_a_write_that_fails_leaves_nothing(random_checkpoint, tmp_path):
    loaded = load_policy(Model(random_checkpoint))
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="Nothing is left there"):
        export_model(loaded, weights_of(loaded.module), tmp_path / "file" / "out", scale=None)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
