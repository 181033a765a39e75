"""What a batch is to the policy: its own, stale, of another run, or trained on already.

May import what ``runtime`` may.
"""

import hashlib

import numpy as np

from nbrl.config import PolicyLoss
from nbrl.driver.runtime import Runtime
from nbrl.errors import StepError
from nbrl.types import Advantaged, Rollouts


def is_current(runtime: Runtime, rollouts: Rollouts) -> bool:
    """Whether every sample was drawn by this run's policy as it is now."""
    if is_foreign(runtime, rollouts):
        return False
    versions = (rollouts.table.column(c).to_numpy() for c in ("version_min", "version_max"))
    return all(bool((v == runtime.version).all()) for v in versions)


def is_foreign(runtime: Runtime, rollouts: Rollouts) -> bool:
    """Whether another run drew the samples: its version numbers say nothing about this policy."""
    return rollouts.spec.get("run") != runtime.run_id


def check_batch(
    runtime: Runtime, batch: Advantaged, loss: PolicyLoss, expect_version: int | None, again: bool
) -> str:
    """The batch's digest, if it may be trained on.

    Raises:
        StepError: It is empty, was trained on before, or is not of this policy and nobody says
            that this is meant. A batch that was trained on is one of an older policy, so that
            ``again=True`` alone does not accept it.
    """
    if not len(batch):
        raise StepError(f"train_step: the batch holds no samples: {_why_empty(batch)}")
    _check_promised(runtime, batch)
    digest = batch_digest(batch)
    oldest, newest = _versions(batch.scored.rollouts)
    if digest in runtime.trained and not again:
        declared = expect_version is not None or loss.correction is not None
        accept = "" if declared else f" and expect_version={oldest}"
        raise StepError(
            f"train_step: this batch was trained on already, at version {runtime.trained[digest]} "
            f"(the policy is at {runtime.version}). Roll out again, or pass again=True{accept} if "
            "it is meant."
        )
    _check_staleness(runtime, batch.scored.rollouts, loss, expect_version, (oldest, newest))
    return digest


def _why_empty(batch: Advantaged) -> str:
    dropped = {why: count for why, count in batch.spec.get("dropped", {}).items() if count}
    if dropped:
        return f"{dropped} were dropped. Roll out more prompts, or widen Shaping.reward_range."
    return (
        "none came from rollout, as when it is interrupted before one is finished. Run the "
        "rollout cell and those after it again."
    )


def _check_promised(runtime: Runtime, batch: Advantaged) -> None:
    """Raise where a resumed run would go on with other rewards than it had."""
    given = batch.scored.spec.get("fingerprints", {})
    if runtime.promised and dict(given) != runtime.promised:
        changed = sorted(
            name
            for name in {**given, **runtime.promised}
            if given.get(name) != runtime.promised.get(name)
        )
        raise StepError(
            f"train_step: the rewards {changed} are not those that this run was trained with up to "
            f"version {runtime.version}; its curve would change its meaning unseen. Bring back "
            "the same code, or fork: nbrl.connect(resume=..., run_dir='a new folder')."
        )
    runtime.promised = {}


def batch_digest(batch: Advantaged) -> str:
    """What identifies a batch, wherever it was loaded from: its samples and their advantages."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(str(batch.scored.rollouts.spec.get("run")).encode())
    for sample_id in batch.table.column("sample_id").to_pylist():
        digest.update(sample_id.encode() + b"\0")
    for chunk in batch.table.column("advantages").chunks:
        flat = chunk.flatten().to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(flat).tobytes())
    return digest.hexdigest()


def _versions(rollouts: Rollouts) -> tuple[int, int]:
    """The oldest and the newest version of the policy that sampled."""
    table = rollouts.table
    return (
        int(table.column("version_min").to_numpy().min()),
        int(table.column("version_max").to_numpy().max()),
    )


def _check_staleness(
    runtime: Runtime,
    rollouts: Rollouts,
    loss: PolicyLoss,
    expect_version: int | None,
    versions: tuple[int, int],
) -> None:
    """Raise where the samples are not the policy's own and neither argument says so."""
    oldest, newest = versions
    if expect_version is not None:
        if (oldest, newest) != (expect_version, expect_version):
            raise StepError(
                f"train_step: expect_version={expect_version}, but the samples are of versions "
                f"{oldest} to {newest}. Pass the version that sampled them."
            )
    elif loss.correction is None and not is_current(runtime, rollouts):
        whose = "another run's policy" if is_foreign(runtime, rollouts) else "the policy"
        raise StepError(
            f"train_step: the samples are of version {oldest} of {whose}, this session's policy "
            f"is at {runtime.version}. Pass expect_version={oldest} to accept that, or declare a "
            "correction, e.g. PolicyLoss(correction='tis'), or roll out again."
        )
