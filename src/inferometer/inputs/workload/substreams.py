"""Which random numbers does a named part of a workload get?

Each part (gaps, classes, prompt lengths, ...) has a stream of its own: what one part asks for moves
no other part, and the first n numbers of a stream are the same however many are drawn. Only raw
64-bit words of Philox are used, whose values numpy promises not to change.
"""

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

_FRACTION_BITS: Final = 52
"""One fewer than a double has: the middle of the last cell must not round to 1."""


def uniforms(seed: int, name: str, n_numbers: int) -> NDArray[np.float64]:
    """The first numbers of the stream of this name, uniform in the open interval (0, 1).

    Example
    -------
    >>> bool((uniforms(0, "prompt", 5)[:3] == uniforms(0, "prompt", 3)).all())
    True
    """
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype="<u4")
    philox = np.random.Philox(np.random.SeedSequence(seed, spawn_key=tuple(words.tolist())))
    raw = np.asarray(philox.random_raw(n_numbers), dtype=np.uint64)
    cells = (raw >> np.uint64(64 - _FRACTION_BITS)).astype(np.float64)
    return cells * 2.0**-_FRACTION_BITS + 2.0 ** -(_FRACTION_BITS + 1)
