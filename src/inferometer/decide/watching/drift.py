"""Did a server change from what it was: slower or faster steps, fewer cache hits or accepted drafts?

Intervals are added up to blocks of some seconds. Of each block a residual remains from what was
learned of the blocks before: of step times by the model of ``diagnosis.step_pace`` (so that a
larger batch is no drift), of shares by their mean. Two-sided cumulative sums (CUSUM; Page,
Biometrika 41, 1954) of the residuals give the alarm. What is learned goes on being learned from
blocks that are in control (self-starting; Hawkins, J. R. Stat. Soc. D 36, 1987) for an hour of
blocks, then it stands: a drift of less than the allowance in that hour is not seen.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.decide.diagnosis.step_pace import paces_s, prior_of_log_paces
from inferometer.decide.watching.intervals import Interval
from inferometer.records.columns import F64

Drift: TypeAlias = Literal["slower", "faster", "cache_hits_lost", "acceptance_dropped"]

BLOCK_S: Final = 5.0
N_LEARNED: Final = 12
"""Blocks before anything is judged: a minute."""
_MOST_LEARNED: Final = 720
"""Then what was learned stands, but for loads that were not seen before."""
_MOST_ROWS: Final = 2000
_N_BACK: Final = 4
"""Blocks in control that end an alarm."""
_RELEARN_RATIO: Final = 1.1
_SIGMAS: Final = 10.0
"""Of the alarm's threshold: with an allowance of half a sigma one-sided runs of 70,000 blocks
(Siegmund's approximation, 1985), four days at 5 s; larger allowances have longer ones."""
_BOX_RATIO: Final = 1.15
_OUTSIDE_RATIO: Final = 0.25
"""Allowance where the load is outside what was seen: step times are extrapolated there."""
_NOISE_RATIO: Final = 0.05


class Block(NamedTuple):
    """Several seconds of the server: the judged quantity, and its load."""

    value: float
    load: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A drift that began or ended."""

    name: Drift
    is_on: bool
    residual_ratio: float
    """Of step times measured / expected - 1; of shares measured - expected. Mean since
    ``since_s``."""
    since_s: float


class Cusum:
    """Two sums of residuals; one of them beyond the threshold is an alarm, until they are back."""

    def __init__(self, *, allowance_ratio: float, threshold_ratio: float) -> None:
        self._allowance = allowance_ratio
        self._threshold = threshold_ratio
        self.restart()

    def restart(self) -> None:
        """Forget the sums."""
        self._sums = {1: 0.0, -1: 0.0}
        self._runs: dict[int, list[tuple[float, float]]] = {1: [], -1: []}
        self._last = deque[float](maxlen=_N_BACK)
        self.side = 0
        """+1 or -1: the alarm that is on."""

    @property
    def is_in_control(self) -> bool:
        """Is there no alarm, and none near?"""
        return self.side == 0 and max(self._sums.values()) < self._threshold / 4

    def run(self, side: int) -> tuple[float, float]:
        """Start and mean deviation of the current run on this side."""
        run = self._runs[side]
        return run[0][0], float(np.mean([residual for _, residual in run]))

    def take(self, at_s: float, residual: float, sigma: float, least_allowance: float) -> int:
        """Add a residual. Returns the side of a new alarm, 2 where an alarm ended, else 0."""
        allowance = max(self._allowance, least_allowance, sigma / 2)
        threshold = max(self._threshold, _SIGMAS * sigma)
        # No single block is an alarm: a pause of the host is not the server.
        held = float(np.clip(residual, -threshold / 2 - allowance, threshold / 2 + allowance))
        self._last.append(residual)
        for side in (1, -1):
            self._sums[side] = max(0.0, self._sums[side] + side * held - allowance)
            self._runs[side] = (
                [*self._runs[side][-_MOST_LEARNED:], (at_s, residual)] if self._sums[side] else []
            )
        if self.side:
            if len(self._last) == _N_BACK and abs(float(np.mean(self._last))) < allowance:
                self.restart()
                return 2
            return 0
        self.side = next((side for side in (1, -1) if self._sums[side] > threshold), 0)
        if self.side:
            self._last.clear()
        return self.side


class PaceModel:
    """Learned step times: seconds of a step, a row, a sequence and a held token."""

    def expected(self, block: Block) -> float:
        """Seconds of the block's steps."""
        return float(np.array(block.load) @ self._seconds)

    def learn(self, blocks: list[Block]) -> None:
        """Fit them to these blocks."""
        counted = np.array([block.load for block in blocks])
        busy_s = np.array([block.value for block in blocks])
        self._seconds: F64 = paces_s(
            counted, busy_s, _NOISE_RATIO * busy_s, *prior_of_log_paces(counted, busy_s)
        )

    def residual(self, block: Block) -> float:
        """Measured / expected - 1, as a logarithm."""
        return float(np.log(block.value / self.expected(block)))


class ShareModel:
    """A share that should be constant."""

    def learn(self, blocks: list[Block]) -> None:
        """Learn the mean share of these blocks."""
        self.mean_fraction = float(np.mean([block.value for block in blocks]))

    def residual(self, block: Block) -> float:
        """Measured - expected."""
        return block.value - self.mean_fraction


class Chart:
    """A control chart that learns the usual behaviour from blocks, and alarms on changes."""

    def __init__(
        self,
        model: PaceModel | ShareModel,
        names: dict[int, Drift],
        *,
        allowance_ratio: float,
        threshold_ratio: float,
    ) -> None:
        self.model = model
        self._names = names
        self._cusum = Cusum(allowance_ratio=allowance_ratio, threshold_ratio=threshold_ratio)
        self._learned: list[Block] = []
        self._sigma = 0.0
        self._n_fitted = 0
        self._lowest = np.empty(0)
        self._highest = np.empty(0)
        self.residual: float | None = None
        """Of the last block; None: still learning."""

    @property
    def is_learned(self) -> bool:
        """Were there enough blocks to judge others?"""
        return self._n_fitted > 0

    def restart(self) -> None:
        """Reset the sums after a restart of the server; the learned model stays."""
        self._cusum.restart()

    def take(self, at_s: float, block: Block) -> Alarm | None:
        """Add a block; the alarm that it causes or ends."""
        if not self.is_learned:
            self._learn(block)
            return None
        self.residual = self.model.residual(block)
        is_inside = self.is_inside(block)
        side_before = self._cusum.side
        event = self._cusum.take(
            at_s, self.residual, self._sigma, 0.0 if is_inside else _OUTSIDE_RATIO
        )
        n_most = _MOST_LEARNED if is_inside else _MOST_ROWS
        if self._cusum.is_in_control and len(self._learned) < n_most:
            self._learn(block)
        if event == 0:
            return None
        side = side_before if event == 2 else event
        name = self._names.get(side)
        if name is None:
            self._cusum.restart()
            return None
        if event == 2:
            return Alarm(name=name, is_on=False, residual_ratio=self.residual, since_s=at_s)
        since_s, mean_ratio = self._cusum.run(side)
        return Alarm(name=name, is_on=True, residual_ratio=mean_ratio, since_s=since_s)

    def is_inside(self, block: Block) -> bool:
        """Was the load per step of this block seen during learning?"""
        load = _per_step(block)
        return bool(
            np.all((load >= self._lowest / _BOX_RATIO) & (load <= self._highest * _BOX_RATIO))
        )

    def _learn(self, block: Block) -> None:
        self._learned.append(block)
        n = len(self._learned)
        if n < max(N_LEARNED, self._n_fitted * _RELEARN_RATIO):
            return
        self.model.learn(self._learned)
        residuals = np.array([self.model.residual(one) for one in self._learned])
        # Few blocks know their spread badly, and have helped to choose the model.
        self._sigma = float(residuals.std()) * (1 + 2 / n**0.5) * (n / max(n - 4, 1)) ** 0.5
        self._n_fitted = n
        loads = np.array([_per_step(one) for one in self._learned])
        self._lowest, self._highest = loads.min(axis=0), loads.max(axis=0)


def _per_step(block: Block) -> F64:
    load = np.array(block.load)
    return load[1:] / max(load[0], 1.0) if len(load) > 1 else load


class Drifts:
    """The charts of one server."""

    def __init__(self) -> None:
        self.pace = Chart(
            PaceModel(),
            {1: "slower", -1: "faster"},
            allowance_ratio=0.05,
            threshold_ratio=0.2,
        )
        self.hits = Chart(
            ShareModel(), {-1: "cache_hits_lost"}, allowance_ratio=0.05, threshold_ratio=0.25
        )
        self.acceptance = Chart(
            ShareModel(), {-1: "acceptance_dropped"}, allowance_ratio=0.025, threshold_ratio=0.1
        )
        self._blocks: dict[str, list[Interval]] = {"pace": [], "hits": [], "acceptance": []}

    def take(self, interval: Interval) -> tuple[Alarm, ...]:
        """Add an interval; the alarms that it causes or ends."""
        if interval.is_restarted:
            for chart in (self.pace, self.hits, self.acceptance):
                chart.restart()
            for block in self._blocks.values():
                block.clear()
            return ()
        found = (
            self._taken("pace", self.pace, pace_block, interval, interval.n_gaps > 0),
            self._taken("hits", self.hits, hits_block, interval, bool(interval.queried_tokens)),
            self._taken(
                "acceptance",
                self.acceptance,
                acceptance_block,
                interval,
                bool(interval.draft_tokens),
            ),
        )
        return tuple(alarm for alarm in found if alarm is not None)

    def _taken(
        self,
        name: str,
        chart: Chart,
        block_of: Callable[[list[Interval]], Block | None],
        interval: Interval,
        tells: bool,  # noqa: FBT001
    ) -> Alarm | None:
        if not tells:
            return None
        pending = self._blocks[name]
        pending.append(interval)
        if sum(one.took_s for one in pending) < BLOCK_S:
            return None
        block = block_of(pending)
        if block is None:
            return None
        pending.clear()
        return chart.take(interval.at_s, block)


def pace_block(intervals: list[Interval]) -> Block | None:
    """Step time and load of a block; None with too few tokens."""
    n_gaps = sum(one.n_gaps for one in intervals)
    if n_gaps < 100:
        return None
    loads = np.array([_pace_load(one) for one in intervals]).sum(axis=0)
    gap_s = sum(one.gaps_s for one in intervals) / n_gaps
    return Block(gap_s * float(loads[0]), tuple(loads.tolist()))


def _pace_load(one: Interval) -> tuple[float, ...]:
    """Steps, rows, sequences, tokens held x steps."""
    n_steps = one.output_tokens / max(one.running, 1.0) if one.n_steps is None else one.n_steps
    queried = one.queried_tokens or 0.0
    hit_fraction = (one.hit_tokens or 0.0) / queried if queried else 0.0
    computed = one.prompt_tokens * (1 - min(hit_fraction, 1.0))
    rows = computed + one.output_tokens + (one.draft_tokens or 0.0)
    return n_steps, rows, one.n_gaps, one.kv_held_tokens * n_steps


def hits_block(intervals: list[Interval]) -> Block | None:
    """Share of prompt tokens found in the prefix cache; None with too few prompts."""
    queried = sum(one.queried_tokens or 0.0 for one in intervals)
    if sum(one.n_prompts for one in intervals) < 10 or queried < 1000:
        return None
    return Block(sum(one.hit_tokens or 0.0 for one in intervals) / queried, (1.0,))


def acceptance_block(intervals: list[Interval]) -> Block | None:
    """Share of drafted tokens that were accepted; None with too few."""
    drafted = sum(one.draft_tokens or 0.0 for one in intervals)
    if drafted < 200:
        return None
    return Block(sum(one.accepted_tokens or 0.0 for one in intervals) / drafted, (1.0,))
