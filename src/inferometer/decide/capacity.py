"""What is the highest load at which a promise is kept? Located by margins, proved by intervals.

The search asks a probe, which simulates or measures; it neither knows nor cares. A load is requests per second or users. Short probes
locate where the weakest link reaches its limit: the same requests come at every load, so margins move smoothly with it. Then loads just
below and just above are asked at length, until one is shown to keep the promise and one to break it. What long probes cannot decide lies
between the two and is called unresolved.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.errors import InferometerError, SpecError
from inferometer.stats.estimate import Verdict

LoadKind: TypeAlias = Literal["requests_per_s", "users"]

_FIRST_STEP_RATIO: Final = 1.25
_LARGEST_STEP_RATIO: Final = 8.0
_NEAREST_END_FRACTION: Final = 0.15
"""Interpolated loads keep this share of the gap away from its ends."""


class Reading(NamedTuple):
    """What a probe at one load said."""

    verdict: Verdict
    margin_ratio: float
    """What was seen of the weakest link / its limit: above 1 is beyond it. Infinite where the server cannot keep up, or refuses."""
    why: str
    n_requests: int
    took_s: float
    """Simulated or measured seconds."""


Probing: TypeAlias = Callable[[float, int], Reading]
"""(load, effort) -> what it says. Each effort is a longer probe than the one below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question that was asked, in order."""

    offered_load: float
    effort: int
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityQuestion:
    """Between which loads is the capacity looked for, how closely, and with how much work?"""

    kind: LoadKind
    start_load: float
    """Where to begin: the better the guess, the fewer the probes."""
    lowest_load: float
    highest_load: float
    resolution_ratio: float = 0.05
    """The answer is known when a load that breaks the promise is at most so much above one that keeps it."""
    proof_effort: int | None = 2
    """Of the long probes; None: locate only, prove nothing."""
    max_probes: int = 40

    def __post_init__(self) -> None:
        if not 0 < self.lowest_load <= self.start_load <= self.highest_load < math.inf:
            text = f"loads {self.lowest_load:g}, {self.start_load:g}, {self.highest_load:g}"
            raise SpecError(text, where="the capacity search", allowed="0 < lowest <= start <= highest")
        if not self.resolution_ratio > 0:
            raise SpecError(f"resolution {self.resolution_ratio:g}", where="--resolution", allowed="above 0", try_="0.05")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The highest load that keeps the promise lies between ``kept_load`` and ``broken_load``."""

    kind: LoadKind
    located_load: float | None
    """Where the weakest link reaches its limit, by short probes; None where it does so nowhere that was asked."""
    kept_load: float | None
    """The highest load that was shown to keep the promise; None: none was."""
    broken_load: float | None
    """The lowest load that was shown to break it; None: none was."""
    is_resolved: bool
    """The two are as near as was asked. If not, ``why`` says why not."""
    why: str
    probes: tuple[Probe, ...]

    @property
    def probe_s(self) -> float:
        """Simulated or measured seconds of all probes together."""
        return sum(probe.reading.took_s for probe in self.probes)

    @property
    def weakest(self) -> str | None:
        """What breaks first: the sentence of the lowest load that broke the promise."""
        beyond = [probe for probe in self.probes if probe.reading.margin_ratio > 1]
        return min(beyond, key=lambda probe: (probe.offered_load, -probe.effort)).reading.why if beyond else None


def find_capacity(probing: Probing, question: CapacityQuestion, known: Sequence[Probe] = ()) -> Capacity:
    """Search; ``known`` was asked before.

    A probe that fails ends the search with what is known by then; one that fails before any is known raises.

    Example
    -------
    >>> def told(load: float, effort: int) -> Reading:
    ...     return Reading("met" if load < 7 else "missed", load / 7, "", 1, 1.0)
    >>> found = find_capacity(told, CapacityQuestion(kind="requests_per_s", start_load=5.0, lowest_load=0.1, highest_load=100.0))
    >>> found.kept_load < 7 <= found.broken_load, found.is_resolved
    (True, True)
    """
    search = _Search(probing, question, known)
    try:
        search.locate()
        search.prove()
    except _EnoughError as enough:
        return search.answer(cut_short=str(enough))
    except InferometerError as error:
        if not search.probes:
            raise
        return search.answer(cut_short=f"a probe failed: {error.what}")
    return search.answer(cut_short=None)


class _EnoughError(Exception):
    """No more probes are allowed."""


class _Search:
    """What is known so far."""

    def __init__(self, probing: Probing, question: CapacityQuestion, known: Sequence[Probe]) -> None:
        self._probing = probing
        self._question = question
        self.probes = list(known)
        self._below: Probe | None = None
        """The highest load whose margin is within the limit, by a short probe."""
        self._beyond: Probe | None = None
        """The lowest whose margin is not."""

    def locate(self) -> None:
        """Where does the margin cross 1?"""
        self._bracket()
        while self._below is not None and self._beyond is not None and self._is_wide(self._below.offered_load, self._beyond.offered_load):
            between = self._between(self._below, self._beyond)
            if not self._below.offered_load < between < self._beyond.offered_load:
                return
            self._look(between)

    def prove(self) -> None:
        """Show at length that the promise is kept just below, and broken just above."""
        effort = self._question.proof_effort
        if effort is None:
            return
        if self._below is not None:
            self._show("met", self._below.offered_load, effort, towards=-1)
        if self._beyond is not None:
            self._show("missed", self._beyond.offered_load, effort, towards=+1)

    def answer(self, *, cut_short: str | None) -> Capacity:
        """What is known."""
        question = self._question
        kept, broken = self._proved()
        is_near = kept is not None and broken is not None and not self._is_wide(kept, broken)
        return Capacity(
            kind=question.kind,
            located_load=None if self._below is None or self._beyond is None else self._crossing(self._below, self._beyond),
            kept_load=kept,
            broken_load=broken,
            is_resolved=is_near and cut_short is None,
            why=cut_short or self._why(kept, broken, is_near=is_near),
            probes=tuple(self.probes),
        )

    def _bracket(self) -> None:
        """Steps that grow: a good start needs few, a bad one not many."""
        question = self._question
        load, step_ratio = self._rounded(question.start_load), _FIRST_STEP_RATIO
        while self._below is None or self._beyond is None:
            is_below = self._look(load)
            following = min(max(self._moved(load, step_ratio, 1 if is_below else -1), question.lowest_load), question.highest_load)
            step_ratio = min(step_ratio**2, _LARGEST_STEP_RATIO)
            if following == load:
                return
            load = following

    def _look(self, load: float) -> bool:
        """A short probe: is the weakest link within its limit?"""
        probe = self._ask(load, 0)
        is_below = probe.reading.margin_ratio <= 1
        if is_below and (self._below is None or load > self._below.offered_load):
            self._below = probe
        if not is_below and (self._beyond is None or load < self._beyond.offered_load):
            self._beyond = probe
        return is_below

    def _between(self, below: Probe, beyond: Probe) -> float:
        """Where the margin would be 1 if its logarithm were straight, but not too near an end."""
        share: float = min(max(_share(below, beyond), _NEAREST_END_FRACTION), 1 - _NEAREST_END_FRACTION)
        between: float = self._rounded(below.offered_load * (beyond.offered_load / below.offered_load) ** share)
        if self._question.kind == "users":
            return min(max(between, below.offered_load + 1), beyond.offered_load - 1)
        return between

    def _crossing(self, below: Probe, beyond: Probe) -> float:
        crossing: float = below.offered_load * (beyond.offered_load / below.offered_load) ** _share(below, beyond)
        return crossing

    def _show(self, wanted: Verdict, load: float, effort: int, *, towards: int) -> None:
        """Ask at length at ``load``, and further and further away from it until the verdict is as wanted."""
        question = self._question
        step_ratio = 1 + question.resolution_ratio / 2
        while self._ask(load, effort).reading.verdict != wanted:
            following = self._moved(load, step_ratio, towards)
            if not question.lowest_load <= following <= question.highest_load:
                return
            load, step_ratio = following, min(step_ratio**1.5, _LARGEST_STEP_RATIO)

    def _ask(self, load: float, effort: int) -> Probe:
        if len(self.probes) >= self._question.max_probes:
            raise _EnoughError(f"{self._question.max_probes} probes were not enough")
        probe = Probe(offered_load=load, effort=effort, reading=self._probing(load, effort))
        self.probes.append(probe)
        return probe

    def _proved(self) -> tuple[float | None, float | None]:
        """The highest load that was shown to keep the promise below the lowest that was shown to break it.

        Long probes alone speak, where there are any: a search that was cut short before may have none.
        """
        effort = self._question.proof_effort or 0
        by_load: dict[float, Probe] = {}
        for probe in sorted(self.probes, key=lambda probe: probe.effort):
            by_load[probe.offered_load] = probe
        said = [probe for probe in by_load.values() if probe.effort >= effort] or list(by_load.values())
        broken = min((probe.offered_load for probe in said if probe.reading.verdict == "missed"), default=None)
        kept = [probe.offered_load for probe in said if probe.reading.verdict == "met" and (broken is None or probe.offered_load < broken)]
        return max(kept, default=None), broken

    def _why(self, kept: float | None, broken: float | None, *, is_near: bool) -> str:
        question = self._question
        if is_near:
            return f"within {question.resolution_ratio:.1%}"
        if self._below is None:
            return f"not even {question.lowest_load:g} keeps the promise"
        if self._beyond is None:
            return f"nothing up to {question.highest_load:g} breaks the promise"
        if question.proof_effort is None:
            return "located by short probes; nothing was proved"
        sides = [text for text, load in (("kept", kept), ("broken", broken)) if load is None]
        if sides:
            return f"no load was shown where the promise is {' or '.join(sides)}: probes stayed undecided at the greatest effort"
        return "probes between the two stayed undecided at the greatest effort"

    def _is_wide(self, low: float, high: float) -> bool:
        if self._question.kind == "users" and high - low <= 1:
            return False
        return high / low - 1 > self._question.resolution_ratio * (1 + 1e-9)

    def _moved(self, load: float, step_ratio: float, towards: int) -> float:
        """The load one step up or down; users move by at least one."""
        moved = self._rounded(load * step_ratio**towards)
        return load + towards if moved == load else moved

    def _rounded(self, load: float) -> float:
        return float(max(1, round(load))) if self._question.kind == "users" else load


def _share(below: Probe, beyond: Probe) -> float:
    """How far from one to the other, in logarithms, does the margin reach 1? The middle where a margin is no positive number."""
    low, high = below.reading.margin_ratio, beyond.reading.margin_ratio
    if not 0 < low <= 1 < high < math.inf:
        return 0.5
    return -math.log(low) / (math.log(high) - math.log(low))


__all__ = ["Capacity", "CapacityQuestion", "LoadKind", "Probe", "Probing", "Reading", "find_capacity"]
