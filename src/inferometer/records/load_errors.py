"""What went wrong with how many requests of a load test?"""

from dataclasses import dataclass

import numpy as np

from inferometer.records.exchange_errors import EXCHANGE_ERRORS
from inferometer.records.load_types import ExchangeTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """One kind of error."""

    code: str
    n_requests: int
    share_fraction: float
    """Of all requests."""
    http_statuses: tuple[int, ...]
    """Those that came with it."""
    meaning: str
    remedy: str


def error_counts(exchanges: ExchangeTable) -> tuple[ErrorCount, ...]:
    """Requests by the code of what went wrong, the most frequent first."""
    codes, counts = np.unique(exchanges.error[exchanges.error != ""], return_counts=True)
    found = [_counted(exchanges, str(code), int(n)) for code, n in zip(codes, counts, strict=True)]
    return tuple(sorted(found, key=lambda one: (-one.n_requests, one.code)))


def _counted(exchanges: ExchangeTable, code: str, n_requests: int) -> ErrorCount:
    known = EXCHANGE_ERRORS.get(code)
    statuses = np.unique(exchanges.http_status[exchanges.error == code])
    return ErrorCount(
        code=code,
        n_requests=n_requests,
        share_fraction=n_requests / len(exchanges.error),
        http_statuses=tuple(int(status) for status in statuses if status > 0),
        meaning="not known to this version" if known is None else known.meaning,
        remedy="" if known is None else known.remedy,
    )
