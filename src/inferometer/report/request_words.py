"""How are latencies and states of a run of requests called and written?"""

import math
from typing import Final

from inferometer.inputs.objectives import METRICS
from inferometer.records.latencies import Latency
from inferometer.records.request_summaries import LatencyMean, Percentile
from inferometer.records.slot_timeline import CellState, SlotTimeline
from inferometer.report.tables import ABSENT_TEXT, N_TOO_SMALL
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration, format_fraction, format_number, s_from_ns

LATENCY_NAMES: Final[dict[Latency, str]] = {
    **{metric: words.name for metric, words in METRICS.items()},
    "ttft_uncorrected": "TTFT uncorrected",
}

STATE_NAMES: Final = {
    CellState.CONTEXT: "context (prefill)",
    CellState.GENERATION: "generation (decode)",
    CellState.END: "end of sequence",
    CellState.IDLE: "idle",
}
STATE_LETTERS: Final = {
    CellState.CONTEXT: "C",
    CellState.GENERATION: "g",
    CellState.END: "E",
    CellState.IDLE: "·",
}
STATE_COLOURS: Final = {
    CellState.CONTEXT: "#e69f00",
    CellState.GENERATION: "#0072b2",
    CellState.END: "#000000",
}
"""From the palette; the letter repeats what the colour says, and their lightness differs."""


READING_TOKENS_PER_S: Final = 238 / 60 * 4 / 3
"""A reader's speed: 238 words of English a minute (mean of 190 studies, Brysbaert 2019,
doi 10.1016/j.jml.2019.104047), at 3 words for 4 tokens."""


def reading_text(tokens_per_s: float) -> str:
    """A user's rate beside that of a reader.

    Example
    -------
    >>> reading_text(50.0)
    '9.45x a reader (5.3 tok/s)'
    """
    ratio = format_number(tokens_per_s / READING_TOKENS_PER_S)
    return f"{ratio}x a reader ({READING_TOKENS_PER_S:.1f} tok/s)"


def slot_time_text(timeline: SlotTimeline, time_ns: int) -> str:
    """``31.4 ms``; of a timeline of ticks ``17 ticks``."""
    if timeline.tick_ns is None:
        return format_duration(s_from_ns(time_ns))
    n_ticks = time_ns / timeline.tick_ns
    return f"{n_ticks:,.6g} {'tick' if n_ticks == 1 else 'ticks'}"


def percentile_text(percentile: Percentile | LatencyMean | None) -> str:
    """A percentile or a mean: ``97.4 ms [96.1 ms, 98.8 ms]``.

    ``≥`` before a value that requests which were not done can only push up.

    Example
    -------
    >>> percentile_text(None)
    '–'
    """
    if percentile is None:
        return ABSENT_TEXT
    return f"{'≥ ' if percentile.is_lower_bound else ''}{duration_cell(percentile.seconds)}"


def duration_cell(estimate: Estimate | None) -> str:
    """A duration with its interval; an end that nobody saw is written as ``…``."""
    if estimate is None:
        return ABSENT_TEXT
    value = format_duration(estimate.value)
    if estimate.low is None or estimate.high is None:
        return f"{value} ({N_TOO_SMALL})"
    return f"{value} [{format_duration(estimate.low)}, {_end(estimate.high)}]"


def share_cell(estimate: Estimate) -> str:
    """``98.4 % [97.9 %, 98.8 %]``."""
    value = format_fraction(estimate.value)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{format_fraction(estimate.low)}, {format_fraction(estimate.high)}]"


def rate_text(estimate: Estimate | None, unit: str) -> str:
    """``582 tok/s [533, 632]``."""
    if estimate is None:
        return ABSENT_TEXT
    value = f"{format_number(estimate.value)} {unit}"
    if estimate.low is None or estimate.high is None:
        return f"{value} ({N_TOO_SMALL})"
    return f"{value} [{format_number(estimate.low)}, {format_number(estimate.high)}]"


def _end(high_s: float) -> str:
    return "…" if math.isinf(high_s) else format_duration(high_s)
