"""Is the service as it was predicted, now?

A Grafana board of the replicas' own metrics beside the series of ``inferometer watch --export-port``.
"""

from typing import Final

from inferometer.decide.artefacts import alerts, dashboard
from inferometer.decide.artefacts.dashboard import Panel, Query, Section
from inferometer.decide.artefacts.kubernetes import Manifest
from inferometer.decide.artefacts.packaging import Fleet, Packaging
from inferometer.inputs.objectives import METRICS, Metric, percentile_name

_METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e")
_FRACTIONS: Final = (0.5, 0.95)
_WINDOW: Final = "[$__rate_interval]"
_BOUNDS: Final = ("low", "mid", "high")


def board(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The board, as Grafana imports it."""
    return dashboard.board_of(
        f"{packaging.name}-live",
        f"{packaging.served_name}: predicted and live",
        summary(),
        sections(fleet, packaging),
    )


def summary() -> list[Panel]:
    """Panels of one number each: is the prediction right, what is its error, what room is left."""
    return [
        Panel(
            "Prediction holds",
            "short",
            "1 where rate and lengths are the predicted ones within a quarter; at 0 nothing of the"
            " prediction can be compared.",
            (Query("min(inferometer_model_valid)", "valid"),),
            (1.0,),
            is_bad_above=False,
        ),
        Panel(
            "Step time against what was learned",
            "percentunit",
            "Measured / expected - 1 at the present load: a server that is slower than it was.",
            (Query('max(inferometer_residual_ratio{metric="step"})', "step"),),
            (0.2,),
            has_zero=False,
        ),
        Panel(
            "Room below the SLO",
            "percentunit",
            "1 - percentile / limit, the least of all: 0 at the limit.",
            (Query("min(inferometer_headroom_ratio)", "room"),),
            (0.05,),
            is_bad_above=False,
            has_zero=False,
        ),
    ]


def sections(fleet: Fleet, packaging: Packaging) -> list[Section]:
    """Panels of each latency (measured, predicted, residual), and of the engine."""
    of = f"{{{alerts.selector(packaging)}}}"
    latencies = tuple(
        _latency(metric, fraction, of) for metric in _METRICS for fraction in _FRACTIONS
    )
    return [
        Section("Predicted and live", latencies),
        Section("What differs", _differences()),
        Section(
            "Batch, drafts and KV cache",
            (*dashboard.step_panels(fleet, of), *dashboard.kv_bytes_panels(fleet, of)),
        ),
    ]


def _latency(metric: Metric, fraction: float, of: str) -> Panel:
    name, family = percentile_name(fraction), f"inferometer_predicted_{metric}_seconds"
    predicted = (
        Query(f'max({family}{{quantile="{fraction:g}",bound="{bound}"}})', f"predicted, {bound}")
        for bound in _BOUNDS
    )
    says = (
        f"{METRICS[metric].meaning}. Live: between the edges of the replicas' histogram; predicted:"
        " with fast, likely and slow step times, their intervals included."
    )
    live = Query(alerts.quantile(metric, fraction, of, _WINDOW), "live")
    return Panel(f"{metric.upper()} {name}", "s", says, (live, *predicted))


def _differences() -> tuple[Panel, ...]:
    return (
        Panel(
            "Measured / predicted - 1",
            "percentunit",
            "Of means; `step` is the step time against what was learned of the server.",
            (Query("inferometer_residual_ratio", "{{server}} {{metric}}"),),
            has_zero=False,
        ),
        Panel(
            "Regime",
            "short",
            "1 while a condition is on.",
            (Query("inferometer_regime", "{{server}} {{condition}}"),),
        ),
        Panel(
            "What limits the server",
            "percentunit",
            "Share of the first latency that would go with each cause (`inferometer diagnose`).",
            (Query("inferometer_limit_share", "{{server}} {{cause}}"),),
        ),
    )
