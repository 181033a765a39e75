"""The seed tree: a seed for every place of a run, independent of order and worker count.

Imports nothing of the house.
"""

import hashlib


def derive(*path: int | str) -> int:
    """The seed, in [0, 2**63), at a path such as ``(run, "sample", version, prompt_id, index)``.

    A hash of the path (BLAKE2b), so that neighbours are unrelated and no draw moves another.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in path)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
