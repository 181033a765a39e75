"""SplitMix64 against its published numbers."""

import numpy as np

from nbrl.backends.splitmix import GAMMA, mixed


def test_the_first_numbers_of_seed_0():
    steps = np.arange(1, 4, dtype=np.uint64) * GAMMA
    assert [hex(x) for x in mixed(steps).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]
