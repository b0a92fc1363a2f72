"""Which steps of the playbook are taken, and what do they gain together?

Of each step all changes are simulated, the best few again in more pairs, and these in all 19: with
fewer the best change was missed where gains differ between draws. A change is taken only where it
gains in every pair, and at least the smallest effect of
interest. The best of many looks better than it is (the winner's curse): what is reported at the
end are fresh pairs of the winner against the server as it was.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from inferometer.decide.tuning.playbook import (
    Change,
    Now,
    Step,
    StepName,
    Value,
    Variant,
    changed,
)
from inferometer.decide.tuning.trials import (
    N_PAIRS,
    Outcome,
    Trials,
    gain_of,
    is_nothing,
    mean_log_ratio,
    pairs_of,
)
from inferometer.errors import InferometerError
from inferometer.stats.estimate import Estimate

Decision: TypeAlias = Literal[
    "keep", "drop", "not worth measuring", "measure", "check quality", "not predicted"
]

ROUNDS: Final = ((1, 24), (3, 8), (N_PAIRS, 1))
"""Pairs in which changes are simulated, and how many changes go on (successive halving: Karnin,
Koren and Somekh, ICML 2013)."""
_Both: TypeAlias = tuple[tuple[Outcome, ...], tuple[Outcome, ...]]
"""After a change, and before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedChange:
    """One change of a step."""

    words: str
    gain_ratio: Estimate | None
    """Relative gain of the score; None where the change is impossible."""
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFound:
    """Result of a step."""

    name: StepName
    decision: Decision
    change: str | None
    """The best one."""
    settings: dict[str, str]
    """Settings of the best change."""
    gain_ratio: Estimate | None
    why: str
    tried: tuple[TriedChange, ...]
    mean_gain_ratio: float | None = None
    """Gain by the geometric mean of pairs, which counts gains of few draws too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The best variant, and its gain in fresh pairs."""

    variant: Variant
    """Empty: the server as it is."""
    steps: tuple[StepFound, ...]
    selected_gain_ratio: Estimate | None
    """Gain in the pairs of the selection."""
    gain_ratio: Estimate | None
    """Gain in fresh pairs; None where nothing was changed."""
    is_confirmed: bool
    before: tuple[Outcome, ...]
    """The server as it is, in fresh pairs."""
    after: tuple[Outcome, ...]
    n_simulations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """One search."""

    trials: Trials
    steps: Sequence[Step]
    now_of: Callable[[Variant], Now]
    least_gain_ratio: float
    seed: int
    on_step: Callable[[Step], None]

    def run(self) -> Tuned:
        """Take the steps in order, then confirm their total gain."""
        variant: Variant = ()
        found = list[StepFound]()
        for step in self.steps:
            self.on_step(step)
            one = self._sure(step, self.step(step, variant), variant)
            found.append(one)
            if one.decision == "keep":
                variant = changed(variant, self.settings_of(step, one, variant))
        return self._confirmed(variant, tuple(found))

    def settings_of(
        self, step: Step, found: StepFound, variant: Variant = ()
    ) -> Mapping[str, Value]:
        """The settings of the change that was found in this step."""
        tries = step.tries(self.now_of(variant))
        changes = () if isinstance(tries, str) else tries
        return next(change.settings[0] for change in changes if change.words == found.change)

    def step(self, step: Step, variant: Variant = ()) -> StepFound:
        """The best change of this step, by simulated pairs."""
        tries = step.tries(self.now_of(variant))
        if isinstance(tries, str):
            return _nothing(step, tries)
        left: list[Change] = list(tries)
        gains = dict[str, Estimate | None]()
        refused = dict[str, str]()
        for n_pairs, n_left in ROUNDS:
            seen = list[tuple[float, Change]]()
            for change in left:
                try:
                    found = self._outcomes(change, variant, n_pairs)
                except InferometerError as error:
                    gains[change.words], refused[change.words] = None, error.what
                    continue
                gains[change.words] = gain_of(*found)
                seen.append((mean_log_ratio(*found), change))
            left = best_of(seen, n_left, self.least_gain_ratio)
        if not left:
            why = next(iter(refused.values()), "nothing was simulated")
            return _nothing(step, why, refused)
        best = left[0]
        found = self._outcomes(best, variant, N_PAIRS)
        gains[best.words] = gain_of(*found)
        mean = math.expm1(mean_log_ratio(*found))
        decided = replace(self._decided(step, best, gains, refused), mean_gain_ratio=mean)
        if all(is_nothing(one) for outcomes in found for one in outcomes):
            return replace(decided, why="nothing meets the SLO, with it or without it")
        return decided

    def _sure(self, step: Step, best: StepFound, variant: Variant) -> StepFound:
        """Where the best change may lose: the best one that gains in every pair."""
        tries = step.tries(self.now_of(variant))
        if best.decision != "measure" or isinstance(tries, str):
            return best
        gains = {one.words: one.gain_ratio for one in best.tried}
        sure = list[tuple[float, Change]]()
        for change in tries:
            gain = gains.get(change.words)
            is_whole = gain is not None and gain.n_samples == N_PAIRS
            if is_whole and decision_of(step, gain, self.least_gain_ratio)[0] == "keep":
                found = self._outcomes(change, variant, N_PAIRS)
                sure.append((mean_log_ratio(*found), change))
        chosen = best_of(sure, 1, self.least_gain_ratio)
        if not chosen:
            return best
        found = self._outcomes(chosen[0], variant, N_PAIRS)
        one = self._decided(step, chosen[0], gains, {})
        mean = math.expm1(mean_log_ratio(*found))
        why = f"{one.why}; {best.change}, better in the mean, loses in some"
        return replace(one, tried=best.tried, mean_gain_ratio=mean, why=why)

    def _outcomes(self, change: Change, variant: Variant, n_pairs: int) -> _Both:
        pairs = pairs_of(n_pairs, self.seed)
        after = self.trials.outcomes([changed(variant, one) for one in change.settings], pairs)
        return after, self.trials.outcomes([variant], pairs)

    def _decided(
        self,
        step: Step,
        best: Change,
        gains: dict[str, Estimate | None],
        refused: dict[str, str],
    ) -> StepFound:
        gain = gains[best.words]
        decision, why = decision_of(step, gain, self.least_gain_ratio)
        return StepFound(
            name=step.name,
            decision=decision,
            change=best.words,
            settings={name: str(value) for name, value in best.settings[0].items()},
            gain_ratio=gain,
            why=why,
            tried=tuple(
                TriedChange(words=words, gain_ratio=one, why_not=refused.get(words, ""))
                for words, one in gains.items()
            ),
        )

    def _confirmed(self, variant: Variant, found: tuple[StepFound, ...]) -> Tuned:
        """Gain in fresh pairs; changes that do not gain there are dropped."""
        fresh = pairs_of(N_PAIRS, self.seed, is_fresh=True)
        before = self.trials.outcomes([()], fresh)
        after = self.trials.outcomes([variant], fresh)
        gain = gain_of(after, before) if variant else None
        pairs = pairs_of(N_PAIRS, self.seed)
        selected = (
            gain_of(self.trials.outcomes([variant], pairs), self.trials.outcomes([()], pairs))
            if variant
            else None
        )
        is_confirmed = gain is not None and gain.low is not None and gain.low > 0
        return Tuned(
            variant=variant if is_confirmed else (),
            steps=found,
            selected_gain_ratio=selected,
            gain_ratio=gain,
            is_confirmed=is_confirmed,
            before=before,
            after=after if is_confirmed else before,
            n_simulations=self.trials.n_simulations,
        )


def _nothing(step: Step, why: str, refused: dict[str, str] | None = None) -> StepFound:
    is_unpredicted = bool(step.unpredicted) and not refused and step.name == "kernels"
    return StepFound(
        name=step.name,
        decision="not predicted" if is_unpredicted else "not worth measuring",
        change=None,
        settings={},
        gain_ratio=None,
        why=why,
        tried=tuple(
            TriedChange(words=words, gain_ratio=None, why_not=reason)
            for words, reason in (refused or {}).items()
        ),
    )


def best_of(seen: Sequence[tuple[float, Change]], n_left: int, least_ratio: float) -> list[Change]:
    """The best change; of a single setting the smallest change with nearly the same gain."""
    if not seen:
        return []
    if n_left == 1:
        enough = max(value for value, _ in seen) - math.log1p(least_ratio / 4)
        return [next(change for value, change in seen if value >= enough)]
    chosen = {change.words for _, change in sorted(seen, key=lambda one: -one[0])[:n_left]}
    return [change for _, change in seen if change.words in chosen]


def decision_of(step: Step, gain: Estimate | None, least_ratio: float) -> tuple[Decision, str]:
    """Decision on a change by its predicted gain, and the reason."""
    if gain is None or gain.low is None or gain.high is None:
        return "measure", "no interval"
    least = f"{least_ratio:.1%}"
    is_none = gain.high < least_ratio
    reasons: tuple[tuple[bool, Decision, str], ...] = (
        (
            is_none and gain.low > -least_ratio,
            "not worth measuring",
            f"it changes less than {least} in every pair",
        ),
        (
            is_none,
            "drop",
            f"it gains less than {least} in every pair, and may lose {-gain.low:.0%}",
        ),
        (gain.value <= 0, "drop", "it gains nothing in most pairs"),
        (
            step.kind == "lossy",
            "check quality",
            "answers change: what it costs in quality decides",
        ),
        (
            step.kind == "assumed",
            "measure",
            "it rests on the acceptance of drafts, which only your own text tells",
        ),
        (gain.low > 0 and gain.value >= least_ratio, "keep", "it gains in every pair"),
        (gain.low < 0, "measure", "it loses in some pairs and gains in others"),
        (gain.low == 0, "measure", "it changes nothing in some pairs and gains in others"),
    )
    small = f"it gains in every pair, in most of them less than {least}"
    for is_so, decision, why in reasons:
        if is_so:
            return decision, why
    return "measure", small
