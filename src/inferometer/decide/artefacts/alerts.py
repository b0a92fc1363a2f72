"""What should wake somebody, and which series are recorded for it: the rules that Prometheus evaluates.

Limits come from the promise and from the range in which the simulation says that the fleet works.
"""

from typing import Final, NamedTuple

from inferometer.decide.artefacts import promql
from inferometer.decide.artefacts.fleet import Fleet, OperatingPoint
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.decide.artefacts.pods import Manifest
from inferometer.inputs.objectives import Threshold

_KV_NEAR_FULL_FRACTION: Final = 0.95
_PREEMPTIONS_RATIO: Final = 0.02
"""Per request: fewer do no harm."""
_TRAFFIC_RATIO: Final = 1.25
"""Lengths and rates within such a factor are what was sized for."""
_DRIFT_RATIO: Final = 1.15
"""Beyond the range between fast and slow step times, for what a mean of some minutes wavers."""
_INTERVAL: Final = "15s"


class Alert(NamedTuple):
    """One rule that may fire."""

    name: str
    expression: str
    lasts: str
    severity: str
    summary: str
    remedy: str
    labels: tuple[tuple[str, str], ...] = ()


def rules(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The rule file: recorded series, then alerts."""
    recorded = [_recording(one) for one in promql.recorded(fleet, packaging)]
    alerts = [_alerting(alert, packaging) for alert in alerts_of(fleet, packaging)]
    return {
        "groups": [
            {"name": f"{packaging.name}-recorded", "interval": _INTERVAL, "rules": recorded},
            {"name": f"{packaging.name}-alerts", "interval": _INTERVAL, "rules": alerts},
        ]
    }


def alerts_of(fleet: Fleet, packaging: Packaging) -> list[Alert]:
    """All that may fire, the promise first."""
    of = f"{{{promql.selector(packaging)}}}"
    promises = [
        alert
        for threshold in promql.promised(fleet)
        for alert in _promise(threshold, fleet, packaging)
    ]
    return [
        *promises,
        *_replicas(fleet, of),
        *_fullness(fleet, of),
        *_traffic(fleet, of),
        *_drifts(fleet, of),
    ]


def _promise(threshold: Threshold, fleet: Fleet, packaging: Packaging) -> list[Alert]:
    edges, share = promql.edges_of(threshold), threshold.percentile_fraction or 0.0
    of, labels = (
        f"{{{promql.selector(packaging, promise=threshold.text)}}}",
        (("promise", threshold.text),),
    )
    enough_per_s = promql.requests_needed(threshold) / (60 * promql.window_min(fleet))
    is_known = (
        f"and on (model_name) {promql.ENDED}{{{promql.selector(packaging)}}} >= {enough_per_s:.6g}"
    )
    remedy = (
        "see whether traffic, lengths or replicas differ from the plan: their alerts say so; else"
        " size again"
    )
    alerts: list[Alert] = []
    if edges.above_s is not None:
        expression = f"{promql.AT_MOST_WITHIN}{of} < {share:g} {is_known}"
        text = (
            f"{threshold.text} is broken: at most {{{{ $value | humanizePercentage }}}} of the"
            f" requests are within {edges.above_s:g} s"
        )
        alerts.append(Alert("LlmPromiseBroken", expression, "2m", "critical", text, remedy, labels))
    if edges.below_s is not None and edges.below_s != edges.above_s:
        expression = f"{promql.SURELY_WITHIN}{of} < {share:g} {is_known}"
        text = (
            f"{threshold.text} may be broken: {{{{ $value | humanizePercentage }}}} of the requests"
            f" are surely within {edges.below_s:g} s"
        )
        alerts.append(
            Alert("LlmPromiseInDoubt", expression, "15m", "warning", text, remedy, labels)
        )
    return alerts


def _replicas(fleet: Fleet, of: str) -> list[Alert]:
    few = f"({promql.REPLICAS}{of} or on () vector(0)) < {fleet.n_replicas}"
    text = (
        f"{{{{ $value }}}} replicas answer; {fleet.n_replicas} were found to be needed for"
        f" {fleet.rate_per_s:g} requests/s"
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
        beyond = f"{promql.ARRIVED}{of} / {promql.REPLICAS}{of} > {most_per_s:.6g}"
        text = (
            f"{{{{ $value | humanize }}}} requests/s for each replica; at {most_per_s:.4g} one"
            " breaks the promise"
        )
        alerts.append(
            Alert("LlmBeyondCapacity", beyond, "5m", "warning", text, "start more replicas")
        )
    return alerts


def _fullness(fleet: Fleet, of: str) -> list[Alert]:
    n_waiting = max(fleet.fullest.n_waiting_high * fleet.n_replicas, fleet.n_replicas)
    growing = f"{promql.WAITING}{of} > {n_waiting} and deriv({promql.WAITING}{of}[10m]) > 0"
    kv_fraction = min(
        max(_KV_NEAR_FULL_FRACTION, 1.02 * fleet.fullest.kv_used_high_fraction), 0.995
    )
    preempted_ratio = max(_PREEMPTIONS_RATIO, 2 * fleet.fullest.preemptions_per_request_ratio)
    few_seats = (
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
            few_seats,
        ),
        Alert(
            "LlmKvCacheNearFull",
            f"{promql.KV_USAGE}{of} > {kv_fraction:.4g}",
            "5m",
            "warning",
            "{{ $value | humanizePercentage }} of a replica's KV cache is in use; predicted at"
            f" capacity: {fleet.fullest.kv_used_high_fraction:.1%}",
            shorter,
        ),
        Alert(
            "LlmPreemptions",
            f"{promql.PREEMPTIONS}{of} > {preempted_ratio:.4g}",
            "5m",
            "warning",
            "{{ $value | humanize }} preemptions per request; predicted at capacity: "
            f"{fleet.fullest.preemptions_per_request_ratio:.3g}",
            shorter,
        ),
    ]


def _traffic(fleet: Fleet, of: str) -> list[Alert]:
    """Lengths that differ from those that were simulated: then nothing else that was predicted holds."""
    means = (
        ("prompt", promql.PROMPT_TOKENS, fleet.prompt_mean_tokens),
        ("output", promql.OUTPUT_TOKENS, fleet.output_mean_tokens),
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
    """Step times that are not those of the prediction, told where the load is that of the plan."""
    planned_per_s = fleet.likely.requests_per_s
    load = f"({promql.ARRIVED}{of} / {promql.REPLICAS}{of})"
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
            low_s, high_s, name = min(means_s), max(means_s), promql.mean_name(metric)
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


def _recording(one: promql.Recorded) -> Manifest:
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
