"""Several losses on one frozen batch, side by side; nothing was changed to learn it.

May import ``samples`` beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa

from nbrl.types.samples import Advantaged


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LossComparison:
    """What each of several losses would do to the same batch.

    ``table`` has one row a loss:

    * ``loss``, ``grad_norm`` (from sketches of 4096 numbers: right to about 1 %);
    * ``signal_to_noise``: the length of the mean gradient over the standard error of that mean,
      over ``parts`` disjoint sets of prompts; about 1 is noise alone, nan for one part;
    * ``clipped``: share of counted tokens that the clip stops; ``masked``: share of sampled tokens
      that do not count; ``silent``: share of counted tokens whose loss term is exactly 0;
    * ``update_size``: the length of a plain gradient step at the trainer's rate and norm limit (an
      adaptive optimizer rescales it for each parameter).

    ``cosines`` is the square of cosines between the gradients, standard error about 0.016.
    ``tokens`` maps each loss to the rows of :class:`~nbrl.types.Probe`'s ``tokens``.

    Example: ``comparison.cosines.loc["ppo", "cispo"]`` is 0.97.
    """

    table: pd.DataFrame
    cosines: pd.DataFrame
    tokens: Mapping[str, pa.Table]
    batch: Advantaged
    version: int
    parts: int
    spec: Mapping[str, Any] = field(default_factory=dict)

    def to_pandas(self) -> pd.DataFrame:
        """The table, one row a loss."""
        return self.table.copy()

    def __repr__(self) -> str:
        lowest = float(self.cosines.to_numpy().min())
        return (
            f"LossComparison({len(self.table)} losses, {len(self.batch)} samples, version "
            f"{self.version}, lowest cosine {lowest:.2f})"
        )
