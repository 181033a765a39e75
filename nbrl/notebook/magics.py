"""The cell magic ``%%reward``: define a reward, see at once what it says of the samples at hand.

May import ``driver``, ``types``, ``errors``, its neighbours and IPython. Loaded by
``%load_ext nbrl``.
"""

import ast
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from nbrl.driver.session import Session
from nbrl.errors import ConfigError, NbrlError
from nbrl.notebook.reprs import register
from nbrl.notebook.reprs.markup import card, table
from nbrl.types import Advantaged, Rollouts, Scored

MOST_VALUES = 8
MOST_ERRORS = 5
EXAMPLES = 3
BAR = 24
BLOCK = "\N{FULL BLOCK}"


def load(shell: Any) -> None:
    """Teach an IPython shell the pictures of the values and the cell magics; again is harmless."""
    register(shell)
    shell.register_magic_function(_reward_magic(shell), "cell", "reward")


def _reward_magic(shell: Any) -> Callable[[str, str], None]:
    @magic_arguments()
    @argument("name", help="what the reward is called in the notebook from here on")
    @argument("--on", metavar="VARIABLE", help="the samples: rollouts, or a value made of them")
    @argument("--session", metavar="VARIABLE", help="the session that scores")
    @argument("--samples", type=int, default=256, help="at most so many, from the first on")
    @argument("--replay", action="store_true", help="stored samples may be asked about the world")
    def reward(line: str, cell: str) -> None:
        """Define a reward in this cell, score the samples at hand, show what it says of them.

        The cell runs as any other. Its function of the magic's name is the reward, or one called
        reward, or the last that it defines; it is kept under the name. Nothing is trained.
        """
        given = parse_argstring(reward, line)
        try:
            wanted = _function_name(given.name, cell)
        except NbrlError as error:
            raise _usage(str(error)) from None
        done = shell.run_cell(cell)
        if not done.success:
            # the shell has shown the traceback
            return
        names = shell.user_ns
        function = names[given.name] = names[wanted]
        try:
            session = _picked(names, given.session, Session, "session = nbrl.connect()")
            rollouts = samples_at_hand(names, given.on)[: given.samples]
            scored = session.score(
                rollouts, {given.name: function}, on_error="exclude", replay=given.replay
            )
        except NbrlError as error:
            raise _usage(str(error)) from error
        before = names.get(f"_{given.name}_scored")
        names[f"_{given.name}_scored"] = scored
        last = before if isinstance(before, Scored) else None
        shell.display_pub.publish(picture(given.name, scored, last))

    return reward


def _usage(message: str) -> Exception:
    from IPython.core.error import UsageError

    # the shell shows it as one line, without a traceback through this file
    return UsageError(message)


def _function_name(name: str, cell: str) -> str:
    """The cell's function that is meant.

    Raises:
        ConfigError: The cell is no Python or defines no function; nothing was run.
    """
    if not name.isidentifier():
        raise ConfigError(f"%%reward: the name must be an identifier; got {name!r}.")
    try:
        tree = ast.parse(cell)
    except SyntaxError as error:
        raise ConfigError(
            f"%%reward {name}: line {error.lineno} of the cell is no Python: {error.msg}."
        ) from error
    defined = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assigned = [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets
                if isinstance(t, ast.Name)]  # fmt: skip
    for wanted in (name, "reward"):
        if wanted in (*defined, *assigned):
            return wanted
    if not defined:
        raise ConfigError(
            f"%%reward {name}: the cell defines no function. Write `def {name}(response, label)`."
        )
    return defined[-1]


def samples_at_hand(names: Mapping[str, Any], wanted: str | None = None) -> Rollouts:
    """The samples in a variable, or in the one that came last into the namespace.

    Raises:
        ConfigError: There is none, or the variable holds something else.
    """
    kinds = (Rollouts, Scored, Advantaged)
    value = _picked(names, wanted, kinds, "rollouts = session.rollout(prompts)")
    if isinstance(value, Advantaged):
        value = value.scored
    return value.rollouts if isinstance(value, Scored) else value


def _picked(names: Mapping[str, Any], wanted: str | None, kinds: Any, remedy: str) -> Any:
    if wanted is not None:
        if not isinstance(names.get(wanted), kinds):
            held = type(names[wanted]).__name__ if wanted in names else "nothing"
            raise ConfigError(f"%%reward: {wanted!r} holds {held}; run `{remedy}` first.")
        return names[wanted]
    found = [v for n, v in names.items() if isinstance(v, kinds) and not n.startswith("_")]
    if not found:
        raise ConfigError(f"%%reward: the notebook holds no such value yet; run `{remedy}` first.")
    return found[-1]


def picture(name: str, scored: Scored, before: Scored | None = None) -> dict[str, str]:
    """The distribution, the errors counted, and some samples: by MIME type."""
    records = scored.to_arrow().select([*COLUMNS, "status", "error"]).to_pylist()
    good = sorted((r for r in records if r["status"] == "ok"), key=lambda r: r["total"])
    totals = np.array([r["total"] for r in good], float)
    title = f"{name}: {summary(totals, len(records))}"
    moved, notes = change(scored, before), constant(totals)
    spread = distribution(totals)
    failed = Counter(str(r["error"]) for r in records if r["status"] != "ok")
    errors = [(count, text[:400]) for text, count in failed.most_common(MOST_ERRORS)]
    ends = good if len(good) <= 2 * EXAMPLES else [*good[:EXAMPLES], *good[-EXAMPLES:]]
    samples = [[r[column] for column in COLUMNS] for r in ends]
    parts = [
        table("what it says", ("reward", "samples", "share", ""), spread, moved),
        *([table("errors", ("samples", "error"), errors)] if errors else []),
        table("lowest and highest", COLUMNS, samples) if samples else "",
    ]
    text = [
        title,
        *filter(None, (moved, *notes)),
        *(f"  {v:>12}  {c:>6}  {s:>5}  {bar}" for v, c, s, bar in spread),
    ]
    text += [f"  {count} x {error}" for count, error in errors]
    return {"text/plain": "\n".join(text), "text/html": card(title, parts, warnings=notes)}


COLUMNS = ("total", "prompt", "response", "label")


def summary(totals: np.ndarray, count: int) -> str:
    """How many samples, how many failed, mean and standard deviation, in one line."""
    failed = f", {count - len(totals)} failed" if len(totals) < count else ""
    if not len(totals):
        return f"{count} samples{failed}"
    return f"{count} samples{failed}, mean {totals.mean():.3f}, std {totals.std():.3f}"


def change(scored: Scored, before: Scored | None) -> str:
    """How many of the samples that both saw have another reward than before, if any did."""
    if before is None:
        return ""
    now, then = (
        dict(zip(*(s.table.column(c).to_pylist() for c in ("sample_id", "total")), strict=True))
        for s in (scored, before)
    )
    both = now.keys() & then.keys()
    moved = sum(now[sample] != then[sample] for sample in both)
    if not both:
        return ""
    return f"{moved} of {len(both)} samples have another reward than at the last run of this cell"


def constant(totals: np.ndarray) -> list[str]:
    """A warning where there is nothing to learn from."""
    if len(totals) > 1 and np.ptp(totals) == 0:
        return [f"every sample has the same reward, {totals[0]:g}: nothing can be learned from it"]
    return []


def distribution(totals: np.ndarray) -> list[tuple[str, int, str, str]]:
    """Rows of value, count, share and a bar: each value where they are few, ranges elsewhere."""
    if not len(totals):
        return []
    values, counts = np.unique(totals, return_counts=True)
    named = [f"{value:.4g}" for value in values]
    if len(values) > MOST_VALUES:
        counts, edges = np.histogram(totals, bins=MOST_VALUES)
        named = [f"{a:.3g} to {b:.3g}" for a, b in pairwise(edges)]
    top = max(counts)
    return [
        (label, int(n), f"{n / len(totals):.0%}", BLOCK * round(BAR * n / top))
        for label, n in zip(named, counts, strict=True)
    ]
