"""What do the checks of a load test look at, and how is a number graded against its limits?"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from inferometer.records.load_types import ChunkTable, ExchangeTable, HostClock, LagTable, ValidityReason, ValidityVerdict
from inferometer.records.steady_state import SteadyState
from inferometer.records.types import ABSENT, F64, I64, RequestTable
from inferometer.spec.load_plan import LoadPlan
from inferometer.spec.workload.plan import RequestPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEvidence:
    """A load test, as far as it is recorded; requests and exchanges have the same rows."""

    requests: RequestTable
    exchanges: ExchangeTable
    chunks: ChunkTable
    lags: LagTable | None
    load: LoadPlan | None
    plan: RequestPlan | None
    """The workload's requests, where they are at hand."""
    steady: SteadyState | None
    percentiles: tuple[float, ...]
    """Those that somebody asked for."""
    clocks: tuple[HostClock, ...] = ()
    """Of the hosts that sent, where they are not the driver's."""

    @property
    def sent(self) -> tuple[I64, I64]:
        """Intended and actual instants of those requests that were sent."""
        was_sent = self.requests.sent_ns != ABSENT
        return self.requests.intended_send_ns[was_sent], self.requests.sent_ns[was_sent]


class Limits(NamedTuple):
    """From where on is a number doubtful, and from where on worthless?"""

    suspect: float
    invalid: float

    def verdict(self, value: float) -> ValidityVerdict:
        """The verdict on a number, of which less is better."""
        return "INVALID" if value > self.invalid else "SUSPECT" if value > self.suspect else "VALID"


def reason(check: str, verdict: ValidityVerdict, text: str, remedy: str) -> ValidityReason:
    """One check's finding; what is fine needs no remedy."""
    return ValidityReason(check=check, verdict=verdict, text=text, remedy="" if verdict == "VALID" else remedy)


def percentile_of(values: F64 | I64, fraction: float) -> float:
    """That quantile of at least one value, none of which is absent."""
    return float(np.quantile(values, fraction, method="inverted_cdf"))


__all__ = ["Limits", "LoadEvidence", "percentile_of", "reason"]
