"""1 where the answer is the label, to the character; 0 where it is not."""


def reward(response: str, label: str) -> float:
    """Exact match, blanks around the answer aside."""
    return float(response.strip() == label.strip())
