"""What is shown of an experiment: the answer in a sentence, its claims in display units, and where they are from?"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from inferometer import __version__
from inferometer.report.verify_tables import ClaimRow, PromiseRow, VerifyView
from inferometer.report.views import FactGroup
from inferometer.units import format_fraction
from inferometer.verify.score import ClaimState, Experiment, PromiseState
from inferometer.verify.seals import Metric, Seal


class MetricName(NamedTuple):
    """How a metric is called and shown."""

    series: str
    name: str
    unit: str
    factor_ratio: float


METRICS: Final[Mapping[Metric, MetricName]] = {
    "ttft_p50_s": MetricName("TTFT", "TTFT p50", "ms", 1e3),
    "ttft_p95_s": MetricName("TTFT", "TTFT p95", "ms", 1e3),
    "tpot_p50_s": MetricName("TPOT", "TPOT p50", "ms", 1e3),
    "tpot_p95_s": MetricName("TPOT", "TPOT p95", "ms", 1e3),
    "e2e_p50_s": MetricName("E2E", "E2E p50", "ms", 1e3),
    "e2e_p95_s": MetricName("E2E", "E2E p95", "ms", 1e3),
    "output_tokens_per_s": MetricName("output", "output throughput", "tok/s", 1.0),
    "completed_requests_per_s": MetricName("completed", "request throughput", "requests/s", 1.0),
    "prefill_s": MetricName("prefill", "prefill", "ms", 1e3),
    "decode_step_s": MetricName("decode step", "decode step", "ms", 1e3),
}


def view_of(experiment: Experiment, next_command: str) -> VerifyView:
    """All that is shown of it."""
    seal = experiment.seal
    return VerifyView(
        title=seal.experiment,
        subtitle=(
            f"{seal.belief.subject} · predictions"
            f" {'of a load' if seal.kind == 'load' else 'of a sweep'}, sealed before measuring"
        ),
        answer=_answer(experiment),
        verdict=experiment.verdict,
        why=_why(experiment),
        trust=f"{seal.belief.basis}: {seal.belief.rests_on}",
        seal=(
            f"{experiment.sealed_utc}, sha256 {experiment.seal_sha256[:16]}, by inferometer"
            f" {_code(seal)}"
        ),
        measured="; ".join(
            _run(experiment, at) for at in dict.fromkeys(one.at for one in experiment.measured)
        ),
        next=next_command,
        claims=tuple(_claim_row(state) for state in experiment.claims),
        promises=tuple(_promise_row(state) for state in experiment.promises),
        facts=_facts(experiment),
        tool_version=__version__,
    )


def _answer(experiment: Experiment) -> str:
    verdicts = experiment.verdicts
    n_all = len(experiment.claims) + len(experiment.promises)
    counts = {
        "wrong": verdicts.count("wrong"),
        "held": verdicts.count("held"),
        "undecided": verdicts.count("undecided"),
        "open": n_all - len(verdicts),
    }
    said = ", ".join(f"{n} {word}" for word, n in counts.items() if n)
    lead = {
        "held": "every prediction held",
        "wrong": "not all was right",
        "undecided": "nothing was wrong, not all is decided",
        "open": "sealed, not all of it measured",
        "INVALID": "a measurement is INVALID and proves nothing",
    }[experiment.verdict]
    return f"{experiment.seal.experiment}: {lead}; of {n_all} predictions {said}"


def _why(experiment: Experiment) -> str:
    """The furthest off, else what is in the way."""
    invalid = [
        one
        for one in experiment.measured
        if one.validity == "INVALID" and one.at in experiment.open_questions
    ]
    if invalid:
        return f"{invalid[-1].at}: {invalid[-1].why}"
    measured = [
        (state.claim, state.outcome) for state in experiment.claims if state.outcome is not None
    ]
    if not measured:
        return (
            f"{len(experiment.open_questions)} of {len(experiment.seal.questions)} questions were"
            " never measured"
        )
    claim, outcome = max(measured, key=lambda pair: abs(pair[1].error_fraction))
    n_inside = sum(one.is_inside for _, one in measured)
    return (
        f"{n_inside} of {len(measured)} numbers ({format_fraction(n_inside / len(measured))})"
        f" inside their 90 % interval; furthest off: {METRICS[claim.metric].name} at {claim.at},"
        f" {outcome.error_fraction:+.1%} ({outcome.verdict})"
    )


def _claim_row(state: ClaimState) -> ClaimRow:
    claim, outcome = state.claim, state.outcome
    shown = METRICS[claim.metric]
    return ClaimRow(
        at=claim.at,
        series=shown.series,
        metric=shown.name,
        unit=shown.unit,
        predicted=claim.predicted.scaled(shown.factor_ratio),
        measured=None if outcome is None else outcome.measured.scaled(shown.factor_ratio),
        error_fraction=None if outcome is None else outcome.error_fraction,
        verdict="open" if outcome is None else outcome.verdict,
    )


def _promise_row(state: PromiseState) -> PromiseRow:
    claim, outcome = state.claim, state.outcome
    return PromiseRow(
        at=claim.at,
        objective=claim.objective,
        predicted=claim.predicted,
        measured="–" if outcome is None else outcome.measured,
        verdict="open" if outcome is None else outcome.verdict,
    )


def _run(experiment: Experiment, at: str) -> str:
    """Every run of this question, the INVALID ones too."""
    return ", then ".join(
        f"{one.at}: run {one.run_id}{f' ({one.validity})' if one.validity else ''}"
        for one in experiment.runs_of(at)
    )


def _facts(experiment: Experiment) -> tuple[FactGroup, ...]:
    seal = experiment.seal
    sealed = (
        ("sealed", experiment.sealed_utc),
        ("sha256 of the seal", experiment.seal_sha256),
        ("sha256 of the plan", seal.plan_sha256),
        ("rests on", f"{seal.belief.basis}: {seal.belief.rests_on}"),
        ("sha256 of that", seal.belief.sha256),
        ("inferometer", _code(seal)),
        *(
            (question.at, f"{question.asks}; sha256 {question.sha256}")
            for question in seal.questions
        ),
    )
    runs = tuple(
        (
            one.at,
            (
                f"run {one.run_id}, {one.measured_utc},"
                f" {one.asked_as}{f'; {one.validity}' if one.validity else ''}"
            ),
        )
        for one in experiment.measured
    )
    return (
        FactGroup(title="Sealed", facts=sealed),
        *((FactGroup(title="Measured", facts=runs),) if runs else ()),
    )


def _code(seal: Seal) -> str:
    return (
        seal.code.version
        if seal.code.git_commit is None
        else f"{seal.code.version} at {seal.code.git_commit}"
    )
