"""What does a person look at while the fleet runs?

A Grafana dashboard that shows measured beside predicted.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from inferometer.decide.artefacts import alerts, vllm_command
from inferometer.decide.artefacts.kubernetes import Manifest, in_flight_target
from inferometer.decide.artefacts.packaging import Fleet, Packaging
from inferometer.inputs.objectives import METRICS, Metric
from inferometer.units import format_bytes

_SCHEMA_VERSION: Final = 39
"""Schema of Grafana 11, which newer ones read."""
_WIDTH: Final = 24
_HEIGHT: Final = 8
_PER_ROW: Final = 3
_SUMMARY_WIDTH: Final = 4
_SUMMARY_HEIGHT: Final = 4
_WINDOW: Final = "[$__rate_interval]"


class Query(NamedTuple):
    """One line of a panel."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One chart; ``limits`` (of the SLO or of the prediction) are drawn as lines."""

    title: str
    unit: str
    says: str
    queries: tuple[Query, ...]
    limits: tuple[float, ...] = ()
    is_bad_above: bool = True
    """On which side of a limit a number is red."""
    has_zero: bool = True
    """Is no value below 0?"""


class Section(NamedTuple):
    """A row of the dashboard with its panels."""

    title: str
    panels: tuple[Panel, ...]
    is_open: bool = True


class Place(NamedTuple):
    """Position and size of a panel in units of Grafana's grid."""

    x: int
    y: int
    width: int
    height: int


def dashboard(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The Grafana dashboard: a row of summary numbers, then sections that explain them."""
    title = f"{packaging.served_name} on {fleet.hardware.name}"
    return board_of(
        packaging.name, title, summary_of(fleet, packaging), sections_of(fleet, packaging)
    )


def board_of(uid: str, title: str, summary: list[Panel], sections: list[Section]) -> Manifest:
    """A dashboard of these numbers and charts, as Grafana imports it."""
    return {
        "uid": uid,
        "title": title,
        "tags": ["llm", "vllm", "inferometer"],
        "timezone": "browser",
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {
                    "name": "datasource",
                    "type": "datasource",
                    "query": "prometheus",
                    "label": "Prometheus",
                }
            ]
        },
        "panels": _laid_out(summary, sections),
    }


def summary_of(fleet: Fleet, packaging: Packaging) -> list[Panel]:
    """Panels with one number each: SLO, latency, throughput, occupancy and replicas up.

    One number each, red beyond its limit.
    """
    of = f"{{{alerts.selector(packaging)}}}"
    latencies: tuple[Metric, ...] = ("ttft", "tpot")
    return [
        _within(fleet, of),
        *(_latency_now(fleet, metric, of) for metric in latencies),
        *_load_now(fleet, of),
    ]


def sections_of(fleet: Fleet, packaging: Packaging) -> list[Section]:
    """Sections of charts, most important first; rarely used ones are collapsed."""
    of = f"{{{alerts.selector(packaging)}}}"
    metrics: tuple[Metric, ...] = ("ttft", "tpot", "e2e", "queue")
    return [
        Section("SLO", (_kept(fleet, of), *(_latency(fleet, metric, of) for metric in metrics))),
        Section("Load", tuple(_load(fleet, of))),
        Section("KV cache", (*_fullness(fleet, of), *kv_bytes_panels(fleet, of))),
        Section("Steps", tuple(step_panels(fleet, of))),
        Section("Measured against the plan", tuple(_traffic(fleet, of)), is_open=False),
    ]


def _within(fleet: Fleet, of: str) -> Panel:
    shares = [
        one.percentile_fraction
        for one in alerts.promised(fleet)
        if one.percentile_fraction is not None
    ]
    says = (
        "The least share of requests within a limit of the SLO, counted up to the next edge of the"
        " histogram: red, it is surely missed."
    )
    query = Query(f"min({alerts.AT_MOST_WITHIN}{of})", "within")
    return Panel(
        "Within the SLO",
        "percentunit",
        says,
        (query,),
        (max(shares),) if shares else (),
        is_bad_above=False,
    )


def _latency_now(fleet: Fleet, metric: Metric, of: str) -> Panel:
    """The highest percentile that the SLO names, else the median."""
    name, fraction = max(alerts.percentile_names(fleet, metric), key=lambda one: one[1])
    limits = [
        one.limit_s
        for one in alerts.promised(fleet)
        if one.metric == metric and one.percentile_fraction == fraction
    ]
    query = Query(alerts.quantile(metric, fraction, of, _WINDOW), name)
    return Panel(
        f"{metric.upper()} {name}",
        "s",
        f"{METRICS[metric].meaning}; red above the SLO.",
        (query,),
        tuple(limits[:1]),
    )


def _load_now(fleet: Fleet, of: str) -> list[Panel]:
    kept = (
        () if fleet.kept_requests_per_s is None else (fleet.kept_requests_per_s * fleet.n_replicas,)
    )
    return [
        Panel(
            "Requests arrived",
            "reqps",
            "Red above what the fleet carries.",
            (Query(f"{alerts.ARRIVED}{of}", "arrived"),),
            kept,
        ),
        Panel(
            "KV cache, fullest replica",
            "percentunit",
            "Red above what the prediction allows at capacity.",
            (Query(f"max(vllm:kv_cache_usage_perc{of})", "fullest"),),
            (fleet.fullest.kv_used_high_fraction,),
        ),
        Panel(
            "Replicas that answer",
            "short",
            f"{fleet.n_replicas} are needed.",
            (Query(f"{alerts.REPLICAS}{of}", "replicas"),),
            (float(fleet.n_replicas),),
            is_bad_above=False,
        ),
    ]


def _kept(fleet: Fleet, of: str) -> Panel:
    """Lower and upper share meet where the limit is an edge of the histogram."""
    shares = [
        one.percentile_fraction
        for one in alerts.promised(fleet)
        if one.percentile_fraction is not None
    ]
    return Panel(
        "Requests within the SLO",
        "percentunit",
        "The share is between these two; the SLO is missed if the upper one is below the line,"
        " and met if the lower one is above it.",
        (
            Query(f"{alerts.SURELY_WITHIN}{of}", "{{promise}}: surely"),
            Query(f"{alerts.AT_MOST_WITHIN}{of}", "{{promise}}: at most"),
        ),
        tuple(sorted(set(shares))),
    )


def _latency(fleet: Fleet, metric: Metric, of: str) -> Panel:
    lines = [
        Query(alerts.quantile(metric, fraction, of, _WINDOW), name)
        for name, fraction in alerts.percentile_names(fleet, metric)
    ]
    limits = [one.limit_s for one in alerts.promised(fleet) if one.metric == metric]
    says = (
        f"{METRICS[metric].meaning}, as the replicas count it. Percentiles are drawn straight"
        " between the edges of the histogram."
    )
    return Panel(metric.upper(), "s", says, tuple(lines), tuple(sorted(set(limits))))


def _load(fleet: Fleet, of: str) -> list[Panel]:
    kept = (
        () if fleet.kept_requests_per_s is None else (fleet.kept_requests_per_s * fleet.n_replicas,)
    )
    return [
        Panel(
            "Requests",
            "reqps",
            f"Planned: {fleet.rate_per_s:.6g}/s. The line is what {fleet.n_replicas} replicas were"
            " shown to carry.",
            (Query(f"{alerts.ARRIVED}{of}", "arrived"), Query(f"{alerts.ENDED}{of}", "ended")),
            kept,
        ),
        Panel(
            "In flight, for each replica",
            "short",
            f"Predicted at the planned load: {fleet.likely.in_flight_load:.3g}. Beyond the line the"
            " autoscaler starts more replicas.",
            (
                Query(f"{alerts.IN_FLIGHT}{of} / {alerts.REPLICAS}{of}", "in flight"),
                Query(f"{alerts.WAITING}{of} / {alerts.REPLICAS}{of}", "waiting"),
            ),
            (float(in_flight_target(fleet)),),
        ),
        Panel(
            "Replicas",
            "short",
            "That answer to Prometheus.",
            (Query(f"{alerts.REPLICAS}{of}", "replicas"),),
            (float(fleet.n_replicas),),
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
            f"Predicted: {likely.kv_used_mean_fraction:.0%} in the mean at the planned load; the"
            " line is not exceeded for 99 % of the time at the highest load that meets the"
            " SLO.",
            (Query(f"vllm:kv_cache_usage_perc{of}", "{{instance}}"),),
            (fullest.kv_used_high_fraction,),
        ),
        Panel(
            "Preemptions per request",
            "short",
            f"Predicted: {likely.preemptions_per_request_ratio:.3g} at the planned load, "
            f"{fullest.preemptions_per_request_ratio:.3g} at capacity.",
            (Query(f"{alerts.PREEMPTIONS}{of}", "preemptions"),),
        ),
        Panel(
            "Prompt tokens found in the prefix cache",
            "percentunit",
            "Of those that were looked up.",
            (
                Query(
                    f"sum(rate(vllm:prefix_cache_hits_total{of}{_WINDOW})) /"
                    f" sum(rate(vllm:prefix_cache_queries_total{of}{_WINDOW}))",
                    "found",
                ),
            ),
        ),
    ]


def kv_bytes_panels(fleet: Fleet, of: str) -> list[Panel]:
    """The cache in bytes, and how fast prefixes are evicted from it."""
    used = f"sum(vllm:kv_cache_usage_perc{of})"
    return [
        Panel(
            "KV cache, used and free",
            "bytes",
            f"Of {fleet.n_replicas} x {format_bytes(fleet.kv_bytes)}, as sized; what is free may"
            " still hold prefixes to be found again.",
            (
                Query(f"{used} * {fleet.kv_bytes}", "used"),
                Query(f"(sum({alerts.REPLICAS}{of}) - {used}) * {fleet.kv_bytes}", "free"),
            ),
        ),
        *(
            [
                Panel(
                    "Evicted prefixes",
                    "short",
                    "KV blocks per second that lose what they held to make room, from the sample"
                    f" of {vllm_command.KV_SAMPLE_FRACTION:.0%} of blocks that --kv-cache-metrics"
                    " watches.",
                    (
                        Query(
                            f"sum(rate(vllm:kv_block_lifetime_seconds_count{of}{_WINDOW})) /"
                            f" {vllm_command.KV_SAMPLE_FRACTION}",
                            "evicted",
                        ),
                    ),
                )
            ]
            if fleet.scheduler.enable_prefix_caching
            else []
        ),
    ]


def step_panels(fleet: Fleet, of: str) -> list[Panel]:
    """Panels of batch size, and of accepted draft tokens."""
    scheduler = fleet.scheduler
    panels = [
        Panel(
            "Tokens of a step",
            "short",
            f"Prompt and output tokens in the mean; the line is {scheduler.max_num_batched_tokens},"
            " the most.",
            (
                Query(
                    f"sum(rate(vllm:iteration_tokens_total_sum{of}{_WINDOW})) /"
                    f" sum(rate(vllm:iteration_tokens_total_count{of}{_WINDOW}))",
                    "tokens",
                ),
            ),
            (float(scheduler.max_num_batched_tokens),),
        )
    ]
    if not scheduler.num_speculative_tokens:
        return panels
    return [
        *panels,
        Panel(
            "Drafted tokens that are accepted",
            "percentunit",
            "Of those drafted; the line is what was assumed.",
            (
                Query(
                    f"sum(rate(vllm:spec_decode_num_accepted_tokens_total{of}{_WINDOW})) /"
                    f" sum(rate(vllm:spec_decode_num_draft_tokens_total{of}{_WINDOW}))",
                    "accepted",
                ),
            ),
            (scheduler.mean_accepted_tokens / scheduler.num_speculative_tokens,),
            is_bad_above=False,
        ),
    ]


def _traffic(fleet: Fleet, of: str) -> list[Panel]:
    ttft_s, tpot_s = (
        [getattr(point, f"{name}_mean_s") for point in fleet.planned] for name in ("ttft", "tpot")
    )
    return [
        Panel(
            "Tokens per request",
            "short",
            "The lines are the lengths that the fleet was sized for.",
            (
                Query(f"{alerts.PROMPT_TOKENS}{of}", "prompt"),
                Query(f"{alerts.OUTPUT_TOKENS}{of}", "output"),
            ),
            (fleet.output_mean_tokens, fleet.prompt_mean_tokens),
        ),
        _predicted("ttft", [mean_s for mean_s in ttft_s if mean_s is not None], of),
        _predicted("tpot", [mean_s for mean_s in tpot_s if mean_s is not None], of),
    ]


def _predicted(metric: Metric, means_s: list[float], of: str) -> Panel:
    says = "The lines are the prediction at the planned load, with fast and with slow step times."
    lines = (min(means_s), max(means_s)) if means_s else ()
    return Panel(
        f"{metric.upper()} in the mean, and as predicted",
        "s",
        says,
        (Query(f"{alerts.mean_name(metric)}{of}", "measured"),),
        lines,
    )


def _laid_out(summary: list[Panel], sections: list[Section]) -> list[Manifest]:
    """All panels with positions and ascending ids."""
    places = [
        Place(i * _SUMMARY_WIDTH, 0, _SUMMARY_WIDTH, _SUMMARY_HEIGHT) for i in range(len(summary))
    ]
    drawn = [_number(panel, place) for panel, place in zip(summary, places, strict=True)]
    y, width = _SUMMARY_HEIGHT, _WIDTH // _PER_ROW
    for section in sections:
        places = [
            Place(i % _PER_ROW * width, y + 1 + i // _PER_ROW * _HEIGHT, width, _HEIGHT)
            for i in range(len(section.panels))
        ]
        inside = [_chart(panel, place) for panel, place in zip(section.panels, places, strict=True)]
        row: Manifest = {
            "type": "row",
            "title": section.title,
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        }
        drawn += (
            [row | {"collapsed": False, "panels": []}, *inside]
            if section.is_open
            else [row | {"collapsed": True, "panels": inside}]
        )
        y = places[-1].y + _HEIGHT if section.is_open else y + 1
    for index, one in enumerate(every_panel(drawn)):
        one["id"] = index + 1
    return drawn


def every_panel(drawn: Sequence[Manifest]) -> Iterator[Manifest]:
    """The panels of a dashboard, its rows, and those inside closed rows."""
    for one in drawn:
        yield one
        yield from cast("list[Manifest]", one.get("panels", []))


def _number(panel: Panel, place: Place) -> Manifest:
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"]},
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "value",
    }
    return _panel("stat", panel, place, {}) | {"options": options}


def _chart(panel: Panel, place: Place) -> Manifest:
    custom: Manifest = {"custom": {"thresholdsStyle": {"mode": "line" if panel.limits else "off"}}}
    options = {
        "legend": {"displayMode": "list", "placement": "bottom"},
        "tooltip": {"mode": "multi"},
    }
    return _panel("timeseries", panel, place, custom) | {"options": options}


def _panel(kind: str, panel: Panel, place: Place, custom: Manifest) -> Manifest:
    source = {"type": "prometheus", "uid": "${datasource}"}
    below, above = ("green", "red") if panel.is_bad_above or not panel.limits else ("red", "green")
    steps: list[Manifest] = [
        {"color": below, "value": None},
        *({"color": above, "value": limit} for limit in sorted(panel.limits)),
    ]
    return {
        "type": kind,
        "title": panel.title,
        "description": panel.says,
        "datasource": source,
        "gridPos": {"x": place.x, "y": place.y, "w": place.width, "h": place.height},
        "targets": [
            {
                "refId": chr(ord("A") + i),
                "datasource": source,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for i, query in enumerate(panel.queries)
        ],
        "fieldConfig": {
            "defaults": (
                {
                    "unit": panel.unit,
                    **({"min": 0} if panel.has_zero else {}),
                    "thresholds": {"mode": "absolute", "steps": steps},
                }
                | custom
            ),
            "overrides": [],
        },
    }
