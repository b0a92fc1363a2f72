"""What is the highest load at which an SLO is met? Located by margins, bounded by verdicts.

The search calls a probe, which simulates or measures; it does not know which. A load is requests
per second or users. A margin is the weakest latency over its limit, so it is 1 at the capacity.
Short probes bracket that load roughly. Longer probes then start where the shorter ones ended,
because a short run does not show how a queue grows: each effort brackets the load anew, until the
load below is shown to meet the SLO and the load above to miss it, or the probes may get no longer.
Loads further out are then asked until both ends are shown: between them lies the interval that the
noise of the traffic leaves.

Time limits: the clock is a callable that comes from outside. A search begins no new work in a phase whose share
of the time is over; a simulation already under way may take somewhat longer, but not without bound:
it looks at the clock between its pieces.
"""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.errors import InferometerError, SpecError, StoppedError
from inferometer.simulate.hooks import polled
from inferometer.stats.estimate import Verdict

TimeLeft: TypeAlias = Callable[[], float]
"""The seconds that are left; negative when the time is over."""
LoadKind: TypeAlias = Literal["requests_per_s", "users"]

_FIRST_STEP_RATIO: Final = 1.25
_LARGEST_STEP_RATIO: Final = 8.0
_NEAREST_END_FRACTION: Final = 0.15
"""Interpolated loads keep this share of the gap away from its ends."""
_ROUGH_RESOLUTION_RATIO: Final = 0.1
"""Resolution of short probes before longer ones, limited by noise."""
_CLOSE_ENOUGH_RATIO: Final = 0.05
"""Between loads that were shown, at the end of the time: nearer than step times are known."""
_FURTHEST_NOISE_RATIO: Final = 0.5
"""How far short probes may bracket another load than longer ones; further, these saw more."""
_UNKNOWN_STEP_RATIO: Final = 1.05
"""Further step where a load is beyond the limit by an unknown amount."""
_FLATTEST: Final = 0.3
"""Margins of noisy probes may hardly rise with the load."""
_EFFORT_COST_RATIO: Final = 4.0
_LONGER_RATIO: Final = 1.5
"""Probes of an effort that have fewer requests more than those of the one below are the longest."""
_PROBES_OF_EFFORT: Final = 5
"""Length ratio of the next effort's probes, and their number, to fit into the time left."""


TIME_LIMIT: Final = "the time limit"
"""Reason of a search that ran out of time."""


class OutOfTimeError(Exception):
    """A simulation was given up because its time was over."""


def no_limit() -> float:
    """Infinite: no time limit."""
    return math.inf


class Phases:
    """The time for a piece of work, in phases that each end at a fraction of it."""

    def __init__(self, time_left_s: TimeLeft) -> None:
        self.time_left_s = time_left_s
        self._all_s = time_left_s()

    @property
    def spent_s(self) -> float:
        """So far; 0 without a limit."""
        spent_s = self._all_s - self.time_left_s()
        return spent_s if math.isfinite(spent_s) else 0.0

    def is_past(self, fraction: float) -> bool:
        """Has more than this fraction of the time passed?"""
        return self._all_s - self.time_left_s() > fraction * self._all_s

    @contextmanager
    def until(self, fraction: float) -> Generator[None]:
        """Stop simulations inside this context at this fraction of the time.

        Raises
        ------
        OutOfTimeError
            One was given up. The fraction may be above 1.
        """
        over_s = (1 - fraction) * self._all_s if math.isfinite(self._all_s) else 0.0

        def poll() -> None:
            if self.time_left_s() < over_s:
                raise OutOfTimeError

        with polled(poll):
            yield


class Reading(NamedTuple):
    """The result of a probe at one load."""

    verdict: Verdict
    margin_ratio: float
    """The weakest latency / its limit: above 1 is beyond it. Infinite where the server cannot
    keep up, or refuses."""
    why: str
    n_requests: int
    took_s: float
    """Simulated or measured seconds."""
    margin_interval: tuple[float, float] | None = None
    """95 %, of ``margin_ratio``; None where the run is too short to carry one."""
    burst: tuple[int, str] | None = None
    """Requests that would be a load that goes on, and why these, within the limit, are none."""


Probing: TypeAlias = Callable[[float, int], Reading]
"""(load, effort) -> reading; each effort is a longer probe than the one below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A load that was simulated or measured, and its result."""

    offered_load: float
    effort: int
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """Range of loads, resolution and effort of a search for the capacity."""

    kind: LoadKind
    start_load: float
    """First load; a good guess saves probes."""
    lowest_load: float
    highest_load: float
    resolution_ratio: float = 0.05
    """The capacity is located when a load that misses the SLO is at most this far above one that
    meets it."""
    proof_effort: int | None = 2
    """The least effort whose verdicts count; None: locate by the shortest probes, show nothing."""
    most_effort: int | None = None
    """The greatest effort that is tried while verdicts are undecided; None: ``proof_effort``."""
    first_effort: int = 0
    """Of the first probes; above 0, known ones of no less effort are not made again."""
    max_probes: int = 40
    time_left_s: TimeLeft = no_limit
    steepness_ratio: float | None = None
    """Exponent of the nearest latency in the load, where another search found it."""

    def __post_init__(self) -> None:
        if not 0 < self.lowest_load <= self.start_load <= self.highest_load < math.inf:
            text = f"loads {self.lowest_load:g}, {self.start_load:g}, {self.highest_load:g}"
            raise SpecError(
                text, where="the capacity search", allowed="0 < lowest <= start <= highest"
            )
        if not self.resolution_ratio > 0:
            raise SpecError(
                f"resolution {self.resolution_ratio:g}",
                where="--resolution",
                allowed="above 0",
                try_="0.05",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest load that meets the SLO.

    Its estimate, and the loads below and above that were shown to meet and to miss it.
    """

    kind: LoadKind
    located_load: float | None
    """Load at which the first limit is reached, by the longest probes (whole users); None: none."""
    met_load: float | None
    """The highest load that was shown to meet the SLO; None: none was."""
    missed_load: float | None
    """The lowest load that was shown to miss it; None: none was."""
    is_located: bool
    """The longest probes bracket ``located_load`` as closely as requested, or the loads that were
    shown are within 5 % where the time ended the search. What noise leaves open is between the two
    loads above."""
    is_resolved: bool
    """Are these two loads as near as requested? If not, ``why`` explains it."""
    why: str
    probes: tuple[Probe, ...]
    guessed_load: float | None = None
    """For a search cut short before it located one: extrapolation from the nearest probe."""
    steepness_ratio: float | None = None
    """As in the question, or estimated from the probes."""
    crossing_load: float | None = None
    """``located_load`` before users are made whole: what other loads are compared with."""
    n_needed: int | None = None
    """Requests that would tell about the loads above, where no more could be had and theirs are
    one burst; None: the loads went on for long."""

    @property
    def probe_s(self) -> float:
        """Simulated or measured seconds of all probes together."""
        return sum(probe.reading.took_s for probe in self.probes)

    @property
    def weakest(self) -> str | None:
        """First limit that is missed: reason of the lowest load that misses, by the longest probes.

        Short ones do not show how a queue grows, and their noise may put a load beyond it that
        longer ones show to be within.
        """
        beyond = [
            probe
            for probe in self.probes
            if probe.reading.margin_ratio > 1 and probe.reading.burst is None
        ]
        return (
            min(beyond, key=lambda probe: (-probe.effort, probe.offered_load)).reading.why
            if beyond
            else None
        )


def whole_load(kind: LoadKind, load: float | None) -> float | None:
    """The load, rounded down to whole users.

    Example
    -------
    >>> whole_load("users", 91.9), whole_load("requests_per_s", 91.9)
    (91.0, 91.9)
    """
    return load if load is None or kind != "users" else float(math.floor(load * (1 + 1e-9)))


def find_capacity(
    probing: Probing, question: CapacityQuestion, known: Sequence[Probe] = ()
) -> Capacity:
    """Search for the capacity; ``known`` are probes made before.

    A failing probe ends the search with the results so far; if there are none, or somebody stopped
    it, its error is raised.

    Example
    -------
    >>> def told(load: float, effort: int) -> Reading:
    ...     return Reading("met" if load < 7 else "missed", load / 7, "", 1, 1.0)
    >>> question = CapacityQuestion(
    ...     kind="requests_per_s", start_load=5.0, lowest_load=0.1, highest_load=100.0
    ... )
    >>> found = find_capacity(told, question)
    >>> found.met_load < 7 <= found.missed_load, found.is_resolved
    (True, True)
    """
    search = _Search(probing, question, known)
    try:
        search.locate()
        search.prove()
    except _EnoughError as enough:
        return search.answer(cut_short=str(enough))
    except InferometerError as error:
        if not search.probes or isinstance(error, StoppedError):
            raise
        return search.answer(cut_short=f"a probe failed: {error.what}")
    return search.answer(cut_short=None)


class _EnoughError(Exception):
    """No more probes are allowed."""


class _Search:
    """State of a search."""

    def __init__(
        self, probing: Probing, question: CapacityQuestion, known: Sequence[Probe]
    ) -> None:
        self._probing = probing
        self._question = question
        self.probes = list(known)
        self._known = {
            one.offered_load: one for one in known if one.effort >= question.first_effort > 0
        }
        self._effort = question.first_effort
        """Of the probes between which the capacity is bracketed."""
        self._below: Probe | None = None
        """The highest load whose margin is within the limit, by a probe of this effort."""
        self._beyond: Probe | None = None
        """The lowest whose margin is not."""
        self._steepness = question.steepness_ratio
        """By what power of the load does the margin grow where it crosses 1?"""
        self._probe_s = 0.0
        """How long did the last probe take to compute or to measure?"""

    def locate(self) -> None:
        """Find the load at which the margin crosses 1.

        With longer and longer probes, as long as that is worth something.
        """
        question, near_ratio = self._question, self._question.resolution_ratio / 2
        most = question.proof_effort if question.most_effort is None else question.most_effort
        first, rough_ratio = question.first_effort, max(near_ratio, _ROUGH_RESOLUTION_RATIO)
        resolution_ratio = rough_ratio if (most or 0) > first else question.resolution_ratio
        self._cross(question.start_load, _FIRST_STEP_RATIO, resolution_ratio)
        n_requests = self._longest(first)
        for effort in range(first + 1, (most or 0) + 1):
            start = self._crossed()
            if start is None or self._is_shown() or not self._is_time_for_more():
                return
            shorter = self._below, self._beyond
            self._effort, self._below, self._beyond = effort, None, None
            try:
                self._cross(start, 1 + near_ratio, near_ratio)
            except _EnoughError:
                if self._crossed() is None:
                    self._effort, (self._below, self._beyond) = effort - 1, shorter
                raise
            if effort >= (question.proof_effort or 0):
                self.prove(furthest_ratio=1 + near_ratio / 2)
            if self._longest(effort) < _LONGER_RATIO * n_requests:
                return
            n_requests = self._longest(effort)

    def prove(self, furthest_ratio: float = math.inf) -> None:
        """Show that a load just below meets the SLO, and that one just above misses it."""
        if self._question.proof_effort is None:
            return
        if self._below is not None:
            self._show("met", self._below, furthest_ratio, towards=-1)
        if self._beyond is not None:
            self._show("missed", self._beyond, furthest_ratio, towards=+1)

    def answer(self, *, cut_short: str | None) -> Capacity:
        """The capacity as far as it is known."""
        question = self._question
        met, missed = self._proved()
        is_near = self._is_near(met, missed)
        ends = (
            None if probe is None else probe.offered_load for probe in (self._below, self._beyond)
        )
        located = self._located(met, missed)
        is_long = located is not None and (self._effort > 0 or not question.proof_effort)
        is_located = is_long and self._is_near(*ends)
        if cut_short == TIME_LIMIT and met is not None and missed is not None:
            is_located |= not self._is_wide(met, missed, _CLOSE_ENOUGH_RATIO)
        burst = None if self._beyond is None else self._beyond.reading.burst
        if burst is not None:
            located, is_located, is_near, cut_short = None, False, False, burst[1]
        return Capacity(
            kind=question.kind,
            located_load=whole_load(question.kind, located),
            crossing_load=located,
            met_load=met,
            missed_load=missed,
            is_located=is_located or is_near,
            is_resolved=is_near and cut_short is None,
            why=cut_short or self._why(met, missed, is_near=is_near),
            probes=tuple(self.probes),
            guessed_load=None if cut_short is None else self._guessed(),
            steepness_ratio=_steepness(self._below, self._beyond) or self._steepness,
            n_needed=None if burst is None else burst[0],
        )

    def _cross(self, load: float, step_ratio: float, resolution_ratio: float) -> None:
        """Bracket the crossing with probes of this effort."""
        self._bracket(load, step_ratio)
        while self._below is not None and self._beyond is not None:
            low, high = self._below.offered_load, self._beyond.offered_load
            between = self._between(self._below, self._beyond)
            if not self._is_wide(low, high, resolution_ratio) or not low < between < high:
                self._steepness = _steepness(self._below, self._beyond) or self._steepness
                return
            self._look(between)

    def _crossed(self) -> float | None:
        return (
            None
            if self._below is None or self._beyond is None
            else self._crossing(self._below, self._beyond)
        )

    def _located(self, met: float | None, missed: float | None) -> float | None:
        """The crossing; the middle of the loads that were shown where noise put it outside.

        None where longer probes showed more than noise: it is beyond the only load shown.
        """
        crossed = self._crossed()
        if crossed is None or (
            (met is None or met <= crossed) and (missed is None or crossed <= missed)
        ):
            return crossed
        shown = [load for load in (met, missed) if load is not None]
        is_far = self._is_wide(min(crossed, *shown), max(crossed, *shown), _FURTHEST_NOISE_RATIO)
        return None if is_far and len(shown) < 2 else math.prod(shown) ** (1 / len(shown))

    def _guessed(self) -> float | None:
        nearest = self._below or self._beyond
        if nearest is None or (self._below is not None and self._beyond is not None):
            return None
        ratio = self._ratio_to(1.0, nearest.reading.margin_ratio)
        towards = 1 if nearest is self._below else -1
        return None if ratio is None else nearest.offered_load * ratio**towards

    def _is_shown(self) -> bool:
        """Is the bracket as narrow as requested, by probes that are long enough?"""
        return self._effort >= (self._question.proof_effort or 0) and self._is_near(*self._proved())

    def _is_time_for_more(self) -> bool:
        return self._question.time_left_s() > _PROBES_OF_EFFORT * _EFFORT_COST_RATIO * self._probe_s

    def _longest(self, effort: int) -> int:
        return max(
            (probe.reading.n_requests for probe in self.probes if probe.effort == effort), default=0
        )

    def _bracket(self, load: float, step_ratio: float) -> None:
        """Steps that grow: a good start needs few, a bad one not many."""
        question, load = self._question, self._rounded(load)
        while self._below is None or self._beyond is None:
            probe = self._look(load)
            towards = 1 if probe.reading.margin_ratio <= 1 else -1
            expected_ratio = self._ratio_to(1.0, probe.reading.margin_ratio) or (
                1.0 if towards > 0 else _UNKNOWN_STEP_RATIO
            )
            following = min(
                max(self._moved(load, step_ratio * expected_ratio, towards), question.lowest_load),
                question.highest_load,
            )
            step_ratio = min(step_ratio**2, _LARGEST_STEP_RATIO)
            if following == load:
                return
            load = following

    def _ratio_to(self, margin_ratio: float, seen_ratio: float) -> float | None:
        """Factor (above 1) by which to change the load for this margin; None: the slope is unknown."""
        if self._steepness is None or not 0 < seen_ratio < math.inf:
            return None
        ratio: float = math.exp(abs(math.log(margin_ratio / seen_ratio)) / self._steepness)
        return min(ratio, _LARGEST_STEP_RATIO)

    def _look(self, load: float) -> Probe:
        """Probe this load."""
        probe = self._known.get(load) or self._ask(load, self._effort)
        is_below = probe.reading.margin_ratio <= 1
        if is_below and (self._below is None or load > self._below.offered_load):
            self._below = probe
        if not is_below and (self._beyond is None or load < self._beyond.offered_load):
            self._beyond = probe
        return probe

    def _between(self, below: Probe, beyond: Probe) -> float:
        """The load of margin 1 by log-linear interpolation, at some distance from both ends."""
        share: float = min(
            max(_share(below, beyond), _NEAREST_END_FRACTION), 1 - _NEAREST_END_FRACTION
        )
        between: float = self._rounded(
            below.offered_load * (beyond.offered_load / below.offered_load) ** share
        )
        if self._question.kind == "users":
            return min(max(between, below.offered_load + 1), beyond.offered_load - 1)
        return between

    def _crossing(self, below: Probe, beyond: Probe) -> float:
        crossing: float = below.offered_load * (beyond.offered_load / below.offered_load) ** _share(
            below, beyond
        )
        return crossing

    def _show(self, wanted: Verdict, probe: Probe, furthest_ratio: float, *, towards: int) -> None:
        """Probe at growing distance until the verdict is as wanted."""
        question, load, reading = self._question, probe.offered_load, probe.reading
        furthest = load * furthest_ratio**towards * (1 + 1e-9) ** towards
        step_ratio = 1 + question.resolution_ratio / 4
        while reading.verdict != wanted:
            ends = reading.margin_interval
            expected_ratio = (
                None
                if ends is None
                else self._ratio_to(1.0, max(ends[1], 1.0) if towards < 0 else min(ends[0], 1.0))
            )
            if math.isinf(furthest_ratio):
                load = self._moved(load, step_ratio * (expected_ratio or 1.0), towards)
            else:
                load = self._moved(load, max(step_ratio, expected_ratio or 1.0), towards)
            step_ratio = min(step_ratio**1.5, _LARGEST_STEP_RATIO)
            if (
                not question.lowest_load <= load <= question.highest_load
                or (load - furthest) * towards > 0
            ):
                return
            reading = self._ask(load, self._effort).reading

    def _ask(self, load: float, effort: int) -> Probe:
        if len(self.probes) >= self._question.max_probes:
            raise _EnoughError(f"{self._question.max_probes} probes were not enough")
        left_s = self._question.time_left_s()
        if left_s <= 0:
            raise _EnoughError(TIME_LIMIT)
        try:
            reading = self._probing(load, effort)
        except OutOfTimeError:
            raise _EnoughError(TIME_LIMIT) from None
        if reading.burst is not None:  # nobody knows whether the load can go on
            _, why = reading.burst
            reading = reading._replace(verdict="undecided", margin_ratio=math.inf, why=why)
        probe = Probe(offered_load=load, effort=effort, reading=reading)
        self.probes.append(probe)
        self._probe_s = left_s - self._question.time_left_s() if left_s < math.inf else 0.0
        return probe

    def _proved(self) -> tuple[float | None, float | None]:
        """The highest load shown to meet the SLO, below the lowest shown to miss it.

        Long probes alone speak, where there are any: a search that was cut short before may have
        none.
        """
        effort = min(self._question.proof_effort or 0, self._effort)
        by_load: dict[float, Probe] = {}
        for probe in sorted(self.probes, key=lambda probe: probe.effort):
            by_load[probe.offered_load] = probe
        said = [probe for probe in by_load.values() if probe.effort >= effort] or list(
            by_load.values()
        )
        missed = min(
            (probe.offered_load for probe in said if probe.reading.verdict == "missed"),
            default=None,
        )
        met = [
            probe.offered_load
            for probe in said
            if probe.reading.verdict == "met" and (missed is None or probe.offered_load < missed)
        ]
        return max(met, default=None), missed

    def _why(self, met: float | None, missed: float | None, *, is_near: bool) -> str:
        question = self._question
        if is_near:
            return f"within {question.resolution_ratio:.1%}"
        if self._below is None:
            return f"not even {question.lowest_load:g} meets the SLO"
        if self._beyond is None:
            return f"nothing up to {question.highest_load:g} misses the SLO"
        if question.proof_effort is None:
            return "located by short probes; nothing was shown"
        sides = [text for text, load in (("meet", met), ("miss", missed)) if load is None]
        if sides:
            return (
                f"no load was shown to {' or to '.join(sides)} the SLO: the longest probes stayed"
                " undecided"
            )
        return "the longest probes between the two stayed undecided"

    def _is_near(self, low: float | None, high: float | None) -> bool:
        """Are both known, and as near to each other as requested?"""
        return (
            low is not None
            and high is not None
            and not self._is_wide(low, high, self._question.resolution_ratio)
        )

    def _is_wide(self, low: float, high: float, resolution_ratio: float) -> bool:
        if self._question.kind == "users" and high - low <= 1:
            return False
        return high / low - 1 > resolution_ratio * (1 + 1e-9)

    def _moved(self, load: float, step_ratio: float, towards: int) -> float:
        """The load one step up or down; users move by at least one."""
        moved = self._rounded(load * step_ratio**towards)
        return load + towards if moved == load else moved

    def _rounded(self, load: float) -> float:
        return float(max(1, round(load))) if self._question.kind == "users" else load


def _steepness(below: Probe | None, beyond: Probe | None) -> float | None:
    """Exponent of the margin as a power of the load between two probes; None: unknown."""
    if (
        below is None
        or beyond is None
        or not 0 < below.reading.margin_ratio < beyond.reading.margin_ratio < math.inf
    ):
        return None
    rise = math.log(beyond.reading.margin_ratio / below.reading.margin_ratio)
    return max(rise / math.log(beyond.offered_load / below.offered_load), _FLATTEST)


def _share(below: Probe, beyond: Probe) -> float:
    """Position between two loads, in logarithms (0 to 1), at which the margin reaches 1.

    The middle where a margin is no positive number.
    """
    low, high = below.reading.margin_ratio, beyond.reading.margin_ratio
    if not 0 < low <= 1 < high < math.inf:
        return 0.5
    return -math.log(low) / (math.log(high) - math.log(low))
