"""SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") in numpy.

Imports numpy only. The same numbers on every machine and with every version of numpy.
"""

import numpy as np

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The odd number closest to 2**64 over the golden ratio: the step between neighbours."""


def mixed(x: np.ndarray) -> np.ndarray:
    """The generator's finaliser: a hash of each uint64, in which every bit depends on all."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
