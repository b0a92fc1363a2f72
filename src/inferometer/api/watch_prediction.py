"""What did ``inferometer simulate --json`` predict for the traffic that a watched server gets?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.server_summaries import ServerSummary

_DOOR: Final = Door(
    noun="prediction",
    allowed="what `inferometer simulate --json` printed",
    try_="inferometer simulate MODEL --hardware ID --rate 5 --json > predicted.json",
)
_BOX_RATIO: Final = 1.25
"""Largest ratio of traffic to the predicted one at which they are compared."""
METRICS: Final = ("ttft", "tpot", "e2e")


class _Seconds(msgspec.Struct):
    value: float
    low: float | None = None
    high: float | None = None


class _Value(msgspec.Struct):
    seconds: _Seconds


class _Percentile(msgspec.Struct):
    percentile_fraction: float
    seconds: _Seconds


class _Latency(msgspec.Struct):
    latency: str
    mean: _Value | None = None
    percentiles: tuple[_Percentile, ...] = ()


class _Summary(msgspec.Struct):
    latencies: tuple[_Latency, ...]


class _Level(msgspec.Struct):
    step_times: str
    summary: _Summary


class _Lengths(msgspec.Struct):
    mean_tokens: float


class _Workload(msgspec.Struct):
    rate_per_s: float
    prompt: _Lengths
    output: _Lengths


class _Deployment(msgspec.Struct):
    model_id: str
    hardware: str
    engine: str
    step_times_from: str
    n_replicas: int = 1


class _Answer(msgspec.Struct):
    workload: _Workload
    deployment: _Deployment
    levels: tuple[_Level, ...]


class Bounds(NamedTuple):
    """Seconds at fast, likely and slow steps, each with its interval.

    An end is None where too few requests were simulated for an interval.
    """

    low_s: float | None
    mid_s: float
    high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Latencies of a simulated server, and under which traffic."""

    path: str
    engine: str
    model: str
    fit: str
    """Source of the step times."""
    requests_per_s: float
    """Rate of one replica."""
    prompt_mean_tokens: float
    output_mean_tokens: float
    means_s: dict[str, Bounds]
    quantiles_s: dict[tuple[str, float], Bounds]

    def why_not_valid(self, seen: ServerSummary) -> str:
        """'' where the traffic is the predicted one within a quarter, else the difference."""
        took_s = seen.end_s - seen.start_s
        n = seen.n_finished or 0
        if not n or seen.prompt_tokens is None or seen.output_tokens is None:
            return "no request ended"
        pairs = {
            "requests/s": (n / took_s, self.requests_per_s),
            "prompt tokens": (seen.prompt_tokens / n, self.prompt_mean_tokens),
            "output tokens": (seen.output_tokens / n, self.output_mean_tokens),
        }
        return ", ".join(
            f"{now:.3g} {name}, predicted for {planned:.3g}"
            for name, (now, planned) in pairs.items()
            if not planned / _BOX_RATIO <= now <= planned * _BOX_RATIO
        )


def prediction_of(path: Path) -> Prediction:
    """The prediction in this file.

    Raises
    ------
    SpecError
        It cannot be read, or is no answer of ``simulate``.
    """
    answer = _DOOR.json(_DOOR.bytes_of(path), _Answer, where=str(path))
    if not any(level.step_times == "likely" for level in answer.levels):
        raise SpecError("no likely step times", where=str(path), allowed=_DOOR.allowed)
    means, quantiles = dict[str, list[_Seconds]](), dict[tuple[str, float], list[_Seconds]]()
    for level in sorted(answer.levels, key=lambda one: one.step_times != "likely"):
        for one in level.summary.latencies:
            if one.latency in METRICS and one.mean is not None:
                means.setdefault(one.latency, []).append(one.mean.seconds)
                for each in one.percentiles:
                    key = (one.latency, each.percentile_fraction)
                    quantiles.setdefault(key, []).append(each.seconds)
    workload, deployment = answer.workload, answer.deployment
    return Prediction(
        path=str(path),
        engine=deployment.engine,
        model=deployment.model_id,
        fit=deployment.step_times_from,
        requests_per_s=workload.rate_per_s / max(deployment.n_replicas, 1),
        prompt_mean_tokens=workload.prompt.mean_tokens,
        output_mean_tokens=workload.output.mean_tokens,
        means_s={name: _bounds(found) for name, found in means.items()},
        quantiles_s={key: _bounds(found) for key, found in quantiles.items()},
    )


def _bounds(found: list[_Seconds]) -> Bounds:
    """The likely value (first), and the range over all levels."""
    lows = [one.low for one in found if one.low is not None]
    highs = [one.high for one in found if one.high is not None]
    low_s = min(lows) if len(lows) == len(found) else None
    high_s = max(highs) if len(highs) == len(found) else None
    return Bounds(low_s, found[0].value, high_s)
