"""How are load tests of two servers made in pairs, in drawn order, and gone on with after a crash?

::

    OUT/ab.json            the question
    OUT/a/pair-00, OUT/b/pair-00, …      the runs: `inferometer compare OUT/a OUT/b --paired` compares them again
    OUT/interrupted/       halves of pairs that were not finished

A tuning compares two start commands by pairs in the same way, on fresh servers::

    OUT/NAME-DIGEST/ab.json, a/pair-00, b/pair-00, …   load tests as of `compare --ab`
    OUT/NAME-DIGEST/a/pair-00.log, pair-00.server.json  the server's log and what was seen of it
    OUT/NAME-DIGEST/fault.txt                           why the change cannot be measured

What pairs show is computed from the runs each time, so that a tuning that was killed goes on as if
it had not been.
"""

import hashlib
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from inferometer.api import load_request, load_run, run_titles
from inferometer.api.load_request import Load, LoadRequest, request_of
from inferometer.api.progress import talk
from inferometer.api.tune_answer import interval_words
from inferometer.decide.tuning.start_command import StartCommand
from inferometer.decide.tuning.trials import Goal, Outcome, outcome_of, scored
from inferometer.errors import MeasureError, RecordError
from inferometer.inputs import load_plan, objectives
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.workload import reading, replay
from inferometer.measure.served import ServedFacts, ServerFault, ServerStart, served, warm_up
from inferometer.records import durability, layout, types, validity
from inferometer.records.types import RequestStatus, Run
from inferometer.stats.comparison import PairDecision, decide_pairs, pair_gain
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration

_DOOR: Final = Door(
    noun="question",
    allowed="the file as it was written",
    refusal=RecordError,
    try_="another folder with --out",
)

_SIDES: Final = ("a", "b")
_QUESTION: Final = "ab.json"
_INTERRUPTED: Final = "interrupted"
_ORDER_SEED: Final = 0xAB
"""Beside the workload's: who comes first has nothing to do with what is drawn for the requests."""


class _Question(NamedTuple):
    """What a folder was begun for."""

    loads: tuple[load_plan.LoadPlan, load_plan.LoadPlan]
    n_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The number of load tests of each side."""

    requests: tuple[load_request.LoadRequest, load_request.LoadRequest]
    n_pairs: int
    folder: Path
    objective: objectives.ObjectiveSpec | None
    serving: Callable[[int, Path], AbstractContextManager[object]] = lambda _side, _folder: (
        nullcontext()
    )
    """Of a side and its folder: what runs while it is loaded, a server that is started for it."""
    has_fresh_servers: bool = False
    """Nobody's prefix cache is warm, so that both sides of one URL get the same texts."""

    @property
    def loads(self) -> tuple[load_plan.LoadPlan, load_plan.LoadPlan]:
        """The question to each side, with the seed of the first pair."""
        return self.requests[0].load, self.requests[1].load

    @property
    def first_sides(self) -> tuple[int, ...]:
        """Which side comes first in each pair: each in half of them, in an order that is drawn."""
        rng = np.random.default_rng([_ORDER_SEED, self.loads[0].workload.seed])
        begins = int(rng.integers(2))
        return tuple(
            int(side)
            for side in rng.permutation([(begins + pair) % 2 for pair in range(self.n_pairs)])
        )

    @property
    def sentence(self) -> str:
        """What will happen, and how long it takes."""
        for_s = self.loads[0].for_s
        lasts = (
            ""
            if for_s is None
            else (
                f" of {format_duration(for_s)} each, {format_duration(2 * self.n_pairs * for_s)}"
                " in all"
            )
        )
        order = " ".join("BA" if first else "AB" for first in self.first_sides)
        places = " and ".join(dict.fromkeys(load.url for load in self.loads))
        return (
            f"{self.n_pairs} pairs of load tests{lasts}, of {places}, in the order {order}; into"
            f" {self.folder}"
        )

    def folders(self, side: int) -> tuple[Path, ...]:
        """Where the runs of a side lie."""
        return tuple(
            self.folder / _SIDES[side] / f"pair-{pair:02d}" for pair in range(self.n_pairs)
        )

    def request(self, side: int, pair: int) -> load_request.LoadRequest:
        """What is sent: the same arrivals and lengths to both sides of a pair, other ones in each pair."""
        request = self.requests[side]
        seed = request.load.workload.seed + pair
        is_one_server = self.loads[0].url == self.loads[1].url
        workload = reading.with_changes(
            request.load.workload, {"seed": seed}, where="the pairs of --ab"
        )
        is_shared = is_one_server and not self.has_fresh_servers
        text_seed = 2 * seed + side if is_shared else None
        return replace(
            request,
            load=replace(
                request.load, workload=workload, text_seed=text_seed, repeats_prompts=True
            ),
        )


def default_folder(requests: tuple[load_request.LoadRequest, load_request.LoadRequest]) -> Path:
    """Where pairs go if nobody says: the same question, the same folder."""
    digest = hashlib.sha256(
        msgspec.json.encode([load_plan.without_secrets(request.load) for request in requests])
    ).hexdigest()[:6]
    return (
        Path("runs")
        / f"ab-{run_titles.default_folder(requests[0].load).name.removeprefix('load-')}-{digest}"
    )


def made(
    pairs: Pairs, *, takes_invalid: bool
) -> tuple[tuple[types.Run, ...], tuple[types.Run, ...]]:
    """The runs of A and of B; those that were made before are read.

    Raises
    ------
    MeasureError
        A server is not there, a client process died, or a run is INVALID; the runs before it are
        kept.
    RecordError
        The folder cannot be written, or was begun for another question.
    KeyboardInterrupt
        Somebody stopped it.
    """
    found = list(each(pairs, takes_invalid=takes_invalid))
    return tuple(old for old, _ in found), tuple(new for _, new in found)


def each(pairs: Pairs, *, takes_invalid: bool) -> Generator[tuple[types.Run, types.Run]]:
    """The same, pair by pair: A's run and B's. Who has seen enough takes no more."""
    _open(pairs)
    for pair, first in enumerate(pairs.first_sides):
        _put_aside_half(pairs, pair)
        runs = {
            side: _run(pairs, side, pair, takes_invalid=takes_invalid)
            for side in (first, 1 - first)
        }
        yield runs[0], runs[1]


def _open(pairs: Pairs) -> None:
    path, question = (
        pairs.folder / _QUESTION,
        _Question(
            (load_plan.without_secrets(pairs.loads[0]), load_plan.without_secrets(pairs.loads[1])),
            pairs.n_pairs,
        ),
    )
    durability.make_folder(pairs.folder)
    if not path.exists():
        durability.replace_file(
            path, msgspec.json.format(msgspec.json.encode(question), indent=2) + b"\n"
        )
        return
    stored = _DOOR.json(_DOOR.bytes_of(path), _Question, where=str(path))
    if stored != question:
        raise RecordError(
            "the folder was begun for another question"
            + (
                f": {stored.n_pairs} pairs, not {question.n_pairs}"
                if stored.n_pairs != question.n_pairs
                else ""
            ),
            where=str(path),
            allowed=(
                "the same command, which goes on: more pairs, once the first are seen, would make"
                " false alarms"
            ),
            try_="another folder with --out",
        )


def _put_aside_half(pairs: Pairs, pair: int) -> None:
    """What a pair shares is the time at which it was made: half of one, or a run with a seam, is made again."""
    folders = [pairs.folders(side)[pair] for side in range(len(_SIDES))]
    if all((folder / layout.MANIFEST_NAME).exists() for folder in folders):
        return
    for folder in (one for one in folders if one.exists()):
        aside = pairs.folder / _INTERRUPTED
        durability.make_folder(aside)
        name = f"{folder.parent.name}-{folder.name}"
        folder.replace(aside / f"{name}-{len(list(aside.glob(f'{name}-*')))}")
        talk(f"pair {pair + 1} was cut short: {folder} is put aside, and made again")


def _run(pairs: Pairs, side: int, pair: int, *, takes_invalid: bool) -> types.Run:
    request, folder = pairs.request(side, pair), pairs.folders(side)[pair]
    drawn = replay.draw_workload(request.load.workload)
    run_titles.check_size(request.load)
    run_titles.check_prompts(request.load, drawn)
    talk(
        f"pair {pair + 1} of {pairs.n_pairs}, {_SIDES[side].upper()}:"
        f" {run_titles.what_will_happen(request.load, drawn)}"
    )
    percentiles = () if pairs.objective is None else pairs.objective.percentile_fractions
    is_made = (folder / layout.MANIFEST_NAME).exists()
    with nullcontext() if is_made else pairs.serving(side, folder):
        loaded = load_run.run_load(request, drawn, folder, percentiles)
    if loaded.is_interrupted:
        raise KeyboardInterrupt
    _require_valid(loaded.run, folder, forced=takes_invalid)
    return loaded.run


def _require_valid(run: types.Run, folder: Path, *, forced: bool) -> None:
    """An INVALID run ends the pairs at once: later ones would not mend it."""
    try:
        validity.require_valid(run, forced=forced)
    except MeasureError as error:
        raise MeasureError(
            error.what,
            where=str(folder),
            allowed=error.allowed,
            try_=(
                f"{error.try_}; without that folder the same command makes the pair again, with"
                " --force it goes on"
            ),
        ) from error


CONFIDENCE: Final = 0.9
"""Of both sides over all looks: a change that does nothing is taken in at most 5 % of its steps, and
must gain once more in the confirmation."""
_MOST_FAILED: Final = 0.01
"""Of a run's requests."""
_N_TRIES: Final = 2
"""Of a pair whose unchanged side failed."""
Ending: TypeAlias = Literal["keep", "drop", "undecided", "fault"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsFound:
    """What pairs of two commands showed."""

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
    """Runs in which the server's metrics were not there."""


class Comparison(NamedTuple):
    """Which commands, in how many pairs, on which draws of the traffic."""

    name: str
    commands: tuple[StartCommand, StartCommand]
    """Without the change, and with it."""
    seed: int
    n_least: int
    n_most: int


class _SideFault(MeasureError):
    """A server of one side failed."""

    def __init__(self, side: int, error: ServerFault) -> None:
        super().__init__(error.what, where=error.where, allowed=error.allowed, try_=error.try_)
        self.side = side


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where servers are started, and how they are loaded and judged."""

    url: str
    load: Load
    objective: ObjectiveSpec
    goal: Goal
    folder: Path
    start_timeout_s: float
    least_gain_ratio: float
    version: str | None = None
    """Of the first server; another one in the middle ends the tuning."""

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
        """The load, drawn anew."""
        workload = replace(self.load.workload, seed=seed)
        return request_of(self.url, replace(self.load, workload=workload))


def compared(bench: Bench, comparison: Comparison) -> PairsFound:
    """Measure pairs until they decide, or read what was decided before.

    Raises
    ------
    MeasureError
        The side without the change failed twice, a client process died, or the version changed;
        what was measured stays, and the same command goes on.
    """
    place = bench.place(comparison)
    stored = place / "fault.txt"
    if stored.exists():
        return _faulty(stored.read_text("utf-8"))
    for n_tries in range(1, _N_TRIES + 1):
        try:
            return _measured(bench, comparison, place)
        except _SideFault as fault:
            if fault.side:
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
    pairs = Pairs(
        requests=(request, request),
        n_pairs=comparison.n_most,
        folder=place,
        objective=bench.objective,
        serving=lambda side, folder: _serving(bench, comparison.commands[side], side, folder),
        has_fresh_servers=True,
    )
    seen = list[tuple[Run, Run]]()
    for both in each(pairs, takes_invalid=True):
        seen.append(both)
        if _lost_fraction(both[0]) == 1:
            raise MeasureError(
                "the server without the change answered no request",
                where=str(pairs.folders(0)[len(seen) - 1]),
                try_="the load test of that folder, whose report says why",
            )
        lost = _lost_fraction(both[1])
        if lost > max(_MOST_FAILED, _lost_fraction(both[0])):
            return _faulty(f"{lost:.1%} of the requests failed in pair {len(seen)}")
        found = found_of(bench, seen)
        gain = "no gain" if found.gain is None else interval_words(found.gain)
        talk(f"{comparison.name}: {gain} after {len(seen)} of at most {comparison.n_most} pairs")
        if found.ending != "undecided" and len(seen) >= comparison.n_least:
            break
    return found_of(bench, seen)


def found_of(bench: Bench, seen: Sequence[tuple[Run, Run]]) -> PairsFound:
    """What these pairs show; *undecided* where they are not enough."""
    scores = [
        tuple(scored(outcome_of(run, bench.objective), bench.goal, 1) for run in both)
        for both in seen
    ]
    logs = tuple(math.log(new.score / old.score) for old, new in scores)
    gain = pair_gain(logs, confidence_fraction=CONFIDENCE)
    endings: dict[PairDecision, Ending] = {"keep": "keep", "drop": "drop", "go on": "undecided"}
    runs = [run for both in seen for run in both]
    return PairsFound(
        ending=endings[decide_pairs(gain, least_gain_ratio=bench.least_gain_ratio)],
        gain=gain,
        before=tuple(old for old, _ in scores),
        after=tuple(new for _, new in scores),
        log_ratios=logs,
        n_invalid=sum(
            run.manifest.validity is not None and run.manifest.validity.verdict == "INVALID"
            for run in runs
        ),
        n_without_metrics=sum(run.server is None for run in runs),
    )


def _lost_fraction(run: Run) -> float:
    """Of the requests, those that failed; 1 where there is none."""
    if run.requests is None or not len(run.requests.status):
        return 1.0
    return float((run.requests.status == RequestStatus.FAILED).mean())


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
            allowed="one version in a tuning: what was measured before stays",
            try_="the same command with another folder in --out, or the version of before",
        )
