"""Keys and tokens of the environment, kept out of every file; imports nothing of the house."""

import os
import re

NAMES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
HIDDEN = "***"
SHORTEST = 8
"""A shorter value is no secret, and would blot out words."""


def secrets_of_environment() -> list[str]:
    """The values of variables whose name says that they are secret, the longest first."""
    found = {v for k, v in os.environ.items() if NAMES.search(k) and len(v) >= SHORTEST}
    return sorted(found, key=len, reverse=True)


def without_secrets(text: str) -> str:
    """The text with every secret of the environment replaced by ``***``."""
    for secret in secrets_of_environment():
        text = text.replace(secret, HIDDEN)
    return text
