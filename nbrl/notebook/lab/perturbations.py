"""Small edits of an answer that should mostly not change its reward. Pure; imports nothing."""

from collections.abc import Callable, Mapping

PERTURBATIONS: Mapping[str, Callable[[str], str]] = {
    "as it is": lambda text: text,
    "stripped": str.strip,
    "blanks around": lambda text: f"  {text}\n",
    "lower case": str.lower,
    "upper case": str.upper,
    "full stop": lambda text: text.rstrip() + ".",
    "twice": lambda text: f"{text}\n{text}",
    "boxed": lambda text: rf"\boxed{{{text.strip()}}}",
    "first half": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
}
"""By name: what is done to the answer."""
