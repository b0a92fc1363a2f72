"""Load tests of two servers in pairs: their random order, resuming, and comparison.

::

    OUT/ab.json            the question
    OUT/a/pair-00, OUT/b/pair-00, …      the runs: `inferometer compare OUT/a OUT/b --paired` compares them again
    OUT/interrupted/       halves of pairs that were not finished
"""

import hashlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from inferometer import suggestions
from inferometer.api import compare, load_request, load_run, run_titles
from inferometer.api.progress import talk
from inferometer.api.question import SERVER, Option, option
from inferometer.api.workload import objective_for
from inferometer.errors import InferometerError, MeasureError, RecordError, SpecError
from inferometer.inputs import objectives, plans
from inferometer.inputs.foreign_bytes import own_files
from inferometer.inputs.workload import reading, replay
from inferometer.records import request_summaries, run_comparison, run_folder, types, validity
from inferometer.stats.comparison import first_sides
from inferometer.stats.quantiles import min_samples
from inferometer.units import format_duration

_DOOR: Final = own_files("question", "another folder with --out")

_SIDES: Final = ("a", "b")
_QUESTION: Final = "ab.json"
_INTERRUPTED: Final = "interrupted"


class _Question(NamedTuple):
    """The question for which a folder was begun."""

    loads: tuple[plans.LoadPlan, plans.LoadPlan]
    n_pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareServers:
    """The servers to compare, and how."""

    ab: bool = option(False, "A and B are servers, not runs.", "Runs", is_common=True)
    url: Annotated[str, Option("", is_argument=True, parse=SERVER)]
    load: load_request.Load = field(default_factory=load_request.Load)
    other: load_request.Other = field(default_factory=load_request.Other)
    repeats: int = option(
        6, "Pairs; settled before the first is made.", "Runs", is_common=True, least=1
    )
    rule: compare.Rule = field(default_factory=compare.Rule)
    slo: str | None = option(
        None,
        "Also say how often each side met this SLO: 'ttft:p95<500ms'.",
        "Limits",
        is_common=True,
        metavar="TEXT",
    )
    out: Path | None = option(
        None, "Folder of the runs; the same one resumes.", is_common=True, metavar="DIR"
    )
    dry_run: bool = option(False, "Print what would be sent, and send nothing.", is_common=True)
    given: frozenset[str] = frozenset()


def compare_servers(question: CompareServers) -> compare.CompareAnswer | None:
    """Load two servers in turns and compare the results; None for a dry run.

    Raises
    ------
    SpecError
        The pairs could decide nothing.
    MeasureError, RecordError
        A server is not there, or the folder holds other pairs.
    """
    requests = load_request.requests_of_both(question.url, question.load, question.other)
    rule = compare.rule_of(question.rule)
    _check_repeats(question.repeats, rule.confidence_fraction)
    spec = requests[0].load.workload
    objective = None if question.slo is None else objective_for(question.slo, spec)
    pairs = Pairs(
        requests=requests,
        n_pairs=question.repeats,
        folder=question.out or default_folder(requests),
        objective=objective,
    )
    talk(pairs.sentence)
    if question.dry_run:
        return None
    olds, news = made(pairs, takes_invalid=rule.takes_invalid)
    comparison = run_comparison.compare_runs(olds, news, replace(rule, is_paired=True))
    return compare.CompareAnswer(
        old=tuple(map(str, pairs.folders(0))),
        new=tuple(map(str, pairs.folders(1))),
        comparison=comparison,
        slos=(
            ()
            if objective is None
            else (_promise("A", olds, objective), _promise("B", news, objective))
        ),
    )


def _check_repeats(n_pairs: int, confidence_fraction: float) -> None:
    """Refuse a number of pairs that cannot decide, before hours are spent."""
    enough = min_samples(0.5, confidence_fraction=confidence_fraction)
    if n_pairs < enough:
        raise SpecError(
            f"{n_pairs} pairs carry no interval at {confidence_fraction:.4g}",
            where="--repeats, --confidence",
            allowed=f"{enough} pairs or more",
            try_=suggestions.flags("--repeats", enough),
        )


def _promise(
    side: str, runs: tuple[types.Run, ...], objective: objectives.ObjectiveSpec
) -> compare.SideSlo:
    verdicts = [request_summaries.judge_objective(run, objective).verdict for run in runs]
    return compare.SideSlo(
        side=side,
        objective=objective.text,
        n_met=verdicts.count("met"),
        n_missed=verdicts.count("missed"),
        n_undecided=verdicts.count("undecided"),
    )


_SEEDS_APART: Final = 1_000_003
"""Distance of the seeds of a pair's texts when it is made again: more than there are pairs."""


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
    """Given a side and its folder: a context that runs the side's server while it is loaded."""
    has_fresh_servers: bool = False
    """Do servers start with an empty prefix cache, so that both sides get the same texts?"""

    @property
    def loads(self) -> tuple[plans.LoadPlan, plans.LoadPlan]:
        """The question to each side, with the seed of the first pair."""
        return self.requests[0].load, self.requests[1].load

    @property
    def first_sides(self) -> tuple[int, ...]:
        """Side that comes first in each pair: each in half of them, in random order."""
        return first_sides(self.n_pairs, self.loads[0].workload.seed)

    @property
    def sentence(self) -> str:
        """What will be sent, and how long it takes."""
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
        """Folders of a side's runs."""
        return tuple(
            self.folder / _SIDES[side] / f"pair-{pair:02d}" for pair in range(self.n_pairs)
        )

    def n_put_aside(self, pair: int) -> int:
        """How often this pair was cut short, by the side that was cut more often."""
        aside = self.folder / _INTERRUPTED
        return max(
            len(list(aside.glob(f"{folder.parent.name}-{folder.name}-*")))
            for folder in (self.folders(side)[pair] for side in range(len(_SIDES)))
        )

    def request(self, side: int, pair: int) -> load_request.LoadRequest:
        """The load test of a side: both sides of a pair have the same arrivals and lengths.

        A pair that is made again has other texts: the servers may remember the first ones.
        """
        request = self.requests[side]
        seed = request.load.workload.seed + pair
        is_one_server = self.loads[0].url == self.loads[1].url
        workload = reading.with_changes(
            request.load.workload, {"seed": seed}, where="the pairs of --ab"
        )
        is_shared = is_one_server and not self.has_fresh_servers
        text_seed = 2 * seed + side if is_shared else None
        n_before = 0 if self.has_fresh_servers else self.n_put_aside(pair)
        if n_before:
            text_seed = (seed if text_seed is None else text_seed) + n_before * _SEEDS_APART
        return replace(
            request,
            load=replace(
                request.load, workload=workload, text_seed=text_seed, repeats_prompts=True
            ),
        )


def default_folder(requests: tuple[load_request.LoadRequest, load_request.LoadRequest]) -> Path:
    """Default folder of the pairs: the same for the same question."""
    digest = hashlib.sha256(
        msgspec.json.encode([plans.without_secrets(request.load) for request in requests])
    ).hexdigest()[:6]
    return (
        Path("runs")
        / f"ab-{run_titles.default_folder(requests[0].load).name.removeprefix('load-')}-{digest}"
    )


def made(
    pairs: Pairs, *, takes_invalid: bool
) -> tuple[tuple[types.Run, ...], tuple[types.Run, ...]]:
    """Runs of A and of B, measured or read from the folder.

    Raises
    ------
    MeasureError
        A server is not there, a client process died, or a run is INVALID; the runs before it are
        kept.
    RecordError
        The folder cannot be written, or was begun for another question.
    KeyboardInterrupt
        Ctrl-C.
    """
    found = list(each(pairs, takes_invalid=takes_invalid))
    return tuple(old for old, _ in found), tuple(new for _, new in found)


def each(pairs: Pairs, *, takes_invalid: bool) -> Generator[tuple[types.Run, types.Run]]:
    """Pairs of runs (A, B), one by one, so that a caller can stop early."""
    _open(pairs)
    for pair, first in enumerate(pairs.first_sides):
        _put_aside_half(pairs, pair)
        runs = {
            side: _run(pairs, side, pair, takes_invalid=takes_invalid)
            for side in (first, 1 - first)
        }
        yield runs[0], runs[1]


def _open(pairs: Pairs) -> None:
    path = pairs.folder / _QUESTION
    question = _Question(
        (plans.without_secrets(pairs.loads[0]), plans.without_secrets(pairs.loads[1])),
        pairs.n_pairs,
    )
    run_folder.make_folder(pairs.folder)
    if not path.exists():
        run_folder.replace_file(
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
    """Remove a pair whose second half is missing or was interrupted; it is measured again."""
    folders = [pairs.folders(side)[pair] for side in range(len(_SIDES))]
    if all((folder / run_folder.MANIFEST_NAME).exists() for folder in folders):
        return
    for folder in (one for one in folders if one.exists()):
        put_aside(pairs, folder)
        talk(f"pair {pair + 1} was cut short: {folder} is put aside, and made again")


def put_aside(pairs: Pairs, folder: Path) -> Path:
    """Remove a run from its pair, which is then measured again; returns its new place."""
    aside = pairs.folder / _INTERRUPTED
    run_folder.make_folder(aside)
    name = f"{folder.parent.name}-{folder.name}"
    target = aside / f"{name}-{len(list(aside.glob(f'{name}-*')))}"
    folder.replace(target)
    return target


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
    is_made = (folder / run_folder.MANIFEST_NAME).exists()
    try:
        with nullcontext() if is_made else pairs.serving(side, folder):
            loaded = load_run.run_load(request, drawn, folder, percentiles)
    except InferometerError:
        if folder.exists() and not is_made:
            put_aside(pairs, folder)  # whole as it may look: its server was gone at its end
        raise
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
                f"{error.try_}; delete that folder to measure the pair again with the same"
                " command, or add --force to continue"
            ),
        ) from error
