"""Prometheus rules: alerts, and the series that are recorded for them.

Limits come from the SLO and from the range in which the simulation says that the fleet works.

Series are recorded by model, as Prometheus' queries of vLLM's metrics; alerts and the dashboard
read them.

A histogram knows how many values lie below its edges, and no percentile: whether one is below a
limit between two edges it can prove, refute or leave open. So two series are recorded of each
promise: the share that lies surely within it (below the last edge that is not above the limit), and
the share that lies at most within it (below the first edge that is not below). They are one where
the limit is an edge.
"""

import json
import math
from typing import Final, NamedTuple

from inferometer.decide.artefacts.kubernetes import Manifest
from inferometer.decide.artefacts.packaging import Fleet, OperatingPoint, Packaging
from inferometer.inputs.objectives import Metric, Threshold, percentile_name
from inferometer.records.server_names import VLLM_EDGES_S

FAMILIES: Final[dict[Metric, str]] = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
}
_SLOWER_THAN_LIMIT: Final = 10
"""Requests beyond the percentile that a window holds at least, else it says nothing about it."""
_LEAST_WINDOW_MIN: Final = 5
_MOST_WINDOW_MIN: Final = 60

IN_FLIGHT: Final = "llm:requests_in_flight:sum"
WAITING: Final = "llm:requests_waiting:sum"
REPLICAS: Final = "llm:replicas:count"
KV_USAGE: Final = "llm:kv_cache_usage:max"
ENDED: Final = "llm:requests_ended:per_second"
ARRIVED: Final = "llm:requests_arrived:per_second"
PREEMPTIONS: Final = "llm:preemptions_per_request:ratio"
PROMPT_TOKENS: Final = "llm:prompt_tokens_per_request:mean"
OUTPUT_TOKENS: Final = "llm:output_tokens_per_request:mean"
SURELY_WITHIN: Final = "llm:promise_surely_within:share"
AT_MOST_WITHIN: Final = "llm:promise_at_most_within:share"
_KV_NEAR_FULL_FRACTION: Final = 0.95
_PREEMPTIONS_RATIO: Final = 0.02
"""Per request: fewer do no harm."""
_TRAFFIC_RATIO: Final = 1.25
"""Lengths and rates within such a factor are what was sized for."""
_DRIFT_RATIO: Final = 1.15
"""Beyond the range between fast and slow step times, for what a mean of some minutes wavers."""
_INTERVAL: Final = "15s"


class Recorded(NamedTuple):
    """A series that Prometheus is to keep."""

    name: str
    expression: str
    labels: tuple[tuple[str, str], ...] = ()


class Edges(NamedTuple):
    """Edges of the histogram bucket that holds a limit (seconds)."""

    below_s: float | None
    """None: below the first."""
    above_s: float | None
    """None: beyond the last."""


def recorded(fleet: Fleet, packaging: Packaging) -> list[Recorded]:
    """All recording rules, each after those that it reads."""
    of, window = f"{{{selector(packaging)}}}", f"[{window_min(fleet)}m]"
    return [
        Recorded(WAITING, _sum(f"vllm:num_requests_waiting{of}")),
        Recorded(IN_FLIGHT, f"{_sum(f'vllm:num_requests_running{of}')} + {WAITING}{of}"),
        Recorded(
            REPLICAS,
            "count by (model_name) (count by (model_name, instance)"
            f" (vllm:num_requests_running{of}))",
        ),
        Recorded(KV_USAGE, f"max by (model_name) (vllm:kv_cache_usage_perc{of})"),
        Recorded(ENDED, _sum(f"rate(vllm:request_success_total{of}{window})")),
        Recorded(ARRIVED, f"clamp_min({ENDED}{of} + deriv({IN_FLIGHT}{of}{window}), 0)"),
        Recorded(
            PREEMPTIONS, f"{_sum(f'rate(vllm:num_preemptions_total{of}{window})')} / {ENDED}{of}"
        ),
        Recorded(PROMPT_TOKENS, _mean("vllm:request_prompt_tokens", of, window)),
        Recorded(OUTPUT_TOKENS, _mean("vllm:request_generation_tokens", of, window)),
        *(
            Recorded(mean_name(metric), _mean(FAMILIES[metric], of, window))
            for metric in ("ttft", "tpot")
        ),
        *(one for threshold in promised(fleet) for one in _shares(threshold, packaging, window)),
    ]


def promised(fleet: Fleet) -> list[Threshold]:
    """Limits on percentiles that an engine's histograms report (not goodput or workflows)."""
    return [
        threshold
        for threshold in fleet.objective.thresholds
        if threshold.percentile_fraction is not None and threshold.metric in FAMILIES
    ]


def selector(packaging: Packaging, **labels: str) -> str:
    """PromQL label selector of the fleet's series; vLLM puts the model's name on each of them."""
    return ",".join(
        f"{name}={json.dumps(value)}"
        for name, value in {"model_name": packaging.served_name, **labels}.items()
    )


def edges_of(threshold: Threshold) -> Edges:
    """Edges of the bucket of vLLM's histogram that holds the limit.

    Example
    -------
    >>> edges_of(Threshold(metric="ttft", percentile_fraction=0.95, limit_s=0.3))
    Edges(below_s=0.25, above_s=0.5)
    >>> edges_of(Threshold(metric="ttft", percentile_fraction=0.95, limit_s=0.5))
    Edges(below_s=0.5, above_s=0.5)
    """
    if threshold.metric == "workflow":
        return Edges(None, None)
    edges_s = VLLM_EDGES_S[threshold.metric]
    below = [edge_s for edge_s in edges_s if edge_s <= threshold.limit_s]
    above = [edge_s for edge_s in edges_s if edge_s >= threshold.limit_s]
    return Edges(below[-1] if below else None, above[0] if above else None)


def window_min(fleet: Fleet) -> int:
    """Window of rates in minutes: long enough to hold enough requests for the SLO's percentiles.

    Long enough for the highest percentile of the SLO.
    """
    needed_s = max(
        (requests_needed(one) / fleet.rate_per_s for one in promised(fleet)), default=0.0
    )
    return min(max(_LEAST_WINDOW_MIN, math.ceil(needed_s / 60)), _MOST_WINDOW_MIN)


def requests_needed(threshold: Threshold) -> int:
    """The number of requests that an estimate of the percentile needs."""
    return math.ceil(_SLOWER_THAN_LIMIT / (1 - (threshold.percentile_fraction or 0.0)) - 1e-9)


def quantile(metric: Metric, fraction: float, of: str, window: str) -> str:
    """A percentile, drawn straight between the edges of its bucket: for looking, not for judging."""
    return (
        f"histogram_quantile({fraction:g}, sum by (model_name, le)"
        f" (rate({FAMILIES[metric]}_bucket{of}{window})))"
    )


def mean_name(metric: Metric) -> str:
    """The recorded mean of a latency."""
    return f"llm:{metric}_seconds:mean"


def percentile_names(fleet: Fleet, metric: Metric) -> list[tuple[str, float]]:
    """Percentiles of a latency to show: the median, and those that the SLO limits."""
    fractions = {0.5} | {
        one.percentile_fraction or 0.5 for one in promised(fleet) if one.metric == metric
    }
    return [(percentile_name(fraction), fraction) for fraction in sorted(fractions)]


def _shares(threshold: Threshold, packaging: Packaging, window: str) -> list[Recorded]:
    edges, labels = edges_of(threshold), (("promise", threshold.text),)
    whole = _sum(f"rate({FAMILIES[threshold.metric]}_count{{{selector(packaging)}}}{window})")
    shares: list[Recorded] = []
    for name, edge_s in ((SURELY_WITHIN, edges.below_s), (AT_MOST_WITHIN, edges.above_s)):
        if edge_s is not None:
            bucket = f"{FAMILIES[threshold.metric]}_bucket{{{selector(packaging, le=str(float(edge_s)))}}}{window}"
            shares.append(Recorded(name, f"{_sum(f'rate({bucket})')} / {whole}", labels))
    return shares


def _sum(expression: str) -> str:
    return f"sum by (model_name) ({expression})"


def _mean(family: str, of: str, window: str) -> str:
    return (
        f"{_sum(f'rate({family}_sum{of}{window})')} / {_sum(f'rate({family}_count{of}{window})')}"
    )


class Alert(NamedTuple):
    """One alerting rule."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    remedy: str
    labels: tuple[tuple[str, str], ...] = ()


def rules(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The rule file: recorded series, then alerts."""
    recordings = [_recording(one) for one in recorded(fleet, packaging)]
    alerts = [_alerting(alert, packaging) for alert in alerts_of(fleet, packaging)]
    return {
        "groups": [
            {"name": f"{packaging.name}-recorded", "interval": _INTERVAL, "rules": recordings},
            {"name": f"{packaging.name}-alerts", "interval": _INTERVAL, "rules": alerts},
        ]
    }


def alerts_of(fleet: Fleet, packaging: Packaging) -> list[Alert]:
    """All alerting rules, those of the SLO first."""
    of = f"{{{selector(packaging)}}}"
    promises = [
        alert for threshold in promised(fleet) for alert in _promise(threshold, fleet, packaging)
    ]
    return [
        *promises,
        *_replicas(fleet, of),
        *_fullness(fleet, of),
        *_traffic(fleet, of),
        *_drifts(fleet, of),
    ]


def _promise(threshold: Threshold, fleet: Fleet, packaging: Packaging) -> list[Alert]:
    edges, share = edges_of(threshold), threshold.percentile_fraction or 0.0
    of = f"{{{selector(packaging, promise=threshold.text)}}}"
    labels = (("promise", threshold.text),)
    enough_per_s = requests_needed(threshold) / (60 * window_min(fleet))
    is_known = f"and on (model_name) {ENDED}{{{selector(packaging)}}} >= {enough_per_s:.6g}"
    remedy = (
        "see whether traffic, lengths or replicas differ from the plan: their alerts say so; else"
        " size again"
    )
    alerts: list[Alert] = []
    if edges.above_s is not None:
        expression = f"{AT_MOST_WITHIN}{of} < {share:g} {is_known}"
        text = (
            f"{threshold.text} is broken: at most {{{{ $value | humanizePercentage }}}} of the"
            f" requests are within {edges.above_s:g} s"
        )
        alerts.append(Alert("LlmPromiseBroken", expression, "2m", "critical", text, remedy, labels))
    if edges.below_s is not None and edges.below_s != edges.above_s:
        expression = f"{SURELY_WITHIN}{of} < {share:g} {is_known}"
        text = (
            f"{threshold.text} may be broken: {{{{ $value | humanizePercentage }}}} of the requests"
            f" are surely within {edges.below_s:g} s"
        )
        alerts.append(
            Alert("LlmPromiseInDoubt", expression, "15m", "warning", text, remedy, labels)
        )
    return alerts


def _replicas(fleet: Fleet, of: str) -> list[Alert]:
    few = f"({REPLICAS}{of} or on () vector(0)) < {fleet.n_replicas}"
    text = (
        f"{{{{ $value }}}} replicas answer; {fleet.n_replicas} were found to be needed for"
        f" {fleet.rate_per_s:.6g} requests/s"
    )
    alerts = [
        Alert(
            "LlmReplicasTooFew",
            few,
            "2m",
            "critical",
            text,
            "see why replicas are not ready, or start more",
        )
    ]
    most_per_s = fleet.broken_requests_per_s or fleet.kept_requests_per_s
    if most_per_s is not None:
        beyond = f"{ARRIVED}{of} / {REPLICAS}{of} > {most_per_s:.6g}"
        text = (
            f"{{{{ $value | humanize }}}} requests/s for each replica; at {most_per_s:.4g} one"
            " misses the SLO"
        )
        alerts.append(
            Alert("LlmBeyondCapacity", beyond, "5m", "warning", text, "start more replicas")
        )
    return alerts


def _fullness(fleet: Fleet, of: str) -> list[Alert]:
    n_waiting = max(fleet.fullest.n_waiting_high * fleet.n_replicas, fleet.n_replicas)
    growing = f"{WAITING}{of} > {n_waiting} and deriv({WAITING}{of}[10m]) > 0"
    kv_fraction = min(
        max(_KV_NEAR_FULL_FRACTION, 1.02 * fleet.fullest.kv_used_high_fraction), 0.995
    )
    preempted_ratio = max(_PREEMPTIONS_RATIO, 2 * fleet.fullest.preemptions_per_request_ratio)
    few_slots = (
        "traffic is beyond what the fleet carries, or a replica is slow: start more replicas"
    )
    shorter = (
        "more replicas, fewer sequences at once (--max-num-seqs) or shorter contexts; the plan's KV cache is in"
        " its README"
    )
    return [
        Alert(
            "LlmQueueGrows",
            growing,
            "5m",
            "critical",
            f"{{{{ $value }}}} requests wait and they become more; at capacity {n_waiting} are not"
            " exceeded for 99 % of the time",
            few_slots,
        ),
        Alert(
            "LlmKvCacheNearFull",
            f"{KV_USAGE}{of} > {kv_fraction:.4g}",
            "5m",
            "warning",
            "{{ $value | humanizePercentage }} of a replica's KV cache is in use; predicted at"
            f" capacity: {fleet.fullest.kv_used_high_fraction:.1%}",
            shorter,
        ),
        Alert(
            "LlmPreemptions",
            f"{PREEMPTIONS}{of} > {preempted_ratio:.4g}",
            "5m",
            "warning",
            "{{ $value | humanize }} preemptions per request; predicted at capacity: "
            f"{fleet.fullest.preemptions_per_request_ratio:.3g}",
            shorter,
        ),
    ]


def _traffic(fleet: Fleet, of: str) -> list[Alert]:
    """Alerts for lengths that differ from the simulated ones, so that predictions do not hold."""
    means = (
        ("prompt", PROMPT_TOKENS, fleet.prompt_mean_tokens),
        ("output", OUTPUT_TOKENS, fleet.output_mean_tokens),
    )
    return [
        Alert(
            "LlmTrafficDiffers",
            f"{name}{of} > {_TRAFFIC_RATIO * tokens:.6g} or {name}{of} <"
            f" {tokens / _TRAFFIC_RATIO:.6g}",
            "30m",
            "warning",
            f"{{{{ $value | humanize }}}} {which} tokens per request; the fleet was sized for"
            f" {tokens:.4g}",
            "size again with a workload that is like this traffic",
            (("tokens", which),),
        )
        for which, name, tokens in means
    ]


def _drifts(fleet: Fleet, of: str) -> list[Alert]:
    """Alerts for step times that differ from the prediction, while the load is near the plan's."""
    planned_per_s = fleet.likely.requests_per_s
    load = f"({ARRIVED}{of} / {REPLICAS}{of})"
    is_planned = (
        f"{load} < {_TRAFFIC_RATIO * planned_per_s:.6g} and on (model_name) {load} >"
        f" {planned_per_s / _TRAFFIC_RATIO:.6g}"
    )
    alerts: list[Alert] = []
    for metric in ("ttft", "tpot"):
        means_s = [
            mean_s for point in fleet.planned if (mean_s := _mean_s(point, metric)) is not None
        ]
        if means_s:
            low_s, high_s, name = min(means_s), max(means_s), mean_name(metric)
            outside = (
                f"({name}{of} > {_DRIFT_RATIO * high_s:.6g} or {name}{of} <"
                f" {low_s / _DRIFT_RATIO:.6g})"
            )
            text = (
                f"{metric.upper()} is {{{{ $value | humanizeDuration }}}} in the mean at the"
                " planned load; predicted: "
            )
            remedy = (
                "inferometer load and inferometer fit on this server, then size again: the"
                " prediction does not hold here"
            )
            labels = (("latency", metric),)
            said = f"{text}{low_s:.4g} to {high_s:.4g} s"
            alerts.append(
                Alert(
                    "LlmPredictionDrift",
                    f"{outside} and on (model_name) {is_planned}",
                    "15m",
                    "info",
                    said,
                    remedy,
                    labels,
                )
            )
    return alerts


def _mean_s(point: OperatingPoint, metric: str) -> float | None:
    return point.ttft_mean_s if metric == "ttft" else point.tpot_mean_s


def _recording(one: Recorded) -> Manifest:
    rule: Manifest = {"record": one.name, "expr": one.expression}
    return rule | ({"labels": dict(one.labels)} if one.labels else {})


def _alerting(alert: Alert, packaging: Packaging) -> Manifest:
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.lasts,
        "labels": {"severity": alert.severity, "fleet": packaging.name, **dict(alert.labels)},
        "annotations": {"summary": alert.summary, "remedy": alert.remedy},
    }
