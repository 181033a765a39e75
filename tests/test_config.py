"""Settings: defaults that work, every rule named, all problems of a request in one message."""

import dataclasses
import functools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from nbrl import config
from nbrl.config import (
    DPO,
    KL,
    KTO,
    SFT,
    Agent,
    Critic,
    Distillation,
    Engine,
    HeldOut,
    Lora,
    Model,
    Optimizer,
    Overlap,
    Placement,
    PolicyLoss,
    ProcessReward,
    Recipe,
    RewardLoss,
    Sampling,
    Shaping,
    Store,
    Trainer,
    check_config,
    to_spec,
)
from nbrl.config.checks import CHECKS
from nbrl.errors import ConfigError

DEFAULTS = [
    KL(), Critic(), Engine(), Lora(), Model(), Optimizer(), PolicyLoss(), Recipe(rewards=len),
    Sampling(), Shaping(), Trainer(), SFT(), RewardLoss(), DPO(), KTO(), Distillation("tiny"),
    ProcessReward(), Overlap(), Placement(), HeldOut(None), Store(), Agent(len),
]  # fmt: skip


def problems_of(*components) -> list[str]:
    """The problems that a request with these settings is refused for."""
    with pytest.raises(ConfigError) as raised:
        check_config("asked", *components)
    return str(raised.value).splitlines()[1:]


@pytest.mark.parametrize("component", DEFAULTS, ids=lambda c: type(c).__name__)
def test_defaults_work_and_are_frozen(component):
    check_config("asked", component)
    field = dataclasses.fields(component)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(component, field, None)


def test_every_settings_class_has_its_check():
    classes = {
        c for c in vars(config).values() if isinstance(c, type) and dataclasses.is_dataclass(c)
    }
    assert set(CHECKS) == classes == {type(c) for c in DEFAULTS}


NO_EFFECT = [
    (Sampling(temperature=0.0, top_p=0.9), "no effect with temperature=0"),
    (Sampling(temperature=0.0, top_k=5), "no effect with temperature=0"),
    (Shaping(overlong_penalty=0.5), "no effect without overlong_buffer"),
    (Trainer(ranks=2), "no effect with kind='local'"),
    (PolicyLoss(norm_length=100), "norm_length has no effect with aggregation='token-mean'"),
    (PolicyLoss(surrogate="cispo", dual_clip=3.0), "dual_clip has no effect"),
    (PolicyLoss(surrogate="reinforce", eps_low=0.1), "eps_low/high have no effect"),
    (PolicyLoss(surrogate="sapo", eps_high=0.3), "eps_low/high have no effect"),
    (PolicyLoss(correction_high=2.0), "no effect without correction"),
    (PolicyLoss(correction_low=0.1), "no effect without correction"),
    (Optimizer(total_steps=10), "total_steps has no effect with schedule='constant'"),
    (Optimizer(warmup_steps=2), "warmup_steps has no effect with schedule='constant'"),
    (Optimizer(min_lr_ratio=0.1), "min_lr_ratio belongs to schedule='cosine_with_min_lr'"),
    (DPO(kind="ipo", label_smoothing=0.1), "label_smoothing has no effect with kind='ipo'"),
    (DPO(length="mean"), "length has no effect with kind='sigmoid'"),
    (KTO(desirable_weight=0.0, undesirable_weight=0.0), "nothing is learned"),
]

WRONG = [
    (SFT(aggregation="seq-mean-token-sum-norm"), "SFT.aggregation"),
    (SFT(aux_coef=-0.1), "SFT.aux_coef"),
    (DPO(beta=0.0), "DPO.beta must be a number in (0, inf)"),
    (DPO(kind="hinge"), "DPO.kind 'hinge' is unknown; known: sigmoid, ipo"),
    (DPO(label_smoothing=0.7), "DPO.label_smoothing must be a number in [0, 0.5]"),
    (DPO(label_smoothing=0.5), "labels mean nothing"),
    (DPO(nll_coef=-1.0), "DPO.nll_coef"),
    (KTO(beta=-1.0), "KTO.beta"),
    (KTO(desirable_weight=-1.0), "KTO.desirable_weight"),
    (Distillation(""), "Distillation.teacher must be a non-empty text"),
    (Distillation("tiny", coef=0.0), "Distillation.coef must be a number in (0, 1]"),
    (ProcessReward(reward_tokens=("+", "+")), "ProcessReward.reward_tokens must be two texts"),
    (HeldOut(None, every=0), "HeldOut.every must be a whole number >= 1"),
    (HeldOut(None, keep="all"), "HeldOut.keep 'all' is unknown; known: last, best"),
    (Model(head="value"), "Model.head 'value' is unknown; known: lm, reward"),
    (Sampling(temperature=-0.1), "Sampling.temperature must be a number in [0, inf); got -0.1"),
    (Sampling(temperature=math.nan), "Sampling.temperature"),
    (Sampling(temperature=math.inf), "Sampling.temperature"),
    (Sampling(top_p=0.0), "Sampling.top_p must be a number in (0, 1]; got 0.0"),
    (Sampling(top_p=1.1), "Sampling.top_p"),
    (Sampling(top_k=-1), "Sampling.top_k must be a whole number >= 0; got -1"),
    (Sampling(max_new_tokens=0), "Sampling.max_new_tokens must be a whole number >= 1; got 0"),
    (Sampling(seed=-1), "Sampling.seed"),
    (Sampling(stop=("", "x")), "Sampling.stop must be a tuple of non-empty strings"),
    (KL(coef=-1.0), "KL.coef"),
    (KL(kind="k4"), "KL.kind 'k4' is unknown; known: k1, k2, k3"),
    (KL(clamp=0.0), "KL.clamp"),
    (Shaping(reward_range=(1.0, 0.0)), "Shaping.reward_range must be (low, high) with low < high"),
    (Shaping(reward_clip=(1.0, 1.0)), "Shaping.reward_clip"),
    (Shaping(overlong_buffer=0), "Shaping.overlong_buffer"),
    (Shaping(overlong_buffer=4, overlong_penalty=0.0), "Shaping.overlong_penalty"),
    (Shaping(stop_properly=1.5), "Shaping.stop_properly"),
    (PolicyLoss(surrogate="trpo"), "surrogate 'trpo' is unknown; known: ppo, gspo"),
    (PolicyLoss(eps_low=0.0), "PolicyLoss.eps_low"),
    (PolicyLoss(eps_high=-0.2), "PolicyLoss.eps_high"),
    (PolicyLoss(dual_clip=1.0), "PolicyLoss.dual_clip must be a number in (1, inf); got 1.0"),
    (PolicyLoss(aggregation="mean"), "PolicyLoss.aggregation 'mean' is unknown"),
    (PolicyLoss(aggregation="seq-mean-token-sum-norm", norm_length=0), "PolicyLoss.norm_length"),
    (PolicyLoss(correction="is"), "PolicyLoss.correction 'is' is unknown; known: tis, icepop"),
    (PolicyLoss(correction="tis", correction_low=6.0), "(correction_low, correction_high)"),
    (PolicyLoss(entropy_coef=math.nan), "PolicyLoss.entropy_coef"),
    (PolicyLoss(value_coef=-1.0), "PolicyLoss.value_coef"),
    (PolicyLoss(value_clip=0.0), "PolicyLoss.value_clip"),
    (PolicyLoss(kl=KL(kind="x")), "KL.kind 'x'"),
    (Optimizer(lr=-1e-6), "Optimizer.lr"),
    (Optimizer(eps=0.0), "Optimizer.eps"),
    (Optimizer(betas=(0.9, 1.0)), "Optimizer.betas must be a number in [0, 1); got 1.0"),
    (
        Optimizer(schedule="cosine_with_min_lr", total_steps=9, min_lr_ratio=1.0),
        "Optimizer.min_lr_ratio must be a number in [0, 1); got 1.0",
    ),
    (Optimizer(schedule="constant_with_warmup"), "needs warmup_steps >= 1; or use 'constant'"),
    (
        Optimizer(schedule="linear", warmup_steps=5, total_steps=4),
        "warmup_steps=5 is more than total_steps=4",
    ),
    (Optimizer(max_grad_norm=0.0), "Optimizer.max_grad_norm"),
    (Optimizer(weight_decay=-1.0), "Optimizer.weight_decay"),
    (Optimizer(schedule="step"), "Optimizer.schedule 'step' is unknown; known: constant"),
    (Optimizer(schedule="cosine"), "schedule='cosine' needs total_steps"),
    (Optimizer(schedule="linear"), "schedule='linear' needs total_steps"),
    (Optimizer(schedule="cosine_with_min_lr", total_steps=9), "min_lr_ratio belongs to"),
    (Optimizer(schedule="constant_with_warmup", warmup_steps=-1), "Optimizer.warmup_steps"),
    (Critic(optimizer=Optimizer(lr=-1.0)), "Optimizer.lr"),
    (Trainer(kind="fsdp"), "Trainer.kind 'fsdp' is unknown; known: local"),
    (Trainer(micro_batch_tokens=0), "Trainer.micro_batch_tokens"),
    (Trainer(optimizer=Optimizer(lr=-1.0)), "Optimizer.lr"),
    (Trainer(critic=Critic(optimizer=Optimizer(eps=-1.0))), "Optimizer.eps"),
    (Engine(kind="sglang"), "Engine.kind 'sglang' is unknown; known: hf"),
    (Engine(max_batch=0), "Engine.max_batch"),
    (Lora(rank=0), "Lora.rank"),
    (Lora(alpha=0.0), "Lora.alpha"),
    (Lora(dropout=1.0), "Lora.dropout must be a number in [0, 1); got 1.0"),
    (Lora(target_modules=()), "Lora.target_modules must be 'all-linear', a pattern, or"),
    (Lora(target_modules=("q_proj", "")), "Lora.target_modules"),
    (Model(""), "Model.path must be 'tiny', a folder, or a name on the hub; got ''"),
    (Model(attention=" "), "Model.attention must be a non-empty text; got ' '"),
    (Model(revision=""), "Model.revision"),
    (Model(device="gpu"), "Model.device must be 'cpu', 'cuda', 'cuda:<number>' or None; got 'gpu'"),
    (Model(device="cuda:"), "Model.device"),
    (Critic(path=""), "Critic.path"),
    (Model(dtype="float16"), "Model.dtype 'float16' is unknown; known: float32, bfloat16"),
    (Model(lora=Lora(rank=-1)), "Lora.rank"),
    (Recipe(rewards=len, n=0), "Recipe.n must be a whole number >= 1"),
    (Recipe(rewards=len, sampling=Sampling(top_p=2.0)), "Sampling.top_p"),
    (Recipe(rewards=len, kl=KL(), loss=PolicyLoss(kl=KL())), "choose one"),
    (
        Recipe(rewards=len, kl=KL(unbiased_gradient=True)),
        "KL.unbiased_gradient has no effect in the reward",
    ),
]


@pytest.mark.parametrize(("component", "phrase"), NO_EFFECT + WRONG, ids=lambda x: str(x)[:60])
def test_each_rule_is_one_problem_that_says_what_is_wrong(component, phrase):
    problems = problems_of(component)
    assert len(problems) == 1
    assert phrase in problems[0]


WRONG_TYPES = """
from nbrl.config import Model, Sampling, Trainer, check_config
request = [Sampling(temperature=True, top_k="5", max_new_tokens=1.5, stop="stop"), Trainer(kind=3)]
try:
    check_config("rollout", *request)
except ValueError as error:
    print(error)
"""


def test_wrong_types_are_problems_too():
    """In a process of its own: the suite's type checks would stop them earlier."""
    done = subprocess.run(
        [sys.executable, "-c", WRONG_TYPES], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "rollout: 5 problems"
    for line, phrase in zip(
        lines[1:],
        [
            "temperature must be a number in [0, inf); got True",
            "top_k must be a whole number >= 0; got '5'",
            "max_new_tokens must be a whole number >= 1; got 1.5",
            "stop must be a tuple of non-empty strings; got 'stop'",
            "Trainer.kind 3 is unknown",
        ],
        strict=True,
    ):
        assert phrase in line


EVERY_FIELD = """
import dataclasses, json
import numpy as np
from nbrl.config import checks
from nbrl.errors import ConfigError
WRONG = {
    "None": None, "text": "x", "empty": "", "True": True, "-1": -1, "1.5": 1.5, "nan": float("nan"),
    "inf": float("inf"), "list": [], "pair": ("a", None), "three": (0.1, 0.2, 0.3),
    "dict": {"a": 1}, "bytes": b"x", "class": int, "array": np.zeros(2),
    "object": object(), "set": {1}, "5": 5,
}
ANYTHING = {("Recipe", "rewards"), ("Recipe", "estimator"), ("Recipe", "combine")}
ANYTHING |= {("Agent", "source"), ("HeldOut", "data")}
said = {}
for kind in checks.CHECKS:
    good = {
        "Recipe": {"rewards": len}, "Distillation": {"teacher": "x"}, "Engine": {"kind": "vllm"},
        "HeldOut": {"data": 1},
        "Agent": {"source": len},
    }.get(kind.__name__, {})
    for field in dataclasses.fields(kind):
        if field.name == "_" or (kind.__name__, field.name) in ANYTHING:
            continue
        refused = []
        for name, value in WRONG.items():
            try:
                checks.check_config("asked", kind(**good | {field.name: value}))
            except ConfigError as error:
                assert f"{kind.__name__}." in str(error), error
                refused.append(name)
        said[f"{kind.__name__}.{field.name}"] = refused
print(json.dumps(said))
"""


def test_whatever_stands_in_a_field_is_judged_and_never_crashes_the_judge():
    done = subprocess.run(
        [sys.executable, "-c", EVERY_FIELD], capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    names = {"Critic.path", "Lora.target_modules", "Model.path", "Model.attention"}
    names |= {"Model.revision", "Model.gguf_file", "Distillation.teacher", "Store.best"}
    flags = {
        "KL.unbiased_gradient",
        "Trainer.gradient_checkpointing",
        "RewardLoss.margin",
        "Trainer.packed",
    }
    flags |= {
        "Engine.enable_prefix_caching",
        "Engine.enforce_eager",
        "Engine.sleep",
        "Placement.gpus",
        "Store.samples",
    }
    never = {"dict", "bytes", "class", "array", "object", "set", "nan", "inf", "pair", "empty"}
    for field, refused in said.items():
        assert set(refused) >= never | {"three"}, field
        assert ("list" in refused) == (
            field not in {"Sampling.stop", "Store.mirrors", "Trainer.frozen"}
        ), field
        assert ("text" in refused) == (field not in names), field
        assert ("True" in refused) == (field not in flags), field
    assert len(said) > 60


NUMPY = """
import json
import numpy as np
from pathlib import Path
from nbrl.config import Lora, Model, Optimizer, Sampling, Shaping, Trainer, check_config, to_spec
settings = [
    Sampling(temperature=np.float32(0.5), top_k=np.int64(3), max_new_tokens=np.uint8(4)),
    Optimizer(lr=np.float64(1e-3), betas=np.array([0.5, 0.75])[:].tolist()),
    Optimizer(betas=(np.float32(0.5), np.float64(0.75)), schedule=np.str_("constant")),
    Shaping(reward_range=[np.float32(0), np.int32(1)]),
    Trainer(gradient_checkpointing=np.True_, micro_batch_tokens=np.int32(64)),
    Model(Path("a/b"), lora=Lora(rank=np.int16(2), target_modules=["q_proj"])),
]
check_config("asked", *settings)
print(json.dumps(to_spec(settings)))
"""


def test_numbers_of_numpy_and_paths_are_the_values_that_they_hold():
    done = subprocess.run([sys.executable, "-c", NUMPY], capture_output=True, text=True, check=True)
    sampling, optimizer, same, shaping, trainer, model = json.loads(done.stdout)
    assert (sampling["temperature"], sampling["top_k"], sampling["max_new_tokens"]) == (0.5, 3, 4)
    assert optimizer["lr"] == 1e-3
    assert optimizer["betas"] == same["betas"] == [0.5, 0.75]
    assert shaping["reward_range"] == [0.0, 1]
    assert (trainer["gradient_checkpointing"], trainer["micro_batch_tokens"]) == (True, 64)
    assert (model["path"], model["lora"]["rank"]) == ("a/b", 2)
    assert model["lora"]["target_modules"] == ["q_proj"]


RIGHT = [
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_p=0.9, top_k=5, max_new_tokens=1, stop=("\n",), seed=7),
    Shaping(reward_range=(0.0, 1.0), overlong_buffer=4, overlong_penalty=0.5, stop_properly=0.0),
    PolicyLoss(surrogate="gspo", eps_low=3e-4, eps_high=4e-4, dual_clip=3.0),
    PolicyLoss(aggregation="seq-mean-token-sum-norm", norm_length=64),
    PolicyLoss(correction="icepop", correction_low=0.4, correction_high=2.5, kl=KL(kind="k3")),
    Optimizer(schedule="cosine_with_min_lr", total_steps=10, warmup_steps=2, min_lr_ratio=0.1),
    Optimizer(schedule="inverse_sqrt", warmup_steps=2, max_grad_norm=None),
    Recipe(rewards=len, kl=KL(), loss=PolicyLoss(kl=KL(coef=0.0))),
    KL(clamp=None),
]


@pytest.mark.parametrize("component", RIGHT, ids=lambda c: str(c)[:60])
def test_what_is_right_passes(component):
    check_config("asked", component)


def test_all_problems_of_a_request_come_in_one_message():
    with pytest.raises(ConfigError) as raised:
        check_config(
            "train_step",
            None,
            Sampling(temperature=-1.0, top_k=-1),
            Trainer(kind="x", optimizer=Optimizer(schedule="linear")),
            extra=["n=1 with a group estimator"],
        )
    lines = str(raised.value).splitlines()
    assert lines[0] == "train_step: 5 problems"
    for line, phrase in zip(
        lines[1:], ["temperature", "top_k", "Trainer.kind", "total_steps", "n=1"], strict=True
    ):
        assert phrase in line


def test_a_caller_s_problem_alone_is_enough():
    with pytest.raises(ConfigError, match="asked: 1 problem\n  - x"):
        check_config("asked", Sampling(), extra=iter(["x"]))


def test_greedy_log_probs_are_those_at_temperature_one():
    assert Sampling(temperature=0.0).logprob_temperature == 1.0
    assert Sampling(temperature=0.7).logprob_temperature == 0.7


def test_a_spec_is_plain_data():
    trainer = Trainer(critic=Critic(), optimizer=Optimizer(betas=(0.8, 0.9)))
    spec = to_spec({"trainer": trainer, 3: (Model(), [None])})
    assert json.loads(json.dumps(spec)) == spec
    assert spec["trainer"]["optimizer"]["betas"] == [0.8, 0.9]
    assert spec["trainer"]["critic"]["optimizer"]["lr"] == 9e-6
    assert spec["3"][0]["path"] == "tiny"
    assert "_" not in spec["3"][0]


def test_a_spec_names_what_is_no_data_the_same_in_every_run():
    recipe = Recipe(rewards=json.dumps, estimator=functools.partial(max, 1), combine=len)
    spec = to_spec({"recipe": recipe, "folder": Path("runs/x"), "kind": Path})
    assert json.loads(json.dumps(spec)) == spec
    named = (spec["recipe"]["rewards"], spec["recipe"]["estimator"], spec["recipe"]["combine"])
    assert named == ("dumps", "partial", "len")
    assert (spec["folder"], spec["kind"]) == ("runs/x", "Path")
