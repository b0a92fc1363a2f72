"""How is a number with its interval written in a cell of a table or under a chart?"""

from collections.abc import Iterable, Sequence
from typing import Final

from inferometer.report.views import HeldOutRow, PointRow
from inferometer.stats.estimate import Estimate
from inferometer.units import format_fraction, format_number

ABSENT_TEXT: Final = "–"
N_TOO_SMALL: Final = "n too small"
LEAST_FOR_P95: Final = 20
"""Of fewer points the 95th percentile is the largest error."""


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
    value = format_number(estimate.value * factor_ratio)
    if estimate.low is None or estimate.high is None:
        return f"{value} ({N_TOO_SMALL}: {estimate.n_samples})"
    return (
        f"{value} [{format_number(estimate.low * factor_ratio)},"
        f" {format_number(estimate.high * factor_ratio)}]"
    )


def statistic_text(estimates: Iterable[Estimate | None]) -> str:
    """What do the marks of a chart stand for: ``median of 7 repetitions, 95 % interval``?"""
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
    """What do the dashes, hollow marks and missing bars of a chart mean?

    Empty where it has none.
    """
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
        f"{f'{row.run_label} ' if has_runs else ''}{error_text(row.phase, row.median_fraction, row.n_points)}"
        for row in rows
    )


def error_text(name: str, median_fraction: float, n_points: int) -> str:
    """``decode 4.56 % (median of 11)``; one point has no median."""
    return (
        f"{name} {format_fraction(median_fraction)}"
        f" ({'one point' if n_points == 1 else f'median of {n_points}'})"
    )


def point_label(row: PointRow, *, has_runs: bool) -> str:
    """Which point is this, in the fewest words?"""
    label = f"{row.prompt_tokens} × {row.batch_size}"
    return f"{row.run_label} · {label}" if has_runs else label


def has_several_runs(labels: Iterable[str]) -> bool:
    """Must a run be named, or is there only one?"""
    return len(set(labels)) > 1


def _span(counts: Sequence[int]) -> str:
    if not counts:
        return "0"
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low}–{high}"
