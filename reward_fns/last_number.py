"""1 where the last number of the answer is the label's; 0 where it is not, or there is none."""

import re

# A minus after a digit or a bracket subtracts; a comma before three digits parts thousands.
NUMBER = re.compile(r"(?:(?<![\d)])-)?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")


def last_number(text: str) -> float | None:
    """The last number in a text, None where it has none."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def reward(response: str, label: str) -> float:
    """Equal as numbers: ``12`` and ``12.0`` are. A label without a number raises."""
    wanted = last_number(label)
    if wanted is None:
        raise ValueError(f"the label {label!r} holds no number")
    return float(last_number(response) == wanted)
