"""What one rank does in the tests of ``deepspeed``: run as a script, prints one line of JSON.

Every stage and cut is compared with ``local`` on the same fixed batch, in the process itself.
"""

import contextlib
import dataclasses
import json
import sys

import torch

from nbrl.backends.trainers.deepspeed import DeepSpeedTrainer
from nbrl.backends.trainers.joining import Place, join_ranks
from nbrl.backends.trainers.local import LocalTrainer
from nbrl.config import Optimizer, PolicyLoss
from nbrl.config.checks import ZERO_STAGES
from nbrl.errors import StepError
from tests.backends.trainers.small import make_batch, make_policy, split, still

LOSS = PolicyLoss(entropy_coef=0.01)
LENGTHS = [5, 3, 8, 1, 6, 4, 2]


def pair(settings, stage):
    """The reference and a trainer of this rank, on equal policies."""
    local = LocalTrainer(make_policy(), optimizer=settings)
    return local, DeepSpeedTrainer(make_policy(), optimizer=settings, zero_stage=stage)


def apart(local, ranks):
    """The largest distance between two trainers' weights; names must agree."""
    mine, theirs = dict(local.weights()), dict(ranks.weights())
    assert mine.keys() == theirs.keys()
    return max(float((mine[n] - theirs[n]).abs().max()) for n in mine)


def one_step(stage, cuts):
    """Plain SGD: metrics, token columns, annotations and parameters after a step."""
    batch = make_batch(LENGTHS, columns=("advantages", "rollout_logprobs"))
    local, ranks = pair(Optimizer(kind="sgd", lr=0.1, max_grad_norm=0.5), stage)
    wanted = ["old_logprobs", "entropy"]
    mine, theirs = (t.annotate([batch], wanted, still) for t in (local, ranks))
    said = {f"annotated {n}": float((mine[n][0] - theirs[n][0]).abs().max()) for n in wanted}
    batches = split(batch, cuts)
    (want,), (got,) = local.step([batches], LOSS, still), ranks.step([batches], LOSS, still)
    assert want.metrics.keys() == got.metrics.keys()
    for name, metric in want.metrics.items():
        assert metric.count == got.metrics[name].count, name
        said[name] = abs(metric.value - got.metrics[name].value)
    for a, b in zip(want.tokens, got.tokens, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            said[f"token {name}"] = float((a[name].float() - b[name].float()).abs().max())
    return {**said, "weights": apart(local, ranks)}


def ten_steps(stage):
    """The largest distance between the loss curves of AdamW, two minibatches a call."""
    batch = make_batch(LENGTHS, columns=("advantages",))
    settings = Optimizer(
        lr=3e-3, weight_decay=0.1, schedule="linear", warmup_steps=2, total_steps=10
    )
    local, ranks = pair(settings, stage)
    furthest = 0.0
    for _ in range(5):
        plan = [split(batch, 2), [batch]]
        want, got = local.step(plan, LOSS, still), ranks.step(plan, LOSS, still)
        for a, b in zip(want, got, strict=True):
            furthest = max(furthest, abs(a.metrics["loss"].value - b.metrics["loss"].value))
    with contextlib.suppress(StepError):
        ranks.step([[batch]], LOSS, still)
        raise AssertionError("a step beyond the schedule's end was taken")
    return furthest


def stopped_steps(stage):
    """Weights after calls that fail late, and the losses of the good ones that follow them."""
    batch = make_batch(LENGTHS, columns=("advantages",))
    bad = dataclasses.replace(
        batch, columns={"advantages": batch.columns["advantages"] * torch.nan}
    )
    local, ranks = pair(Optimizer(lr=1e-3), stage)
    failures = []

    def strike(units, tokens):
        if torch.distributed.get_rank() == 0:
            raise KeyboardInterrupt

    for plan, advance in (([[batch], [bad]], still), ([[batch]], strike), ([[bad]], still)):
        try:
            ranks.step(plan, LOSS, advance)
        except (StepError, KeyboardInterrupt) as error:
            failures.append(type(error).__name__)
    still_there = apart(local, ranks)
    furthest = 0.0
    for _ in range(3):
        (want,), (got,) = (t.step([[batch]], LOSS, still) for t in (local, ranks))
        furthest = max(furthest, abs(want.metrics["loss"].value - got.metrics["loss"].value))
    return {"failures": failures, "kept": still_there, "after": furthest}


def main(rank, world, port):
    """All of it, as JSON on the last line."""
    torch.set_num_threads(1)
    join_ranks(Place(rank=rank, world=world, host="127.0.0.1", port=port))
    found = {
        str(stage): {
            "steps": {str(cuts): one_step(stage, cuts) for cuts in (1, 3)},
            "curve": ten_steps(stage),
            "stopped": stopped_steps(stage),
        }
        for stage in ZERO_STAGES
    }
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
