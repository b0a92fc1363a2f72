"""Comparison of two sets of runs: faster, slower, equivalent, or undecided.

The unit of replication is the run; if each side is a single sweep, its repetitions. One metric
decides and has the full confidence; all others together share the same probability of a false
alarm (Bonferroni).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import Caution
from inferometer.records.columns import F64
from inferometer.records.latencies import Latency
from inferometer.records.pitfalls import judged
from inferometer.records.repetitions import repetitions_of
from inferometer.records.request_summaries import RequestSummary, summarise_requests
from inferometer.records.types import Run, RunManifest
from inferometer.records.unlike_loads import unlike_loads, unlike_origins
from inferometer.records.validity import is_invalid, require_valid
from inferometer.stats.comparison import Comparison, compare, compare_pairs
from inferometer.stats.estimate import Estimate
from inferometer.stats.quantiles import median_estimate, min_samples

# Single numbers of a run, by which runs are compared.
# A run of requests yields one number of each kind: its requests depend on one another, so they
# are no replicates. A sweep yields one number of each kind at each of its points and repetitions.
# Unavailable numbers are None (requests) or NaN (repetitions).


class Metric(NamedTuple):
    """A number that a run of requests yields."""

    name: str
    unit: str
    smaller_is_better: bool
    of: Callable[[RequestSummary], float | None]
    n_needed: int = 1
    """Fewest requests of a run for this number: as many as an interval of independent requests
    needs."""


class PointKey(NamedTuple):
    """Identity of a point, by which two sweeps are matched."""

    prompt_tokens: int
    batch_size: int
    gen_tokens: int

    @property
    def text(self) -> str:
        """The point in words."""
        return f"prompt {self.prompt_tokens} x batch {self.batch_size}"


class EqualTokens(NamedTuple):
    """A point of each side with equal total prompt and generated tokens, in different shapes."""

    old: PointKey
    new: PointKey

    @property
    def n_prompt_tokens(self) -> int:
        """Prompt tokens of all sequences together."""
        return self.old.prompt_tokens * self.old.batch_size

    @property
    def text(self) -> str:
        """Tokens, and both shapes as prompt x batch."""
        shapes = " / ".join(
            f"{one.prompt_tokens} x {one.batch_size}" for one in (self.old, self.new)
        )
        return f"{self.n_prompt_tokens} prompt tokens ({shapes})"


class PointTimes(NamedTuple):
    """(R) The OK repetitions of one sweep point, in the order measured."""

    prefill_s: F64
    decode_step_s: F64
    """NaN where there was no decode step."""


def _percentile(latency: Latency, fraction: float) -> Metric:
    def of(summary: RequestSummary) -> float | None:
        # Runs are not left out for dependence between their requests, which varies with their
        # speed: leaving such runs out would bias the others. The interval is over runs.
        found = summary.latency(latency).percentile(fraction)
        is_known = (
            found is not None
            and not found.is_lower_bound
            and summary.latency(latency).n_samples >= n_needed
        )
        return found.seconds.value if found is not None and is_known else None

    n_needed = min_samples(fraction)
    return Metric(
        f"{latency}_p{fraction * 100:g}_s", "s", smaller_is_better=True, of=of, n_needed=n_needed
    )


def _rate(name: str, unit: str, of: Callable[[RequestSummary], Estimate | None]) -> Metric:
    def value(summary: RequestSummary) -> float | None:
        estimate = of(summary)
        return None if estimate is None else estimate.value

    return Metric(name, unit, smaller_is_better=False, of=value)


REQUEST_METRICS: Final = (
    *(_percentile("ttft", fraction) for fraction in (0.5, 0.95, 0.99)),
    *(_percentile("tpot", fraction) for fraction in (0.5, 0.95)),
    *(_percentile("e2e", fraction) for fraction in (0.5, 0.95)),
    _rate("output_tokens_per_s", "tok/s", lambda summary: summary.output_tokens_per_s),
    _rate(
        "completed_requests_per_s", "requests/s", lambda summary: summary.completed_requests_per_s
    ),
)


def request_numbers(run: Run) -> dict[str, float | None]:
    """The run's number for each of ``REQUEST_METRICS``.

    None where it has too few requests, or too many unfinished ones.
    """
    summary = summarise_requests(run)
    return {metric.name: metric.of(summary) for metric in REQUEST_METRICS}


def point_times(run: Run) -> dict[PointKey, PointTimes]:
    """The repetitions of each sweep point that has OK ones."""
    return {
        PointKey(one.point.prompt_tokens, one.point.batch_size, one.point.gen_tokens): PointTimes(
            one.prefill_s, np.asarray(one.decode_step_s)
        )
        for one in repetitions_of(run)
        if one.n_reps
    }


ComparedVerdict: TypeAlias = Literal["better", "worse", "equivalent", "undecided"]
Replicate: TypeAlias = Literal["run", "repetition"]

DEFAULT_REQUEST_METRIC: Final = "e2e_p50_s"
DEFAULT_SWEEP_METRIC: Final = "decode_step_s of all points"
DEFAULT_TOKENS_METRIC: Final = "prefill_s of all token counts"
DECODE_RATE: Final = "decode_tokens_per_s"
PHASES: Final = ("prefill_s", "decode_step_s")
_FACTS: Final = ("model", "engine", "host", "plan", "load", "tool_version", "git_commit")
_WHERE: Final = "the runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedMetric:
    """One number of both sides; ``old`` is the first named side."""

    metric: str
    unit: str
    smaller_is_better: bool
    old: Estimate | None
    """The median over the replicates; None if no replicate has the number."""
    new: Estimate | None
    ratio: Estimate | None
    """New / old."""
    verdict: ComparedVerdict
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A difference between the sides other than the measurements."""

    what: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Differences between two sets of runs, with intervals."""

    replicate: Replicate
    is_paired: bool
    n_old: int
    n_new: int
    margin_ratio: float
    answer: ComparedMetric
    others: tuple[ComparedMetric, ...]
    """The other numbers, each at ``others_confidence_fraction``."""
    others_confidence_fraction: float
    differences: tuple[Difference, ...]
    cautions: tuple[Caution, ...]
    equal_tokens: tuple[EqualTokens, ...] = ()
    """Results by number of tokens, if points of equal token counts were compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRule:
    """Margin and confidence of a comparison.

    ``metric`` None: E2E p50 of requests, the decode step of all points of sweeps, the prefill of
    all equal token counts.
    """

    metric: str | None = None
    margin_ratio: float = 0.02
    confidence_fraction: float = 0.95
    is_paired: bool = False
    """True if the i-th runs of both sides were made in turns, as a pair."""
    has_equal_tokens: bool = False
    """Compare sweep points of equal token counts, instead of equal points."""
    takes_invalid: bool = False
    """Compare INVALID load tests too, as the user chose."""


class _Numbers(NamedTuple):
    unit: str
    smaller_is_better: bool
    old: list[float]
    """One per replicate, NaN where it has none."""
    new: list[float]
    n_needed: int = 0
    """Fewest requests of a run for this number."""


def compare_runs(old: Sequence[Run], new: Sequence[Run], rule: ComparisonRule) -> RunComparison:
    """Compare the new runs with the old ones.

    Raises
    ------
    SpecError
        No run on a side, sweeps against runs of requests, no common point, an unknown metric, pairs
        of different number.
    MeasureError
        A load test is INVALID.
    """
    _check_sides(old, new, rule)
    is_sweep = old[0].sweep is not None
    is_single = is_sweep and len(old) == len(new) == 1
    pairs = _equal_tokens(old, new) if rule.has_equal_tokens else ()
    numbers, default = (
        (_token_numbers(old, new, pairs, is_single=is_single), DEFAULT_TOKENS_METRIC)
        if pairs
        else (_sweep_numbers(old, new, is_single=is_single), DEFAULT_SWEEP_METRIC)
        if is_sweep
        else (_request_numbers(old, new), DEFAULT_REQUEST_METRIC)
    )
    name = rule.metric or default
    if name not in numbers:
        raise _no_metric(name, [*numbers])
    replicate: Replicate = "repetition" if is_single else "run"
    rest = [other for other in numbers if other != name]
    others_confidence = 1 - (1 - rule.confidence_fraction) / max(1, len(rest))
    paces = numbers.get("tpot_p50_s")
    unlike = tuple(unlike_loads(old, new))
    if paces is not None and not unlike:  # servers must be compared with the same requests
        unlike = tuple(_unlike(old[0].manifest, new[0].manifest, paces, rule))
    return RunComparison(
        replicate=replicate,
        is_paired=rule.is_paired,
        n_old=len(numbers[name].old),
        n_new=len(numbers[name].new),
        margin_ratio=rule.margin_ratio,
        answer=_compared(name, numbers[name], rule, rule.confidence_fraction, replicate),
        others=tuple(
            _compared(other, numbers[other], rule, others_confidence, replicate) for other in rest
        ),
        others_confidence_fraction=others_confidence,
        differences=differences(old[0].manifest, new[0].manifest),
        cautions=(*unlike_origins(old, new), *unlike, *_cautions(old, new, is_single=is_single)),
        equal_tokens=pairs,
    )


def differences(old: RunManifest, new: RunManifest) -> tuple[Difference, ...]:
    """Differences in the manifests of two runs: model, engine, machine, plan, version."""
    olds, news = _flat(old), _flat(new)
    return tuple(
        Difference(what=key, old=olds.get(key, "–"), new=news.get(key, "–"))
        for key in sorted({*olds, *news})
        if olds.get(key) != news.get(key)
    )


def _no_metric(name: str, names: list[str]) -> SpecError:
    whole = [one for one in names if " at prompt " not in one]
    point = next((f", or of one point: {one!r}" for one in names if one not in whole), "")
    what, allowed = f"there is no metric {name!r}", ", ".join(whole) + point
    near = suggestions.nearest("--metric", name, names)
    return SpecError(what, where="--metric", allowed=allowed, try_=near)


def _check_sides(old: Sequence[Run], new: Sequence[Run], rule: ComparisonRule) -> None:
    if not old or not new:
        raise SpecError("a side has no run", where=_WHERE, allowed="one run or more on each side")
    if len({run.sweep is None for run in (*old, *new)}) > 1:
        raise SpecError(
            "sweeps cannot be compared with runs of requests",
            where=_WHERE,
            allowed="runs of one kind",
        )
    for run in (*old, *new):
        require_valid(run, forced=rule.takes_invalid)
    if rule.is_paired and len(old) != len(new):
        raise SpecError(
            f"{len(old)} runs against {len(new)} make no pairs",
            where="--paired",
            allowed="as many on each side",
        )


def _request_numbers(old: Sequence[Run], new: Sequence[Run]) -> dict[str, _Numbers]:
    olds, news = ([request_numbers(run) for run in side] for side in (old, new))
    return {
        metric.name: _Numbers(
            metric.unit,
            metric.smaller_is_better,
            _floats(one[metric.name] for one in olds),
            _floats(one[metric.name] for one in news),
            metric.n_needed,
        )
        for metric in REQUEST_METRICS
    }


def _floats(values: Iterable[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _sweep_numbers(
    old: Sequence[Run], new: Sequence[Run], *, is_single: bool
) -> dict[str, _Numbers]:
    """Each phase at each common point, and the geometric mean of their ratios."""
    olds, news = ([point_times(run) for run in side] for side in (old, new))
    common = sorted(set.intersection(*(set(one) for one in (*olds, *news))))
    if not common:
        is_as_long = {key.gen_tokens for key in olds[0]} & {key.gen_tokens for key in news[0]}
        shapes = "--equal-tokens: points of as many tokens in another shape"
        raise SpecError(
            "the sweeps have no point in common",
            where=_WHERE,
            allowed="the same prompt, batch and generated tokens",
            try_=shapes if is_as_long else "sweeps of the same --gen-tokens",
        )
    found = dict[str, _Numbers]()
    for phase in PHASES:
        per_point = {
            key: tuple(_replicates(side, key, phase, is_single=is_single) for side in (olds, news))
            for key in common
        }
        known = {
            key: both
            for key, both in per_point.items()
            if all(np.isfinite(one).any() for one in both)
        }
        if known:
            means = [_geometric_mean([both[i] for both in known.values()]) for i in range(2)]
            found[f"{phase} of all points"] = _times(*means)
        found |= {
            f"{phase} at {key.text}": _times(both[0].tolist(), both[1].tolist())
            for key, both in known.items()
        }
    return found


def _equal_tokens(old: Sequence[Run], new: Sequence[Run]) -> tuple[EqualTokens, ...]:
    """For each number of prompt tokens of both sides: the two points that differ most in shape."""
    if old[0].sweep is None:
        raise SpecError(
            "requests have no points of equal token counts",
            where="--equal-tokens",
            allowed="for two sweeps or tables of them",
        )
    olds, news = (set.intersection(*(set(point_times(run)) for run in side)) for side in (old, new))
    widest = dict[tuple[int, int], EqualTokens]()
    for one, other in itertools.product(sorted(olds), sorted(news)):
        pair = EqualTokens(one, other)
        tokens = (pair.n_prompt_tokens, one.gen_tokens)
        if tokens != (other.prompt_tokens * other.batch_size, other.gen_tokens) or one == other:
            continue
        if tokens not in widest or _contrast(pair) > _contrast(widest[tokens]):
            widest[tokens] = pair
    if not widest:
        raise SpecError(
            "no point of A has as many tokens as one of B in another shape",
            where=_WHERE,
            allowed="prompt x batch of A equal to that of B, and as many generated tokens",
        )
    return tuple(widest[tokens] for tokens in sorted(widest))


def _contrast(pair: EqualTokens) -> float:
    ratio = pair.old.prompt_tokens / pair.new.prompt_tokens
    return max(ratio, 1 / ratio)


def _token_numbers(
    old: Sequence[Run], new: Sequence[Run], pairs: Sequence[EqualTokens], *, is_single: bool
) -> dict[str, _Numbers]:
    """Prefill, decode step and decode throughput at each token count, and means of their ratios."""
    olds, news = ([point_times(run) for run in side] for side in (old, new))
    found = dict[str, _Numbers]()
    for metric in (*PHASES, DECODE_RATE):
        of_pairs = {
            pair: (
                _side_numbers(olds, pair.old, metric, is_single=is_single),
                _side_numbers(news, pair.new, metric, is_single=is_single),
            )
            for pair in pairs
        }
        known = {
            pair: both
            for pair, both in of_pairs.items()
            if all(np.isfinite(one).any() for one in both)
        }
        make = _rates if metric == DECODE_RATE else _times
        if known:
            means = [_geometric_mean([both[i] for both in known.values()]) for i in range(2)]
            found[f"{metric} of all token counts"] = make(*means)
        found |= {
            f"{metric} at {pair.text}": make(both[0].tolist(), both[1].tolist())
            for pair, both in known.items()
        }
    return found


def _side_numbers(
    side: Sequence[Mapping[PointKey, PointTimes]], key: PointKey, metric: str, *, is_single: bool
) -> F64:
    if metric != DECODE_RATE:
        return _replicates(side, key, metric, is_single=is_single)
    return key.batch_size / _replicates(side, key, "decode_step_s", is_single=is_single)


def _rates(old: list[float], new: list[float]) -> _Numbers:
    return _Numbers("tok/s", smaller_is_better=False, old=old, new=new)


def _times(old: list[float], new: list[float]) -> _Numbers:
    return _Numbers("s", smaller_is_better=True, old=old, new=new)


def _replicates(
    side: Sequence[Mapping[PointKey, PointTimes]], key: PointKey, phase: str, *, is_single: bool
) -> F64:
    times: list[F64] = [getattr(one[key], phase) for one in side]
    return times[0] if is_single else np.array([_median(one) for one in times])


def _median(values: F64) -> float:
    present = values[np.isfinite(values)]
    return float(np.median(present)) if present.size else float("nan")


def _geometric_mean(columns: Sequence[F64]) -> list[float]:
    """Geometric mean over the points for each replicate that all points have."""
    n_all = min(len(column) for column in columns)
    means: list[float] = np.exp(
        np.mean([np.log(column[:n_all]) for column in columns], axis=0)
    ).tolist()
    return means


def _compared(
    name: str,
    numbers: _Numbers,
    rule: ComparisonRule,
    confidence_fraction: float,
    replicate: Replicate,
) -> ComparedMetric:
    of_pairs = compare_pairs if rule.is_paired else compare
    found = of_pairs(
        numbers.new,
        numbers.old,
        margin_ratio=rule.margin_ratio,
        confidence_fraction=confidence_fraction,
    )
    return ComparedMetric(
        metric=name,
        unit=numbers.unit,
        smaller_is_better=numbers.smaller_is_better,
        old=median_estimate(numbers.old),
        new=median_estimate(numbers.new),
        ratio=None if found is None else found.ratio,
        verdict=_verdict(found, smaller_is_better=numbers.smaller_is_better),
        why=_why(found, numbers, rule, replicate),
    )


def _verdict(found: Comparison | None, *, smaller_is_better: bool) -> ComparedVerdict:
    if found is None or found.verdict == "undecided":
        return "undecided"
    if found.verdict == "equivalent":
        return "equivalent"
    return "better" if (found.verdict == "lower") == smaller_is_better else "worse"


def _why(
    found: Comparison | None, numbers: _Numbers, rule: ComparisonRule, replicate: Replicate
) -> str:
    if found is None:
        sides = " and ".join(
            name
            for name, side in (("A", numbers.old), ("B", numbers.new))
            if not np.isfinite(side).any()
        )
        needed = (
            f": it takes {numbers.n_needed:,} requests or more, and that those it falls on were"
            " done"
            if numbers.n_needed
            else ""
        )
        return f"no {replicate} of {sides or 'a side'} has this number{needed}"
    n = found.n_to_decide
    more = "" if n is None else f"; about {n:,} new {replicate}s of each side would decide"
    if found.ratio.low is None or found.ratio.high is None:
        return (
            f"{found.ratio.method}{more}"
            if min(len(numbers.old), len(numbers.new)) > 1
            else f"one {replicate} says nothing of how {replicate}s differ"
        )
    margin = f"a margin of {rule.margin_ratio:.1%}"
    if found.verdict != "undecided":
        is_equal = found.verdict == "equivalent"
        return f"the interval lies within {margin}" if is_equal else "the interval leaves out 1"
    return f"the interval reaches over 1 and beyond {margin}{more}"


def _cautions(old: Sequence[Run], new: Sequence[Run], *, is_single: bool) -> tuple[Caution, ...]:
    cautions = list[Caution]()
    if is_single:
        text = (
            "each side is one sweep: what changes from run to run (memory layout, neighbours,"
            " clocks) is not in the intervals"
        )
        cautions.append(
            Caution(
                code="ONE_RUN_EACH", text=text, remedy="4 runs or more of each side, taken in turns"
            )
        )
    elif min(len(old), len(new)) < 4:
        text = f"{len(old)} against {len(new)} runs: intervals need 4 on each side"
        cautions.append(
            Caution(code="FEW_RUNS", text=text, remedy="more runs of each side, taken in turns")
        )
    invalid = [run.manifest.run_id for run in (*old, *new) if is_invalid(run)]
    if invalid:
        text = (
            "INVALID load tests are compared, whose numbers are not the server's:"
            f" {', '.join(invalid)}"
        )
        cautions.append(
            Caution(
                code="INVALID",
                text=text,
                remedy="the same load tests again, without what `inferometer show` says of them",
            )
        )
    return tuple(cautions)


def _unlike(
    old: RunManifest, new: RunManifest, paces: _Numbers, rule: ComparisonRule
) -> Iterator[Caution]:
    """A caution if the TPOT of two servers of one model differs greatly."""
    a, b = old.load, new.load
    if a is None or b is None or a.url == b.url or a.served_model != b.served_model:
        return
    ratio = _compared("tpot_p50_s", paces, rule, rule.confidence_fraction, "run").ratio
    if ratio is not None and ratio.low is not None and ratio.high is not None:
        found = judged("unlike_providers", max(ratio.low, 1 / ratio.high))
        if found.finding == "found":
            yield found.caution


def _flat(manifest: RunManifest) -> dict[str, str]:
    """The manifest's facts as dotted names, without those that differ in every run."""
    found = dict[str, str]()

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
                walk(f"{name}.{key}", inner)
        elif value is not None:
            found[name] = str(value)

    for name in _FACTS:
        walk(name, msgspec.to_builtins(getattr(manifest, name)))
    return {
        name: value
        for name, value in found.items()
        if not name.endswith(("_s", ".points", ".seed"))
    }
