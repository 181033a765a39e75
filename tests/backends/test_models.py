"""Loading: the right weights, all ids that end an answer, and errors that name the checkpoint."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from nbrl.backends.models import LoadedModel, load_critic, load_policy, load_reference
from nbrl.config import Lora, Model
from nbrl.errors import ConfigError


def test_a_policy_comes_with_the_facts_that_samplers_need(random_policy: LoadedModel):
    assert random_policy.eos_ids == (97, 1)  # the generation config's first, then the tokenizer's
    assert random_policy.pad_id == 0
    assert random_policy.context_length == 64
    assert not random_policy.module.training
    assert random_policy.tokenizer("7+").input_ids == [25, 13]


def test_a_policy_has_the_weights_of_its_checkpoint(
    random_policy: LoadedModel, random_checkpoint: str
):
    saved = load_file(Path(random_checkpoint) / "model.safetensors")
    held = random_policy.module.state_dict()
    assert all(torch.equal(held[name], tensor) for name, tensor in saved.items())


def test_a_tokenizer_without_pad_token_pads_with_eos(random_checkpoint: str, tmp_path: Path):
    policy = load_policy(Model(random_checkpoint))
    policy.tokenizer.pad_token = None
    policy.tokenizer.save_pretrained(tmp_path)
    policy.module.save_pretrained(tmp_path)
    assert load_policy(Model(str(tmp_path))).pad_id == 97


def test_a_reference_is_frozen_and_equal_to_the_fresh_policy(
    random_policy: LoadedModel, random_checkpoint: str
):
    reference = load_reference(Model(random_checkpoint, lora=Lora(rank=2)))
    ids = torch.tensor([[25, 13, 22]])
    assert torch.equal(reference(ids).logits, random_policy.module(ids).logits)
    assert not any(p.requires_grad for p in reference.parameters())
    with torch.no_grad():
        random_policy.module.get_output_embeddings().weight.add_(1)
    assert not torch.equal(reference(ids).logits, random_policy.module(ids).logits)


def test_a_critic_is_the_backbone_and_a_seeded_head(
    random_policy: LoadedModel, random_checkpoint: str
):
    model = Model(random_checkpoint)
    critic = load_critic(model, seed=3)
    ids = torch.tensor([[25, 13, 22], [9, 8, 7]])
    hidden = random_policy.module.model(ids).last_hidden_state
    drawn = torch.randn(1, 128, generator=torch.Generator().manual_seed(3)) / 129
    torch.testing.assert_close(critic(ids), (hidden @ drawn.T).squeeze(-1))
    again, other = load_critic(model, random_checkpoint, seed=3), load_critic(model, seed=4)
    assert torch.equal(again.head.weight, critic.head.weight)
    assert not torch.equal(other.head.weight, critic.head.weight)


def test_loading_draws_nothing_from_the_global_generator(random_checkpoint: str):
    before = torch.random.get_rng_state()
    load_policy(Model(random_checkpoint))
    load_critic(Model(random_checkpoint))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_lora_trains_an_adapter_that_starts_as_nothing(
    random_policy: LoadedModel, random_checkpoint: str
):
    adapted = load_policy(Model(random_checkpoint, lora=Lora(rank=2, alpha=4.0))).module
    trained = {name for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    ids = torch.tensor([[25, 13, 22]])
    torch.testing.assert_close(adapted(ids).logits, random_policy.module(ids).logits)


def test_weights_that_would_be_random_are_an_error(random_checkpoint: str, tmp_path: Path):
    policy = load_policy(Model(random_checkpoint))
    policy.module.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"lacks 1 weights.*model\.norm\.weight"):
        load_policy(Model(str(tmp_path)))


def test_a_dtype_that_the_machine_lacks_is_an_error(random_checkpoint: str):
    model = Model(random_checkpoint, dtype="bfloat16")
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        assert load_policy(model).module.lm_head.weight.dtype == torch.bfloat16
    else:
        with pytest.raises(ConfigError, match=r"no bfloat16.*float32"):
            load_policy(model)


def altered(random_checkpoint: str, folder: Path, **changes: dict) -> Model:
    """A copy of the checkpoint in which these JSON files are changed; None drops a key."""
    shutil.copytree(random_checkpoint, folder, dirs_exist_ok=True)
    for stem, keys in changes.items():
        held = json.loads((folder / f"{stem}.json").read_text()) | keys
        kept = {key: value for key, value in held.items() if value is not None}
        (folder / f"{stem}.json").write_text(json.dumps(kept))
    return Model(str(folder))


def test_a_checkpoint_without_its_tokenizer_is_an_error(random_checkpoint: str, tmp_path: Path):
    model = altered(random_checkpoint, tmp_path)
    for file in tmp_path.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ConfigError, match=r"no tokenizer that knows any text.*save_pretrained"):
        load_policy(model)


def test_only_ids_of_the_model_end_an_answer_or_fill_a_row(random_checkpoint: str, tmp_path: Path):
    model = altered(random_checkpoint, tmp_path, generation_config={"eos_token_id": [97, 5000]})
    assert load_policy(model).eos_ids == (97, 1)
    model = altered(
        random_checkpoint,
        tmp_path,
        generation_config={"eos_token_id": 5000},
        config={"eos_token_id": None, "pad_token_id": None},
        tokenizer_config={"eos_token": None, "pad_token": None},
    )
    with pytest.raises(ConfigError, match=r"no token that ends an answer.*they name \[5000"):
        load_policy(model)


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        ("model.safetensors", "short", "SafetensorError"),
        ("config.json", "{", "JSON"),
        ("config.json", "{}", "model_type"),
        ("tokenizer.json", "{", "JSONDecodeError"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_the_checkpoint(
    file: str, text: str, named: str, random_checkpoint: str, tmp_path: Path
):
    model = altered(random_checkpoint, tmp_path / "mine")
    (tmp_path / "mine" / file).write_text(text)
    with pytest.raises(ConfigError, match=rf"cannot be loaded from .*mine.*{named}"):
        load_policy(model)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (("nope",), "no module 'nope'; its linear ones are down_proj, gate_proj, k_proj"),
        (("q_proj", "nope", "no.where"), "no module 'nope', 'no.where'"),
        ("q_projj", "no module 'q_projj'"),
        ("(", "is no regular expression"),
        (("input_layernorm",), "cannot be put on the model"),
    ],
)
def test_targets_that_an_adapter_would_pass_over_are_named(
    targets: str | tuple[str, ...], said: str, random_checkpoint: str
):
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_policy(Model(random_checkpoint, lora=Lora(rank=2, target_modules=targets)))


def test_a_rank_that_no_matrix_has_is_a_slip(random_checkpoint: str):
    with pytest.raises(ConfigError, match=r"Lora.rank=1000000 exceeds .* at most \d+"):
        load_policy(Model(random_checkpoint, lora=Lora(rank=10**6)))


def test_targets_may_be_names_or_a_pattern(random_checkpoint: str):
    for targets in (("q_proj", "layers.1.mlp.up_proj"), r".*\.(q|v)_proj"):
        adapted = load_policy(Model(random_checkpoint, lora=Lora(rank=2, target_modules=targets)))
        trained = [n for n, p in adapted.module.named_parameters() if p.requires_grad]
        count = 2 * (3 if isinstance(targets, tuple) else 4)
        assert len(trained) == count


@pytest.mark.slow
def test_the_bundled_real_model_knows_its_sums():
    policy = load_policy(Model("smollm2-135m-instruct"))
    assert policy.eos_ids == (2,)
    assert policy.context_length == 8192
    assert "quantization_config" not in policy.module.config.to_dict()
    asked = [{"role": "user", "content": "What is 7 + 5?"}]
    ids = policy.tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = policy.module.generate(**ids, max_new_tokens=24, do_sample=False)
    assert "12" in policy.tokenizer.decode(answer[0, ids["input_ids"].shape[1] :])
