"""Reward models: the checkpoint's own scores, whatever the batch, the head's name, the padding."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, Qwen2Config
from transformers import Qwen2ForSequenceClassification as Classifier

from nbrl.backends.checkpoints import ASSETS
from nbrl.backends.rewards import RewardModel
from nbrl.backends.rewards.models import (
    batches_of,
    load_reward_model,
    score_by_model,
)
from nbrl.errors import ConfigError

TEXTS = ["7+5=12", "1+1=", "40+2=42 and so on", "x", "9+9=18"]


def rows_of(texts):
    rows = []
    for text in texts:
        prompt, _, response = text.partition("=")
        given = {"prompt": f"{prompt}=", "response": response}
        rows.append({**given, "label": None, "messages": None})
    return rows


def scores(model, rows, units=None):
    done = [] if units is None else units
    return score_by_model(model, rows, lambda n, _: done.append(n))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random classifier of one label, with the tiny model's tokenizer."""
    place = tmp_path_factory.mktemp("models") / "rm"
    shutil.copytree(ASSETS / "tiny", place)
    small = json.loads((place / "config.json").read_text())
    config = Qwen2Config(
        vocab_size=small["vocab_size"], hidden_size=32, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, num_labels=1,
        pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    Classifier(config).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def expected(folder):
    """What transformers says of each text alone."""
    tokenizer = load_reward_model(RewardModel(str(folder))).tokenizer
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for row in rows_of(TEXTS):
            text = row["prompt"] + row["response"] + tokenizer.eos_token
            ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
            found.append(model(ids).logits.item())
    assert len(set(found)) == len(TEXTS)
    return found


def changed(folder, place, config=None, rename=None, tensors=None):
    """A copy of the checkpoint with other entries in its config and other weights."""
    shutil.copytree(folder, place)
    stored = json.loads((place / "config.json").read_text()) | (config or {})
    (place / "config.json").write_text(json.dumps(stored))
    weights = load_file(place / "model.safetensors")
    old, new = rename or ("score.weight", "score.weight")
    weights[new] = weights.pop(old)
    save_file(weights | (tensors or {}), place / "model.safetensors", metadata={"format": "pt"})
    return str(place)


@pytest.mark.parametrize("budget", [1, 20, 16384])
def test_scores_are_those_of_each_text_alone(folder, expected, budget):
    units = []
    outcomes = scores(RewardModel(str(folder), tokens_per_batch=budget), rows_of(TEXTS), units)
    assert [o.value for o in outcomes] == pytest.approx(expected, abs=1e-5)
    assert sum(units) == len(TEXTS)


def test_the_side_of_padding_does_not_matter(folder, tmp_path, expected):
    place = tmp_path / "left"
    shutil.copytree(folder, place)
    stored = json.loads((place / "tokenizer_config.json").read_text())
    (place / "tokenizer_config.json").write_text(json.dumps(stored | {"padding_side": "left"}))
    found = [o.value for o in scores(RewardModel(str(place)), rows_of(TEXTS))]
    assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", ["value_head", "critic.out", "v_head.summary"])
def test_the_heads_name_comes_from_the_config(folder, tmp_path, expected, name):
    config = {"value_head_prefix": name, "architectures": ["Qwen2ForCausalLM"]}
    path = changed(folder, tmp_path / "vh", config, ("score.weight", f"{name}.weight"))
    found = [o.value for o in scores(RewardModel(path), rows_of(TEXTS))]
    assert found == pytest.approx(expected, abs=1e-5)
    path = changed(folder, tmp_path / "said", {}, ("score.weight", f"{name}.weight"))
    found = [o.value for o in scores(RewardModel(path, head=name), rows_of(TEXTS))]
    assert found == pytest.approx(expected, abs=1e-5)


def test_a_bias_counts(folder, tmp_path, expected):
    path = changed(folder, tmp_path / "bias", tensors={"score.bias": torch.tensor([2.0])})
    found = [o.value for o in scores(RewardModel(path), rows_of(TEXTS))]
    assert found == pytest.approx([e + 2.0 for e in expected], abs=1e-5)


def test_stored_moments_are_applied_where_that_is_asked_for(folder, tmp_path, expected):
    path = changed(folder, tmp_path / "moments", {"mean": 0.5, "std": 2.0})
    outcomes = scores(RewardModel(path, normalize=True), rows_of(TEXTS))
    assert [o.value for o in outcomes] == pytest.approx([(e - 0.5) / 2 for e in expected], abs=1e-5)
    assert [o.extras["raw_score"] for o in outcomes] == pytest.approx(expected, abs=1e-5)
    plain = scores(RewardModel(path), rows_of(TEXTS))
    assert [o.value for o in plain] == pytest.approx(expected, abs=1e-5)
    assert plain[0].extras == {}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "has no effect"),
        ({"mean": 0.0, "std": 1.0}, "has no effect"),
        ({"mean": 1.0, "std": 0.0}, "std above 0"),
        ({"mean": 1.0, "std": float("nan")}, "std above 0"),
        ({"mean": "1"}, "must be finite"),
    ],
)
def test_moments_that_change_nothing_or_cannot_be_are_refused(folder, tmp_path, config, said):
    path = changed(folder, tmp_path / "m", config)
    with pytest.raises(ConfigError, match=said):
        load_reward_model(RewardModel(path, normalize=True))


def test_a_conversation_goes_through_the_models_template(folder, tmp_path):
    place = tmp_path / "chat"
    shutil.copytree(folder, place)
    template = "{% for m in messages %}{{ m['content'] }}={% endfor %}"
    (place / "chat_template.jinja").write_text(template)
    talk = {"messages": [{"role": "user", "content": "7+5"}], "prompt": "?", "response": "12"}
    plain = {"messages": None, "prompt": "7+5=", "response": "12="}
    chat, _ = scores(RewardModel(str(place)), [talk | {"label": None}, plain | {"label": None}])
    loaded = load_reward_model(RewardModel(str(place)))
    ids = loaded.tokenizer("7+5=12=", add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert chat.value == pytest.approx(loaded.module(ids)[0, -1].item(), abs=1e-5)


def test_what_does_not_fit_is_an_error_of_its_sample(folder):
    rows = rows_of(["1+1=2", "1+1=" + "2" * 100, "2+2=4"])
    outcomes = scores(RewardModel(str(folder)), rows)
    assert [o.status for o in outcomes] == ["ok", "error", "ok"]
    assert "105 tokens are more than the reward model's 64" in outcomes[1].error
    short = scores(RewardModel(str(folder), max_length=4), rows)
    assert [o.status for o in short] == ["error"] * 3


def test_scores_that_are_no_numbers_are_errors(folder, tmp_path):
    weight = {"score.weight": torch.full((1, 32), float("inf"))}
    path = changed(folder, tmp_path / "inf", tensors=weight)
    assert {o.status for o in scores(RewardModel(path), rows_of(TEXTS))} == {"error"}


def test_nothing_asked_loads_nothing():
    assert scores(RewardModel("nowhere"), []) == []


@pytest.mark.parametrize(
    ("config", "rename", "tensors", "said"),
    [
        ({}, ("score.weight", "other.weight"), {}, "no head is called 'score'"),
        ({"value_head_prefix": "x"}, None, {}, "no head is called 'x'"),
        ({}, None, {"score.weight": torch.zeros(2, 32)}, r"has the shape \[2, 32\]"),
        ({}, ("model.norm.weight", "gone"), {}, "lacks 1 weights"),
    ],
)
def test_other_checkpoints_are_refused(folder, tmp_path, config, rename, tensors, said):
    path = changed(folder, tmp_path / "bad", config, rename, tensors)
    with pytest.raises(ConfigError, match=said):
        load_reward_model(RewardModel(path))


def test_a_language_model_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="is no reward model"):
        load_reward_model(RewardModel(str(ASSETS / "tiny")))
    with pytest.raises(ConfigError, match=r"no config\.json"):
        load_reward_model(RewardModel(str(tmp_path)))


def test_settings_that_cannot_work_are_refused():
    with pytest.raises(ConfigError, match="4 problems"):
        RewardModel("x", dtype="int8", device="tpu", max_length=0, tokens_per_batch=0)


def test_batches_keep_the_budget_and_lose_nobody():
    lengths = {0: 5, 1: 9, 2: 1, 3: 5, 4: 30, 5: 2}
    groups = list(batches_of(lengths, 20))
    assert groups == [[4], [1, 0], [3, 5, 2]]
    assert all(len(g) == 1 or len(g) * max(lengths[k] for k in g) <= 20 for g in groups)
