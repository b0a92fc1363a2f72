"""Findings in words from the data of a sweep.

A finding is *supported* only if the intervals support it; else its sentence says so.

Intervals are over repetitions. Ratios between points without a closed-form interval are resampled
with a fixed seed. A comparison of points must hold both as measured and at steady machine speeds
(``repetitions.steady_views``); else it is undecided.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.inputs.types import SweepPoint
from inferometer.records import curves, repetitions, summaries
from inferometer.records.columns import F64
from inferometer.records.curves import has_single_numbers, single_number_findings
from inferometer.records.repetitions import (
    PointRepetitions,
    noise_cautions,
    noise_of,
    repetitions_of,
)
from inferometer.records.types import PointStatus, Run
from inferometer.stats import comparison
from inferometer.stats.estimate import Estimate, envelope
from inferometer.stats.quantiles import (
    DEFAULT_CONFIDENCE_FRACTION,
    median_estimate,
    present_samples,
    resampled_medians,
)
from inferometer.units import format_bytes, format_fraction, format_number

Support: TypeAlias = Literal["supported", "undecided", "single number"]
"""Basis of a finding: intervals, medians only, or single numbers."""

_SEED: Final = 20260101
_MIN_REPEATS: Final = 5
"""Fewest repeats for an interval of resampled medians."""
_SAME_MEMORY_RATIO: Final = 1.01
"""Growth below this counts as none: amounts are shown with three digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding, or an open question, about a run."""

    code: str
    """Rule of the finding: KNEE, COLLAPSE, GROWTH, ..."""
    sentence: str
    evidence: Estimate | None
    support: Support


def findings_of(run: Run) -> tuple[Finding, ...]:
    """Findings: length or concurrency, prefill or decode, knee, summaries, memory, noise."""
    views = [list(points) for points in repetitions.steady_views(run)]
    points = views[0]
    if not points:
        return tuple(_out_of_memory(run))
    if has_single_numbers(points):
        sentences = single_number_findings(points)
        single = [
            Finding(code=one.code, sentence=one.sentence, evidence=None, support="single number")
            for one in sentences
        ]
        return (*single, *_collapse(run), *_out_of_memory(run))
    return (
        *_length_vs_concurrency(views),
        *_prefill_vs_decode(points),
        *_knees(views),
        *_collapse(run),
        *_memory_growth(points),
        *_out_of_memory(run),
        *_noise(run),
    )


def _length_vs_concurrency(views: list[list[PointRepetitions]]) -> list[Finding]:
    """Finding: does doubling the prompt or the batch add more time, from the smallest point?"""
    corners = [_corners(points) for points in views]
    measured = corners[0]
    if measured is None or not all(present_samples(point.total_s).size for point in measured):
        return []
    ratios = [_growth_ratio(corner) for corner in corners if corner is not None]
    method = (
        ratios[0].method
        if len(ratios) == 1
        else f"{ratios[0].method}; widest of {len(ratios)} views of the machine's speed"
    )
    ratio = envelope(ratios, method=method)
    base, long, wide = (point.point for point in measured)
    medians_s = [float(np.median(present_samples(point.total_s))) for point in measured]
    length_ratio = (medians_s[1] / medians_s[0]) ** (
        1 / np.log2(long.prompt_tokens / base.prompt_tokens)
    )
    width_ratio = (medians_s[2] / medians_s[0]) ** (1 / np.log2(wide.batch_size / base.batch_size))
    facts = (
        f"a doubling of the prompt ({base.prompt_tokens} to {long.prompt_tokens} tokens) takes"
        f" {length_ratio:.2f}x the time, one of the batch ({base.batch_size} to {wide.batch_size})"
        f" {width_ratio:.2f}x for twice the output"
    )
    which = _side(ratio, 1.0)
    if which is None:
        drifted = (
            "; the machine changed its speed between the points"
            if _side(ratios[0], 1.0) is not None
            else ""
        )
        sentence = f"Undecided which axis costs more time: {facts}{drifted}."
    else:
        axes = ("Concurrency", "Length")
        first, second = axes if which == "above" else axes[::-1]
        sentence = f"{first} costs more time than {second.lower()}: {facts}."
    support: Support = "undecided" if which is None else "supported"
    return [
        Finding(code="LENGTH_VS_CONCURRENCY", sentence=sentence, evidence=ratio, support=support)
    ]


def _corners(
    points: list[PointRepetitions],
) -> tuple[PointRepetitions, PointRepetitions, PointRepetitions] | None:
    """The smallest point, the longest prompt at its batch, and the widest batch at its prompt."""
    base = points[0].point
    by_prompt = [
        p
        for p in points
        if (p.point.batch_size, p.point.gen_tokens) == (base.batch_size, base.gen_tokens)
    ]
    by_batch = [
        p
        for p in points
        if (p.point.prompt_tokens, p.point.gen_tokens) == (base.prompt_tokens, base.gen_tokens)
    ]
    return (
        None
        if len(by_prompt) < 2 or len(by_batch) < 2
        else (points[0], by_prompt[-1], by_batch[-1])
    )


def _growth_ratio(corner: tuple[PointRepetitions, PointRepetitions, PointRepetitions]) -> Estimate:
    """Growth of the time per doubling of the batch / growth per doubling of the prompt."""
    base, long, wide = corner
    n_long = float(np.log2(long.point.prompt_tokens / base.point.prompt_tokens))
    n_wide = float(np.log2(wide.point.batch_size / base.point.batch_size))

    def statistic(medians_s: F64) -> F64:
        length = (medians_s[:, 1] / medians_s[:, 0]) ** (1 / n_long)
        width = (medians_s[:, 2] / medians_s[:, 0]) ** (1 / n_wide)
        return np.asarray(width / length)

    return _resampled(
        [present_samples(point.total_s) for point in corner],
        statistic,
        "growth per doubling of the batch / of the prompt",
    )


def _prefill_vs_decode(points: list[PointRepetitions]) -> list[Finding]:
    """Finding: the phase that takes most of the time, at which points."""
    shares = {
        point.point: share
        for point in points
        if (share := median_estimate(point.prefill_s / point.total_s)) is not None
    }
    if not shares:
        return []
    sides = {point: _side(share, 0.5) for point, share in shares.items()}
    least = min(shares, key=lambda point: shares[point].value)
    most = max(shares, key=lambda point: shares[point].value)
    ends = [
        f"{format_fraction(shares[point].value)} of the time at {_name(point)}"
        for point in (least, most)
    ]
    facts = f"prefill takes {' to '.join(ends)}, with {least.gen_tokens} generated tokens"
    n_prefill, n_decode = (
        sum(side == wanted for side in sides.values()) for wanted in ("above", "below")
    )
    n_open = len(sides) - n_prefill - n_decode
    support: Support = "undecided" if n_open == len(sides) else "supported"
    if n_open == len(sides):
        sentence = f"Undecided which phase takes more time: {facts}."
    elif n_decode == len(sides) or n_prefill == len(sides):
        sentence = (
            f"{'Decode' if n_decode else 'Prefill'} takes most of the time at every point: {facts}."
        )
    else:
        parts = ((n_decode, "decode"), (n_prefill, "prefill"), (n_open, "undecided"))
        counts = ", ".join(f"{phase} at {n}" for n, phase in parts if n)
        lead = "depends on the point" if n_decode and n_prefill else "is not decided everywhere"
        sentence = f"Which phase takes more time {lead}: of {len(sides)} points {counts}; {facts}."
    return [
        Finding(code="PREFILL_VS_DECODE", sentence=sentence, evidence=shares[most], support=support)
    ]


def _knees(views: list[list[PointRepetitions]]) -> list[Finding]:
    """The largest batch at which doubling pays, per prompt length with three or more batches."""
    found: list[Finding] = []
    for lines in zip(*(_batch_lines(points) for points in views), strict=True):
        bends = [
            curves.find_knee(
                [point.point.batch_size for point in line],
                [point.decode_tokens_per_s for point in line],
                seed=_SEED,
            )
            for line in lines
        ]
        bend = _steady_knee(bends)
        sentence = _knee_sentence(
            bend,
            lines[0][0].point.prompt_tokens,
            lines[0][0].point.batch_size,
            lines[0][-1].point.batch_size,
        )
        support: Support = "undecided" if bend.status == "undecided" else "supported"
        found.append(Finding(code="KNEE", sentence=sentence, evidence=bend.at, support=support))
    return found


def _batch_lines(points: list[PointRepetitions]) -> list[list[PointRepetitions]]:
    """Lines of three or more points that differ only in their batch."""
    lines: dict[tuple[int, int], list[PointRepetitions]] = {}
    for point in points:
        if present_samples(point.decode_tokens_per_s).size:
            lines.setdefault((point.point.prompt_tokens, point.point.gen_tokens), []).append(point)
    return [line for line in lines.values() if len(line) > 2]


def _steady_knee(bends: list[curves.Knee]) -> curves.Knee:
    """The measured knee, if it stays one at steady machine speed; its interval holds both."""
    measured = bends[0]
    if measured.status == "undecided" or len(bends) == 1:
        return measured
    if any(bend.status != measured.status for bend in bends):
        return curves.Knee(
            status="undecided", at=None, why="the machine changed its speed between the points"
        )
    if measured.at is None:
        return measured
    method = f"{measured.at.method}; widest of {len(bends)} views of the machine's speed"
    return curves.Knee(
        status=measured.status,
        at=envelope([bend.at for bend in bends if bend.at is not None], method=method),
        why=measured.why,
    )


def _knee_sentence(bend: curves.Knee, prompt_tokens: int, first: int, last: int) -> str:
    gain, at = f"{curves.KNEE_GAIN_RATIO:g}x the decode throughput", f"at prompt {prompt_tokens}"
    if bend.status == "beyond":
        return f"No knee up to batch {last} {at}: the last doubling still buys more than {gain}."
    if bend.status == "before":
        return (
            f"The knee {at} lies at or below batch {first}: already its doubling buys less than"
            f" {gain}."
        )
    if bend.status == "undecided" or bend.at is None or bend.at.low is None or bend.at.high is None:
        near = "" if bend.at is None else f", near batch {bend.at.value:.0f}"
        return f"Undecided where the knee {at} is{near}: {bend.why}."
    return (
        f"From batch {bend.at.value:.0f} ({bend.at.low:.0f} to {bend.at.high:.0f}) on another"
        f" doubling buys less than {gain} {at}."
    )


def _collapse(run: Run) -> list[Finding]:
    """Finding: where the time per token jumps, or that it never does by any interval."""
    changes = summaries.token_cost_changes(run)
    flagged = [change for change in changes if change.is_collapse]
    found: list[Finding] = []
    for change in flagged:
        is_sure = change.ratio.low is not None and change.ratio.low >= change.factor_ratio
        sentence = (
            f"{'' if is_sure else 'Undecided: '}{change.phase} per token costs"
            f" {change.ratio.value:.1f}x as much at {_name(change.point)} as at"
            f" {_name(change.previous)} ({change.flag})."
        )
        support: Support = "supported" if is_sure else "undecided"
        found.append(
            Finding(
                code="COLLAPSE",
                sentence=sentence[0].upper() + sentence[1:],
                evidence=change.ratio,
                support=support,
            )
        )
    if (
        changes
        and not flagged
        and all(
            change.ratio.high is not None and change.ratio.high < change.factor_ratio
            for change in changes
        )
    ):
        worst = max(changes, key=lambda change: change.ratio.value)
        most = f"at most {worst.ratio.value:.2f}x as much, below {worst.factor_ratio:g}x"
        sentence = f"No collapse: between neighbouring points a token costs {most}."
        found.append(
            Finding(code="COLLAPSE", sentence=sentence, evidence=worst.ratio, support="supported")
        )
    return found


def _memory_growth(points: list[PointRepetitions]) -> list[Finding]:
    """Finding: growth of the peak reserved memory over the sweep."""
    known = [point for point in points if present_samples(point.reserved_bytes).size]
    if len(known) < 2:
        return []
    least, most = (
        pick(known, key=lambda point: float(np.nanmedian(point.reserved_bytes)))
        for pick in (min, max)
    )
    ratio = comparison.ratio_estimate(most.reserved_bytes, least.reserved_bytes)
    if ratio is None or most is least:
        return []
    low, high = (format_bytes(float(np.nanmedian(point.reserved_bytes))) for point in (least, most))
    amounts = f"{low} at {_name(least.point)} to {high} at {_name(most.point)}"
    if low == high:
        # Amounts that are displayed alike have not visibly grown.
        return [_memory_alike(ratio, low)]
    if _side(ratio, 1.0) == "above":
        sentence = (
            f"Peak reserved memory grows {format_number(ratio.value)}x over the sweep, from"
            f" {amounts}."
        )
        return [
            Finding(code="MEMORY_GROWTH", sentence=sentence, evidence=ratio, support="supported")
        ]
    return [
        Finding(
            code="MEMORY_GROWTH",
            sentence=f"Undecided whether memory grows: peaks go from {amounts}.",
            evidence=ratio,
            support="undecided",
        )
    ]


def _memory_alike(ratio: Estimate, amount: str) -> Finding:
    """Finding where all medians are equal: do the repetitions exclude growth?"""
    if ratio.high is not None and ratio.high < _SAME_MEMORY_RATIO:
        sentence = f"Peak reserved memory stays at {amount} over the sweep."
        return Finding(code="MEMORY_GROWTH", sentence=sentence, evidence=ratio, support="supported")
    why = (
        "its repetitions are too few for an interval"
        if ratio.high is None
        else f"by its repetitions it may grow up to {format_number(ratio.high)}x"
    )
    sentence = f"No growth of peak reserved memory is seen: {amount} at every point; {why}."
    return Finding(code="MEMORY_GROWTH", sentence=sentence, evidence=ratio, support="undecided")


def _out_of_memory(run: Run) -> list[Finding]:
    """Finding: the number of points that ran out of memory (a count, not an estimate)."""
    points = repetitions_of(run)
    failed = [point.point for point in points if point.status is PointStatus.OUT_OF_MEMORY]
    if not failed:
        return []
    first = min(
        failed, key=lambda point: point.batch_size * (point.prompt_tokens + point.gen_tokens)
    )
    sentence = (
        f"{len(failed)} of {len(points)} points ran out of memory, the smallest at {_name(first)}."
    )
    return [Finding(code="OUT_OF_MEMORY", sentence=sentence, evidence=None, support="supported")]


def _noise(run: Run) -> list[Finding]:
    """Scatter of the repetitions, and drift of the machine."""
    noise = noise_of(run)
    if noise.median_spread_ratio is None or noise.worst_spread_ratio is None:
        return []
    is_drifting = any(
        caution.code.startswith(("DRIFT", "UNSTEADY")) for caution in noise_cautions(run)
    )
    scatter = (
        f"repetitions of a point scatter by {noise.median_spread_ratio:.1%} (median point) to"
        f" {noise.worst_spread_ratio:.1%} (worst)"
    )
    drift_sentence = (
        "the machine's speed changed during the run (see the cautions)"
        if is_drifting
        else "no drift was shown"
    )
    sentence = f"{scatter[0].upper()}{scatter[1:]}; {drift_sentence}."
    return [Finding(code="NOISE", sentence=sentence, evidence=None, support="supported")]


def _resampled(groups: list[F64], statistic: Callable[[F64], F64], name: str) -> Estimate:
    """A statistic of medians, each resampled over its repetitions; no interval below five."""
    n = min(group.size for group in groups)
    value = float(statistic(np.array([[float(np.median(group)) for group in groups]]))[0])
    low = high = None
    method = f"{name}; {n} repetitions are too few for an interval, which needs {_MIN_REPEATS}"
    if n >= _MIN_REPEATS:
        drawn = statistic(resampled_medians(groups, seed=_SEED))
        low = min(value, float(np.quantile(drawn, 0.025)))
        high = max(value, float(np.quantile(drawn, 0.975)))
        method = f"{name}; percentile bootstrap over {n} repetitions, seed {_SEED}"
    return Estimate(
        value=value,
        low=low,
        high=high,
        confidence_fraction=DEFAULT_CONFIDENCE_FRACTION,
        n_samples=n,
        method=method,
    )


def _side(estimate: Estimate, limit: float) -> Literal["above", "below"] | None:
    """On which side of a limit does the whole interval lie?"""
    if estimate.low is None or estimate.high is None:
        return None
    if estimate.low > limit:
        return "above"
    return "below" if estimate.high < limit else None


def _name(point: SweepPoint) -> str:
    return f"prompt {point.prompt_tokens}, batch {point.batch_size}"
