"""1 where the last complete box after the thoughts equals the label in mathematics (Math-Verify)."""

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

GRADED = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]


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
            break
        found, start = text[inside : at - 1], text.find(r"\boxed{", at)
    return found


def reward(response: str, label: str) -> float:
    """Only the text after the last ``</think>`` is graded, and a box is demanded."""
    answer = last_box(response.rpartition("</think>")[2])
    if not answer:
        return 0.0
    # No time-outs of the library's own: they rest on signals, which only a main thread gets.
    gold = parse(f"${label}$", GRADED, parsing_timeout=None)
    given = parse(f"${answer}$", GRADED, parsing_timeout=None)
    return float(verify(gold, given, timeout_seconds=None))
