"""Many losses on one frozen batch: probes of its parts, put together.

The batch is split by groups into disjoint parts, each probed with all losses on one forward pass.
Gradient sketches are linear, so their weighted sum is the sketch of the whole batch's gradient,
and how the parts differ is its noise. May import what ``training`` may.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from nbrl.config import PolicyLoss, to_spec
from nbrl.driver import training
from nbrl.driver.runtime import Runtime
from nbrl.errors import ConfigError
from nbrl.types import SOURCE_POLICY, Advantaged, LossComparison, Probe
from nbrl.types.columns import ragged, row_sums

MOST_PARTS = 8
Asked = Sequence[PolicyLoss] | Mapping[str, PolicyLoss]


def compare_losses(runtime: Runtime, batch: Advantaged, losses: Asked) -> LossComparison:
    """Gradients, norms, signal-to-noise and shares of tokens of each loss on the batch.

    Raises:
        ConfigError: No loss, the same one twice, or as ``probe``.
    """
    named = dict(losses) if isinstance(losses, Mapping) else _by_name(losses)
    if not named:
        raise ConfigError("compare_losses needs at least one loss, e.g. [PolicyLoss()]; got none.")
    parts = [batch.take(rows) for rows in _parts(batch)] or [batch]
    with runtime.progress.phase("compare_losses", len(parts), "parts") as advance:
        probed = []
        for part in parts:
            probed.append(training.probe(runtime, part, named))
            advance(1, 0)
    gradients = {name: _gradient([p[name] for p in probed]) for name in named}
    rows = {name: _row(runtime, batch, [p[name] for p in probed]) for name in named}
    return LossComparison(
        table=pd.DataFrame.from_dict(rows, orient="index").rename_axis("loss"),
        cosines=_cosines(gradients),
        tokens={n: pa.concat_tables([p[n].tokens for p in probed]) for n in named},
        batch=batch,
        version=runtime.version,
        parts=len(parts),
        spec={"losses": {name: to_spec(loss) for name, loss in named.items()}},
    )


def _by_name(losses: Sequence[PolicyLoss]) -> dict[str, PolicyLoss]:
    names = [loss_name(loss) for loss in losses]
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise ConfigError(
            f"compare_losses got {', '.join(repeated)} more than once; give each loss once."
        )
    return dict(zip(names, losses, strict=True))


def loss_name(loss: PolicyLoss) -> str:
    """The surrogate and what differs from the defaults: ``ppo, eps_high=0.28``."""
    plain, given = to_spec(PolicyLoss()), to_spec(loss)
    told = [f"{n}={v}" for n, v in given.items() if n != "surrogate" and v != plain[n]]
    return ", ".join([loss.surrogate, *told])


def _parts(batch: Advantaged) -> Iterator[np.ndarray]:
    """Rows of whole groups, dealt in turn; groups without a token that counts go along."""
    mask, offsets = ragged(batch.table.column("mask"))
    counted = row_sums(mask.astype(bool), offsets)
    coded = batch.scored.rollouts.table.column("group_id").combine_chunks().dictionary_encode()
    codes = coded.indices.to_numpy()
    tokens = np.bincount(codes, weights=counted, minlength=len(coded.dictionary))
    useful = np.flatnonzero(tokens > 0)
    count = min(len(useful), MOST_PARTS)
    part_of = np.zeros(len(tokens), np.int64)
    part_of[useful] = np.arange(len(useful)) % max(count, 1)
    for part in range(count):
        yield np.flatnonzero(part_of[codes] == part)


def _weights(probes: Sequence[Probe]) -> np.ndarray:
    """Each part's share of what the loss is a mean over."""
    counts = np.array([probe.metrics["loss"].count for probe in probes], float)
    return counts / counts.sum()


def _gradient(probes: Sequence[Probe]) -> np.ndarray:
    return _weights(probes) @ np.stack([probe.sketch for probe in probes]).astype(float)


def _row(runtime: Runtime, batch: Advantaged, probes: Sequence[Probe]) -> dict[str, Any]:
    weights = _weights(probes)
    norm = float(np.linalg.norm(_gradient(probes)))
    optimizer = runtime.spec["trainer"]["optimizer"]
    limit = optimizer["max_grad_norm"]
    taken = norm if limit is None else min(norm, limit)
    return {
        "loss": float(weights @ [probe.metrics["loss"].value for probe in probes]),
        "grad_norm": norm,
        "signal_to_noise": _signal_to_noise(probes),
        **_shares(batch, pa.concat_tables([probe.tokens for probe in probes])),
        "update_size": optimizer["lr"] * taken,
    }


def _signal_to_noise(probes: Sequence[Probe]) -> float:
    """``|mean| / sqrt(sum_i |g_i - mean|^2 / (K (K - 1)))`` over K weighted parts."""
    count = len(probes)
    if count < 2:
        return float("nan")
    sketches = np.stack([probe.sketch for probe in probes]).astype(float)
    parts = sketches * (count * _weights(probes))[:, None]
    mean = parts.mean(axis=0)
    noise = np.sqrt(np.square(parts - mean).sum() / (count * (count - 1)))
    return float(np.linalg.norm(mean) / noise) if noise > 0 else float("inf")


def _shares(batch: Advantaged, tokens: pa.Table) -> dict[str, float]:
    drawn = ragged(batch.scored.rollouts.table.column("source"))[0] == SOURCE_POLICY
    mask = ragged(batch.table.column("mask"))[0].astype(bool)
    rows = {sample: row for row, sample in enumerate(tokens.column("sample_id").to_pylist())}
    order = [rows[s] for s in batch.table.column("sample_id").to_pylist()]
    aligned = tokens.take(pa.array(order, pa.int64()))
    clipped = ragged(aligned.column("clipped"))[0].astype(bool)[mask]
    terms = ragged(aligned.column("loss"))[0][mask]
    return {
        "clipped": float(clipped.mean()) if len(clipped) else float("nan"),
        "masked": 1.0 - float(mask.sum()) / max(int(drawn.sum()), 1),
        "silent": float((terms == 0).mean()) if len(terms) else float("nan"),
    }


def _cosines(gradients: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Cosines of all pairs; 0 with a gradient of length 0."""
    stacked = np.stack(list(gradients.values()))
    norms = np.linalg.norm(stacked, axis=1)
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=norms > 0)
    cosines = np.clip((stacked @ stacked.T) * inverse[:, None] * inverse[None, :], -1.0, 1.0)
    names = list(gradients)
    return pd.DataFrame(cosines, index=names, columns=names)
