"""Drift of a shared machine's speed during a run, and its removal from step times.

Ceilings are probed between the repetitions. Within one point, repetitions differ by the
machine's state and by chance only. So regressing the deviations of their times on the deviations
of the probes (fixed effects per point) shows how much of a drift reaches a step, without a
step-time model. A repetition is *restless* where the probes around it deviate from the
undisturbed speed of the run, or from each other, by more than a tenth: even corrected it is
known less well, and that is estimated, too. Letters of shapes: R repetitions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.records.columns import F64, I64
from inferometer.records.repetitions import probes_of
from inferometer.records.types import CeilingTable, ProbeKind, Run

_Phase: TypeAlias = Literal["prefill", "decode"]
_PHASES: Final[tuple[_Phase, ...]] = ("prefill", "decode")
_MIN_SAMPLES: Final = 12
_KINDS: Final = (ProbeKind.READ, ProbeKind.MATMUL)

RESTLESS_RATIO: Final = 0.1
"""Unrest above which a repetition is restless."""

_UNDISTURBED_QUANTILE: Final = 0.75
"""Neighbours only slow a machine down: this quantile of the probes is its own speed, even if half
of the run was disturbed."""

_PROBE_NOISE_RATIO: Final = 0.05
"""Deviations of a probe up to this are its own noise: a probe takes milliseconds."""


_QUARTERS: Final = 4
BETWEEN_TIMES_RATIO: Final = 0.08
"""Least standard deviation of a CPU's log speed between one time and another. What the 28 sealed
predictions of sweeps and servers on machines of 2 cores in ledger/ledger.jsonl of 2026-11-21 were
off by beyond what their fits claimed: 0.08 of steps, up to 0.13 of a server's."""


class MachineState(NamedTuple):
    """The machine's speed around each of R repetitions."""

    log_speed: F64
    """(R, 2): logarithms of read and matmul speed over the undisturbed speed, less the probes'
    noise; NaN where there is no probe."""
    unrest: F64
    """(R,): how far from the undisturbed speed and from each other the probes before and after
    lie (log); NaN where there is none."""

    def rows(self, index: I64) -> "MachineState":
        """Some of the repetitions."""
        return MachineState(self.log_speed[index], self.unrest[index])


class Repetitions(NamedTuple):
    """R repetitions of one phase of one point, and the machine's state at each."""

    phase: _Phase
    log_s: F64
    state: MachineState


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftCorrection:
    """Dependence of step times on the machine's speed: read speed^-a · matmul speed^-b.

    The spreads are standard deviations of log time between repetitions of the same point, before
    and after.
    """

    prefill_read_ratio: float
    prefill_matmul_ratio: float
    decode_read_ratio: float
    decode_matmul_ratio: float
    restless_ratio: float
    """Standard deviation of log time that a restless repetition has after correction."""
    spread_before_ratio: float
    spread_after_ratio: float

    @property
    def helps(self) -> bool:
        """Whether a tenth of the spread or more goes away."""
        return self.spread_after_ratio < 0.9 * self.spread_before_ratio

    def applied(self, repetitions: Repetitions) -> F64:
        """Log seconds at the undisturbed speed of the run."""
        log_speed = np.nan_to_num(repetitions.state.log_speed)
        return np.asarray(
            repetitions.log_s + log_speed @ self.exponents(repetitions.phase), dtype=np.float64
        )

    def exponents(self, phase: _Phase) -> F64:
        """(2) Exponents of read and matmul speed."""
        if phase == "prefill":
            return np.array([self.prefill_read_ratio, self.prefill_matmul_ratio])
        return np.array([self.decode_read_ratio, self.decode_matmul_ratio])


def estimate_drift(samples: Sequence[Repetitions]) -> DriftCorrection | None:
    """The correction by these repetitions; None where probes or repetitions are too few."""
    exponents: dict[_Phase, F64] = {}
    before, after, unrest = [np.empty(0)], [np.empty(0)], [np.empty(0)]
    n_points = 0
    for phase in _PHASES:
        within = _within(sample for sample in samples if sample.phase == phase)
        if within.times.size < _MIN_SAMPLES:
            return None
        exponents[phase] = _nonnegative_slopes(within.speeds, within.times)
        before.append(within.times)
        after.append(within.times + within.speeds @ exponents[phase])
        unrest.append(within.unrest)
        n_points += within.n_points
    squares = np.concatenate(after) ** 2
    n_free = squares.size - n_points
    return DriftCorrection(
        prefill_read_ratio=float(exponents["prefill"][0]),
        prefill_matmul_ratio=float(exponents["prefill"][1]),
        decode_read_ratio=float(exponents["decode"][0]),
        decode_matmul_ratio=float(exponents["decode"][1]),
        restless_ratio=_restless_spread(squares, np.concatenate(unrest)),
        spread_before_ratio=float(np.sqrt(np.sum(np.concatenate(before) ** 2) / n_free)),
        spread_after_ratio=float(np.sqrt(np.sum(squares) / n_free)),
    )


def between_times_ratio(runs: Sequence[Run], drift: DriftCorrection | None) -> float:
    """Standard deviation of a CPU's log speed between one time and another.

    By how much the probes of these runs say that it was slower for a quarter of a run, medians
    among moments, beside what such machines differ by in any case: neighbours who stay for the
    whole run show in no probe of it.
    """
    slower = [np.empty(0)]
    for run in runs:
        if run.sweep is not None and drift is not None:
            by_phase = np.stack([drift.exponents(phase) for phase in _PHASES], axis=1)
            moments = -np.nan_to_num(machine_states(run).log_speed) @ by_phase
            in_order = moments[np.argsort(run.sweep.started_ns, kind="stable")]
            quarters = (part for part in np.array_split(in_order, _QUARTERS) if len(part))
            slower += [np.median(part, axis=0) for part in quarters]
    seen = np.concatenate(slower)
    return float(np.hypot(BETWEEN_TIMES_RATIO, np.sqrt(np.mean(seen**2)) if seen.size else 0.0))


def machine_states(run: Run) -> MachineState:
    """The machine's speed around each repetition of this run.

    The mean of the last probe before and the first after it.
    """
    if run.sweep is None:
        return MachineState(np.empty((0, 2)), np.empty(0))
    sweep = run.sweep
    ends_ns = sweep.started_ns + np.maximum(sweep.prefill_ns, 0) + np.maximum(sweep.decode_ns, 0)
    # (2 kinds, 2 ends, R)
    around = np.stack(
        [_speeds_around(run.ceilings, sweep.started_ns, ends_ns, kind) for kind in _KINDS]
    )
    discord = np.abs(around[:, 0] - around[:, 1])
    unrest = np.sqrt(np.mean(around.mean(axis=1) ** 2 + discord**2, axis=0))
    speed = around.mean(axis=1).T
    return MachineState(
        log_speed=speed - np.clip(speed, -_PROBE_NOISE_RATIO, _PROBE_NOISE_RATIO), unrest=unrest
    )


class _Within(NamedTuple):
    times: F64
    speeds: F64
    unrest: F64
    n_points: int


def _speeds_around(
    ceilings: CeilingTable | None, starts_ns: I64, ends_ns: I64, kind: ProbeKind
) -> F64:
    """(2, R) Log speeds before and after, over the undisturbed speed."""
    probes = probes_of(ceilings, kind)
    if probes is None:
        return np.full((2, starts_ns.size), np.nan)
    order = np.argsort(probes.started_ns, kind="stable")
    at_ns, speed = probes.started_ns[order], np.log(probes.value_per_s[order])
    before = np.clip(np.searchsorted(at_ns, starts_ns, side="right") - 1, 0, at_ns.size - 1)
    after = np.clip(np.searchsorted(at_ns, ends_ns, side="left"), 0, at_ns.size - 1)
    reference = np.quantile(speed, _UNDISTURBED_QUANTILE)
    return np.asarray(np.stack([speed[before], speed[after]]) - reference, dtype=np.float64)


def _within(samples: Iterable[Repetitions]) -> _Within:
    """Deviations of log times and speeds from their point's mean."""
    times, speeds, unrest = [np.empty(0)], [np.empty((0, 2))], [np.empty(0)]
    for sample in samples:
        known = np.isfinite(sample.state.log_speed).all(axis=1)
        if known.sum() > 1:
            times.append(sample.log_s[known] - sample.log_s[known].mean())
            speeds.append(
                sample.state.log_speed[known] - sample.state.log_speed[known].mean(axis=0)
            )
            unrest.append(sample.state.unrest[known])
    return _Within(
        np.concatenate(times), np.concatenate(speeds), np.concatenate(unrest), len(times) - 1
    )


def _restless_spread(squares: F64, unrest: F64) -> float:
    """The spread of restless repetitions, which is at least that of the others."""
    is_restless = unrest > RESTLESS_RATIO
    quiet = float(np.sqrt(np.mean(squares[~is_restless]))) if (~is_restless).any() else 0.0
    return max(quiet, float(np.sqrt(np.mean(squares[is_restless])))) if is_restless.any() else quiet


def _nonnegative_slopes(speeds: F64, times: F64) -> F64:
    """Ridge regression of times on falling speeds, with slopes of at least 0.

    Of the active sets with slopes of at least 0, the one of least squares; slopes shrink to 0
    where probes hardly vary.
    """
    ridge = 1e-3 * np.sqrt(times.size)
    best, best_loss = np.zeros(2), float(times @ times)
    for active in ((0,), (1,), (0, 1)):
        columns = -speeds[:, active]
        slopes = np.linalg.solve(
            columns.T @ columns + ridge**2 * np.eye(len(active)), columns.T @ times
        )
        loss = float(np.sum((times - columns @ slopes) ** 2))
        if (slopes >= 0).all() and loss < best_loss:
            best, best_loss = np.zeros(2), loss
            best[list(active)] = slopes
    return best
