"""Were the runs of two sides sent alike requests, at the same pace?

A number of two servers says which one is faster only where both got the same work. The records
tell what work it was: lengths of prompts and answers, and how requests came.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from inferometer import suggestions
from inferometer.inputs.types import Caution
from inferometer.records.columns import F64, I64
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.request_summaries import concurrency_of
from inferometer.records.types import ABSENT, RequestTable, Run
from inferometer.units import NS_PER_S, format_number

_TOLERANCE_RATIO: Final = 1.1
"""Means of one workload differ by less between tokenizers and between draws of the same size."""
_LIKELY_ERRORS: Final = 3.0
"""Standard errors that a difference must exceed, too: few requests are alike by accident."""
_AT_ONCE_FRACTION: Final = 0.05
"""A closed loop sends when another request has ended: within this share of the mean gap."""


class _Mean(NamedTuple):
    value: float
    error_fraction: float
    """The standard error, of the value."""


def unlike_loads(old: Sequence[Run], new: Sequence[Run]) -> Iterator[Caution]:
    """One caution on differences between the requests of both sides; none where they are alike."""
    found = [
        text for text in (_arrivals(old, new), *(_lengths(old, new, of) for of in _LENGTHS)) if text
    ]
    if found:
        yield Caution(
            code="UNLIKE_LOADS",
            text=f"the two sides got unlike work (A against B): {'; '.join(found)}",
            remedy="runs of the same --workload and the same --rate or --concurrency on both sides",
        )


def unlike_lengths(runs: Sequence[Run], names: Sequence[str]) -> Iterator[Caution]:
    """Cautions on runs of one curve whose requests differ from the first run's."""
    unlike = {
        name: text
        for run, name in zip(runs[1:], names[1:], strict=True)
        if (text := "; ".join(filter(None, (_lengths(runs[:1], [run], of) for of in _LENGTHS))))
    }
    if unlike:
        more = f", and {len(unlike) - 1} more" * (len(unlike) > 1)
        name, text = next(iter(unlike.items()))
        yield Caution(
            code="UNLIKE_LOADS",
            text=f"one curve of unlike work ({names[0]} against {name}{more}): {text}",
            remedy="one page for each workload, of runs of different --rate or --concurrency",
        )


def unlike_origins(old: Sequence[Run], new: Sequence[Run]) -> Iterator[Caution]:
    """Is a side simulated, or published, and the other measured? Or are both simulated?"""
    a, b = (" and ".join(sorted({run.manifest.origin for run in side})) for side in (old, new))
    if a == b == "simulated":
        yield Caution(
            code="BOTH_SIMULATED",
            text="both sides are simulated at likely step times, whose error no further run shows",
            remedy=(
                "both in one grid, whose points are compared by their paired ratio:"
                f" {suggestions.command('simulate', 'MODEL', '--tp', '1,2')}"
            ),
        )
    if a == b:
        return
    if "simulated" in f"{a} {b}":
        yield Caution(
            code="UNLIKE_ORIGINS",
            text=f"A is {a}, B is {b}: the difference may be the prediction's error, not the server's",
            remedy="inferometer verify PLAN: sends the same requests and checks predicted intervals",
        )
    else:
        yield Caution(
            code="UNLIKE_ORIGINS",
            text=f"A is {a}, B is {b}: the difference may come from the measurement, not the server",
            remedy="both sides measured with the same tool",
        )


def _prompts(requests: RequestTable) -> F64:
    return np.asarray(requests.prompt_tokens, np.float64)


def _answers(requests: RequestTable) -> F64:
    """Output lengths of requests that were not cut short."""
    return np.asarray(requests.output_tokens[is_one_of(requests, COMPLETED)], np.float64)


_LENGTHS: Final[dict[str, Callable[[RequestTable], F64]]] = {
    "prompts": _prompts,
    "answers": _answers,
}


def _lengths(old: Sequence[Run], new: Sequence[Run], of: str) -> str | None:
    a, b = (
        _mean([_LENGTHS[of](run.requests) for run in side if run.requests is not None])
        for side in (old, new)
    )
    if a is None or b is None or not _differ(a, b):
        return None
    return f"{of} of {format_number(a.value)} against {format_number(b.value)} tokens in the mean"


def _arrivals(old: Sequence[Run], new: Sequence[Run]) -> str | None:
    """Rates of an open loop, or users of a closed one."""
    loads = [run.manifest.load for run in (*old, *new)]
    plans = [load.workload.arrivals for load in loads if load is not None]
    if len(plans) == len(loads) and all(plan == plans[0] for plan in plans):
        return None  # of sessions, too, whose later turns come when the server has answered
    users = [{_users(run) for run in side} for side in (old, new)]
    if users[0] == users[1] == {None}:
        a, b = (_mean([_gaps_s(run) for run in side]) for side in (old, new))
        if a is None or b is None or not _differ(a, b):
            return None
        return f"{_rate_text(a)} against {_rate_text(b)}"
    if users[0] == users[1]:
        return None
    texts = [
        _users_text(of_side) or _rate_text(_mean([_gaps_s(run) for run in side]))
        for of_side, side in zip(users, (old, new), strict=True)
    ]
    return " against ".join(texts)


def _users_text(users: set[int | None]) -> str:
    known = sorted(one for one in users if one is not None)
    most = f"{known[0]}" if len(known) == 1 else f"{known[0]} to {known[-1]}" if known else ""
    return f"{most} at once (closed loop)" if known else ""


def _rate_text(gaps_s: _Mean | None) -> str:
    return "all at once" if gaps_s is None else f"{format_number(1 / gaps_s.value)} requests/s"


def _users(run: Run) -> int | None:
    """Users of a closed loop; of runs that do not name their load, by their instants."""
    if run.manifest.load is not None or run.requests is None:
        return concurrency_of(run)
    sent_ns = np.sort(run.requests.intended_send_ns)
    ended_ns = np.sort(run.requests.finished_ns[run.requests.finished_ns != ABSENT])
    n_ended = np.searchsorted(ended_ns, sent_ns, side="right")
    later = n_ended > 0
    if not later.any() or np.ptp(sent_ns) == 0:
        return None
    waited_ns = sent_ns[later] - ended_ns[n_ended[later] - 1]
    is_closed = np.median(waited_ns) < _AT_ONCE_FRACTION * np.ptp(sent_ns) / len(sent_ns)
    return int((np.arange(1, len(sent_ns) + 1) - n_ended).max()) if is_closed else None


def _gaps_s(run: Run) -> F64:
    sent_ns: I64 = (
        np.zeros(0, np.int64) if run.requests is None else np.sort(run.requests.intended_send_ns)
    )
    return np.diff(sent_ns) / NS_PER_S


def _mean(of_runs: Sequence[F64]) -> _Mean | None:
    """Mean over all requests of a side; None where there is none, or all are 0."""
    values = np.concatenate([np.zeros(0), *of_runs])
    mean = float(values.mean()) if len(values) else 0.0
    if mean <= 0:
        return None
    return _Mean(mean, float(values.std()) / mean / math.sqrt(len(values)))


def _differ(a: _Mean, b: _Mean) -> bool:
    distance = abs(math.log(a.value / b.value))
    error = _LIKELY_ERRORS * math.hypot(a.error_fraction, b.error_fraction)
    return distance > max(math.log(_TOLERANCE_RATIO), error)
