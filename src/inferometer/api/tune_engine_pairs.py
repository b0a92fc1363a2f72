"""How are two sets of options of an engine measured against one another, on this machine?

Both are loaded side by side, each in a process of its own, and run the same prompts in turns, so
that what the machine does meanwhile hits both. Another mode, or other threads, is run by the same
load in turns; where memory holds only one, each turn loads again.

::

    OUT/NAME-DIGEST/pair-00.json, …     the times of every repetition
    OUT/NAME-DIGEST/fault.txt           why the change cannot be measured
"""

import hashlib
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec
import numpy as np

from inferometer.api.tune_paired import CONFIDENCE, PairRule, PairsFound, faulty
from inferometer.decide.tuning.engine_steps import shares_load
from inferometer.decide.tuning.trials import Goal, Outcome
from inferometer.errors import EngineError, MeasureError, SpecError
from inferometer.inputs import foreign_bytes, objectives, types
from inferometer.measure.engines.protocol import (
    Measure,
    ModelReference,
    OutOfMemory,
    Repeated,
)
from inferometer.measure.engines.remote import RemoteEngine, WorkerSettings
from inferometer.records import run_folder
from inferometer.records.types import EngineFacts
from inferometer.stats.comparison import first_sides

N_WARMUP: Final = 2
"""Repetitions after a load; one at each visit where points take turns."""
_APART: Final = 1000
"""Distance of repetition numbers between pairs, so that each pair has its own prompts."""
DOOR: Final = foreign_bytes.own_files(
    "pair", "the same command without that file, which measures it again"
)


class Timed(NamedTuple):
    """One repetition of a point."""

    point_index: int
    prefill_ns: int
    decode_step_ns: tuple[int, ...]

    def seconds(self, metric: str) -> float:
        """A request's latency: all of the batch have the same.

        TPOT is the median step: a slice that a neighbour takes of a core is no time of the engine.
        """
        if metric == "ttft":
            return self.prefill_ns / 1e9
        step_s = float(np.median(self.decode_step_ns)) / 1e9
        if metric == "tpot":
            return step_s
        return self.prefill_ns / 1e9 + step_s * len(self.decode_step_ns)


class PairTimes(NamedTuple):
    """Times of both sides of one pair, and loads for it."""

    sides: tuple[tuple[Timed, ...], tuple[Timed, ...]]
    n_loads: int


class Version(NamedTuple):
    """Version of one engine."""

    engine: str
    version: str
    load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """The points of each pair, and the goal."""

    points: tuple[types.SweepPoint, ...]
    n_reps: int
    seed: int
    objective: objectives.ObjectiveSpec | None
    goal: Goal
    least_gain_ratio: float
    folder: Path

    def outcome(self, times: Sequence[Timed]) -> Outcome:
        """Latencies at the points where they are weakest, tokens/s in the mean of all points."""
        thresholds = () if self.objective is None else self.objective.thresholds
        limited = [
            (one, one.percentile_fraction)
            for one in thresholds
            if one.percentile_fraction is not None
        ]
        seen = tuple(self._latency_s(times, one.metric, share) for one, share in limited)
        margin = max(
            (s / one.limit_s for s, (one, _) in zip(seen, limited, strict=True)), default=math.nan
        )
        rate = self._tokens_per_s(times)
        is_headroom = self.goal == "interactive" and self.objective is not None
        return Outcome(
            score=1 / margin if is_headroom else rate,
            margin_ratio=margin,
            latencies_s=seen,
            good_requests_per_s=math.nan,
            output_tokens_per_s=rate,
            n_preemptions=0,
            n_requests=len(times),
        )

    def _latency_s(self, times: Sequence[Timed], metric: str, share: float) -> float:
        return max(
            float(
                np.quantile([one.seconds(metric) for one in times if one.point_index == i], share)
            )
            for i in range(len(self.points))
        )

    def _tokens_per_s(self, times: Sequence[Timed]) -> float:
        """The geometric mean over points of the tokens of a batch over its time."""
        logs = list[float]()
        for index, point in enumerate(self.points):
            took_s = [one.seconds("e2e") for one in times if one.point_index == index]
            logs.append(math.log(point.batch_size * point.gen_tokens / float(np.median(took_s))))
        return math.exp(float(np.mean(logs)))


Key: TypeAlias = tuple[types.EngineSpec, int]
"""Options, and which of several loads of them."""


class Engines:
    """The loaded engines: at most two, or one where memory holds only one.

    Options that one load can run in turns are run by one.
    """

    def __init__(self, model: ModelReference, vocab_size: int, python: str) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.python = python
        self.is_alone = False
        self.n_loads = 0
        self.began_with: str | None = None
        """The engine's version when the folder was begun."""
        self._loaded = dict[Key, RemoteEngine]()

    def close(self, but: Sequence[Key] = ()) -> None:
        """End all processes but these options'."""
        left = {key: engine for key, engine in self._loaded.items() if key in but}
        for engine in {id(one): one for one in self._loaded.values()}.values():
            if all(engine is not one for one in left.values()):
                engine.close()
        self._loaded = left

    def drop(self, key: Key) -> None:
        """End the process that runs these options, with all that it runs."""
        engine = self._loaded.get(key)
        self.close(but=[one for one, other in self._loaded.items() if other is not engine])

    def version(self, spec: types.EngineSpec) -> Version:
        """Version of the engine with these options, which stays loaded.

        Raises
        ------
        EngineError, SpecError
            It does not fit; the engine failed or cannot do this.
        """
        try:
            facts = self._engine((spec, 0))[0].facts()
        except OutOfMemory as error:
            raise does_not_fit(error, "the options as they are") from None
        return Version(facts.engine, facts.version, facts.load_s or 0.0)

    def first_times(self, spec: types.EngineSpec, runs: Runs) -> tuple[Timed, ...]:
        """One repetition of each point.

        Raises
        ------
        EngineError, SpecError
            It does not fit; the engine failed or cannot do this.
        """
        try:
            return self.times((spec, 0), replace(runs, n_reps=1), 0)
        except OutOfMemory as error:
            raise does_not_fit(error, "one repetition of the options as they are") from None

    def times(self, key: Key, runs: Runs, pair: int) -> tuple[Timed, ...]:
        """The repetitions of all points.

        Raises
        ------
        OutOfMemory, EngineError, SpecError
            It does not fit alone; the engine failed or cannot do this.
        """
        try:
            return self._times(key, runs, pair)
        except OutOfMemory:
            if len(self._loaded) < 2 and key in self._loaded:
                raise
            self.is_alone = True
            self.close()
            return self._times(key, runs, pair)

    def _times(self, key: Key, runs: Runs, pair: int) -> tuple[Timed, ...]:
        engine, is_new = self._engine(key)
        is_switched = engine.spec != key[0]
        engine.retune(key[0])
        n_warmup = N_WARMUP if is_new else int(is_switched or len(runs.points) > 1)
        return tuple(
            Timed(index, one.repetition.prefill_ns, one.repetition.decode_step_ns)
            for index, point in enumerate(runs.points)
            for one in engine.measure(
                Measure(
                    point=point,
                    n_warmup=n_warmup,
                    n_reps=runs.n_reps,
                    seed=runs.seed,
                    vocab_size=self.vocab_size,
                    probes=None,
                    first_repetition=pair * _APART + N_WARMUP - n_warmup,
                )
            )
            if isinstance(one, Repeated) and not one.repetition.is_warmup
        )

    def _engine(self, key: Key) -> tuple[RemoteEngine, bool]:
        """The engine, and whether it runs these options for the first time."""
        if key in self._loaded:
            return self._loaded[key], False
        if self.is_alone:
            self.close()
        hosts = (
            engine
            for (spec, copy), engine in self._loaded.items()
            if copy == key[1] and shares_load(spec, key[0])
        )
        host = next(hosts, None)
        self._loaded[key] = self._load(key[0]) if host is None else host
        return self._loaded[key], True

    def _load(self, spec: types.EngineSpec) -> RemoteEngine:
        engine = RemoteEngine(spec, self.model, WorkerSettings(python=self.python))
        self.n_loads += 1
        try:
            self._check_version(engine.facts())
        except BaseException:
            engine.close(patience_s=0.0)
            raise
        return engine

    def _check_version(self, facts: EngineFacts) -> None:
        if self.began_with not in {None, facts.version}:
            raise MeasureError(
                f"{facts.engine} is {facts.version}, and was {self.began_with} when this began",
                where="the pairs that are stored",
                try_="the same command with another --out, or the original engine",
            )


class OptionPairs(NamedTuple):
    """Options to compare, and the number of pairs."""

    name: str
    specs: tuple[types.EngineSpec, types.EngineSpec]
    """Without the change, and with it."""
    first_pair: int
    """Number of the first pair's prompts: other comparisons have others."""
    n_least: int
    n_most: int
    confidence_fraction: float = CONFIDENCE
    has_fresh_loads: bool = False
    """Both are loaded again for each pair."""

    def keys(self, pair: int) -> tuple[Key, Key]:
        """The engines of a pair: of equal options two, too; fresh ones share nothing."""
        if self.has_fresh_loads:
            return (self.specs[0], 1 + 2 * pair), (self.specs[1], 2 + 2 * pair)
        is_same = self.specs[0] == self.specs[1]
        return (self.specs[0], 0), (self.specs[1], int(is_same))


def compared(runs: Runs, engines: Engines, pairs: OptionPairs) -> PairsFound:
    """Measure pairs until they decide, or read them.

    Raises
    ------
    EngineError, SpecError
        The engine without the change failed; what was measured stays, and the same command resumes.
    MeasureError
        It is another version than when the folder was begun.
    """
    rule = PairRule(pairs.n_least, pairs.n_most, runs.least_gain_ratio, pairs.confidence_fraction)
    return rule.until_decided(pairs.name, _results(runs, engines, pairs, rule))


def _results(
    runs: Runs, engines: Engines, pairs: OptionPairs, rule: PairRule
) -> Generator[PairsFound]:
    """Results after each pair; a change that cannot be measured ends them."""
    digest = hashlib.sha256(msgspec.json.encode(pairs.specs)).hexdigest()[:6]
    place = runs.folder / f"{pairs.name}-{digest}"
    fault = place / "fault.txt"
    if fault.exists():
        yield faulty(DOOR.text_of(fault), n_loads=1)
        return
    run_folder.make_folder(place)
    seen, n_loads = list[tuple[Outcome, Outcome]](), 0
    for pair, first in enumerate(first_sides(pairs.n_most, runs.seed, pairs.first_pair)):
        times = _pair(runs, engines, pairs, place / f"pair-{pair:02d}.json", first)
        if isinstance(times, str):
            run_folder.replace_file(fault, times.encode())
            yield faulty(times, n_loads=1)
            return
        n_loads += times.n_loads
        seen.append((runs.outcome(times.sides[0]), runs.outcome(times.sides[1])))
        yield replace(rule.found(seen), n_loads=n_loads)


def _pair(
    runs: Runs, engines: Engines, pairs: OptionPairs, path: Path, first: int
) -> PairTimes | str:
    """One pair, measured or read; a text where the changed side cannot be measured."""
    if path.exists():
        return DOOR.json(DOOR.bytes_of(path), PairTimes, where=str(path))
    number = int(path.stem.rpartition("-")[2])
    keys = pairs.keys(number)
    engines.close(but=keys)
    n_before, sides = engines.n_loads, dict[int, tuple[Timed, ...]]()
    for side in (first, 1 - first):
        try:
            sides[side] = engines.times(keys[side], runs, pairs.first_pair + number)
        except (OutOfMemory, EngineError, SpecError) as error:
            if isinstance(error, OutOfMemory) and not side:
                raise does_not_fit(error, str(path.parent)) from None
            if not side:
                raise
            engines.drop(keys[1])
            return (str(error).strip().splitlines() or ["the engine failed"])[0]
    times = PairTimes((sides[0], sides[1]), engines.n_loads - n_before)
    run_folder.replace_file(path, msgspec.json.encode(times))
    return times


def does_not_fit(error: OutOfMemory, where: str) -> EngineError:
    """The error of a model that does not fit into memory, loaded alone."""
    return EngineError(
        f"it does not fit: {error}",
        where=where,
        allowed="a model, a batch and lengths that this machine holds",
        try_="a smaller model, --batch-sizes or --seq",
    )
