"""Sealed predictions of advised changes, and their outcome on the changed server.

The predicted latencies hold for the traffic of the window that was diagnosed. A window of other
traffic, or of a server that was not restarted, proves nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from inferometer.decide.diagnosis.window import ServerWindow
from inferometer.inputs.objectives import parse_objective
from inferometer.records.server_names import START_TIME
from inferometer.records.server_series import Growth
from inferometer.records.server_summaries import bucket_percentile
from inferometer.stats.estimate import Estimate, Verdict
from inferometer.verify.claims import KNOWN_TO_A_BUCKET
from inferometer.verify.seals import Metric, sha256_of

AT: Final = "with the change"
STATISTICS: Final[Mapping[Metric, tuple[Literal["ttft", "tpot"], float | None]]] = {
    "ttft_mean_s": ("ttft", None),
    "ttft_p50_s": ("ttft", 0.5),
    "ttft_p95_s": ("ttft", 0.95),
    "tpot_mean_s": ("tpot", None),
    "tpot_p50_s": ("tpot", 0.5),
    "tpot_p95_s": ("tpot", 0.95),
}
"""Latencies of a server's own histograms: means are exact, percentiles are known to a bucket."""
_LEAST_APART_FRACTION: Final = 0.1
_CHANCE_SDS: Final = 3.0
"""Two windows of the same traffic differ by chance, of n requests by about 1 / sqrt(n)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedChange:
    """A change, and the traffic for which its effect is predicted."""

    target: str
    cause: str
    change: str
    """Flags, and the new value."""
    objective: str | None
    window_s: float
    n_requests: int
    requests_per_s: float | None
    """None: a closed loop, whose rate follows from the server."""
    in_server_load: float | None
    """Requests in the server, in a closed loop."""
    mean_prompt_tokens: float
    mean_output_tokens: float
    server_started_s: float | None
    """Start of the server's process (Unix time), by its metrics; None: not reported."""
    replica: str | None = None
    """The replica that was chosen of several on its page; None: the fullest, or there is one."""


def change_sha256(change: SealedChange) -> str:
    """SHA-256 of the change; the chosen replica, a newer field, counts where there is one."""
    facts: dict[str, object] = msgspec.to_builtins(change)
    if change.replica is None:
        del facts["replica"]
    return sha256_of(facts)


def started_s(window: ServerWindow) -> float | None:
    """Start of the server's process (Unix time); None where not reported."""
    found = window.record.families.get(START_TIME, ())
    return float(found[0].value[-1]) if found and math.isfinite(found[0].value[-1]) else None


def traffic_of(window: ServerWindow) -> dict[str, float | None]:
    """The fields of ``SealedChange`` that describe the traffic."""
    inside = float((window.running + window.waiting).mean())
    rate_per_s = float(window.arrivals.sum()) / window.duration_s
    return {
        "requests_per_s": None if window.is_closed_loop else rate_per_s,
        "in_server_load": inside if window.is_closed_loop else None,
        "mean_prompt_tokens": _mean(window.prompt_lengths.seen),
        "mean_output_tokens": _mean(window.output_lengths.seen),
    }


def _mean(seen: Growth) -> float:
    return seen.total / max(seen.n, 1)


def why_nothing_is_proved(sealed: SealedChange, window: ServerWindow) -> str:
    """Why this window cannot test the prediction; '' where it can."""
    now_s = started_s(window)
    if now_s is not None and now_s == sealed.server_started_s:
        return "the server was not started anew since the prediction: it has no other settings"
    n = min(sealed.n_requests, window.prompt_lengths.seen.n)
    allowed = max(_LEAST_APART_FRACTION, _CHANCE_SDS * math.sqrt(2 / max(n, 1)))
    after = traffic_of(window)
    for name, now in after.items():
        before = getattr(sealed, name)
        if (now is None) != (before is None):
            return "one of the two windows is a closed loop, the other is not"
        if now is not None and abs(now - before) > allowed * before:
            words = name.replace("_", " ").replace(" per s", "/s")
            return f"other traffic: {words} {now:.3g}, and {before:.3g} when it was predicted"
    return ""


def measured_latencies(window: ServerWindow) -> dict[Metric, Estimate]:
    """Each latency that the server's own histograms report."""
    found: dict[Metric, Estimate] = {}
    for metric, (latency, fraction) in STATISTICS.items():
        time, seen = window.summary.time(latency), window.spreads.get(latency)
        if fraction is None and time is not None:
            mean_s = time.mean_s
            found[metric] = Estimate(
                value=mean_s, low=mean_s, high=mean_s, confidence_fraction=0.95, n_samples=time.n,
                method="the server's own sum / count",
            )  # fmt: skip
        elif fraction is not None and seen is not None:
            found[metric] = _within_bucket(seen, fraction)
    return found


def _within_bucket(seen: Growth, fraction: float) -> Estimate:
    """A percentile in its bucket, interpolated linearly; the interval is the bucket."""
    bucket = bucket_percentile(seen, fraction)
    if bucket is None:
        raise ValueError("a histogram without observations")
    place = int(seen.edges.searchsorted(bucket.high_s))
    below = float(seen.counts[:place].sum())
    share = (fraction * float(seen.counts.sum()) - below) / max(float(seen.counts[place]), 1.0)
    width_s = 0.0 if math.isinf(bucket.high_s) else bucket.high_s - bucket.low_s
    return Estimate(
        value=bucket.low_s + min(max(share, 0.0), 1.0) * width_s,
        low=bucket.low_s,
        high=bucket.high_s,
        confidence_fraction=0.95,
        n_samples=seen.n,
        method=KNOWN_TO_A_BUCKET,
    )


def objective_met(objective: str, window: ServerWindow) -> Verdict:
    """Verdict on the SLO by the server's histograms; *undecided* if a bucket holds the limit."""
    verdicts: list[Verdict] = []
    for one in parse_objective(objective).thresholds:
        if one.percentile_fraction is None:
            continue
        seen = None if one.metric == "workflow" else window.spreads.get(one.metric)
        bucket = None if seen is None else bucket_percentile(seen, one.percentile_fraction)
        if bucket is None:
            verdicts.append("undecided")
        else:
            is_met, is_missed = bucket.high_s <= one.limit_s, bucket.low_s > one.limit_s
            verdicts.append("met" if is_met else "missed" if is_missed else "undecided")
    return "missed" if "missed" in verdicts else "undecided" if "undecided" in verdicts else "met"
