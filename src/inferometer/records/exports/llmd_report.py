"""How does a run look as an llm-d Benchmark Report, version 0.2.1?

Statistics have that report's names and units and, as with the other tools that write it, count from
the send. What it has no place for (intervals, latencies from the intended send, goodput, validity)
stands under ``results.profiling.inferometer``, which is free-form. A percentile above which there
may lie requests that were never done is left out of the statistics: it is only a lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.workload.types import OpenArrivals
from inferometer.records.columns import F64, I32
from inferometer.records.latencies import (
    COMPLETED,
    NOT_SERVED,
    LatencySamples,
    end_ns,
    is_one_of,
    latency_samples,
)
from inferometer.records.request_summaries import (
    Judgement,
    RequestSummary,
    summarise_latency,
    summarise_requests,
)
from inferometer.records.server_summaries import ServerSummary, summarise_server
from inferometer.records.types import RequestStatus, RequestTable, Run
from inferometer.units import NS_PER_S

# What do we know of a run that other tools' formats have no place for, as plain JSON?
# Intervals, latencies from the intended send, the objective's verdict and goodput, validity with
# its reasons, the server's own numbers.


JsonObject: TypeAlias = dict[str, Any]


def own_findings(run: Run, summary: RequestSummary, judgement: Judgement | None) -> JsonObject:
    """Under our own names, units in them.

    Unknown values are left out; an infinite end of an interval is null.
    """
    server = _server(run)
    known = {
        "origin": run.manifest.origin,
        "summary": asdict(summary),
        "validity": None if run.manifest.validity is None else asdict(run.manifest.validity),
        "objective": None if judgement is None else asdict(judgement),
        "server": None
        if server is None
        else asdict(server) | {"prefix_hit_fraction": server.prefix_hit_fraction},
        "cautions": [asdict(caution) for caution in run.manifest.cautions],
    }
    return {name: _plain_value(value) for name, value in known.items() if value is not None}


def _server(run: Run) -> ServerSummary | None:
    try:
        return None if run.server is None else summarise_server(run.server)
    except RecordError:
        return None  # a server that was scraped once, or is of no known kind, reports nothing


def _plain_value(value: Any) -> Any:  # noqa: ANN401 - JSON of any depth
    if hasattr(value, "_asdict"):
        return _plain_value(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain_value(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


VERSION: Final = "0.2.1"

_PERCENTILES: Final = {
    "p1": 0.01,
    "p5": 0.05,
    "p10": 0.1,
    "p25": 0.25,
    "p50": 0.5,
    "p75": 0.75,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
    "p99p9": 0.999,
}


def llmd_report(run: Run, *, judgement: Judgement | None = None) -> JsonObject:
    """The report, to be written as JSON (which is YAML too).

    ``judgement`` of an objective gives the goodput.

    Raises
    ------
    RecordError
        The run has no requests.
    """
    requests = run.requests
    if requests is None or not len(requests.status):
        raise RecordError(
            "the run has no requests",
            where=run.manifest.run_id,
            allowed="a load test, a simulated or an imported run",
        )
    summary = summarise_requests(run)
    aggregate = {
        "requests": _requests(requests, summary),
        "latency": _latency(requests, at_ns=end_ns(run)),
        "throughput": _throughput(summary),
    }
    return {
        "version": VERSION,
        "run": _run(run),
        **_scenario(run, requests),
        "results": {
            "request_performance": {"aggregate": aggregate},
            "profiling": {"inferometer": own_findings(run, summary, judgement)},
        },
    }


def _run(run: Run) -> JsonObject:
    instants = {"start": run.manifest.created_utc, "end": run.manifest.ended_utc}
    known = {
        key: value for key, value in instants.items() if value is not None and _has_zone(value)
    }
    duration = {"duration": f"PT{end_ns(run) / NS_PER_S}S"}
    return {
        "uid": run.manifest.run_id,
        "time": known | duration,
        "keywords": ["inferometer", run.manifest.origin],
    }


def _has_zone(text: str) -> bool:
    """Is it an instant with a time zone? The report takes no others."""
    try:
        return datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


def _scenario(run: Run, requests: RequestTable) -> JsonObject:
    load = {
        "tool": "inferometer",
        "tool_version": run.manifest.tool_version,
        "source": "unknown",
        "input_seq_len": _lengths(requests.prompt_tokens),
        "output_seq_len": _lengths(_answered(requests)),
        **_offered(run),
    }
    return {
        "scenario": {
            "load": {
                "metadata": {"description": _description(run)},
                "standardized": load,
                "native": _native(run),
            }
        }
    }


def _native(run: Run) -> JsonObject:
    config = None if run.manifest.load is None else msgspec.to_builtins(run.manifest.load)
    return {
        "args": {"command": list(run.manifest.command)},
        **({} if config is None else {"config": config}),
    }


def _offered(run: Run) -> JsonObject:
    arrivals = None if run.manifest.load is None else run.manifest.load.workload.arrivals
    if arrivals is None:
        return {}
    if isinstance(arrivals, OpenArrivals):
        return {} if arrivals.profile is not None else {"rate_qps": arrivals.rate_per_s}
    concurrency = getattr(arrivals, "concurrency", None)
    return {} if concurrency is None else {"concurrency": concurrency}


def _description(run: Run) -> str:
    source = run.manifest.source
    return f"{run.manifest.origin} run" + ("" if source is None else f", from {source.where}")


def _lengths(tokens: np.ndarray) -> JsonObject:
    is_fixed = bool((tokens == tokens[0]).all())
    spread = (
        {}
        if is_fixed
        else {
            "std_dev": float(tokens.std()),
            "min": int(tokens.min()),
            "max": max(1, int(tokens.max())),
        }
    )
    return {
        "distribution": "fixed" if is_fixed else "other",
        "value": float(tokens.mean()),
        **spread,
    }


def _requests(requests: RequestTable, summary: RequestSummary) -> JsonObject:
    return {
        "total": summary.n_requests,
        "failures": summary.n_of(*NOT_SERVED, RequestStatus.ABORTED),
        "incomplete": summary.n_of(RequestStatus.UNFINISHED),
        "input_length": _plain("count", requests.prompt_tokens.astype(np.float64)),
        "output_length": _plain("count", _answered(requests).astype(np.float64)),
    }


def _answered(requests: RequestTable) -> I32:
    """Output tokens of completed requests; of all where none is: an answer cut short has no length."""
    is_done = is_one_of(requests, COMPLETED)
    return requests.output_tokens[is_done] if is_done.any() else requests.output_tokens


def _latency(requests: RequestTable, *, at_ns: int) -> JsonObject:
    lag_s = (requests.sent_ns - requests.intended_send_ns) / NS_PER_S
    e2e = latency_samples(requests, "e2e", at_ns=at_ns)
    from_send = LatencySamples(
        e2e.rows, e2e.lower_s - lag_s[e2e.rows], e2e.upper_s - lag_s[e2e.rows]
    )
    found = {
        "time_to_first_token": _statistics(
            "s", latency_samples(requests, "ttft_uncorrected", at_ns=at_ns)
        ),
        "time_per_output_token": _statistics(
            "s/token", latency_samples(requests, "tpot", at_ns=at_ns)
        ),
        "normalized_time_per_output_token": _normalized(requests, from_send),
        "request_latency": _statistics("s", from_send),
    }
    return {name: statistics for name, statistics in found.items() if statistics is not None}


def _normalized(requests: RequestTable, e2e: LatencySamples) -> JsonObject | None:
    tokens = requests.output_tokens[e2e.rows]
    is_done = is_one_of(requests, COMPLETED)[e2e.rows] & (tokens > 0)
    return _plain("s/token", e2e.lower_s[is_done] / tokens[is_done]) if is_done.any() else None


def _statistics(units: str, samples: LatencySamples) -> JsonObject | None:
    """Mean and spread of completed ones; percentiles of all, unless they are only lower bounds."""
    got_there_s = samples.lower_s[np.isfinite(samples.upper_s)]
    if not got_there_s.size:
        return None
    percentiles = summarise_latency("ttft", samples, tuple(_PERCENTILES.values())).percentiles
    known = {
        one.percentile_fraction: one.seconds.value for one in percentiles if not one.is_lower_bound
    }
    named = {key: known[at] for key, at in _PERCENTILES.items() if at in known}
    has_most = len(got_there_s) == len(samples.rows)
    return (
        _moments(units, got_there_s)
        | named
        | ({"max": float(got_there_s.max())} if has_most else {})
    )


def _plain(units: str, values: F64) -> JsonObject:
    named = {
        key: float(np.quantile(values, at, method="inverted_cdf"))
        for key, at in _PERCENTILES.items()
    }
    return _moments(units, values) | named | {"max": float(values.max())}


def _moments(units: str, values: F64) -> JsonObject:
    moments = {"mean": values.mean(), "stddev": values.std(), "min": values.min()}
    return {"units": units} | {name: float(value) for name, value in moments.items()}


def _throughput(summary: RequestSummary) -> JsonObject:
    output = summary.output_tokens_per_s
    total = summary.total_tokens_per_s
    rate = summary.completed_requests_per_s
    found = {
        "output_token_rate": ("tokens/s", None if output is None else output.value),
        "total_token_rate": ("tokens/s", None if total is None else total.value),
        "input_token_rate": (
            "tokens/s",
            None if output is None or total is None else max(0.0, total.value - output.value),
        ),
        "request_rate": ("queries/s", None if rate is None else rate.value),
    }
    return {
        name: {"units": units, "mean": value}
        for name, (units, value) in found.items()
        if value is not None
    }
