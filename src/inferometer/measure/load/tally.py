"""What does a client process count while it runs, for the live view?"""

import resource
from typing import Final

from inferometer.measure.load.connections import Exchange
from inferometer.measure.load.messages import Report

_MOST_SAMPLES: Final = 128
"""Of a report: it must go through the pipe at once."""


class Tally:
    """Counts for the live view; cheap, and no part of the record."""

    def __init__(self) -> None:
        self.n_sent = 0
        self.n_good = 0
        self.n_failed = 0
        self._errors: dict[str, int] = {}
        self._first_read_ns: list[int] = []
        self._read_gap_ns: list[int] = []

    def count(self, exchange: Exchange) -> None:
        """An exchange is over."""
        answer = exchange.answer
        if answer.error:
            self.n_failed += 1
            self._errors[answer.error] = self._errors.get(answer.error, 0) + 1
            return
        self.n_good += 1
        if answer.read_ns and len(self._first_read_ns) < _MOST_SAMPLES:
            self._first_read_ns.append(answer.read_ns[0] - exchange.intended_ns)
            if len(answer.read_ns) > 1:
                self._read_gap_ns.append(
                    (answer.read_ns[-1] - answer.read_ns[0]) // (len(answer.read_ns) - 1)
                )

    def report(
        self, process_index: int, n_in_flight: int, worst_lag_ns: int, *, n_waiting: int
    ) -> Report:
        """What happened since the last report."""
        report = Report(
            process_index=process_index,
            n_sent=self.n_sent - n_waiting,
            n_in_flight=n_in_flight,
            n_good=self.n_good,
            n_failed=self.n_failed,
            worst_lag_ns=worst_lag_ns,
            first_read_ns=tuple(self._first_read_ns),
            read_gap_ns=tuple(self._read_gap_ns),
            errors=dict(self._errors),
        )
        self._first_read_ns.clear()
        self._read_gap_ns.clear()
        return report


def cpu_s() -> float:
    """CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
