"""The public names of nbrl, each loaded when it is first used, and nothing else.

``import nbrl`` loads no torch, no engine and no cluster. A name that is not here is not public.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbrl import errors, functional
    from nbrl.backends.agents.returns import EnvironmentReward
    from nbrl.backends.datasets import load_prompts
    from nbrl.backends.examples import (
        load_conversations,
        load_labelled,
        load_pairs,
        load_steps,
    )
    from nbrl.backends.rewards import Reward, RewardModel, RewardServer
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
    )
    from nbrl.driver.reward_check import check_reward
    from nbrl.driver.session import Session
    from nbrl.driver.store.reading import open_run
    from nbrl.functional.dialects import dialect
    from nbrl.functional.estimators import Estimator, estimate
    from nbrl.notebook.compare import compare, runs
    from nbrl.notebook.connect import connect
    from nbrl.notebook.lab.bench import reward_bench
    from nbrl.notebook.lab.estimators import estimator_lab
    from nbrl.notebook.results import record
    from nbrl.notebook.views.browse import browse
    from nbrl.stages.advantages import compute_advantages
    from nbrl.stages.agreement import diff_scores
    from nbrl.stages.buffer import Plan
    from nbrl.stages.comparison import compare_estimators
    from nbrl.stages.simulation import Durations, compare_plans, durations, simulate
    from nbrl.types import (
        Advantaged,
        Evaluation,
        Examples,
        History,
        LossComparison,
        Metric,
        Probe,
        Prompts,
        RewardCheck,
        Rollouts,
        Scored,
        ScoreDiff,
        StepResult,
        load,
    )

__version__ = "0.1.0"

__all__ = [
    "DPO",
    "KL",
    "KTO",
    "SFT",
    "Advantaged",
    "Agent",
    "Critic",
    "Distillation",
    "Durations",
    "Engine",
    "EnvironmentReward",
    "Estimator",
    "Evaluation",
    "Examples",
    "HeldOut",
    "History",
    "Lora",
    "LossComparison",
    "Metric",
    "Model",
    "Optimizer",
    "Overlap",
    "Placement",
    "Plan",
    "PolicyLoss",
    "Probe",
    "ProcessReward",
    "Prompts",
    "Recipe",
    "Reward",
    "RewardCheck",
    "RewardLoss",
    "RewardModel",
    "RewardServer",
    "Rollouts",
    "Sampling",
    "ScoreDiff",
    "Scored",
    "Session",
    "Shaping",
    "StepResult",
    "Store",
    "Trainer",
    "__version__",
    "browse",
    "check_reward",
    "compare",
    "compare_estimators",
    "compare_plans",
    "compute_advantages",
    "connect",
    "dialect",
    "diff_scores",
    "durations",
    "errors",
    "estimate",
    "estimator_lab",
    "functional",
    "load",
    "load_conversations",
    "load_labelled",
    "load_pairs",
    "load_prompts",
    "load_steps",
    "open_run",
    "record",
    "reward_bench",
    "runs",
    "simulate",
]

_NAMES = {
    "nbrl.backends.agents.returns": ("EnvironmentReward",),
    "nbrl.backends.datasets": ("load_prompts",),
    "nbrl.backends.examples": (
        "load_conversations",
        "load_labelled",
        "load_pairs",
        "load_steps",
    ),
    "nbrl.backends.rewards": ("Reward", "RewardModel", "RewardServer"),
    "nbrl.config": (
        "Agent",
        "Critic",
        "DPO",
        "Distillation",
        "Engine",
        "HeldOut",
        "KL",
        "KTO",
        "Lora",
        "Model",
        "Optimizer",
        "Overlap",
        "Placement",
        "PolicyLoss",
        "ProcessReward",
        "Recipe",
        "RewardLoss",
        "SFT",
        "Sampling",
        "Shaping",
        "Store",
        "Trainer",
    ),
    "nbrl.driver.reward_check": ("check_reward",),
    "nbrl.driver.session": ("Session",),
    "nbrl.driver.store.reading": ("open_run",),
    "nbrl.functional.dialects": ("dialect",),
    "nbrl.functional.estimators": (
        "Estimator",
        "estimate",
    ),
    "nbrl.notebook.compare": ("compare", "runs"),
    "nbrl.notebook.connect": ("connect",),
    "nbrl.notebook.results": ("record",),
    "nbrl.notebook.lab.bench": ("reward_bench",),
    "nbrl.notebook.lab.estimators": ("estimator_lab",),
    "nbrl.notebook.views.browse": ("browse",),
    "nbrl.stages.advantages": ("compute_advantages",),
    "nbrl.stages.buffer": ("Plan",),
    "nbrl.stages.agreement": ("diff_scores",),
    "nbrl.stages.comparison": ("compare_estimators",),
    "nbrl.stages.simulation": (
        "Durations",
        "compare_plans",
        "durations",
        "simulate",
    ),
    "nbrl.types": (
        "Advantaged",
        "Evaluation",
        "Examples",
        "History",
        "LossComparison",
        "Metric",
        "Probe",
        "Prompts",
        "RewardCheck",
        "Rollouts",
        "ScoreDiff",
        "Scored",
        "StepResult",
        "load",
    ),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = ("errors", "functional")


def __getattr__(name: str) -> Any:
    """The public name, loaded from its home and kept."""
    if name in _MODULES:
        return importlib.import_module(f"nbrl.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'nbrl' has no public name {name!r}; it has {sorted(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext nbrl`` does: teach the shell the values' pictures and the cell magics."""
    importlib.import_module("nbrl.notebook.magics").load(shell)
