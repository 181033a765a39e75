"""Is the reward being gamed? What high rewards go with, what moved, what repeats. Tables.

May import ``types`` and ``errors``.
"""

import math
import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pandas as pd

from nbrl.errors import ConfigError, DataError
from nbrl.notebook.lab.plots import rank_correlation
from nbrl.notebook.reprs.summaries import floats, sampled_tokens
from nbrl.types import Rollouts, Scored

WORD = re.compile(r"\w+|[^\w\s]")
RUN = 3
"""Words that make one unit of repetition."""


def reward_correlates(scored: Scored) -> pd.DataFrame:
    """How the reward goes with the form of answers alone; strong rows deserve a look.

    One row a feature: ``rank_correlation`` (Spearman; NaN where one is constant), and the
    feature's mean in the best and in the worst quarter of rewards. Features: sampled tokens,
    characters, words, share of repeated runs of three words, share of digits and of capitals,
    line breaks, whether the answer was cut.
    """
    rewards = floats(scored.table.column("total"))
    good = np.isfinite(rewards)
    texts = [t or "" for t in scored.rollouts.table.column("response").to_pylist()]
    features = {
        "sampled tokens": sampled_tokens(scored.rollouts).astype(float),
        "characters": np.array([len(t) for t in texts], float),
        "words": np.array([len(t.split()) for t in texts], float),
        "repetition": np.array([repetition(t) for t in texts]),
        "digits": np.array([_share(t, str.isdigit) for t in texts]),
        "capitals": np.array([_share(t, str.isupper) for t in texts]),
        "line breaks": np.array([t.count("\n") for t in texts], float),
        "cut": scored.rollouts.table.column("truncated").to_numpy().astype(float),
    }
    order = np.argsort(rewards[good], kind="stable")
    quarter = max(1, len(order) // 4)
    rows = {}
    for name, values in features.items():
        kept = values[good]
        rows[name] = {
            "rank_correlation": rank_correlation(kept, rewards[good]),
            "best quarter": float(kept[order[-quarter:]].mean()) if len(order) else math.nan,
            "worst quarter": float(kept[order[:quarter]].mean()) if len(order) else math.nan,
        }
    frame = pd.DataFrame.from_dict(rows, orient="index").rename_axis("feature")
    strength = np.nan_to_num(frame["rank_correlation"].abs().to_numpy(), nan=-1.0)
    return frame.iloc[np.argsort(-strength, kind="stable")]


def repetition(text: str) -> float:
    """The share of runs of three words that stood there before; 0 without any run."""
    words = text.split()
    runs = [tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1)]
    return 1.0 - len(set(runs)) / len(runs) if runs else 0.0


def near_duplicates(rollouts: Rollouts) -> pd.DataFrame:
    """Answers that are the same but for case, blanks and punctuation, the most frequent first.

    Columns: ``answer`` (the first as it stands), ``samples``, ``prompts`` (how many different ones
    it answers), ``sample_ids``. Answers that stand once are left out. An answer given to many
    prompts does not depend on what was asked.
    """
    frame = pd.DataFrame(
        {
            "sample_id": rollouts.table.column("sample_id").to_pylist(),
            "prompt_id": rollouts.table.column("prompt_id").to_pylist(),
            "answer": rollouts.table.column("response").to_pylist(),
        }
    )
    words = frame["answer"].fillna("").str.casefold().str.findall(r"\w+").str.join(" ")
    grouped: pd.DataFrame = frame.groupby(words, sort=False).agg(
        answer=("answer", "first"),
        samples=("sample_id", "size"),
        prompts=("prompt_id", "nunique"),
        sample_ids=("sample_id", list),
    )
    found = grouped[grouped["samples"] > 1]
    often = np.lexsort((-np.asarray(found["samples"]), -np.asarray(found["prompts"])))
    return found.iloc[often].reset_index(drop=True)


def telling_ngrams(scored: Scored, n: int = 2, *, most: int = 20) -> pd.DataFrame:
    """Runs of words that tell high from low reward, the most telling first.

    Answers above the median reward are high. Columns: ``ngram``, ``high`` and ``low`` (answers
    that have it), ``log_odds`` (of standing in a high answer, one half added to each count).

    Raises:
        ConfigError: ``n`` or ``most`` is below 1.
    """
    if n < 1 or most < 1:
        raise ConfigError(f"telling_ngrams needs n >= 1 and most >= 1; got n={n}, most={most}.")
    rewards = floats(scored.table.column("total"))
    good = np.isfinite(rewards)
    middle = float(np.median(rewards[good])) if good.any() else 0.0
    high = rewards > middle
    counts: tuple[Counter, Counter] = (Counter(), Counter())
    texts = scored.rollouts.table.column("response").to_pylist()
    for text, keep, is_high in zip(texts, good, high, strict=True):
        if keep:
            words = WORD.findall(text or "")
            counts[bool(is_high)].update(
                {" ".join(words[i : i + n]) for i in range(len(words) - n + 1)}
            )
    sizes = [int((good & ~high).sum()), int((good & high).sum())]
    rows = [
        (gram, counts[1][gram], counts[0][gram], _log_odds(counts, sizes, gram))
        for gram in counts[0].keys() | counts[1].keys()
    ]
    rows.sort(key=lambda row: (-abs(row[3]), row[0]))
    return pd.DataFrame(rows[:most], columns=["ngram", "high", "low", "log_odds"])


def most_moved(before: Scored, after: Scored, *, most: int = 20) -> pd.DataFrame:
    """Prompts whose mean reward changed most between two scorings of the same prompts.

    Columns: ``prompt_id``, ``prompt``, ``before``, ``after``, ``change``, ``n_before``,
    ``n_after``; largest change first. Take samples of two policy versions.

    Raises:
        DataError: The two have no prompt in common.
    """
    joined = _by_prompt(before, "before").join(_by_prompt(after, "after"), how="inner")
    if joined.empty:
        raise DataError("most_moved joins by prompt_id, and the two have no prompt in common.")
    prompts = before.rollouts.prompts.table
    texts = dict(
        zip(
            prompts.column("prompt_id").to_pylist(),
            prompts.column("prompt").to_pylist(),
            strict=True,
        )
    )
    joined["change"] = joined["after"] - joined["before"]
    joined["prompt"] = [texts[p] for p in joined.index]
    order = np.argsort(-joined["change"].abs().to_numpy(float), kind="stable")
    columns = ["prompt", "before", "after", "change", "n_before", "n_after"]
    return joined.iloc[order[:most]][columns].rename_axis("prompt_id").reset_index()


def _by_prompt(scored: Scored, side: str) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "prompt_id": scored.rollouts.table.column("prompt_id").to_pylist(),
            side: floats(scored.table.column("total")),
        }
    ).dropna()
    grouped = frame.groupby("prompt_id", sort=False)[side]
    return pd.DataFrame({side: grouped.mean(), f"n_{side}": grouped.size()})


def _log_odds(counts: tuple[Counter, Counter], sizes: list[int], gram: str) -> float:
    low, high = ((c[gram] + 0.5) / (size + 1.0) for c, size in zip(counts, sizes, strict=True))
    return math.log(high / (1.0 - high)) - math.log(low / (1.0 - low))


def _share(text: str, test: Callable[[str], bool]) -> float:
    return sum(map(test, text)) / len(text) if text else 0.0
