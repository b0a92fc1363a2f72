"""How are two start commands measured against one another: fresh servers, loads in pairs, a decision?

::

    OUT/NAME-DIGEST/ab.json, a/pair-00, b/pair-00, …   the load tests, as `inferometer compare --ab` writes them
    OUT/NAME-DIGEST/a/pair-00.log, pair-00.server.json  the server's log and what was seen of it
    OUT/NAME-DIGEST/fault.txt                           why the change cannot be measured

What pairs show is computed from the runs each time, so that a tuning that was killed goes on as if
it had not been.
"""

import hashlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.api import ab_pairs
from inferometer.api.load_request import Load, LoadRequest, request_of
from inferometer.api.progress import talk
from inferometer.api.tune_paired import CONFIDENCE, DOOR, PairRule, PairsFound, faulty
from inferometer.decide.tuning.start_command import StartCommand
from inferometer.decide.tuning.trials import DrawEffects, Goal, Outcome, outcome_of, scored
from inferometer.errors import MeasureError, RecordError
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.measure.served import ServedFacts, ServerFault, ServerStart, served, warm_up
from inferometer.records import run_folder, server_series, server_summaries
from inferometer.records.types import RequestStatus, Run
from inferometer.stats.comparison import chance_of_more

_MOST_FAILED: Final = 0.01
"""Largest share of failed requests of one side."""
_MOST_UNREAD: Final = 0.1
"""Largest share of failed scrapes of a run: one may be late on a busy machine."""
_CHANCE_OF_LOSS: Final = 0.01
"""Requests that a server loses now and then fall on both sides alike."""
_N_TRIES: Final = 2
"""Attempts at a pair whose unchanged side failed."""


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
        return faulty(DOOR.text_of(stored))
    for n_tries in range(1, _N_TRIES + 1):
        try:
            return _measured(bench, comparison, place)
        except _SideFault as fault:
            if fault.side and comparison.commands[0] != comparison.commands[1]:
                run_folder.replace_file(stored, fault.what.encode())
                return faulty(fault.what)
            if n_tries == _N_TRIES:
                raise
            talk(f"the server without the change failed, once more: {fault.what}")
    raise AssertionError("every try returns or raises")


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
    return _rule(bench, comparison).until_decided(
        comparison.name, _results(bench, comparison, pairs)
    )


def _results(bench: Bench, comparison: Comparison, pairs: ab_pairs.Pairs) -> Generator[PairsFound]:
    """Results after each pair."""
    seen, explained = list[tuple[Run, Run]](), list[float]()
    for both in ab_pairs.each(pairs, takes_invalid=True):
        if comparison.effects is not None:
            workload = pairs.request(0, len(seen)).load.workload
            explained.append(comparison.effects.of(workload))
        seen.append(both)
        _check_answered(pairs, seen)
        fault = _loss(seen)
        yield faulty(fault) if fault else found_of(bench, comparison, seen, explained)


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


def _rule(bench: Bench, comparison: Comparison) -> PairRule:
    return PairRule(
        comparison.n_least,
        comparison.n_most,
        bench.least_gain_ratio,
        comparison.confidence_fraction,
    )


def found_of(
    bench: Bench,
    comparison: Comparison,
    seen: Sequence[tuple[Run, Run]],
    explained: Sequence[float],
) -> PairsFound:
    """Results of these pairs; *undecided* where they are too few."""

    def outcome(run: Run) -> Outcome:
        return scored(_outcome_of(run, bench), bench.goal, 1)

    outcomes = [(outcome(old), outcome(new)) for old, new in seen]
    runs = [run for both in seen for run in both]
    return replace(
        _rule(bench, comparison).found(outcomes, explained),
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
    run_folder.make_folder(folder.parent)
    try:
        with served(bench.start(command, folder.parent / f"{folder.name}.log")) as facts:
            _check_version(bench, facts)
            facts_file = folder.parent / f"{folder.name}.server.json"
            run_folder.replace_file(facts_file, facts.as_json(command.text))
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
