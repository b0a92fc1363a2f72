"""How are two start commands measured against one another: fresh servers, loads in pairs, a decision?

::

    OUT/NAME-DIGEST/ab.json, a/pair-00, b/pair-00, …   the load tests, as `inferometer compare --ab` writes them
    OUT/NAME-DIGEST/a/pair-00.log, pair-00.server.json  the server's log and what was seen of it
    OUT/NAME-DIGEST/fault.txt                           why the change cannot be measured

What pairs show is computed from the runs each time, so that a tuning that was killed goes on as if
it had not been.
"""

import hashlib
import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from inferometer.api import ab_pairs
from inferometer.api.load_request import Load, LoadRequest, request_of
from inferometer.api.progress import talk
from inferometer.api.tune_answer import interval_words
from inferometer.decide.tuning.start_command import StartCommand
from inferometer.decide.tuning.trials import DrawEffects, Goal, Outcome, outcome_of, scored
from inferometer.errors import MeasureError, RecordError
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.measure.served import ServedFacts, ServerFault, ServerStart, served, warm_up
from inferometer.records import durability, server_series, server_summaries
from inferometer.records.types import RequestStatus, Run
from inferometer.stats.comparison import PairDecision, chance_of_more, is_futile, judge_pairs
from inferometer.stats.estimate import Estimate

CONFIDENCE: Final = 0.9
"""Of both sides over all looks: a change that does nothing is taken in at most 5 % of its steps, and
must gain once more in the confirmation."""
CONFIDENCE_AGAIN: Final = 0.5
"""Of the confirmation: its pairs come after others that were sure, so that a change that does
nothing passes both in 1.25 % of its steps."""
_MOST_FAILED: Final = 0.01
"""Largest share of failed requests of one side."""
_MOST_UNREAD: Final = 0.1
"""Largest share of failed scrapes of a run: one may be late on a busy machine."""
_CHANCE_OF_LOSS: Final = 0.01
"""Requests that a server loses now and then fall on both sides alike."""
_N_TRIES: Final = 2
"""Attempts at a pair whose unchanged side failed."""
Ending: TypeAlias = Literal["keep", "drop", "undecided", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsFound:
    """Results of pairs of two commands."""

    ending: Ending
    gain: Estimate | None
    """None: no pair was whole."""
    before: tuple[Outcome, ...]
    after: tuple[Outcome, ...]
    log_ratios: tuple[float, ...]
    fault: str = ""
    n_invalid: int = 0
    """Runs that the load client itself calls INVALID."""
    n_without_metrics: int = 0
    """Runs in which the server's metrics were not there, or a part of the time."""
    lost_fraction: float = 0.0
    """Share of lost requests in the run that lost most."""

    @property
    def log_gain(self) -> float:
        """Logarithm of 1 + the gain; 0 where no pair was whole."""
        return 0.0 if self.gain is None else math.log1p(self.gain.value)


class Comparison(NamedTuple):
    """Commands to compare, the number of pairs, and their draws of the traffic."""

    name: str
    commands: tuple[StartCommand, StartCommand]
    """Without the change, and with it."""
    seed: int
    n_least: int
    n_most: int
    effects: DrawEffects | None = None
    """None: nothing is predicted of a draw."""
    confidence_fraction: float = CONFIDENCE


class _SideFault(MeasureError):
    """A server of one side failed."""

    def __init__(self, side: int, error: ServerFault) -> None:
        super().__init__(error.what, where=error.where, allowed=error.allowed, try_=error.try_)
        self.side = side


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """How servers are started, loaded and judged."""

    url: str
    load: Load
    objective: ObjectiveSpec
    goal: Goal
    folder: Path
    start_timeout_s: float
    least_gain_ratio: float
    version: str | None = None
    """Version of the first server; another version ends the tuning."""

    def place(self, comparison: Comparison) -> Path:
        """The folder of a comparison: other commands, another folder."""
        words = "\0".join(command.text for command in comparison.commands)
        digest = hashlib.sha256(words.encode()).hexdigest()[:6]
        return self.folder / f"{comparison.name}-{digest}"

    def start(self, command: StartCommand, log: Path) -> ServerStart:
        """The command at our address."""
        return ServerStart(
            words=command.words, url=self.url, log=log, timeout_s=self.start_timeout_s
        )

    def request(self, seed: int) -> LoadRequest:
        """The load test with another draw of the requests."""
        workload = replace(self.load.workload, seed=seed)
        return request_of(self.url, replace(self.load, workload=workload))


def compared(bench: Bench, comparison: Comparison) -> PairsFound:
    """Measure pairs until they decide, or read an earlier decision.

    Raises
    ------
    MeasureError
        The side without the change failed twice, a client process died, or the version changed;
        what was measured stays, and the same command resumes.
    """
    place = bench.place(comparison)
    stored = place / "fault.txt"
    if stored.exists():
        return _faulty(stored.read_text("utf-8"))
    for n_tries in range(1, _N_TRIES + 1):
        try:
            return _measured(bench, comparison, place)
        except _SideFault as fault:
            if fault.side and comparison.commands[0] != comparison.commands[1]:
                durability.replace_file(stored, fault.what.encode())
                return _faulty(fault.what)
            if n_tries == _N_TRIES:
                raise
            talk(f"the server without the change failed, once more: {fault.what}")
    raise AssertionError("every try returns or raises")


def _faulty(what: str) -> PairsFound:
    return PairsFound(ending="fault", gain=None, before=(), after=(), log_ratios=(), fault=what)


def _measured(bench: Bench, comparison: Comparison, place: Path) -> PairsFound:
    request = bench.request(comparison.seed)
    pairs = ab_pairs.Pairs(
        requests=(request, request),
        n_pairs=comparison.n_most,
        folder=place,
        objective=bench.objective,
        serving=lambda side, folder: _serving(bench, comparison.commands[side], side, folder),
        has_fresh_servers=True,
    )
    seen, explained = list[tuple[Run, Run]](), list[float]()
    for both in ab_pairs.each(pairs, takes_invalid=True):
        if comparison.effects is not None:
            workload = pairs.request(0, len(seen)).load.workload
            explained.append(comparison.effects.of(workload))
        seen.append(both)
        _check_answered(pairs, seen)
        fault = _loss(seen)
        if fault:
            return _faulty(fault)
        found = found_of(bench, comparison, seen, explained)
        gain = "no gain" if found.gain is None else interval_words(found.gain)
        talk(f"{comparison.name}: {gain} after {len(seen)} of at most {comparison.n_most} pairs")
        is_over = found.ending != "undecided" or _is_futile(bench, comparison, found, explained)
        if is_over and len(seen) >= comparison.n_least:
            break
    return found_of(bench, comparison, seen, explained)


def _check_answered(pairs: ab_pairs.Pairs, seen: Sequence[tuple[Run, Run]]) -> None:
    """A server that answers nothing is no side of a comparison; its pair is made again."""
    n_failed, n = _failed(seen[-1][0])
    if n_failed < n:
        return
    old, new = (ab_pairs.put_aside(pairs, pairs.folders(side)[len(seen) - 1]) for side in (0, 1))
    raise MeasureError(
        "the server without the change answered no request",
        where=f"{old}, {new}",
        try_="the load test of that folder, whose report says why; the same command goes on",
    )


def _loss(seen: Sequence[tuple[Run, Run]]) -> str:
    """A sentence where the change loses requests that are not lost without it; else ''."""
    (n_before, n_all_before), (n_after, n_all) = (
        map(sum, zip(*(_failed(both[side]) for both in seen), strict=True)) for side in (0, 1)
    )
    if n_after <= _MOST_FAILED * n_all:
        return ""
    if chance_of_more(n_after, n_all, n_before, n_all_before) > _CHANCE_OF_LOSS:
        return ""
    lost, before = n_after / n_all, n_before / n_all_before
    return f"{lost:.1%} of the requests failed in {len(seen)} pairs, without it {before:.1%}"


def _is_futile(
    bench: Bench, comparison: Comparison, found: PairsFound, explained: Sequence[float]
) -> bool:
    return all(
        is_futile(
            logs,
            n_most=comparison.n_most,
            least_gain_ratio=bench.least_gain_ratio,
            confidence_fraction=comparison.confidence_fraction,
        )
        for logs in _series(found.log_ratios, explained)
    )


def _series(logs: Sequence[float], explained: Sequence[float]) -> list[Sequence[float]]:
    """Log gains as measured, and corrected for the draws of the requests."""
    if not explained:
        return [logs]
    return [logs, [log - effect for log, effect in zip(logs, explained, strict=True)]]


def found_of(
    bench: Bench,
    comparison: Comparison,
    seen: Sequence[tuple[Run, Run]],
    explained: Sequence[float],
) -> PairsFound:
    """Results of these pairs; *undecided* where they are too few."""
    scores = [
        tuple(scored(_outcome_of(run, bench), bench.goal, 1) for run in both) for both in seen
    ]
    logs = tuple(math.log(new.score / old.score) for old, new in scores)
    judged = judge_pairs(
        _series(logs, explained),
        least_gain_ratio=bench.least_gain_ratio,
        confidence_fraction=comparison.confidence_fraction,
    )
    endings: dict[PairDecision, Ending] = {"keep": "keep", "drop": "drop", "go on": "undecided"}
    runs = [run for both in seen for run in both]
    return PairsFound(
        ending=endings[judged.decision],
        gain=judged.gain,
        before=tuple(old for old, _ in scores),
        after=tuple(new for _, new in scores),
        log_ratios=logs,
        n_invalid=sum(
            run.manifest.validity is not None and run.manifest.validity.verdict == "INVALID"
            for run in runs
        ),
        n_without_metrics=sum(map(_is_without_metrics, runs)),
        lost_fraction=max((n / of for n, of in map(_failed, runs)), default=0.0),
    )


def _outcome_of(run: Run, bench: Bench) -> Outcome:
    """Latencies by the client, and preemptions by the server."""
    outcome = outcome_of(run, bench.objective)
    return outcome._replace(n_preemptions=_preemptions(run))


def _preemptions(run: Run) -> int | None:
    """Preemptions by the server's metrics; None where not reported."""
    if run.server is None:
        return None
    try:
        return server_summaries.summarise_server(run.server).n_preemptions
    except RecordError:
        return None


def _is_without_metrics(run: Run) -> bool:
    """Did a tenth or more of the scrapes fail?"""
    if run.server is None:
        return True
    try:
        record = server_series.server_record(run.server)
    except RecordError:
        return True
    n_failed = record.n_failed_scrapes
    return n_failed > _MOST_UNREAD * (n_failed + len(record.scraped_ns))


def _failed(run: Run) -> tuple[int, int]:
    """Requests that failed, and all; of a run without any one that failed."""
    if run.requests is None or not len(run.requests.status):
        return 1, 1
    return int((run.requests.status == RequestStatus.FAILED).sum()), len(run.requests.status)


@contextmanager
def _serving(bench: Bench, command: StartCommand, side: int, folder: Path) -> Generator[None]:
    """A fresh, warm server for one load test."""
    durability.make_folder(folder.parent)
    try:
        with served(bench.start(command, folder.parent / f"{folder.name}.log")) as facts:
            _check_version(bench, facts)
            facts_file = folder.parent / f"{folder.name}.server.json"
            durability.replace_file(facts_file, facts.as_json(command.text))
            warm_up(bench.url, bench.load.model or "")
            yield
    except ServerFault as error:
        raise _SideFault(side, error) from error


def _check_version(bench: Bench, facts: ServedFacts) -> None:
    if facts.version != bench.version:
        raise MeasureError(
            f"the server is {facts.version} now, and was {bench.version} at the beginning",
            where=bench.url,
            allowed="one version for a tuning, as earlier measurements are kept",
            try_="the same command with another folder in --out, or the version of before",
        )
