"""1 where the answer is the label, blanks around it aside; 0 where it is not."""


def reward(response: str, label: str) -> float:
    """Equality of characters: ``049`` is not ``49``."""
    return float(response.strip() == label.strip())
