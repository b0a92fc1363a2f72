"""How late is the client itself?

A beat is due every 10 ms on a grid that is never moved; each says by how much it came late.
"""

from typing import Final

import numpy as np

from inferometer.records.raw_log import LagFrame

PERIOD_NS: Final = 10_000_000
_FULL: Final = 50
"""Half a second's worth: then they go to the raw log."""


class OwnPulse:
    """The beats of one process.

    After a standstill every beat that was missed is counted, as late as it was.
    """

    def __init__(self, process_index: int) -> None:
        self._process_index = process_index
        self._due_ns: list[int] = []
        self._lag_ns: list[int] = []
        self._n_in_flight: list[int] = []
        self._worst_ns = 0
        self.n_beats = 0

    @property
    def n_waiting(self) -> int:
        """Beats that are not in the raw log yet."""
        return len(self._due_ns)

    @property
    def is_full(self) -> bool:
        """Is it time to write them?"""
        return len(self._due_ns) >= _FULL

    def beat(self, due_ns: int, now_ns: int, n_in_flight: int) -> int:
        """Count a beat; when is the next one due?"""
        self._due_ns.append(due_ns)
        self._lag_ns.append(now_ns - due_ns)
        self._n_in_flight.append(n_in_flight)
        self._worst_ns = max(self._worst_ns, now_ns - due_ns)
        self.n_beats += 1
        return due_ns + PERIOD_NS

    def worst_since_last_ns(self) -> int:
        """The longest lag since this was asked before."""
        worst_ns, self._worst_ns = self._worst_ns, 0
        return worst_ns

    def taken(self, origin_ns: int) -> LagFrame:
        """The waiting beats as a frame, their instants since ``origin_ns``."""
        frame = LagFrame(
            process_index=self._process_index,
            due_ns=(np.array(self._due_ns, "<i8") - origin_ns).tobytes(),
            lag_ns=np.array(self._lag_ns, "<i8").tobytes(),
            n_in_flight=np.array(self._n_in_flight, "<i4").tobytes(),
        )
        self._due_ns.clear()
        self._lag_ns.clear()
        self._n_in_flight.clear()
        return frame
