"""Diagnosis from a server's recorded steps alone: parts of their time, and delays of decodes.

Without metrics nothing tells when requests came and how long they waited, so no share of TTFT is
simulated: that takes ``diagnose URL --steps FILE``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer import suggestions
from inferometer.api.answer import Answer
from inferometer.api.diagnosis import LimitRow
from inferometer.decide.diagnosis.causes import CAUSES, CauseName
from inferometer.decide.diagnosis.step_pace import (
    Parts,
    counted_of,
    fitted_numbers,
    limits_shown,
    parts_of,
)
from inferometer.errors import RecordError
from inferometer.records import reading
from inferometer.records.columns import F64
from inferometer.records.step_logs import StepLog, read_step_log, step_log_of
from inferometer.report.charts.curves import Ranked, ranked_chart
from inferometer.report.charts.plot import Axis, Chart
from inferometer.report.page import Page, Section, duration_number, lines_of
from inferometer.report.tables import TextTable
from inferometer.stats.estimate import Estimate
from inferometer.units import format_duration

PartName: TypeAlias = Literal["step_floor", "prompt_compute", "answer_compute", "kv_reads"]

_N_DRAWS: Final = 20
"""The best fit, and 19 whose least and most are an interval of 90 %."""
_SEED: Final = 1
_STALL_FRACTION: Final = 0.1
_WORDS: Final[dict[PartName, str]] = {
    "step_floor": "what every step takes: reading weights, and launching kernels",
    "prompt_compute": "computing prompts",
    "answer_compute": "computing the answers' tokens",
    "kv_reads": "reading the KV cache",
}
_CAUSES: Final[dict[PartName, CauseName]] = {
    "step_floor": "step_floor",
    "prompt_compute": "prompt_compute",
    "kv_reads": "kv_reads",
}
_MORE_DEVICES: Final = "the device computes all the time: more replicas, or lower precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPartRow:
    """One part of the steps' time."""

    name: PartName
    words: str
    fraction: Estimate
    """Share of the time of all steps."""
    change: str
    """The change that would reduce it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsAnswer(Answer):
    """Parts of the time of recorded steps."""

    table = "parts"

    target: str
    source: str
    """Kind of record: vLLM's iteration log, Forward Pass Metrics, …"""
    n_steps: int
    n_lost: int
    """Steps that were published but not received, by their numbers."""
    n_restarts: int
    n_refused: int
    """Messages of another version."""
    steps_s: float
    """Time of all steps."""
    parts: tuple[StepPartRow, ...]
    """The largest first."""
    limited_by: PartName | None
    """The part that is largest in every draw; None: none is."""
    gap_p50_s: float | None
    """Between the tokens of an answer: steps, each as often as it has answers."""
    gap_p99_s: float | None
    gap_p99_without_prompts_s: Estimate | None
    """If prompts were not computed in the steps of answers."""
    are_answers_held_up: bool
    """Do prompts delay decodes by more than a tenth of the p99 step, in every draw?"""
    limits: tuple[LimitRow, ...]
    is_context_told: bool
    """Does the record have contexts? Without them, KV reads count in every step's fixed time."""
    unexplained_ratio: float
    """Median deviation of a step from the fitted times."""


class _Gaps(NamedTuple):
    p50_s: float | None = None
    p99_s: float | None = None
    alone: Estimate | None = None


def steps_answer(path: Path) -> StepsAnswer:
    """Analyse the steps of this file or run.

    Raises
    ------
    RecordError
        There are none.
    ModelError
        There are too few.
    """
    log = recorded_steps(path)
    numbers = fitted_numbers(log, _N_DRAWS, _SEED)
    counted = counted_of(log)
    draws = [parts_of(one, counted) for one in numbers]
    shares = np.array([[part.sum() for part in one] for one in draws])
    shares /= shares.sum(axis=1, keepdims=True)
    is_context_told = bool(np.isfinite(log.held_tokens).any())
    parts = [
        _part(name, shares[:, column])
        for column, name in enumerate(_WORDS)
        if is_context_told or name != "kv_reads"
    ]
    gaps = _gaps(log, draws)
    off = np.abs(np.log(np.sum(draws[0], axis=0) / log.duration_s))
    return StepsAnswer(
        target=str(path),
        source=log.source,
        n_steps=len(log.duration_s),
        n_lost=log.n_lost,
        n_restarts=log.n_restarts,
        n_refused=log.n_refused,
        steps_s=float(log.duration_s.sum()),
        parts=tuple(sorted(parts, key=lambda one: -one.fraction.value)),
        limited_by=_largest(shares),
        gap_p50_s=gaps.p50_s,
        gap_p99_s=gaps.p99_s,
        gap_p99_without_prompts_s=gaps.alone,
        are_answers_held_up=_are_held_up(gaps),
        limits=_limits(log),
        is_context_told=is_context_told,
        unexplained_ratio=float(np.exp(np.median(off)) - 1),
    )


def recorded_steps(path: Path) -> StepLog:
    """The steps of a file, or of a run that stored them.

    Raises
    ------
    RecordError
        There are no steps.
    """
    if path.is_file():
        return read_step_log(path)
    simulated = suggestions.command("simulate", "MODEL", "--hardware", "ID", "--out", "RUN")
    run = reading.read_run(path, made_by=simulated)
    if run.steps is None or not len(run.steps.duration_ns):
        raise RecordError(
            "the run holds no steps",
            where=str(path),
            allowed="a run that stored its steps, or a log of them",
            try_=simulated,
        )
    return step_log_of(run.steps)


def _part(name: PartName, shares: F64) -> StepPartRow:
    cause = _CAUSES.get(name)
    change = next((one.change for one in CAUSES if one.name == cause), _MORE_DEVICES)
    return StepPartRow(name=name, words=_WORDS[name], fraction=_estimate(shares), change=change)


def _estimate(draws: F64) -> Estimate:
    """The best fit's, between the least and the most of all draws."""
    return Estimate(
        value=float(draws[0]),
        low=float(draws.min()),
        high=float(draws.max()),
        confidence_fraction=0.9,
        n_samples=len(draws),
        method="least .. most of fits to steps that were drawn anew",
    )


def _largest(shares: F64) -> PartName | None:
    firsts = set(np.argmax(shares, axis=1).tolist())
    return list(_WORDS)[firsts.pop()] if len(firsts) == 1 else None


def _gaps(log: StepLog, draws: list[Parts]) -> _Gaps:
    rows = np.flatnonzero(log.decode_requests > 0)
    if not len(rows):
        return _Gaps()
    took_s, weights = log.duration_s[rows], log.decode_requests[rows]
    prompts_s = [one.prompts[rows] for one in draws]
    alone = np.array([_quantile(np.maximum(took_s - one, 0), weights, 0.99) for one in prompts_s])
    return _Gaps(
        _quantile(took_s, weights, 0.5), _quantile(took_s, weights, 0.99), _estimate(alone)
    )


def _quantile(seconds: F64, weights: F64, fraction: float) -> float:
    order = np.argsort(seconds)
    place = np.searchsorted(np.cumsum(weights[order]), fraction * weights.sum())
    return float(seconds[order][min(place, len(order) - 1)])


def _are_held_up(gaps: _Gaps) -> bool:
    if gaps.p99_s is None or gaps.alone is None or gaps.alone.high is None:
        return False
    return gaps.p99_s - gaps.alone.high > _STALL_FRACTION * gaps.p99_s


def _limits(log: StepLog) -> tuple[LimitRow, ...]:
    most, budget = int(log.rows.max()), limits_shown(log).get("max_num_batched_tokens")
    at_once = int(log.sequences.max())
    return (
        LimitRow(name="max_num_seqs", low=at_once, high=None, source="identified"),
        LimitRow(
            name="max_num_batched_tokens", low=budget or most, high=budget, source="identified"
        ),
    )


def steps_page(answer: StepsAnswer) -> Page:
    """A page with the largest part, delays of decodes, and observed limits."""
    first = answer.parts[0]
    table = TextTable(
        caption="Where the time of the steps goes",
        header=("part", "share", "change"),
        rows=tuple((one.words, _share(one.fraction), one.change) for one in answer.parts),
    )
    steps = f"{answer.n_steps:,} steps of {answer.source.removeprefix('steps of ')}"
    return Page(
        title=(
            f"{answer.target}: undecided between {first.words} and {answer.parts[1].words}"
            if answer.limited_by is None
            else f"{answer.target}: most of the steps' time is {first.words}"
        ),
        subtitle=f"{steps}, {format_duration(answer.steps_s)} together{_gone(answer)}",
        numbers=duration_number("gap p99", _alone(answer.gap_p99_s, answer))
        + duration_number("without prompts", answer.gap_p99_without_prompts_s),
        chart=_parts_chart(answer),
        table=table,
        lines=lines_of(
            ("LIMIT", f"{first.words}: {_share(first.fraction)} of the time; {first.change}"),
            ("ALSO", _held_up(answer)),
            ("WHY", "; ".join(_limit(one) for one in answer.limits)),
            ("TRUST", _trust(answer)),
            ("NEXT", _next(answer)),
        ),
        sections=(
            Section(id="parts", title="What would change each part?", nav="Parts", tables=(table,)),
        ),
    )


def _parts_chart(answer: StepsAnswer) -> Chart:
    first = answer.parts[0]
    return ranked_chart(
        "step-parts",
        "Where the time of the steps goes",
        f"{_share(first.fraction)} of the time is {first.words}",
        [
            Ranked(
                one.words,
                100 * one.fraction.value,
                None if one.fraction.low is None else 100 * one.fraction.low,
                None if one.fraction.high is None else 100 * one.fraction.high,
            )
            for one in answer.parts
        ],
        x=Axis(title="% of the time of all steps"),
        intervals="90 % intervals",
    )


def _alone(seconds: float | None, answer: StepsAnswer) -> Estimate | None:
    if seconds is None:
        return None
    return Estimate(
        value=seconds,
        low=None,
        high=None,
        confidence_fraction=0.9,
        n_samples=answer.n_steps,
        method="one record",
    )


def _gone(answer: StepsAnswer) -> str:
    counts = {
        "lost on the way": answer.n_lost,
        "of another version": answer.n_refused,
        "restarts": answer.n_restarts,
    }
    return "".join(f"; {n:,} {words}" for words, n in counts.items() if n)


def _share(one: Estimate) -> str:
    return one.text("{:.1%}".format)


def _held_up(answer: StepsAnswer) -> str:
    if not answer.are_answers_held_up or answer.gap_p99_s is None:
        return ""
    alone = answer.gap_p99_without_prompts_s
    until = "" if alone is None else f" instead of {format_duration(alone.value)}"
    return (
        f"prompts in the same steps hold answers up: the 99th percentile of gaps between tokens is"
        f" {format_duration(answer.gap_p99_s)}{until}; a smaller --max-num-batched-tokens (SGLang:"
        " --chunked-prefill-size) costs TTFT of long prompts"
    )


def _trust(answer: StepsAnswer) -> str:
    off = f"half of the steps are within {answer.unexplained_ratio:.1%} of the fitted times"
    hidden = "; the record does not tell the context, whose reading counts as what every step takes"
    return f"{off}{'' if answer.is_context_told else hidden}"


def _limit(one: LimitRow) -> str:
    return f"{one.name} {one.low:,}{'' if one.high == one.low else ' or more'}"


def _next(answer: StepsAnswer) -> str:
    again = suggestions.command("diagnose", "URL", "--steps", answer.target)
    return f"its metrics beside its steps tell the shares of TTFT and TPOT: {again}"
