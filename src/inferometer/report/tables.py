"""Tables of a sweep's report: points, held-out errors, parameters, definitions.

Which tables say how predictions and measurements agree, and what do their words mean?
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from inferometer.report.views import Explained, FactGroup, HeldOutRow, PointRow, SweepReportView
from inferometer.stats.estimate import Estimate
from inferometer.units import format_fraction, format_number

# How is a number with its interval written in a cell of a table or under a chart?


T = TypeVar("T")
ABSENT_TEXT: Final = "–"
N_TOO_SMALL: Final = "n too small"
LEAST_FOR_P95: Final = 20
"""With fewer points, the 95th percentile is the largest error."""


def known_cell(value: T | None, shown: Callable[[T], str]) -> str:
    """The value as ``shown`` writes it; ``–`` where it is not known."""
    return ABSENT_TEXT if value is None else shown(value)


def number_cell(value: float | None) -> str:
    """The number; ``–`` where it is not known."""
    return known_cell(value, format_number)


def estimate_cell(estimate: Estimate | None, factor_ratio: float = 1.0) -> str:
    """``97.4 [96.1, 98.8]``; without an interval the cell says that n is too small for one.

    Example
    -------
    >>> seen = Estimate(
    ...     value=2.0, low=1.9, high=2.2, confidence_fraction=0.95, n_samples=7, method="order"
    ... )
    >>> estimate_cell(seen, 1e3)
    '2000 [1900, 2200]'
    """
    if estimate is None:
        return ABSENT_TEXT
    bare = f" ({N_TOO_SMALL}: {estimate.n_samples})"
    return estimate.text(lambda one: format_number(one * factor_ratio), bare=bare)


def statistic_text(estimates: Iterable[Estimate | None]) -> str:
    """Meaning of the marks of a chart: ``median of 7 repetitions, 95 % interval``."""
    present = [estimate for estimate in estimates if estimate is not None]
    n_text = _span([estimate.n_samples for estimate in present])
    words = f"median of {n_text} repetitions" if n_text != "1" else "one repetition"
    with_interval = [estimate for estimate in present if estimate.low is not None]
    if not with_interval:
        return f"{words}, {N_TOO_SMALL} for an interval"
    confidences = sorted({estimate.confidence_fraction for estimate in with_interval})
    interval = f"{'–'.join(format_number(fraction * 100) for fraction in confidences)} % interval"
    return f"{words}, {interval}"


def notes_text(
    estimates: Iterable[Estimate | None], *, has_curve: bool = False, has_flags: bool = False
) -> str:
    """Meaning of dashes, hollow marks and missing bars in a chart; empty where it has none."""
    present = [estimate for estimate in estimates if estimate is not None]
    n_bare = sum(estimate.low is None for estimate in present)
    notes = [f"no bar: {N_TOO_SMALL}"] if 0 < n_bare < len(present) else []
    notes += ["dashed: fitted model"] if has_curve else []
    notes += ["hollow: flagged"] if has_flags else []
    return " · ".join(notes)


def held_out_text(rows: Sequence[HeldOutRow]) -> str:
    """``prefill 4.56 % (median of 11), decode 7.41 % (one point)``.

    The errors on points held out, wherever a page says them.
    """
    has_runs = has_several_runs(row.run_label for row in rows)
    return ", ".join(
        error_text(
            f"{row.run_label} {row.phase}" if has_runs else row.phase,
            row.median_fraction,
            row.n_points,
            row.coverage_fraction,
        )
        for row in rows
    )


_CLAIMED: Final = 0.9
_UNLIKELY: Final = 0.1


def error_text(name: str, median_fraction: float, n_points: int, coverage_fraction: float) -> str:
    """``decode 4.56 % (median of 11)``; one point has no median.

    Also how many points lay inside the 90 % interval that was claimed for them, where one time in
    ten or fewer as few would if it were right.
    """
    if n_points == 1:
        return f"{name} {format_fraction(median_fraction)} (one point)"
    n_inside = round(coverage_fraction * n_points)
    chance = sum(
        math.comb(n_points, k) * _CLAIMED**k * (1 - _CLAIMED) ** (n_points - k)
        for k in range(n_inside + 1)
    )
    few = f"only {n_inside}" if n_inside else "none"
    narrow = f", {few} of them in the 90 % interval" if chance <= _UNLIKELY else ""
    return f"{name} {format_fraction(median_fraction)} (median of {n_points}{narrow})"


def point_label(row: PointRow | Explained, *, has_runs: bool) -> str:
    """A short label of this point."""
    label = f"{row.prompt_tokens} × {row.batch_size}"
    return f"{row.run_label} · {label}" if has_runs else label


def has_several_runs(labels: Iterable[str]) -> bool:
    """Are there several runs, so that each must be named?"""
    return len(set(labels)) > 1


def _span(counts: Sequence[int]) -> str:
    if not counts:
        return "0"
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"


MS_PER_S: Final = 1e3
PERCENT: Final = 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Rows of text under a header."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    n_in_block: int = 0
    """Rows in a block; where not all rows have room, the same of each block are shown. 0: the first."""


DEFINITIONS: Final = (
    (
        "TTFT",
        "ttft_s",
        (
            "time to first token: of a static batch, from its submission to its first token, its"
            " prefill."
        ),
    ),
    (
        "TPOT",
        "tpot_s",
        (
            "time per output token: decode time ÷ decode steps, as each step yields one token of"
            " each sequence of the batch."
        ),
    ),
    (
        "Median step",
        "decode_step_s",
        (
            "median of a repetition's decode steps: one stall does not move it. Predicted steps are"
            " compared with it."
        ),
    ),
    (
        "Output tok/s",
        "decode_tokens_per_s",
        "output tokens of the whole batch per second of decode: batch ÷ TPOT.",
    ),
    (
        "Output tok/s, whole time",
        "output_tokens_per_s",
        "output tokens of the whole batch per second of prefill and decode together.",
    ),
    (
        "Total tok/s",
        "total_tokens_per_s",
        "input and output tokens of the whole batch per second of prefill and decode together.",
    ),
    (
        "MBU",
        "mbu_fraction",
        (
            "(weight bytes + KV bytes read per decode step ÷ median step) ÷ memory bandwidth"
            " measured around the point."
        ),
    ),
    (
        "MFU",
        "mfu_fraction",
        (
            "FLOP of a step ÷ step time ÷ FLOP/s of a matmul in this number format, measured around"
            " the point."
        ),
    ),
    (
        "Device %, W, tok/s/W",
        "energy_joule_per_token",
        "the driver's utilisation and power, means of a repetition; output tokens ÷ its energy.",
    ),
    (
        "Reserved memory",
        "reserved_bytes",
        "peak that the engine took from the device (on a CPU: peak resident set).",
    ),
    ("Allocated memory", "allocated_bytes", "peak in use by tensors."),
    (
        "Page faults",
        "minor_faults",
        (
            "of the engine's processes in a repetition: memory touched for the first time; from disk:"
            " those that waited for a disk."
        ),
    ),
    (
        "Reserved unused %",
        "unused_reserved_fraction",
        "1 − allocated ÷ reserved memory at their peaks: the allocator's cache and fragments.",
    ),
)
"""(word, the field of a point that makes it appear, definition)."""

STATISTICS: Final = (
    (
        "Median and interval",
        (
            "of repetitions; [low, high] holds the median with 95 % confidence. Where n is too"
            " small, the cell says so."
        ),
    ),
    (
        "Collapse flag",
        (
            "time per token at least the collapse factor (default 2) times the previous point's,"
            " prefill and decode apart."
        ),
    ),
    ("Absent", f"{ABSENT_TEXT} means unknown; it is never 0."),
)


def _memory_columns(view: SweepReportView) -> dict[str, list[str]]:
    unused = [row.unused_reserved_fraction for row in view.points]
    return {
        "page faults": [estimate_cell(row.minor_faults) for row in view.points],
        "from disk": [estimate_cell(row.major_faults) for row in view.points],
        "reserved unused %": [estimate_cell(one, PERCENT) for one in unused],
    }


def points_table(view: SweepReportView) -> TextTable | None:
    """All measured points, a column for each fact that any of them has."""
    if not view.points:
        return None
    has_runs = has_several_runs(row.run_label for row in view.points)
    columns: dict[str, list[str]] = (
        {"run": [row.run_label for row in view.points]} if has_runs else {}
    )
    columns |= {
        "prompt": [str(row.prompt_tokens) for row in view.points],
        "batch": [str(row.batch_size) for row in view.points],
        "TTFT ms": [estimate_cell(row.ttft_s, MS_PER_S) for row in view.points],
        "predicted TTFT ms": [estimate_cell(row.predicted_ttft_s, MS_PER_S) for row in view.points],
        "TPOT ms": [estimate_cell(row.tpot_s, MS_PER_S) for row in view.points],
        "median step ms": [estimate_cell(row.decode_step_s, MS_PER_S) for row in view.points],
        "predicted step ms": [
            estimate_cell(row.predicted_decode_step_s, MS_PER_S) for row in view.points
        ],
        "output tok/s": [estimate_cell(row.decode_tokens_per_s) for row in view.points],
        "output tok/s, whole time": [estimate_cell(row.output_tokens_per_s) for row in view.points],
        "total tok/s": [estimate_cell(row.total_tokens_per_s) for row in view.points],
        "device %": [estimate_cell(row.device_fraction, PERCENT) for row in view.points],
        "W": [estimate_cell(row.power_watt) for row in view.points],
        "tok/s/W": [
            estimate_cell(
                None
                if row.energy_joule_per_token is None
                else row.energy_joule_per_token.inverted(1)
            )
            for row in view.points
        ],
        **_memory_columns(view),
        "n": [str(row.n_reps) for row in view.points],
        "limited by (decode)": [row.decode_limited_by or ABSENT_TEXT for row in view.points],
        "flags": [
            " ".join(row.flags) or ("" if row.status == "ok" else row.status.upper())
            for row in view.points
        ],
    }
    present = {
        name: cells
        for name, cells in columns.items()
        if any(cell not in {ABSENT_TEXT, ""} for cell in cells)
    }
    rows = tuple(zip(*present.values(), strict=True))
    return TextTable(
        caption="Measured points: median of repetitions [95 % interval]",
        header=tuple(present),
        rows=rows,
    )


def held_out_table(view: SweepReportView) -> TextTable | None:
    """Errors of the model on points that it had not seen."""
    if not view.held_out:
        return None
    has_runs = has_several_runs(row.run_label for row in view.held_out)
    rows = tuple(
        (
            *((row.run_label,) if has_runs else ()),
            row.phase,
            str(row.n_points),
            format_fraction(row.median_fraction),
            format_fraction(row.p95_fraction) if row.n_points >= LEAST_FOR_P95 else ABSENT_TEXT,
            format_fraction(row.coverage_fraction),
        )
        for row in view.held_out
    )
    of_errors = (
        "median error",
        "95th percentile of error",
        "measured inside the predicted interval",
    )
    header = (*(("run",) if has_runs else ()), "phase", "points", *of_errors)
    return TextTable(caption="Held-out error of the fitted model", header=header, rows=rows)


def parameters_table(view: SweepReportView) -> TextTable | None:
    """The fitted parameters, in display form."""
    if not view.parameters:
        return None
    rows = tuple((row.name, row.value, row.interval, row.informed_by) for row in view.parameters)
    return TextTable(
        caption="Fitted parameters",
        header=("parameter", "value", "interval", "based on"),
        rows=rows,
    )


def definitions(view: SweepReportView) -> tuple[tuple[str, str], ...]:
    """The words that this report uses, with their meaning."""
    words = [
        (word, text)
        for word, field, text in DEFINITIONS
        if any(getattr(row, field) is not None for row in view.points)
    ]
    if not words:
        return ()
    if view.predictions or view.held_out:
        words.append(
            (
                "Held out",
                "the model that predicted a point was fitted without it; in sample: with it.",
            )
        )
    factor = _definition_of_n(view)
    return (*words, *STATISTICS, *factor)


def _definition_of_n(view: SweepReportView) -> tuple[tuple[str, str], ...]:
    counts = sorted({row.n_reps for row in view.points if row.status == "ok"})
    if not counts:
        return ()
    return (
        (
            "n",
            (
                "repetitions of a point after warm-up; in this report"
                f" {', '.join(format_number(count) for count in counts)}."
            ),
        ),
    )


# What is there to show of predictions that were sealed, and of what came of them?


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRow:
    """One number that was predicted."""

    at: str
    """The load, or the point."""
    series: str
    """Numbers that are drawn alike: ``TTFT``, ``decode step``."""
    metric: str
    """``TTFT p50``"""
    unit: str
    """``ms``, ``tok/s``; both estimates are in it."""
    predicted: Estimate
    measured: Estimate | None
    """None: not measured."""
    error_fraction: float | None
    """Predicted / measured - 1."""
    verdict: str
    """held, wrong, undecided, or open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    """The prediction for an SLO at a load."""

    at: str
    objective: str
    predicted: str
    measured: str
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyView:
    """An experiment: seals, measurements, and whether they agree."""

    title: str
    subtitle: str
    answer: str
    verdict: str
    why: str
    trust: str
    """Basis of the predictions."""
    seal: str
    """Time, author and hash of the seal."""
    measured: str
    """What was measured, when, and how it is known to be the same."""
    next: str
    """'' where there is nothing left to do."""
    claims: tuple[ClaimRow, ...]
    promises: tuple[PromiseRow, ...]
    facts: tuple[FactGroup, ...]
    tool_version: str


VERIFY_DEFINITIONS: Final = (
    (
        "Predicted",
        (
            "sealed before the measurement, with a 90 % interval: over what is not known of step"
            " times."
        ),
    ),
    (
        "Measured",
        (
            "with a 95 % interval that takes into account how far the requests of a run depend on"
            " one another."
        ),
    ),
    ("Error", "predicted ÷ measured − 1."),
    (
        "Held",
        (
            "the measured value lies inside the predicted interval, and enough was measured for an"
            " interval of its own."
        ),
    ),
    (
        "Wrong",
        (
            "the measured interval does not touch the predicted one; of a promise: the other"
            " verdict was measured."
        ),
    ),
    (
        "Undecided",
        (
            "the intervals touch but the value lies outside, or too little was measured for an"
            " interval."
        ),
    ),
    ("Open", "never measured, or only by runs that are INVALID and prove nothing."),
)


def claims_table(view: VerifyView) -> TextTable:
    """Every predicted number and SLO, with the measured value."""
    return TextTable(
        caption="Predicted and measured",
        header=("at", "metric", "predicted", "measured", "error", "verdict"),
        rows=(
            *(_row(claim) for claim in view.claims),
            *(
                (one.at, f"SLO {one.objective}", one.predicted, one.measured, "–", one.verdict)
                for one in view.promises
            ),
        ),
    )


def promises_table(view: VerifyView) -> TextTable | None:
    """The prediction for the SLO at each load; None where there was none."""
    if not view.promises:
        return None
    return TextTable(
        caption="The SLO",
        header=("at", "limit", "predicted", "measured", "verdict"),
        rows=tuple(
            (row.at, row.objective, row.predicted, row.measured, row.verdict)
            for row in view.promises
        ),
    )


def error_cell(error_fraction: float | None) -> str:
    """``+3.1%``"""
    return known_cell(error_fraction, "{:+.1%}".format)


def _row(claim: ClaimRow) -> tuple[str, ...]:
    return (
        claim.at,
        f"{claim.metric}, {claim.unit}",
        estimate_cell(claim.predicted),
        estimate_cell(claim.measured),
        error_cell(claim.error_fraction),
        claim.verdict,
    )
