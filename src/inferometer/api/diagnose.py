"""inferometer diagnose: what limits this running server, and which change would help?"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from inferometer import suggestions
from inferometer.api.diagnose_check import sealed_check
from inferometer.api.diagnose_probe import Probe, probe
from inferometer.api.diagnose_source import (
    Source,
    StatedLimit,
    live_source,
    past_of,
    past_source,
    stated_limits,
)
from inferometer.api.diagnose_steps import StepsAnswer, recorded_steps, steps_answer
from inferometer.api.diagnose_stored import made_by, stored_source
from inferometer.api.diagnosis import DiagnoseAnswer, answer_of
from inferometer.api.known_facts import known_facts
from inferometer.api.load_sending import is_open
from inferometer.api.progress import talk
from inferometer.api.question import SERVER, Option, duration_option, option
from inferometer.decide.diagnosis import rebuilding, step_pace
from inferometer.errors import SpecError
from inferometer.fit.loads.server import Limit
from inferometer.inputs.objectives import NO_WORKFLOWS, parse_objective
from inferometer.records import reading, run_folder
from inferometer.verify.ledger import LEDGER

_LEAST_S: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose:
    """A server, and its SLO."""

    target: Annotated[
        str,
        Option(
            "URL of a server, or a load test that stored its metrics; with --prometheus the"
            " host:port that it scrapes. A log of steps alone tells where their time goes.",
            heading="Runs",
            is_argument=True,
            metavar="URL|RUN|LOGFILE",
        ),
    ]
    slo: str | None = option(
        None,
        "The SLO: ttft:p95<500ms, tpot:p95<50ms. Without it TTFT p95 is explained.",
        "Limits",
        is_common=True,
        metavar="SLO",
    )
    duration: float = duration_option(
        60.0, "For how long the metrics are read. [60s]", "Limits", is_common=True, flags=("--for",)
    )
    known: str | None = option(
        None,
        "Limits of the server that are known, such as"
        " max_num_seqs=256,max_num_batched_tokens=2048.",
        "Engine",
        is_common=True,
        metavar="NAME=VALUE,…",
    )
    probe: bool = option(
        False,
        "After the window, send a small load that measures what metrics do not show:"
        " max_num_seqs, the step budget, TTFT without load. Its size is printed first.",
        "Limits",
        is_common=True,
    )
    fpm: str | None = option(
        None,
        "Endpoint of the server's Forward Pass Metrics (Dynamo, SGLang): they report each step, so"
        " its time is measured, not estimated. Needs the extra fpm.",
        "Runs",
        is_common=True,
        metavar="ENDPOINT",
    )
    steps: Path | None = option(
        None,
        "A log of the server's steps: vLLM's iteration log, Forward Pass Metrics as JSON lines, or"
        " a scheduler log.",
        "Runs",
        is_common=True,
        metavar="LOGFILE",
    )
    prometheus: str | None = option(
        None,
        "URL of the Prometheus that scraped the server: diagnose a time in the past.",
        "Runs",
        is_common=True,
        metavar="URL",
    )
    range: str | None = option(
        None,
        "With --prometheus: start and end, in UTC unless an offset is given:"
        " 2026-11-23T14:00..14:20.",
        "Runs",
        is_common=True,
        metavar="START..END",
    )
    last: float | None = duration_option(
        None, "With --prometheus: this long until now. [10min]", "Runs", is_common=True
    )
    replica: str | None = option(
        None,
        "Which of several engines, models or servers on one page of metrics: engine=1."
        " [the fullest]",
        "Runs",
        is_common=True,
        metavar="LABEL=VALUE",
    )
    local: bool = option(
        False,
        "The server runs on this machine: also check its processes for threads that wait for"
        " cores, a throttled accelerator and memory on another NUMA node.",
        "Hardware",
        is_common=True,
    )
    out: Path | None = option(
        None, "Folder of the sealed prediction. [runs/diagnose-…]", metavar="DIR"
    )
    ledger: Path = option(LEDGER, "Where the prediction is sealed.", metavar="FILE")
    given: frozenset[str] = frozenset()


AnyDiagnosis: TypeAlias = DiagnoseAnswer | StepsAnswer


def diagnose(question: Diagnose) -> AnyDiagnosis:
    """What limits this running server, by how much, and which change would help?

    Without ``probe`` nothing is sent to the server: its metrics are read, the requests that it got are rebuilt from
    them, and the server is simulated with one limit lifted after the other.

    Raises
    ------
    SpecError, MeasureError, RecordError
        There is no such run, or no metrics or steps can be read.
    ModelError
        The window tells too little, is not of one server, or no simulated server resembles this one.
    """
    if question.prometheus is None and not Path(question.target).exists():
        question = replace(question, target=SERVER(question.target, "TARGET"))
    objective = (
        None if question.slo is None else parse_objective(question.slo, why_none=NO_WORKFLOWS)
    )
    known = known_facts(question.known).limits
    if question.duration < _LEAST_S:
        raise SpecError(
            f"{question.duration:g} s of metrics",
            where="--for",
            allowed=f"{_LEAST_S:g} s or more",
            try_=suggestions.flags("--for", "60s"),
        )
    if _is_steps_alone(question):
        if question.replica is not None:
            raise SpecError(
                f"{question.replica!r} of steps without metrics",
                where="--replica",
                try_="the same command without --replica",
            )
        return steps_answer(Path(question.target))
    source = _source(question)
    found = _probed(question, source)
    shown: dict[Limit, int] = {} if found is None else {**found.limits}
    if source.window.step_log is not None:
        shown |= step_pace.limits_shown(source.window.step_log)
    stated: dict[Limit, StatedLimit] = {
        **{name: StatedLimit(value, "identified") for name, value in shown.items()},
        **stated_limits(source, known),
    }
    talk("looking for servers that would show the same metrics")
    limits: dict[Limit, int] = {name: one.value for name, one in stated.items()}
    agreement = rebuilding.rebuilt_servers(source.window, limits)
    agreement.check()
    answer, advised = answer_of(question.target, source, agreement, objective, stated)
    answer = replace(answer, probe=found)
    if advised is None:
        return answer
    place = question.out, question.ledger
    check = sealed_check(
        question.target, source, advised, answer.objective, place, question.replica
    )
    return replace(answer, check=check)


def _probed(question: Diagnose, source: Source) -> Probe | None:
    """Results of the probe; None without one.

    A router sends its requests to all replicas: they show no limit of a single one.
    """
    if question.probe and source.window.replica is not None:
        raise SpecError(
            f"--probe of one of {source.window.replica.n_replicas} replicas behind one address",
            where="--probe",
            allowed="a server of one engine",
            try_="the address of one server: its own port",
        )
    return probe(question.target, source.window) if question.probe else None


def _is_steps_alone(question: Diagnose) -> bool:
    """Is the target a log of steps, or a run with steps and no metrics?"""
    path = Path(question.target)
    if "://" in question.target or question.prometheus is not None or not path.exists():
        return False
    if path.is_file() and path.name != run_folder.MANIFEST_NAME:
        return True
    if is_open(path):
        return False
    run = reading.read_run(path, made_by=made_by())
    return run.server is None and run.steps is not None and len(run.steps.duration_ns) > 0


def _source(question: Diagnose) -> Source:
    """A past time, a stored load test, or the server at a URL from now on; with its steps."""
    source = _measured(question)
    if question.steps is None:
        return source
    log = recorded_steps(question.steps)
    return replace(source, window=replace(source.window, step_log=log))


def _measured(question: Diagnose) -> Source:
    is_live = question.prometheus is None and "://" in question.target
    if question.probe and not is_live:
        raise SpecError(
            "--probe without a server's URL", where="--probe", try_="the URL of the server"
        )
    if question.local and not is_live:
        raise SpecError(
            "--local without a server's URL", where="--local", try_="the URL of the server"
        )
    if question.fpm is not None and (not is_live or question.steps is not None):
        raise SpecError(
            "--fpm with --steps" if is_live else "--fpm without a server's URL",
            where="--fpm",
            allowed="steps that are published while the metrics of a URL are read",
            try_="--steps FILE, which holds them" if not is_live else "one of them",
        )
    if question.prometheus is not None:
        past = past_of(question.range, question.last)
        return past_source(question.prometheus, question.target, past, question.replica)
    if not is_live and "duration" in question.given:
        raise SpecError(
            "--for of a load test that was made", where="--for", try_="the same without --for"
        )
    flag = next((f"--{name}" for name in ("range", "last") if name in question.given), None)
    if flag is not None:
        raise SpecError(f"{flag} without --prometheus", where=flag, try_="--prometheus URL")
    if is_live:
        return live_source(
            question.target,
            question.duration,
            question.fpm,
            is_local=question.local,
            replica=question.replica,
        )
    return stored_source(Path(question.target), question.replica)
