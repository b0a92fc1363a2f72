"""What do all tunings by measured pairs share: their folder, pairs until these decide, the results?

A pair is one measurement without a change and one with it: of servers (``tune_pairs``), or of an
engine's options (``tune_engine_pairs``).
"""

import hashlib
import math
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from inferometer.api.progress import talk
from inferometer.api.tune_answer import interval_words
from inferometer.api.tuning import MeasuredDecision, MeasuredStep
from inferometer.decide.tuning.trials import Outcome
from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import own_files
from inferometer.records import run_folder
from inferometer.stats.comparison import PairDecision, is_futile, judge_pairs
from inferometer.stats.estimate import Estimate

N_SAME: Final = 3
"""Pairs of the start against itself; of a server their three runs of a side are what is fitted."""
N_LEAST: Final = 3
N_LEAST_CONFIRMED: Final = 3
N_LEAST_FRESH_LOADS: Final = 2
"""Of an engine's options without an SLO: each pair loads both sides again, and where a gain is far
above the scatter two show it. With an SLO three, so that its latencies have intervals."""
CONFIDENCE: Final = 0.9
"""Of both sides over all looks: a change that does nothing is taken in at most 5 % of its steps, and
must gain once more in the confirmation."""
CONFIDENCE_AGAIN: Final = 0.5
"""Of the confirmation: its pairs come after others that were sure, so that a change that does
nothing passes both in 1.25 % of its steps."""
DOOR: Final = own_files("tuning", "another folder with --out")
Ending: TypeAlias = Literal["keep", "drop", "undecided", "fault"]
_ENDINGS: Final[dict[PairDecision, Ending]] = {
    "keep": "keep",
    "drop": "drop",
    "go on": "undecided",
}


@contextmanager
def tuning_folder(folder: Path, question: object) -> Generator[None]:
    """Start or resume the folder of this question, locked against other writers.

    Raises
    ------
    RecordError
        The folder is of another question, or another process writes to it.
    """
    run_folder.make_folder(folder)
    lock = run_folder.WriterLock.acquire(folder / "writer.lock")
    try:
        path = folder / "tune.json"
        encoded = msgspec.json.format(msgspec.json.encode(question), indent=2) + b"\n"
        if not path.exists():
            run_folder.replace_file(path, encoded)
        elif DOOR.bytes_of(path) != encoded:
            raise RecordError(
                "the folder was begun for another question",
                where=str(path),
                allowed="the same command, which goes on",
                try_="another folder with --out",
            )
        yield
    finally:
        lock.release()


def default_folder(question: object) -> Path:
    """The folder of this question's pairs; equal questions have equal folders."""
    return Path("runs") / f"tune-{hashlib.sha256(msgspec.json.encode(question)).hexdigest()[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsFound:
    """Results of pairs without and with a change."""

    ending: Ending
    gain: Estimate | None
    """None: no pair was whole."""
    before: tuple[Outcome, ...]
    after: tuple[Outcome, ...]
    log_ratios: tuple[float, ...]
    explained: tuple[float, ...] = ()
    """Of each logarithm the part that simulations predict of its draw; empty: nothing is."""
    fault: str = ""
    n_invalid: int = 0
    """Runs that the load client itself calls INVALID."""
    n_without_metrics: int = 0
    """Runs in which the server's metrics were not there, or a part of the time."""
    lost_fraction: float = 0.0
    """Share of lost requests in the run that lost most."""
    n_loads: int = 0
    """Loads of an engine for them."""

    @property
    def log_gain(self) -> float:
        """Logarithm of 1 + the gain; 0 where no pair was whole."""
        return 0.0 if self.gain is None else math.log1p(self.gain.value)

    @property
    def series(self) -> list[Sequence[float]]:
        """Log gains as measured, and corrected for the draws of the requests."""
        logs = self.log_ratios
        if not self.explained:
            return [logs]
        return [logs, [log - one for log, one in zip(logs, self.explained, strict=True)]]


def faulty(what: str, *, n_loads: int = 0) -> PairsFound:
    """The change cannot be measured."""
    return PairsFound(
        ending="fault", gain=None, before=(), after=(), log_ratios=(), fault=what, n_loads=n_loads
    )


class PairRule(NamedTuple):
    """When pairs decide."""

    n_least: int
    n_most: int
    least_gain_ratio: float
    confidence_fraction: float = CONFIDENCE

    def found(
        self, pairs: Sequence[tuple[Outcome, Outcome]], explained: Sequence[float] = ()
    ) -> PairsFound:
        """Results of these pairs; *undecided* where they are too few."""
        found = PairsFound(
            ending="undecided",
            gain=None,
            before=tuple(old for old, _ in pairs),
            after=tuple(new for _, new in pairs),
            log_ratios=tuple(math.log(new.score / old.score) for old, new in pairs),
            explained=tuple(explained),
        )
        judged = judge_pairs(
            found.series,
            least_gain_ratio=self.least_gain_ratio,
            confidence_fraction=self.confidence_fraction,
        )
        return replace(found, ending=_ENDINGS[judged.decision], gain=judged.gain)

    def _is_over(self, found: PairsFound) -> bool:
        if len(found.log_ratios) < self.n_least:
            return False
        return found.ending != "undecided" or all(
            is_futile(
                logs,
                n_most=self.n_most,
                least_gain_ratio=self.least_gain_ratio,
                confidence_fraction=self.confidence_fraction,
            )
            for logs in found.series
        )

    def until_decided(self, name: str, results: Iterable[PairsFound]) -> PairsFound:
        """The results after the last pair that is needed, of those after each pair."""
        found = self.found(())
        for found in results:
            if found.ending == "fault":
                break
            gain = "no gain" if found.gain is None else interval_words(found.gain)
            n_pairs = len(found.log_ratios)
            talk(f"{name}: {gain} after {n_pairs} of at most {self.n_most} pairs")
            if self._is_over(found):
                break
        return found


def decision_of(found: PairsFound, *, is_lossy: bool) -> tuple[MeasuredDecision, str]:
    """Decision on a change by its pairs, and the reason."""
    n_pairs = len(found.log_ratios)
    if found.ending == "fault":
        return "failed", found.fault
    if found.ending == "undecided":
        return "drop", f"no gain is sure after {n_pairs} pairs"
    if found.ending == "drop":
        return "drop", f"the gain, if any, is not worth a change ({n_pairs} pairs)"
    if is_lossy:
        return "check quality", f"faster in {n_pairs} pairs; answers change: quality decides"
    return "keep", f"it gains in {n_pairs} pairs"


def step_row(
    name: str,
    title: str,
    change: str | None,
    decided: tuple[MeasuredDecision, str],
    found: PairsFound | None = None,
    *,
    predicted: Estimate | None = None,
) -> MeasuredStep:
    """The row of a step; ``found`` None: not measured."""
    decision, why = decided
    return MeasuredStep(
        name=name,
        title=title,
        decision=decision,
        change=change,
        predicted_gain_fraction=predicted,
        gain_fraction=None if found is None else found.gain,
        n_pairs=0 if found is None else len(found.log_ratios),
        why=why,
    )


class Results:
    """Results of a tuning by pairs, so far."""

    def __init__(self, same: PairsFound) -> None:
        self.same = same
        """Of the start against itself."""
        self.steps = list[MeasuredStep]()
        self.selected_log_ratio = 0.0
        """Of the changes that were taken, one on the other."""
        self.confirmed: PairsFound | None = None
        """Of all changes together, in fresh pairs; None: nothing was adopted."""

    @property
    def is_confirmed(self) -> bool:
        """Do all changes together gain once more?"""
        return self.confirmed is not None and self.confirmed.ending == "keep"

    @property
    def selected_gain_fraction(self) -> float | None:
        """Product of the gains in the pairs of the selection; None: nothing was adopted."""
        return None if self.confirmed is None else math.expm1(self.selected_log_ratio)

    @property
    def before(self) -> tuple[Outcome, ...]:
        """The start, in the confirmation where there was one."""
        confirmed = self.confirmed
        return self.same.before if confirmed is None or not confirmed.after else confirmed.before

    @property
    def after(self) -> tuple[Outcome, ...]:
        """What is recommended: the start where nothing gains."""
        confirmed = self.confirmed if self.is_confirmed else None
        return self.before if confirmed is None else confirmed.after
