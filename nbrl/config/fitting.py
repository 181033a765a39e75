"""How a fit is watched; imports nothing of the house."""

from dataclasses import KW_ONLY
from typing import Any

from nbrl.frozen import frozen


@frozen(kw_only=False)
class HeldOut:
    """Data that a fit never learns from, and when it looks at them.

    ``every=None`` measures at the end of each epoch; else each so many steps, and at the end.
    ``keep="best"`` puts back the weights of the lowest held-out loss when the fit is over,
    ``"last"`` keeps those of the last step.
    """

    data: Any
    _: KW_ONLY
    every: int | None = None
    keep: str = "last"
