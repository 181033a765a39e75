"""The estimators that other libraries would have used under a name; may import torch and errors.

A dialect is the *advantage* rule of a release, read in its source. Not all of a library fits into
one: where it puts the KL (verl takes it off the reward before the baseline; NeMo-RL's
REINFORCE++-baseline does not accumulate it), how it aggregates a loss, or a GAE that does not look
at the mask (SkyRL) are not said here, and what cannot be said faithfully is left out.
"""

import dataclasses
from collections.abc import Mapping

from nbrl.errors import unknown_name
from nbrl.functional.estimators import ESTIMATORS, Estimator


def dialect(library: str, name: str) -> Estimator:
    """The :class:`Estimator` that ``library`` computes under ``name``.

    Example: rewards 1, 0, 0, 0 of one group under ``grpo`` are 1.5 and -0.5 in OpenRLHF, 1.4997 and
    -0.4999 in TRL (a larger epsilon), 0.75 and -0.25 in prime-rl (no scale), and 1.0 and -0.5773
    in NeMo-RL (mean and standard deviation of the others).

    Raises:
        UnknownNameError: A library or a name that is not in :data:`DIALECTS`.
    """
    if library not in DIALECTS:
        raise unknown_name("dialect", library, DIALECTS)
    if name not in DIALECTS[library]:
        raise unknown_name(f"estimator of dialect {library!r}", name, DIALECTS[library])
    return DIALECTS[library][name]


def _like(name: str, **changes: str | float) -> Estimator:
    return dataclasses.replace(ESTIMATORS[name], **changes)


# A group of one keeps its raw reward: mean 0 and std 1 are put in the place of what it lacks.
_VERL_GRPO = _like("grpo", eps=1e-6, singleton="raw")

DIALECTS: Mapping[str, Mapping[str, Estimator]] = {
    # Masked tokens are walked through with value 0; a group estimator with n = 1 is refused.
    "openrlhf-0.11": {
        "gae": _like("gae", masked_tokens="walk"),
        "reinforce_pp": _like("reinforce_pp", masked_tokens="walk"),
        "rloo": ESTIMATORS["rloo"],
        "reinforce_pp_baseline": ESTIMATORS["reinforce_pp_baseline"],
        "grpo": ESTIMATORS["grpo"],
        "dr_grpo": ESTIMATORS["dr_grpo"],
        "flash_reinforce": Estimator(baseline="batch-mean"),
    },
    # scale_rewards = "group", "none", "batch".
    "trl-1.9": {
        "grpo": _like("grpo", eps=1e-4),
        "dr_grpo": ESTIMATORS["dr_grpo"],
        "grpo_batch_std": _like("grpo_batch_std", eps=1e-4),
        "rloo": ESTIMATORS["rloo"],
    },
    # Masked tokens are skipped; whitening takes the sample variance.
    "verl-0.9": {
        "gae": _like("gae", whiten="sample"),
        "reinforce_pp": _like("reinforce_pp", whiten="sample"),
        "rloo": _like("rloo", singleton="raw"),
        "grpo": _VERL_GRPO,
        "dr_grpo": _like("dr_grpo", singleton="raw"),
    },
    # A masked token ends the return; MaxRL has no guard against a negative mean.
    "skyrl-0.4": {
        "reinforce_pp": _like("reinforce_pp", whiten="sample", masked_tokens="reset"),
        "rloo": _like("rloo", singleton="zero"),
        "grpo": _VERL_GRPO,
        "dr_grpo": _like("dr_grpo", singleton="raw"),
        "maxrl": _like("maxrl", scale="signed-group-mean", eps=1e-6),
    },
    # Leave-one-out mean and standard deviation by default.
    "nemo-0.7": {"grpo": _like("grpo_loo_std", singleton="zero")},
    # The mean only, under the name of GRPO.
    "prime-rl-0.8": {
        "grpo": _like("dr_grpo", singleton="zero"),
        "maxrl": _like("maxrl", singleton="zero"),
    },
    "tinker-0.5": {"grpo": _like("dr_grpo", singleton="zero")},
}
