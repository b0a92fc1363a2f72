"""What throughput would other load testers have reported of the same answers?

They divide by different stretches of time.

Most begin theirs when their schedule begins, an interval before its first request; ours begins at
the first intended send. Over ten seconds at 3 requests/s that alone is 3 %. What a tool's own
slowness would add is not in it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from inferometer.records.columns import I64
from inferometer.records.latencies import COMPLETED, end_ns, is_one_of
from inferometer.records.types import ABSENT, Run
from inferometer.spec.workload.types import OpenArrivals
from inferometer.units import NS_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRates:
    """A tool's throughput; None where it has no such number."""

    requests_per_s: float | None
    """Of completed requests."""
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    """Input and output."""
    span_s: float
    """What the tool divides by."""
    span: str
    """From when to when that is."""
    source: str
    """Where the tool defines them."""


class Course(NamedTuple):
    """When a load test began and ended by the instants that tools go by, and what was done in it."""

    intended_ns: int
    """First intended send."""
    interval_ns: int
    """Mean gap of the schedule; 0 where it has none: closed loops and traces begin with a
    request."""
    sent_ns: int
    """First actual send."""
    end_ns: int
    """When the last stream was over, of failed requests too."""
    last_sent_end_ns: int
    """When the stream was over of the request that was due last."""
    own_end_ns: int
    """The last thing known, as our rates end."""
    is_poisson: bool
    n_completed: int
    input_tokens: int
    output_tokens: int
    """Of completed requests."""
    read_tokens: int
    """Prompts of all requests that got a first token."""
    delivered_tokens: int
    """Of unfinished and failed requests too."""


_Rates: TypeAlias = Callable[[Course], ToolRates | None]
_INTERVAL: Final = "from a mean interval before the first request, where requests come at a rate,"


def course_of(run: Run) -> Course | None:
    """The instants and sums that rates rest on; None for a run that is no load test, or sent nothing."""
    requests, exchanges = run.requests, run.exchanges
    if requests is None or exchanges is None or not bool((requests.sent_ns != ABSENT).any()):
        return None
    arrivals = None if run.manifest.load is None else run.manifest.load.workload.arrivals
    rate = arrivals if isinstance(arrivals, OpenArrivals) else None
    done, has_first = is_one_of(requests, COMPLETED), requests.first_token_ns != ABSENT
    over_ns = np.maximum(requests.finished_ns, exchanges.last_byte_ns)
    return Course(
        intended_ns=int(requests.intended_send_ns.min()),
        interval_ns=0 if rate is None else round(NS_PER_S / rate.rate_per_s),
        sent_ns=int(requests.sent_ns[requests.sent_ns != ABSENT].min()),
        end_ns=int(over_ns.max()),
        last_sent_end_ns=_last_sent_end_ns(requests.intended_send_ns, over_ns),
        own_end_ns=end_ns(run),
        is_poisson=rate is not None and rate.process == "poisson",
        n_completed=int(done.sum()),
        input_tokens=int(requests.prompt_tokens[done].sum(dtype=np.int64)),
        output_tokens=int(requests.output_tokens[done].sum(dtype=np.int64)),
        read_tokens=int(requests.prompt_tokens[has_first].sum(dtype=np.int64)),
        delivered_tokens=int(requests.output_tokens[has_first].sum(dtype=np.int64)),
    )


def ours(course: Course) -> ToolRates | None:
    """As everywhere in this program."""
    span_s = (course.own_end_ns - course.intended_ns) / NS_PER_S
    if span_s <= 0:
        return None
    return ToolRates(
        requests_per_s=course.n_completed / span_s,
        output_tokens_per_s=course.delivered_tokens / span_s,
        total_tokens_per_s=(course.delivered_tokens + course.read_tokens) / span_s,
        span_s=span_s,
        span=(
            "from the first intended send to the last thing known; tokens of unfinished answers"
            " count"
        ),
        source="records.request_summaries",
    )


def aiperf(course: Course) -> ToolRates | None:
    """Its phase.

    ``MetricResultsDict.observation_duration``, not the ``benchmark_duration`` that it reports
    beside them.
    """
    where = (
        "AIPerf 0.13.0: metrics/metric_dicts.py, observation_duration;"
        " timing/strategies/request_rate.py waits before it sends"
    )
    return _rates(
        course,
        course.intended_ns - course.interval_ns,
        f"{_INTERVAL} to the end of the last",
        where,
    )


def guidellm(course: Course) -> ToolRates | None:
    """Its warm-up and cool-down are off unless asked for."""
    where = (
        "GuideLLM 0.8.1: schemas/base/statistics.py, rate_distribution_from_timings;"
        " scheduler/strategies.py numbers requests from 1"
    )
    return _rates(
        course,
        course.intended_ns - course.interval_ns,
        f"{_INTERVAL} to the end of the last",
        where,
    )


def inference_perf(course: Course) -> ToolRates | None:
    """Failed requests count for the time, not for the numbers."""
    where = "inference-perf: reportgen/base.py, summarize_requests"
    return _rates(
        course, course.sent_ns, "from the first actual send to the end of the last", where
    )


def vllm(course: Course) -> ToolRates | None:
    """``request_throughput``, ``output_throughput`` and ``total_token_throughput``."""
    where = "vLLM 0.32.0: benchmarks/serve.py, calculate_metrics; get_request waits before it sends"
    return _rates(
        course,
        course.intended_ns - course.interval_ns,
        f"{_INTERVAL} to the end of the last",
        where,
    )


def sglang(course: Course) -> ToolRates | None:
    """Its first request goes out at once."""
    where = "SGLang 0.5.23: benchmark/serving.py, calculate_metrics and get_request"
    return _rates(
        course, course.intended_ns, "from the first request to the end of the last", where
    )


def mlc_endpoints(course: Course) -> ToolRates | None:
    """LoadGen's own stretch where arrivals are Poisson, else the whole run."""
    where = "MLCommons endpoints (2026-08): metrics/report.py, Report.from_snapshot"
    if course.is_poisson:
        return _until_the_last_sent(course, course.sent_ns, "actual send", where)
    rates = _rates(
        course, course.sent_ns, "from the first actual send to the end of the last", where
    )
    return None if rates is None else replace(rates, total_tokens_per_s=None)


def loadgen(course: Course) -> ToolRates | None:
    """Its Server scenario: what is done when the request is done that was sent last."""
    where = "MLPerf LoadGen: results.cc, qps_as_completed and tps_as_completed"
    return _until_the_last_sent(course, course.intended_ns, "scheduled send", where)


def _rates(course: Course, begin_ns: int, span: str, source: str) -> ToolRates | None:
    span_s = (course.end_ns - begin_ns) / NS_PER_S
    if span_s <= 0:
        return None
    return ToolRates(
        requests_per_s=course.n_completed / span_s,
        output_tokens_per_s=course.output_tokens / span_s,
        total_tokens_per_s=(course.input_tokens + course.output_tokens) / span_s,
        span_s=span_s,
        span=span,
        source=source,
    )


def _until_the_last_sent(
    course: Course, begin_ns: int, begin: str, source: str
) -> ToolRates | None:
    """Not the last to end, but the last to be sent ends the stretch; one request less is counted than were done."""
    span_s = (course.last_sent_end_ns - begin_ns) / NS_PER_S
    if span_s <= 0:
        return None
    return ToolRates(
        requests_per_s=(course.n_completed - 1) / span_s if course.n_completed > 1 else None,
        output_tokens_per_s=course.output_tokens / span_s,
        total_tokens_per_s=None,
        span_s=span_s,
        span=(
            f"from the first {begin} to the end of the request that was sent last; one request less"
        ),
        source=source,
    )


def _last_sent_end_ns(intended_ns: I64, over_ns: I64) -> int:
    return int(over_ns[int(np.argmax(intended_ns))])
