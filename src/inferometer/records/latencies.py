"""How long did each request take, and what is known of those that were never done?

Latency counts from ``intended_send_ns``. A request that was still there at the end, or whose client
went away, took at least as long as it had been there: it is a sample that is bounded from below
only, never one that is left out. Letters of shapes: N requests, K samples.
"""

from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.records.columns import F64, I64, Bools
from inferometer.records.types import ABSENT, RequestStatus, RequestTable, Run
from inferometer.units import NS_PER_S

Latency: TypeAlias = Literal["ttft", "ttft_uncorrected", "tpot", "e2e", "queue"]

COMPLETED: Final = (RequestStatus.STOPPED, RequestStatus.LENGTH)
NOT_SERVED: Final = (RequestStatus.REJECTED, RequestStatus.FAILED)
"""They have no latency; they are counted by status."""


class LatencySamples(NamedTuple):
    """One latency of K requests, in order of sending."""

    rows: NDArray[np.intp]
    """Which requests of the table."""
    lower_s: F64
    upper_s: F64
    """Equal to ``lower_s``, or infinite where the request had not got there when it was last
    seen."""

    @property
    def n_bounded_below_only(self) -> int:
        """Of how many is only known how long they took at least?"""
        return int(np.isinf(self.upper_s).sum())


def end_ns(run: Run) -> int:
    """When is the last thing known of the run, in nanoseconds since its start?

    0 for an empty run.
    """
    ends = [0]
    if run.requests is not None and len(run.requests.status):
        ends += [
            int(column.max())
            for column in (
                run.requests.intended_send_ns,
                run.requests.first_token_ns,
                run.requests.finished_ns,
            )
        ]
    if run.steps is not None and len(run.steps.start_ns):
        ends.append(int((run.steps.start_ns + np.maximum(run.steps.duration_ns, 0)).max()))
    return max(ends)


def latency_samples(requests: RequestTable, latency: Latency, *, at_ns: int) -> LatencySamples:
    """How long did each request take that has this latency; ``at_ns`` is when those that are not done were last seen?

    TPOT is that of completed answers of two tokens or more: an answer that was broken off says
    nothing about the tokens to come, nor does one that was given whole.
    """
    if latency == "tpot":
        return _tpot(requests)
    came_ns = requests.intended_send_ns if latency in {"ttft", "e2e"} else requests.sent_ns
    is_served = ~is_one_of(requests, NOT_SERVED) & (came_ns != ABSENT)
    if latency == "e2e":
        done_ns = np.where(is_one_of(requests, COMPLETED), requests.finished_ns, ABSENT)
    else:
        done_ns = requests.admitted_ns if latency == "queue" else requests.first_token_ns
    if latency == "queue" and _nobody_saw_admissions(requests):
        is_served = np.zeros_like(is_served)
    rows = np.flatnonzero(is_served)
    done_ns, came_ns = done_ns[rows], came_ns[rows]
    is_known = done_ns != ABSENT
    left_ns = np.where(requests.finished_ns[rows] == ABSENT, at_ns, requests.finished_ns[rows])
    lower_s = (np.where(is_known, done_ns, left_ns) - came_ns) / NS_PER_S
    return LatencySamples(rows, lower_s, np.where(is_known, lower_s, np.inf))


def is_one_of(requests: RequestTable, statuses: tuple[RequestStatus, ...]) -> Bools:
    """Which requests (N) ended in one of these ways?"""
    return np.isin(requests.status, np.array(statuses, np.int8))


def delivered_tokens(requests: RequestTable, instants_ns: I64, *, at_ns: int) -> F64:
    """How many output tokens of all requests together had come by each instant?

    Evenly between an answer's first and last token.
    """
    has_any = np.flatnonzero((requests.first_token_ns != ABSENT) & (requests.output_tokens > 0))
    first_ns = requests.first_token_ns[has_any].astype(np.float64)
    last_ns = np.where(
        requests.finished_ns[has_any] == ABSENT, at_ns, requests.finished_ns[has_any]
    ).astype(np.float64)
    tokens = requests.output_tokens[has_any].astype(np.float64)
    took_ns = np.maximum(last_ns - first_ns, 1.0)
    return np.array(
        [
            float((tokens * np.clip((instant - first_ns) / took_ns, 0.0, 1.0)).sum())
            for instant in instants_ns.tolist()
        ]
    )


def _nobody_saw_admissions(requests: RequestTable) -> bool:
    """Did answers come of requests of which nobody could tell when they were admitted, as a client cannot?"""
    return bool(
        (requests.admitted_ns == ABSENT).all() and (requests.first_token_ns != ABSENT).any()
    )


def _tpot(requests: RequestTable) -> LatencySamples:
    is_streamed = (requests.first_token_ns != ABSENT) & (
        requests.finished_ns > requests.first_token_ns
    )
    has_it = is_one_of(requests, COMPLETED) & (requests.output_tokens > 1) & is_streamed
    rows = np.flatnonzero(has_it)
    took_ns = requests.finished_ns[rows] - requests.first_token_ns[rows]
    tpot_s = took_ns / (requests.output_tokens[rows] - 1) / NS_PER_S
    return LatencySamples(rows, tpot_s, tpot_s)
