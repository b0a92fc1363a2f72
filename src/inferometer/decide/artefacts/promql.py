"""What do vLLM's metrics say of a fleet, as Prometheus' queries?

Recorded series, by model, which alerts and the dashboard read.

A histogram knows how many values lie below its edges, and no percentile: whether one is below a
limit between two edges it can prove, refute or leave open. So two series are recorded of each
promise: the share that lies surely within it (below the last edge that is not above the limit), and
the share that lies at most within it (below the first edge that is not below). They are one where
the limit is an edge.
"""

import json
import math
from typing import Final, NamedTuple

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.inputs.objectives import Metric, Threshold, percentile_name
from inferometer.records.server_names import VLLM_EDGES_S

FAMILIES: Final[dict[Metric, str]] = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
    "queue": "vllm:request_queue_time_seconds",
}
_SLOWER_THAN_LIMIT: Final = 10
"""A window holds at least so many requests beyond the percentile, else it says nothing about it."""
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


class Recorded(NamedTuple):
    """A series that Prometheus is to keep."""

    name: str
    expression: str
    labels: tuple[tuple[str, str], ...] = ()


class Edges(NamedTuple):
    """Between which two edges of its histogram does a limit lie?"""

    below_s: float | None
    """None: below the first."""
    above_s: float | None
    """None: beyond the last."""


def recorded(fleet: Fleet, packaging: Packaging) -> list[Recorded]:
    """All series, each after those that it reads."""
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
    """The thresholds of a percentile; others count for goodput alone, which a histogram does not know."""
    return [
        threshold
        for threshold in fleet.objective.thresholds
        if threshold.percentile_fraction is not None
    ]


def selector(packaging: Packaging, **labels: str) -> str:
    """Which series are the fleet's: vLLM itself puts the model's name on all of them."""
    return ",".join(
        f"{name}={json.dumps(value)}"
        for name, value in {"model_name": packaging.served_name, **labels}.items()
    )


def edges_of(threshold: Threshold) -> Edges:
    """Between which edges of vLLM's histogram does the limit lie?

    Example
    -------
    >>> edges_of(Threshold(metric="ttft", percentile_fraction=0.95, limit_s=0.3))
    Edges(below_s=0.25, above_s=0.5)
    >>> edges_of(Threshold(metric="ttft", percentile_fraction=0.95, limit_s=0.5))
    Edges(below_s=0.5, above_s=0.5)
    """
    edges_s = VLLM_EDGES_S[threshold.metric]
    below = [edge_s for edge_s in edges_s if edge_s <= threshold.limit_s]
    above = [edge_s for edge_s in edges_s if edge_s >= threshold.limit_s]
    return Edges(below[-1] if below else None, above[0] if above else None)


def window_min(fleet: Fleet) -> int:
    """Over how many minutes are rates taken?

    As many as bring enough requests for the highest percentile of the promise.
    """
    needed_s = max(
        (requests_needed(one) / fleet.rate_per_s for one in promised(fleet)), default=0.0
    )
    return min(max(_LEAST_WINDOW_MIN, math.ceil(needed_s / 60)), _MOST_WINDOW_MIN)


def requests_needed(threshold: Threshold) -> int:
    """How many requests say something about the percentile?"""
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
    """Which percentiles of a latency are worth a look: the median, and those that are promised."""
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
