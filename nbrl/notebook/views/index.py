"""What the page holds of all samples: one typed array a column, a few bytes a sample.

May import ``types`` and the neighbours ``chain`` and ``reprs``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.errors import DataError
from nbrl.notebook.reprs import summaries
from nbrl.notebook.views.chain import Chain
from nbrl.types.columns import ragged, row_sums

MOST_WORDS = 250
Column = tuple[dict[str, Any], np.ndarray]


def index_columns(chain: Chain, added: Mapping[str, np.ndarray]) -> list[Column]:
    """Descriptions and arrays: ``added`` first, then rewards, then what every sample has.

    Raises:
        DataError: An added column has another length than the samples, or a name that is taken.
    """
    own = [*_advantage_columns(chain), *_reward_columns(chain), *_rollout_columns(chain)]
    taken = {description["name"] for description, _ in own}
    rows = len(chain.rollouts)
    for name, values in added.items():
        if name in taken or values.shape != (rows,):
            raise DataError(
                f"browse: column {name!r} has shape {values.shape}; it needs one number for each "
                f"of the {rows} samples and a name other than {sorted(taken)}."
            )
    return [*(number(n, v) for n, v in added.items()), *own]


def number(name: str, values: np.ndarray) -> Column:
    """A column of numbers, single precision, nan where there is none."""
    return {"name": name, "kind": "number", "dtype": "f4"}, values.astype("<f4")


def _flag(name: str, values: np.ndarray) -> Column:
    return {"name": name, "kind": "flag", "dtype": "u1"}, values.astype(np.uint8)


def _words(name: str, column: pa.ChunkedArray) -> Column:
    coded = column.combine_chunks().dictionary_encode()
    words = [str(w) for w in coded.dictionary.to_pylist()][:MOST_WORDS]
    codes = np.minimum(coded.indices.fill_null(MOST_WORDS).to_numpy(), MOST_WORDS)
    return {"name": name, "kind": "word", "dtype": "u1", "words": words}, codes.astype(np.uint8)


def _rollout_columns(chain: Chain) -> Iterator[Column]:
    table = chain.rollouts.table
    yield number("tokens", summaries.sampled_tokens(chain.rollouts))
    yield _words("finish_reason", table.column("finish_reason"))
    turns = summaries.floats(table.column("num_turns"))
    if len(turns) and turns.max() > 1:
        yield number("turns", turns)
    yield number("version", summaries.floats(table.column("version_max")))
    codes, _ = summaries.group_codes(chain.rollouts)
    yield {"name": "group", "kind": "group", "dtype": "u4"}, codes.astype("<u4")


def _reward_columns(chain: Chain) -> Iterator[Column]:
    if chain.scored is None:
        return
    table = chain.scored.table
    yield number("total", summaries.floats(table.column("total")))
    names = summaries.reward_names(chain.scored)
    for name in names if len(names) > 1 else ():
        yield number(f"reward {name}", summaries.floats(table.column(name)))
    for field in table.schema:
        if "/" in field.name and pa.types.is_floating(field.type):
            yield number(f"reward {field.name}", summaries.floats(table.column(field.name)))
    yield _words("status", table.column("status"))


def _advantage_columns(chain: Chain) -> Iterator[Column]:
    if chain.advantaged is None:
        return
    table = chain.advantaged.table
    flat, offsets = ragged(table.column("advantages"))
    mask, _ = ragged(table.column("mask"))
    sums = row_sums(np.where(mask, flat, 0.0), offsets)
    yield number("advantage", sums / np.maximum(row_sums(mask.astype(bool), offsets), 1))
    yield number("group_mean", summaries.floats(table.column("group_mean")))
    yield _flag("live", table.column("live").to_numpy())
