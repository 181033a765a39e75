"""The maths again, as plain Python loops over lists: slow, obvious, and written from the formulas.

Nothing here is shared with the code under test. Rows are lists; ``mask`` holds truth values.
"""

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]
Masks = Sequence[Sequence[bool]]


def mean(numbers: Sequence[float]) -> float:
    return math.fsum(numbers) / len(numbers)


def std(numbers: Sequence[float], ddof: int) -> float:
    if len(numbers) <= ddof or max(numbers) == min(numbers):
        return 0.0
    centre = mean(numbers)
    return math.sqrt(math.fsum((x - centre) ** 2 for x in numbers) / (len(numbers) - ddof))


def counted(rows: Rows, mask: Masks) -> list[float]:
    return [
        x for row, keep in zip(rows, mask, strict=True) for x, k in zip(row, keep, strict=True) if k
    ]


def masked_mean(rows: Rows, mask: Masks) -> float:
    numbers = counted(rows, mask)
    return mean(numbers) if numbers else 0.0


def whiten(rows: Rows, mask: Masks, *, scale: bool = True, ddof: int = 0) -> list[list[float]]:
    numbers = counted(rows, mask)
    if len(numbers) <= 1:
        return [[0.0] * len(row) for row in rows]
    centre = mean(numbers)
    variance = math.fsum((x - centre) ** 2 for x in numbers) / (len(numbers) - ddof)
    divisor = math.sqrt(max(variance, 1e-8)) if scale else 1.0
    return [
        [(x - centre) / divisor if k else 0.0 for x, k in zip(row, keep, strict=True)]
        for row, keep in zip(rows, mask, strict=True)
    ]


def aggregate(rows: Rows, mask: Masks, mode: str, norm_length: int = 1) -> float:
    kept = [
        [x for x, k in zip(row, keep, strict=True) if k]
        for row, keep in zip(rows, mask, strict=True)
    ]
    full = [row for row in kept if row]
    if not full:
        return 0.0
    if mode == "token-mean":
        return mean([x for row in full for x in row])
    if mode == "seq-mean-token-mean":
        return mean([mean(row) for row in full])
    length = norm_length if mode == "seq-mean-token-sum-norm" else 1
    return mean([math.fsum(row) / length for row in full])


def log_softmax(logits: Sequence[float], temperature: float) -> list[float]:
    scaled = [z / temperature for z in logits]
    top = max(scaled)
    total = top + math.log(math.fsum(math.exp(z - top) for z in scaled))
    return [z - total for z in scaled]


def entropy(logits: Sequence[float], temperature: float) -> float:
    return -math.fsum(math.exp(p) * p for p in log_softmax(logits, temperature))


def kl(logprob: float, ref: float, kind: str, clamp: float | None) -> float:
    d = logprob - ref
    value = {"k1": d, "k2": d * d / 2, "k3": math.exp(-d) - 1 + d}[kind]
    return value if clamp is None else max(-clamp, min(clamp, value))


def surrogate(
    kind: str,
    rows: tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[bool]],
    eps_low: float,
    eps_high: float,
    dual_clip: float | None,
) -> list[float]:
    """One row: (logprobs, old_logprobs, advantages, mask)."""
    logprobs, old, advantages, mask = rows
    logs = [a - b for a, b in zip(logprobs, old, strict=True)]
    kept = [x for x, k in zip(logs, mask, strict=True) if k]
    if kind == "gspo":
        logs = [mean(kept) if kept else 0.0] * len(logs)
    out = []
    for log, logprob, advantage, keep in zip(logs, logprobs, advantages, mask, strict=True):
        ratio = math.exp(max(-20.0, min(20.0, log)))
        near = max(1 - eps_low, min(1 + eps_high, ratio))
        if not keep:
            out.append(0.0)
        elif kind in ("ppo", "gspo"):
            objective = min(ratio * advantage, near * advantage)
            if dual_clip is not None and advantage < 0:
                objective = max(objective, dual_clip * advantage)
            out.append(-objective)
        elif kind == "cispo":
            out.append(-near * advantage * logprob)
        elif kind == "sapo":
            tau = 1.0 if advantage > 0 else 1.05
            out.append(-4 / tau / (1 + math.exp(-tau * (ratio - 1))) * advantage)
        else:
            out.append(-advantage * logprob)
    return out


def value_loss(value: float, old: float, target: float, clip: float | None) -> float:
    near = value if clip is None else old + max(-clip, min(clip, value - old))
    return max((value - target) ** 2, (near - target) ** 2) / 2


def importance_weights(
    kind: str,
    old: Sequence[float],
    rollout: Sequence[float],
    mask: Sequence[bool],
    low: float,
    high: float,
) -> list[float]:
    logs = [a - b for a, b in zip(old, rollout, strict=True)]
    kept = [x for x, k in zip(logs, mask, strict=True) if k]
    whole = math.exp(mean(kept)) if kept else 1.0
    out = []
    for log, keep in zip(logs, mask, strict=True):
        ratio = math.exp(log)
        if not keep:
            out.append(0.0)
        elif kind == "tis":
            out.append(max(low, min(high, ratio)))
        elif kind == "icepop":
            out.append(ratio if low <= ratio <= high else 0.0)
        else:
            out.append(ratio if low <= whole <= high else 0.0)
    return out


def estimate(
    row,
    rewards: Sequence[float],
    group_ids: Sequence[int],
    mask: Masks,
    *,
    kl: Rows | None = None,
    kl_coef: float = 0.0,
    values: Rows | None = None,
    reward_clip: tuple[float, float] | None = None,
) -> tuple[list[list[float]], list[list[float]]]:
    """Advantages and returns by the fields of an estimator, one row and one token at a time."""
    lengths = [sum(m) for m in mask]
    shaped = [scalar(row, i, rewards, group_ids, lengths) for i in range(len(rewards))]
    if reward_clip is not None:
        shaped = [max(reward_clip[0], min(reward_clip[1], s)) for s in shaped]
    advantages, returns = [], []
    for i, keep in enumerate(mask):
        token_rewards = [0.0] * len(keep)
        if kl is not None:
            token_rewards = [-kl_coef * x if k else 0.0 for x, k in zip(kl[i], keep, strict=True)]
        if any(keep):
            token_rewards[max(t for t, k in enumerate(keep) if k)] += shaped[i]
        critic = values[i] if row.credit == "gae" else [0.0] * len(keep)
        credit = walked(row, token_rewards, critic, keep)
        advantages.append(credit)
        returns.append([a + v if k else 0.0 for a, v, k in zip(credit, critic, keep, strict=True)])
    if row.whiten != "none":
        ddof = 1 if row.whiten == "sample" else 0
        advantages = whiten(advantages, mask, scale=row.whiten != "centre", ddof=ddof)
    return advantages, returns


def walked(
    row, rewards: Sequence[float], values: Sequence[float], mask: Sequence[bool]
) -> list[float]:
    """One row's advantages, from the definition of each masked-token rule."""
    last = max((t for t, k in enumerate(mask) if k), default=-1)
    out = [0.0] * len(mask)
    next_advantage, next_value = 0.0, 0.0
    for t in range(last, -1, -1):
        if not mask[t] and row.masked_tokens == "skip":
            continue
        value, reward = (values[t], rewards[t]) if mask[t] else (0.0, 0.0)
        delta = reward + row.gamma * next_value - value
        advantage = delta + row.gamma * row.lam * next_advantage
        if not mask[t] and row.masked_tokens == "reset":
            advantage = 0.0
        next_advantage, next_value = advantage, value
        out[t] = advantage if mask[t] else 0.0
    return out


def scalar(
    row, i: int, rewards: Sequence[float], group_ids: Sequence[int], lengths: Sequence[int]
) -> float:
    """One row's reward minus baseline, over the scale."""
    members = [j for j, g in enumerate(group_ids) if g == group_ids[i]]
    group = [rewards[j] for j in members]
    others = [rewards[j] for j in members if j != i]
    if not others and row.needs_group:
        return rewards[i] if row.singleton == "raw" else 0.0
    weight = sum(lengths[j] for j in members)
    baselines = {
        "none": lambda: 0.0,
        "batch-mean": lambda: mean(rewards),
        "group-mean": lambda: mean(group),
        "leave-one-out": lambda: mean(others),
        "length-weighted": lambda: (
            sum(lengths[j] * rewards[j] for j in members) / weight if weight else 0.0
        ),
    }
    residual = rewards[i] - baselines[row.baseline]()
    if row.scale in ("group-std", "batch-std", "leave-one-out-std"):
        over = {"group-std": group, "batch-std": rewards, "leave-one-out-std": others}[row.scale]
        spread = std(over, row.ddof)
        return residual / (spread + row.eps) if spread > 0 else residual
    if row.scale == "group-mean":
        return residual / (mean(group) + row.eps) if mean(group) > 1e-12 else 0.0
    if row.scale == "signed-group-mean":
        return residual / (mean(group) + row.eps) if mean(group) + row.eps != 0 else 0.0
    if row.scale == "live-share":
        return residual * len(rewards) / max(sum(_live(rewards, group_ids)), 1)
    return residual


def _live(rewards: Sequence[float], group_ids: Sequence[int]) -> list[bool]:
    by_group: dict[int, list[float]] = {}
    for reward, group in zip(rewards, group_ids, strict=True):
        by_group.setdefault(group, []).append(reward)
    return [max(by_group[g]) > min(by_group[g]) for g in group_ids]


def pass_at_k(n: int, c: int, k: int) -> float:
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def dpo(sums: Sequence[float], beta: float, smoothing: float) -> float:
    policy_chosen, policy_rejected, ref_chosen, ref_rejected = sums
    h = policy_chosen - policy_rejected - ref_chosen + ref_rejected
    wrong = smoothing * log_sigmoid(-beta * h)
    return -(1 - smoothing) * log_sigmoid(beta * h) - wrong


def ipo(sums: Sequence[float], beta: float) -> float:
    policy_chosen, policy_rejected, ref_chosen, ref_rejected = sums
    h = policy_chosen - policy_rejected - ref_chosen + ref_rejected
    return (h - 1 / (2 * beta)) ** 2


def kto(
    rows: Sequence[tuple[float, float, bool]],
    mismatched: Sequence[tuple[float, float]],
    beta: float,
    weights: tuple[float, float],
) -> list[float]:
    z = max(0.0, mean([policy - reference for policy, reference in mismatched]))
    out = []
    for policy, reference, desirable in rows:
        distance = policy - reference - z if desirable else z - policy + reference
        weight = weights[0] if desirable else weights[1]
        out.append(weight * (1 - math.exp(log_sigmoid(beta * distance))))
    return out


def softmax(logits: Sequence[float]) -> list[float]:
    top = max(logits)
    parts = [math.exp(x - top) for x in logits]
    return [part / math.fsum(parts) for part in parts]


def cross_entropy(target: Sequence[float], logits: Sequence[float]) -> float:
    return -math.fsum(p * math.log(q) for p, q in zip(target, softmax(logits), strict=True))


def kendall(a: Sequence[float], b: Sequence[float]) -> float:
    """Tau-b over all pairs, one by one."""
    pairs = [(_sign(a[i] - a[j]), _sign(b[i] - b[j])) for i in range(len(a)) for j in range(i)]
    scale = math.sqrt(sum(x != 0 for x, _ in pairs)) * math.sqrt(sum(y != 0 for _, y in pairs))
    return sum(x * y for x, y in pairs) / scale if scale else math.nan


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Pearson's correlation of ranks, each the mean place that equal values could take."""
    ranks = [[sum(y < x for y in side) + (side.count(x) + 1) / 2 for x in side] for side in (a, b)]
    (x, y), n = ranks, len(a)
    over = [(p - sum(x) / n, q - sum(y) / n) for p, q in zip(x, y, strict=True)]
    scale = math.sqrt(sum(p * p for p, _ in over)) * math.sqrt(sum(q * q for _, q in over))
    return sum(p * q for p, q in over) / scale if scale else math.nan


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)
