"""How near the last number of the answer is to the label's: 1 where equal, 1/2 one off, 0 without.

Partial credit for models that are seldom right: where every answer of a group gets 0, nothing can
be learned from it.
"""

import re

# A minus after a digit or a bracket subtracts; a comma before three digits parts thousands.
NUMBER = re.compile(r"(?:(?<![\d)])-)?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def last_number(text: str) -> float | None:
    """The last number in a text, None where it has none."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def reward(response: str, label: str) -> float:
    """1 / (1 + distance to the label). A label without a number raises."""
    wanted, given = last_number(label), last_number(response)
    if wanted is None:
        raise ValueError(f"the label {label!r} holds no number")
    return 0.0 if given is None else 1.0 / (1.0 + abs(given - wanted))
