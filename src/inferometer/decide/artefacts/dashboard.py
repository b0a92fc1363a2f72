"""What does a person look at while the fleet runs? A Grafana dashboard that shows measured beside predicted."""

from typing import Final, NamedTuple

from inferometer.decide.artefacts import promql
from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.kubernetes import Manifest, in_flight_target
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.spec.objectives import METRIC_MEANINGS, Metric

_SCHEMA_VERSION: Final = 39
"""Of Grafana 11, which newer ones read."""
_WIDTH: Final = 24
_HEIGHT: Final = 8
_PER_ROW: Final = 3
_WINDOW: Final = "[$__rate_interval]"


class Query(NamedTuple):
    """One line of a panel."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One chart. ``limits`` are drawn as lines: what was promised or predicted."""

    title: str
    unit: str
    says: str
    queries: tuple[Query, ...]
    limits: tuple[float, ...] = ()


def dashboard(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The dashboard, as Grafana imports it."""
    panels = panels_of(fleet, packaging)
    return {
        "uid": packaging.name,
        "title": f"{packaging.served_name} on {fleet.hardware.name}",
        "tags": ["llm", "vllm", "inferometer"],
        "timezone": "browser",
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}]},
        "panels": [_drawn(panel, i) for i, panel in enumerate(panels)],
    }


def panels_of(fleet: Fleet, packaging: Packaging) -> list[Panel]:
    """The charts, those that decide first."""
    of = f"{{{promql.selector(packaging)}}}"
    return [
        _kept(fleet, of),
        *(_latency(fleet, metric, of) for metric in ("ttft", "tpot", "e2e", "queue")),
        *_load(fleet, of),
        *_fullness(fleet, of),
        *_traffic(fleet, of),
    ]


def _kept(fleet: Fleet, of: str) -> Panel:
    """Lower and upper share meet where the limit is an edge of the histogram."""
    shares = [one.percentile_fraction for one in promql.promised(fleet) if one.percentile_fraction is not None]
    return Panel(
        "Requests within the promise",
        "percentunit",
        "Between these two shares; the promise is broken where the upper one is below the line, kept where the lower one is above it.",
        (Query(f"{promql.SURELY_WITHIN}{of}", "{{promise}}: surely"), Query(f"{promql.AT_MOST_WITHIN}{of}", "{{promise}}: at most")),
        tuple(sorted(set(shares))),
    )


def _latency(fleet: Fleet, metric: Metric, of: str) -> Panel:
    lines = [Query(promql.quantile(metric, fraction, of, _WINDOW), name) for name, fraction in promql.percentile_names(fleet, metric)]
    limits = [one.limit_s for one in promql.promised(fleet) if one.metric == metric]
    says = f"{METRIC_MEANINGS[metric]}, as the replicas count it. Percentiles are drawn straight between the edges of the histogram."
    return Panel(metric.upper(), "s", says, tuple(lines), tuple(sorted(set(limits))))


def _load(fleet: Fleet, of: str) -> list[Panel]:
    kept = () if fleet.kept_requests_per_s is None else (fleet.kept_requests_per_s * fleet.n_replicas,)
    return [
        Panel(
            "Requests",
            "reqps",
            f"Planned: {fleet.rate_per_s:g}/s. The line is what {fleet.n_replicas} replicas were shown to carry.",
            (Query(f"{promql.ARRIVED}{of}", "arrived"), Query(f"{promql.ENDED}{of}", "ended")),
            kept,
        ),
        Panel(
            "In flight, for each replica",
            "short",
            f"Predicted at the planned load: {fleet.likely.in_flight_load:.3g}. Beyond the line the autoscaler starts more replicas.",
            (
                Query(f"{promql.IN_FLIGHT}{of} / {promql.REPLICAS}{of}", "in flight"),
                Query(f"{promql.WAITING}{of} / {promql.REPLICAS}{of}", "waiting"),
            ),
            (float(in_flight_target(fleet)),),
        ),
        Panel(
            "Replicas", "short", "That answer to Prometheus.", (Query(f"{promql.REPLICAS}{of}", "replicas"),), (float(fleet.n_replicas),)
        ),
        Panel(
            "Tokens",
            "short",
            "Per second, of all replicas.",
            (
                Query(f"sum(rate(vllm:prompt_tokens_total{of}{_WINDOW}))", "prompt"),
                Query(f"sum(rate(vllm:generation_tokens_total{of}{_WINDOW}))", "output"),
            ),
        ),
    ]


def _fullness(fleet: Fleet, of: str) -> list[Panel]:
    likely, fullest = fleet.likely, fleet.fullest
    return [
        Panel(
            "KV cache in use",
            "percentunit",
            f"Predicted: {likely.kv_used_mean_fraction:.0%} in the mean at the planned load; the line is not exceeded for 99 % of the time "
            "at the highest load that keeps the promise.",
            (Query(f"vllm:kv_cache_usage_perc{of}", "{{instance}}"),),
            (fullest.kv_used_high_fraction,),
        ),
        Panel(
            "Preemptions per request",
            "short",
            f"Predicted: {likely.preemptions_per_request_ratio:.3g} at the planned load, "
            f"{fullest.preemptions_per_request_ratio:.3g} at capacity.",
            (Query(f"{promql.PREEMPTIONS}{of}", "preemptions"),),
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            "percentunit",
            "Of those that were looked up.",
            (
                Query(
                    f"sum(rate(vllm:prefix_cache_hits_total{of}{_WINDOW})) / sum(rate(vllm:prefix_cache_queries_total{of}{_WINDOW}))",
                    "found",
                ),
            ),
        ),
    ]


def _traffic(fleet: Fleet, of: str) -> list[Panel]:
    ttft_s, tpot_s = ([getattr(point, f"{name}_mean_s") for point in fleet.planned] for name in ("ttft", "tpot"))
    return [
        Panel(
            "Tokens per request",
            "short",
            "The lines are the lengths that the fleet was sized for.",
            (Query(f"{promql.PROMPT_TOKENS}{of}", "prompt"), Query(f"{promql.OUTPUT_TOKENS}{of}", "output")),
            (fleet.output_mean_tokens, fleet.prompt_mean_tokens),
        ),
        _predicted("ttft", [mean_s for mean_s in ttft_s if mean_s is not None], of),
        _predicted("tpot", [mean_s for mean_s in tpot_s if mean_s is not None], of),
    ]


def _predicted(metric: Metric, means_s: list[float], of: str) -> Panel:
    says = "The lines are the prediction at the planned load, with fast and with slow step times."
    lines = (min(means_s), max(means_s)) if means_s else ()
    return Panel(
        f"{metric.upper()} in the mean, and as predicted", "s", says, (Query(f"{promql.mean_name(metric)}{of}", "measured"),), lines
    )


def _drawn(panel: Panel, index: int) -> Manifest:
    row, column = divmod(index, _PER_ROW)
    source = {"type": "prometheus", "uid": "${datasource}"}
    steps: list[Manifest] = [{"color": "green", "value": None}, *({"color": "red", "value": limit} for limit in sorted(panel.limits))]
    width = _WIDTH // _PER_ROW
    return {
        "id": index + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.says,
        "datasource": source,
        "gridPos": {"x": column * width, "y": row * _HEIGHT, "w": width, "h": _HEIGHT},
        "targets": [
            {"refId": chr(ord("A") + i), "datasource": source, "expr": query.expression, "legendFormat": query.legend}
            for i, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": "line" if panel.limits else "off"}},
            },
            "overrides": [],
        },
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


__all__ = ["Panel", "Query", "dashboard", "panels_of"]
