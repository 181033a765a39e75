r"""1 where the last complete box after the thoughts equals the label, by Math-Verify; else 0.

Only the text after the last ``</think>`` is graded, and a ``\boxed{...}`` is demanded.
"""

import threading

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

GRADED = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
SECONDS = 5


def last_box(text: str) -> str | None:
    r"""What the last complete ``\boxed{...}`` holds, None where there is none."""
    found, start = None, text.find(r"\boxed{")
    while start >= 0:
        inside = start + len(r"\boxed{")
        depth, at = 1, inside
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        if depth:
            # This box is never closed; a whole one may stand inside it.
            at = inside
        else:
            found = text[inside : at - 1]
        start = text.find(r"\boxed{", at)
    return found


def reward(response: str, label: str) -> float:
    """Equality in mathematics, not in spelling; a label that cannot be read raises."""
    answer = last_box(response.rpartition("</think>")[2])
    while answer is not None and last_box(answer) is not None:
        answer = last_box(answer)
    if not answer:
        return 0.0
    # The library's time limits rest on signals, which only a main thread gets.
    seconds = SECONDS if threading.current_thread() is threading.main_thread() else 0
    gold = parse(f"${label}$", GRADED, parsing_timeout=seconds)
    if not gold:
        raise ValueError(f"the label {label!r} is no mathematics that Math-Verify can read")
    given = parse(f"${answer}$", GRADED, parsing_timeout=seconds)
    return float(verify(gold, given, timeout_seconds=seconds))
