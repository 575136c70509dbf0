"""Random streams: a number for each (sample, token) that depends on nothing else.

A sample's key is a hash of what identifies it; the number for a token is a counter-based
function of key and position. Layout, replicas, retries and batch composition do not enter.
"""

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_S11, _S27, _S30, _S31 = np.uint64(11), np.uint64(27), np.uint64(30), np.uint64(31)
_UNIT = 2.0**-53


def sample_key(
    run_seed: int, purpose: str, uid: str, draw: int, sample_index: int, turn: int = 0
) -> int:
    """The key of one sample's random stream, an unsigned 64-bit number.

    Args:
        run_seed: the run's seed.
        purpose: what the numbers are for, as in ``rollout`` or ``eval``.
        uid: the prompt.
        draw: how often that prompt was handed out before (a retry keeps it, a refill raises it).
        sample_index: place in the prompt's group.
        turn: place in a conversation with an environment.
    """
    # JSON keeps the fields apart: ("a", "bc") and ("ab", "c") must not meet.
    text = json.dumps([int(run_seed), purpose, uid, int(draw), int(sample_index), int(turn)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def uniforms(keys: NDArray[np.uint64], position: int | NDArray[np.integer]) -> NDArray[np.float64]:
    """The number of each stream at a position: splitmix64 of key + (position + 1)·golden ratio.

    Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", read at a
    position instead of in sequence.

    Args:
        keys: [n] uint64.
        position: token index, for all or [n].

    Returns:
        [n] float64 in [0, 1) with 53 random bits.
    """
    count = np.asarray(position, dtype=np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):  # arithmetic mod 2^64 is meant
        z = keys + count * _GOLDEN
        z = (z ^ (z >> _S30)) * _MIX_1
        z = (z ^ (z >> _S27)) * _MIX_2
        z = (z ^ (z >> _S31)) >> _S11
    unit: NDArray[np.float64] = z.astype(np.float64) * _UNIT
    return unit
