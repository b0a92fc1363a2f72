"""How many drafted tokens does the model accept?

A draw for each token that may come, the same in every simulation.

What is drawn depends on the request and on the place of the token in its answer alone: not on the
time, the batch or the number of drafts. Two what-ifs so see the same luck, and what differs between
them is what was changed. Nothing random is kept anywhere.
"""

from collections.abc import Sequence
from typing import Final

from inferometer.records.columns import I64

N_DRAWS: Final = 2**32
"""A draw is a whole number below this, all equally likely."""


def n_accepted(
    acceptance: Sequence[int] | I64, request_index: int, n_outputs: int, n_drafts: int
) -> int:
    """How many of these drafts are accepted, in order, by a request that has so many tokens of its answer?

    ``acceptance`` has for each place below which number the draw must lie. The draw is a mixer of
    32 bits (multiplications by odd numbers and shifts, each of them invertible), twice; its
    products stay below 2^63, where plain and compiled integers agree.

    Example
    -------
    >>> n_accepted([N_DRAWS, N_DRAWS, 0], request_index=5, n_outputs=10, n_drafts=3)
    2
    """
    for place in range(n_drafts):
        draw = (request_index * 2 + 1) & 0xFFFFFFFF
        for turn in range(2):
            draw ^= draw >> 16
            draw = (draw * 0x21F0AAAD) & 0xFFFFFFFF
            draw ^= draw >> 15
            draw = (draw * 0x735A2D97) & 0xFFFFFFFF
            draw ^= draw >> 15
            if turn == 0:
                draw ^= (n_outputs + place) & 0xFFFFFFFF
        if draw >= acceptance[place]:
            return place
    return n_drafts
