"""How fast was each point of a sweep, and where does throughput collapse from one point to the next?

Every number is an Estimate over repetitions, or None. A collapse is where a token costs a multiple
of what it cost at the previous point.

A point's *previous* point is the next smaller one that was measured on the same axis: the shorter
prompt at the same batch, the smaller batch at the same prompt; generated tokens alike. On a grid a
point has one on each axis. A point without times (out of memory) is nobody's previous point.

What is compared is the time per token that the batch processed: prefill / (batch · prompt), decode
step / batch. A decode *step* grows with the batch by nature while each token gets cheaper (T1 of
the tests: 31.3 ms at batch 16, 64.2 ms at 64, yet twice the throughput), so comparing steps along
the batch axis would flag healthy points. Along the prompt axis the batch is the same and both
definitions agree.

The factor's interval holds whether or not the machine changed its speed between the two points
(``repetitions.steady_views``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.inputs.types import SweepPoint
from inferometer.records.columns import F64
from inferometer.records.repetitions import (
    PointRepetitions,
    judging_ceilings_per_s,
    matmul_probes_of,
    probes_of,
    repetitions_of,
    steady_views,
)
from inferometer.records.types import SEQUENCES_OF_STEP, CeilingTable, PointStatus, ProbeKind, Run
from inferometer.stats.comparison import ratio_estimate
from inferometer.stats.estimate import Estimate, envelope
from inferometer.stats.quantiles import median_estimate, relative_spread_ratio
from inferometer.units import format_bytes, format_duration, format_fraction

Status: TypeAlias = Literal["ok", "out_of_memory", "failed"]

_STATUS: dict[PointStatus, Status] = {
    PointStatus.OK: "ok",
    PointStatus.OUT_OF_MEMORY: "out_of_memory",
    PointStatus.FAILED: "failed",
}
DEFAULT_COLLAPSE_FACTOR_RATIO: Final = 2.0

Axis: TypeAlias = Literal["prompt", "batch"]
SweepPhase: TypeAlias = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PointSummary:
    """One sweep point over its repetitions: medians with 95 % intervals.

    A number that was not measured is None.

    Every surface (CSV, terminal, page, JSON) reads its numbers here. Speeds are computed from the
    times that stand beside them, so a reader can compute one from the other:
    ``decode_tokens_per_s`` is batch / ``tpot_s``.
    """

    point_index: int
    point: SweepPoint
    status: Status
    n_reps: int
    n_decode_steps: int | None
    """Decode steps of a repetition: one less than the generated tokens where the prefill yields
    the first of them."""
    prefill_s: Estimate | None
    tpot_s: Estimate | None
    """Time per output token: decode time / decode steps, stalls included. The same for every
    sequence of a static batch."""
    decode_step_s: Estimate | None
    """Median decode step: of the steps of a repetition where steps were recorded (a single stall
    does not move it), else TPOT."""
    ttft_s: Estimate | None
    """In a static batch, all first tokens come at the end of the prefill."""
    prefill_tokens_per_s: Estimate | None
    """Prompt tokens of the batch / ``prefill_s``."""
    decode_tokens_per_s: Estimate | None
    """Output tokens of the decode steps / decode time: batch / ``tpot_s``."""
    output_tokens_per_s: Estimate | None
    """Batch · generated / (prefill + decode): output tokens over the whole time."""
    total_tokens_per_s: Estimate | None
    """(batch · prompt + batch · generated) / (prefill + decode): input and output tokens."""
    reserved_bytes: Estimate | None
    allocated_bytes: Estimate | None
    read_bytes_per_s: Estimate | None
    """The memory's measured ceiling at that time; see ``records.ceilings``."""
    matmul_flop_per_s: Estimate | None
    """The measured matmul ceiling at that time, in the engine's number format."""
    cpu_fraction: Estimate | None
    device_fraction: Estimate | None
    energy_joule: Estimate | None
    """Energy of one repetition: the whole batch, prefill and decode."""
    power_watt: Estimate | None
    """Mean over a repetition."""
    minor_faults: Estimate | None
    """First touches of memory pages by the engine's processes in one repetition."""
    major_faults: Estimate | None
    """For which a disk was read."""
    unused_reserved_fraction: Estimate | None
    """Share of the peak reserved memory beyond the tensors' peak: cache and fragments."""
    energy_joule_per_token: Estimate | None
    """Per output token; its inverse is output tokens per second and watt."""
    prefill_spread_ratio: float | None
    """Robust relative spread between the repetitions (1.4826 · MAD / median)."""
    decode_spread_ratio: float | None


def summarise_points(run: Run) -> tuple[PointSummary, ...]:
    """Medians of each point.

    Ordered by prompt, batch and generated tokens; empty for a run without a sweep.

    A point that ran out of memory or failed is there, with what its good repetitions measured (mostly
    nothing).
    """
    read_probes = probes_of(run.ceilings, ProbeKind.READ)
    matmul_probes = matmul_probes_of(run)
    return tuple(_summarise(point, read_probes, matmul_probes) for point in repetitions_of(run))


def _summarise(
    point: PointRepetitions, read_probes: CeilingTable | None, matmul_probes: CeilingTable | None
) -> PointSummary:
    prefill_s, tpot_s = median_estimate(point.prefill_s), median_estimate(point.tpot_s)
    n_decode_steps = point.n_decode_steps[~np.isnan(point.n_decode_steps)]
    batch = point.point.batch_size
    n_prompt_tokens = point.point.batch_size * point.point.prompt_tokens
    return PointSummary(
        point_index=point.point_index,
        point=point.point,
        status=_STATUS[point.status],
        n_reps=point.n_reps,
        n_decode_steps=int(np.median(n_decode_steps)) if len(n_decode_steps) else None,
        prefill_s=prefill_s,
        tpot_s=tpot_s,
        decode_step_s=median_estimate(point.decode_step_s),
        ttft_s=prefill_s,
        prefill_tokens_per_s=None if prefill_s is None else prefill_s.inverted(n_prompt_tokens),
        decode_tokens_per_s=None if tpot_s is None else tpot_s.inverted(batch),
        output_tokens_per_s=median_estimate(point.output_tokens_per_s),
        total_tokens_per_s=median_estimate(point.total_tokens_per_s),
        reserved_bytes=median_estimate(point.reserved_bytes),
        allocated_bytes=median_estimate(point.allocated_bytes),
        read_bytes_per_s=median_estimate(judging_ceilings_per_s(point, read_probes)),
        matmul_flop_per_s=median_estimate(judging_ceilings_per_s(point, matmul_probes)),
        cpu_fraction=median_estimate(point.cpu_fraction),
        device_fraction=median_estimate(point.device_fraction),
        energy_joule=median_estimate(point.energy_joule),
        power_watt=median_estimate(point.power_watt),
        minor_faults=median_estimate(point.minor_faults),
        major_faults=median_estimate(point.major_faults),
        unused_reserved_fraction=median_estimate(1 - point.allocated_bytes / point.reserved_bytes),
        energy_joule_per_token=median_estimate(
            point.energy_joule / (batch * point.point.gen_tokens)
        ),
        prefill_spread_ratio=relative_spread_ratio(point.prefill_s),
        decode_spread_ratio=relative_spread_ratio(point.decode_step_s),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCostChange:
    """Factor by which a token costs more at ``point`` than at ``previous``."""

    point_index: int
    point: SweepPoint
    previous: SweepPoint
    axis: Axis
    phase: SweepPhase
    ratio: Estimate
    factor_ratio: float
    """Factor from which on it is a collapse."""

    @property
    def is_collapse(self) -> bool:
        """Does the median reach the factor?

        ``ratio``'s interval tells whether the repeats support that.
        """
        return self.ratio.value >= self.factor_ratio

    @property
    def flag(self) -> str:
        """Text such as ``COLLAPSE_PREFILL(x3.4)``."""
        return f"COLLAPSE_{self.phase.upper()}(x{self.ratio.value:.1f})"


def collapses(run: Run) -> tuple[TokenCostChange, ...]:
    """Collapses of the run, by its plan's factor."""
    return tuple(change for change in token_cost_changes(run) if change.is_collapse)


def token_cost_changes(run: Run) -> tuple[TokenCostChange, ...]:
    """All pairs of neighbouring points on both axes, prefill and decode separately."""
    factor_ratio = (
        run.manifest.plan.collapse_factor_ratio
        if run.manifest.plan
        else DEFAULT_COLLAPSE_FACTOR_RATIO
    )
    views = [_changes_of(list(points), factor_ratio) for points in steady_views(run)]
    changes = [_steady(same) for same in zip(*views, strict=True)]
    return tuple(
        sorted(changes, key=lambda change: (change.point, change.phase != "prefill", change.axis))
    )


def flag_text(changes: Iterable[TokenCostChange], point_index: int) -> str:
    """The flags of a point: its worst collapse in each phase, or ''."""
    worst: dict[SweepPhase, TokenCostChange] = {}
    for change in changes:
        if change.point_index == point_index and change.is_collapse:
            known = worst.get(change.phase)
            worst[change.phase] = (
                change if known is None or change.ratio.value > known.ratio.value else known
            )
    return " ".join(worst[phase].flag for phase in sorted(worst, reverse=True))


def _steady(same: tuple[TokenCostChange, ...]) -> TokenCostChange:
    """A change as measured, its interval wide enough to hold at steady machine speeds too."""
    measured = same[0]
    if len(same) == 1:
        return measured
    method = f"{measured.ratio.method}; widest of {len(same)} views of the machine's speed"
    return replace(measured, ratio=envelope([change.ratio for change in same], method=method))


def _changes_of(points: list[PointRepetitions], factor_ratio: float) -> list[TokenCostChange]:
    changes: list[TokenCostChange] = []
    for previous, point in _neighbours(points, "prompt"):
        changes += _changes(previous, point, "prompt", factor_ratio)
    for previous, point in _neighbours(points, "batch"):
        changes += _changes(previous, point, "batch", factor_ratio)
    return changes


def _neighbours(
    points: list[PointRepetitions], axis: Axis
) -> list[tuple[PointRepetitions, PointRepetitions]]:
    def line(point: PointRepetitions) -> tuple[int, int]:
        return (
            point.point.batch_size if axis == "prompt" else point.point.prompt_tokens,
            point.point.gen_tokens,
        )

    def place(point: PointRepetitions) -> int:
        return point.point.prompt_tokens if axis == "prompt" else point.point.batch_size

    ordered = sorted(points, key=lambda point: (line(point), place(point)))
    return [pair for _, group in groupby(ordered, key=line) for pair in pairwise(group)]


def _changes(
    previous: PointRepetitions, point: PointRepetitions, axis: Axis, factor_ratio: float
) -> list[TokenCostChange]:
    found: list[TokenCostChange] = []
    phases: tuple[tuple[SweepPhase, F64, F64], ...] = (
        ("prefill", _prefill_s_per_token(previous), _prefill_s_per_token(point)),
        ("decode", _decode_s_per_token(previous), _decode_s_per_token(point)),
    )
    for phase, before_s, after_s in phases:
        ratio = ratio_estimate(after_s, before_s)
        if ratio is not None:
            found.append(
                TokenCostChange(
                    point_index=point.point_index,
                    point=point.point,
                    previous=previous.point,
                    axis=axis,
                    phase=phase,
                    ratio=ratio,
                    factor_ratio=factor_ratio,
                )
            )
    return found


def _prefill_s_per_token(point: PointRepetitions) -> F64:
    return np.asarray(point.prefill_s / (point.point.batch_size * point.point.prompt_tokens))


def _decode_s_per_token(point: PointRepetitions) -> F64:
    return np.asarray(point.tpot_s / point.point.batch_size)


# What takes a decode step's time: launches, reading the weights, or work for each sequence?
#
# From steps of the model and of a narrow one, each at three batch sizes, measured in turns
# (`measure.engines.transformers_pairs`). With L the launches, W the reading of all weights and R
# the work of one sequence, a step of n sequences and a share φ of the weights takes L + φ W + n φ R.
# One sequence's steps give L and W + R, those of 4 and 8 give R: on a CPU one row has a kernel of its
# own, and what the other kernel costs is no work of the sequences (steps of an AMD EPYC of two cores,
# SmolLM2-135M: 47 ms wider than narrow for one sequence, 96 for 4, 89 for 8).


StepCause: TypeAlias = Literal["launch overhead", "weight bandwidth", "compute"]
CAUSES: Final[tuple[StepCause, ...]] = ("launch overhead", "weight bandwidth", "compute")
_SAME_WIDTH_RATIO: Final = 0.5
_MIN_ROUNDS: Final = 8
_FEWEST_KINDS: Final = 2
"""Fewest kinds of steps: of one sequence, and of more."""
_QUANTILE: Final = 0.25
_N_DRAWS: Final = 2000
_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """One cause and its share of the step."""

    cause: StepCause
    fraction: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShares:
    """The shares of one sequence's step, and which is the largest with 95 % confidence."""

    step_s: Estimate
    parts: tuple[StepPart, ...]
    """The largest first."""
    limited_by: StepCause | None
    """None: the intervals of the differences hold 0."""
    n_rounds: int
    weight_bytes: int

    @property
    def half_ratio(self) -> float | None:
        """Speed-up with half the weight bytes; None where they are not the limit."""
        is_limit = self.limited_by == "weight bandwidth"
        return 1 / (1 - self.parts[0].fraction.value / 2) if is_limit else None


class _Rounds(NamedTuple):
    """Seconds of each round's steps, and the narrow model's share of the weights."""

    seconds: F64
    """(6, R) Full and narrow: of one sequence, of some, and of more."""
    narrow_fraction: float
    n_more: int
    """Sequences of the last beyond those of the second."""


def step_shares(ceilings: CeilingTable | None) -> StepShares | None:
    """The shares by the paired steps of a run; None where it has none, or too few.

    The time of each kind of step is the lower quartile over the rounds: other work on the machine
    only ever makes a step longer. Intervals are of whole rounds drawn again (percentile bootstrap).
    """
    rounds = _rounds(ceilings)
    if ceilings is None or rounds is None or rounds.seconds.shape[1] < _MIN_ROUNDS:
        return None
    n_rounds = rounds.seconds.shape[1]
    drawn = np.random.default_rng(0).integers(n_rounds, size=(_N_DRAWS, n_rounds))
    whole = _parts_s(np.quantile(rounds.seconds, _QUANTILE, axis=1), rounds)
    again = _parts_s(np.quantile(rounds.seconds[:, drawn], _QUANTILE, axis=2), rounds)
    shares, drawn_shares = whole / whole.sum(axis=0), again / again.sum(axis=0)
    parts = [
        StepPart(cause=cause, fraction=_estimate(float(share), drawn_share, n_rounds))
        for cause, share, drawn_share in zip(CAUSES, shares, drawn_shares, strict=True)
    ]
    is_step = ceilings.kind == ProbeKind.STEP
    return StepShares(
        step_s=_estimate(float(whole.sum()), again.sum(axis=0), n_rounds),
        parts=tuple(sorted(parts, key=lambda part: -part.fraction.value)),
        limited_by=_largest(shares, drawn_shares),
        n_rounds=n_rounds,
        weight_bytes=int(ceilings.footprint_bytes[is_step].max()),
    )


def _parts_s(seconds: F64, rounds: _Rounds) -> F64:
    """Seconds of the three causes, which sum to the full step of one sequence."""
    full_s, narrow_s, full_some_s, narrow_some_s, full_more_s, narrow_more_s = seconds
    whole = 1 - rounds.narrow_fraction
    rows_s = np.clip((full_s - narrow_s) / whole, 0.0, full_s)
    more_s = (full_more_s - full_some_s) - (narrow_more_s - narrow_some_s)
    compute_s = np.clip(more_s / rounds.n_more / whole, 0.0, rows_s)
    return np.stack([full_s - rows_s, rows_s - compute_s, compute_s])


def _estimate(value: float, drawn: F64, n_rounds: int) -> Estimate:
    low, high = np.quantile(drawn, (_TAIL, 1 - _TAIL))
    return Estimate(
        value=value,
        low=min(float(low), value),
        high=max(float(high), value),
        confidence_fraction=1 - 2 * _TAIL,
        n_samples=n_rounds,
        method="lower quartile of paired rounds, percentile bootstrap over rounds",
    )


def _largest(shares: F64, drawn_shares: F64) -> StepCause | None:
    """The cause that is ahead of each other one in the same draws."""
    first = int(np.argmax(shares))
    others = [i for i in range(len(CAUSES)) if i != first]
    leads = [np.quantile(drawn_shares[first] - drawn_shares[other], _TAIL) for other in others]
    return CAUSES[first] if min(leads) > 0 else None


def _rounds(ceilings: CeilingTable | None) -> _Rounds | None:
    if ceilings is None:
        return None
    is_step = np.isin(ceilings.kind, list(SEQUENCES_OF_STEP))
    if not is_step.any():
        return None
    kinds = [kind for kind in SEQUENCES_OF_STEP if (ceilings.kind == kind).any()]
    if len(kinds) < _FEWEST_KINDS:
        return None
    some, more = kinds[-2:]  # records of before have none of 8 sequences
    widest = int(ceilings.footprint_bytes[is_step].max())
    is_full = ceilings.footprint_bytes > _SAME_WIDTH_RATIO * widest
    seconds = [
        1 / ceilings.value_per_s[(ceilings.kind == kind) & (is_full == full)]
        for kind in (ProbeKind.STEP, some, more)
        for full in (True, False)
    ]
    n_rounds = min(len(one) for one in seconds)
    if n_rounds == 0:
        return None
    narrow_bytes = int(ceilings.footprint_bytes[is_step & ~is_full].max())
    return _Rounds(
        np.stack([one[:n_rounds] for one in seconds]),
        narrow_bytes / widest,
        SEQUENCES_OF_STEP[more] - SEQUENCES_OF_STEP[some],
    )


# What limits the step, in a sentence to repeat, and what would decide it?


PLAIN: Final[dict[StepCause, str]] = {
    "weight bandwidth": "reading weights",
    "launch overhead": "launching operations",
    "compute": "work for the sequence",
}


def limit_sentence(shares: StepShares) -> str:
    """The limit, its share and consequence; else the shares, and what would decide."""
    first, *others = shares.parts
    beside = ", ".join(f"{PLAIN[part.cause]} {_share(part.fraction)}" for part in others)
    step = f"{shares.n_rounds} paired rounds of {format_duration(shares.step_s.value)} steps"
    if shares.limited_by is None:
        return (
            "In decode of one sequence the limit is undecided:"
            f" {PLAIN[first.cause]} {_share(first.fraction)} of a step, {beside} ({step}); a quieter machine, or"
            " four times the rounds for half the intervals, would decide."
        )
    return (
        f"In decode of one sequence the limit is {first.cause}: {_meaning(shares, first.fraction)}"
        f" ({beside}; {step})."
    )


def _meaning(shares: StepShares, most: Estimate) -> str:
    """Why that is the limit, in plain words."""
    if shares.limited_by == "weight bandwidth":
        return (
            f"each token reads all {format_bytes(shares.weight_bytes)} of weights, which takes"
            f" {_share(most)} of its time; half the bytes would make it {shares.half_ratio:.1f}x as fast"
        )
    if shares.limited_by == "launch overhead":
        return (
            f"starting many small operations takes {_share(most)} of each token's time; fewer of"
            " them, or more sequences at once, make it faster, and faster memory does not"
        )
    return (
        f"the work that grows with each sequence takes {_share(most)} of a token's time; larger"
        " batches gain little"
    )


def _share(share: Estimate) -> str:
    """``64 % [58, 70]``"""
    if share.low is None or share.high is None:
        return format_fraction(share.value)
    return f"{format_fraction(share.value)} [{share.low * 100:.0f}, {share.high * 100:.0f}]"
