"""How is a load test doing, while it runs?

Estimates from the first and last reads of answers, for people; the record is decoded later.
"""

import time
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

from inferometer.measure.load.messages import Report
from inferometer.units import NS_PER_S, s_from_ns

_RECENT: Final = 1000
_WINDOW_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProgress:
    """Where a load test stands. None: nothing to say it from yet."""

    elapsed_s: float
    n_planned: int
    n_sent: int
    n_in_flight: int
    n_good: int
    n_failed: int
    sent_per_s: float
    """Over the last seconds."""
    first_bytes_s: float | None
    """Median time from the intended send to the first bytes, of recent answers: about the TTFT
    of streams."""
    read_gap_s: float | None
    """Median of the mean time between reads, of recent answers: about the TPOT of streams."""
    worst_lag_s: float
    """Of the client itself, since the last report."""
    errors: tuple[tuple[str, int], ...]
    """Codes, the most frequent first."""


class ProgressTally:
    """Adds up what the client processes report."""

    def __init__(self, *, n_planned: int) -> None:
        self._n_planned = n_planned
        self._reports: dict[int, Report] = {}
        self._first_read_ns: deque[int] = deque(maxlen=_RECENT)
        self._read_gap_ns: deque[int] = deque(maxlen=_RECENT)
        self._sent: deque[tuple[float, int]] = deque()
        self._begin_s = time.monotonic()
        self.is_news = False

    def begin(self) -> None:
        """The schedule begins now."""
        self._begin_s = time.monotonic()

    def take(self, report: Report) -> None:
        """Count a report."""
        self._reports[report.process_index] = report
        self._first_read_ns.extend(report.first_read_ns)
        self._read_gap_ns.extend(report.read_gap_ns)
        self.is_news = True

    def progress(self) -> LoadProgress:
        """Where it stands now."""
        self.is_news = False
        reports = self._reports.values()
        n_sent = sum(report.n_sent for report in reports)
        errors: dict[str, int] = {}
        for report in reports:
            for code, count in report.errors.items():
                errors[code] = errors.get(code, 0) + count
        return LoadProgress(
            elapsed_s=time.monotonic() - self._begin_s,
            n_planned=self._n_planned,
            n_sent=n_sent,
            n_in_flight=sum(report.n_in_flight for report in reports),
            n_good=sum(report.n_good for report in reports),
            n_failed=sum(report.n_failed for report in reports),
            sent_per_s=self._rate_per_s(n_sent),
            first_bytes_s=_median_s(self._first_read_ns),
            read_gap_s=_median_s(self._read_gap_ns),
            worst_lag_s=max((report.worst_lag_ns for report in reports), default=0) / NS_PER_S,
            errors=tuple(sorted(errors.items(), key=lambda item: (-item[1], item[0]))),
        )

    def _rate_per_s(self, n_sent: int) -> float:
        now_s = time.monotonic()
        self._sent.append((now_s, n_sent))
        while len(self._sent) > 2 and now_s - self._sent[0][0] > _WINDOW_S:
            self._sent.popleft()
        first_s, first = self._sent[0] if len(self._sent) > 1 else (self._begin_s, 0)
        return (n_sent - first) / (now_s - first_s) if now_s > first_s else 0.0


def _median_s(durations_ns: deque[int]) -> float | None:
    return s_from_ns(round(median(durations_ns))) if durations_ns else None
