"""Tuning of servers that are started here: its options, plan and answer."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.api.load_request import Load
from inferometer.api.question import duration_option, option
from inferometer.api.tune_measured import N_LEAST_PAIRS, Job, measured, most_servers
from inferometer.api.tune_measured_answer import answer_of, plan_words
from inferometer.api.tune_paired import default_folder, tuning_folder
from inferometer.api.tune_pairs import Bench
from inferometer.api.tune_subject import Wanted, check_fittable
from inferometer.api.tuning import MeasuredTune, PlannedStep, PlannedTune
from inferometer.api.workload import Workload, objective_for, workload_of
from inferometer.decide.tuning.playbook import Step
from inferometer.decide.tuning.start_command import (
    StartCommand,
    parse_flags,
    parse_start,
    with_words,
)
from inferometer.errors import SpecError
from inferometer.inputs.plans import Endpoint, PromptForm
from inferometer.inputs.workload.types import ClosedArrivals
from inferometer.measure.served import address_of

_N_REQUESTS: Final = 200
"""Requests of a load test without another end: enough for a 95th percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """How to start and load a server that is tuned."""

    start: str | None = option(
        None,
        "MODEL is a URL of this machine: the command that starts the server there.",
        "Runs",
        is_common=True,
        metavar="COMMAND",
    )
    own: tuple[str, ...] = option(
        (),
        "With --start: further flags to try, together as one change; repeatable.",
        "Runs",
        is_common=True,
        flags=("--try",),
        metavar="FLAGS",
    )
    pairs: int = option(
        16,
        "With --start: most pairs of servers for each change; fewer where fewer decide.",
        "Runs",
        is_common=True,
        least=N_LEAST_PAIRS,
        most=99,
    )
    usd_per_hour: float | None = option(
        None, "With --start: price of one device, to print the cost of tuning.", "Runs", least=0
    )
    start_timeout: float = duration_option(
        600.0, "With --start: until the server must be ready. [10min]", "Runs"
    )
    endpoint: Endpoint = option("chat", "With --start: chats, or completions of a prompt.", "Runs")
    prompts: PromptForm = option("words", "With --start: how prompts are written.", "Runs")


class Remainder(NamedTuple):
    """The rest of the question."""

    wanted: Wanted
    workload: Workload
    steps: tuple[Step, ...]
    named: frozenset[str]
    out: Path | None


def job_of(url: str, starting: Starting, remainder: Remainder) -> Job:
    """The tuning job of these options.

    Raises
    ------
    SpecError
        There is no start command, no SLO or no load, or a goal that this load cannot show.
    """
    if starting.start is None:
        raise SpecError(
            "no start command: tune restarts the server for each change",
            where="--start",
            try_="--start 'vllm serve MODEL'",
        )
    slo = remainder.wanted.required_slo
    workload = remainder.workload
    if workload.requests is None and workload.duration is None:
        workload = replace(workload, requests=_N_REQUESTS)
    spec = workload_of(workload)
    if remainder.wanted.goal != "interactive" and not isinstance(spec.arrivals, ClosedArrivals):
        raise SpecError(
            f"goal {remainder.wanted.goal} at a rate: a server answers no more than is sent",
            where="--goal",
            allowed="--concurrency, whose users send as soon as they are answered",
            try_="--concurrency 32",
        )
    check_fittable(spec)
    start = _at_port(parse_start(starting.start), url)
    for words in starting.own:
        parse_flags(words)
    bench = Bench(
        url=url.rstrip("/"),
        load=Load(workload=workload, endpoint=starting.endpoint, prompts=starting.prompts),
        objective=objective_for(slo, spec),
        goal=remainder.wanted.goal,
        folder=Path(),
        start_timeout_s=starting.start_timeout,
        least_gain_ratio=remainder.wanted.least_gain_fraction,
    )
    job = Job(
        start=start,
        bench=bench,
        wanted=remainder.wanted,
        steps=tuple(one for one in remainder.steps if one.name not in {"parallelism", "routing"}),
        named=remainder.named,
        own=starting.own,
        n_most=starting.pairs,
        seed=spec.seed,
        usd_per_hour=starting.usd_per_hour,
    )
    folder = remainder.out or default_folder(_question(job))
    return replace(job, bench=replace(bench, folder=folder))


def _at_port(start: StartCommand, url: str) -> StartCommand:
    """The command at the port of the URL; one that names another port is refused."""
    _, number = address_of(url)
    stated, port = start.value("port"), str(number)
    if stated is not None and stated != port:
        raise SpecError(
            f"the command listens at port {stated}, and {url} is another one",
            where="--start, TARGET",
            try_=f"http://127.0.0.1:{stated}",
        )
    return start if stated is not None else with_words(start, ("--port", port))


def _question(job: Job) -> dict[str, object]:
    """Identity of a tuning: equal for two that are the same."""
    return {
        "url": job.bench.url,
        "start": job.start.text,
        "wanted": job.wanted._asdict(),
        "workload": {
            name: str(getattr(job.bench.load.workload, name))
            for name in job.bench.load.workload.__dataclass_fields__
        },
        "steps": [one.name for one in job.steps],
        "named": sorted(job.named),
        "own": job.own,
        "pairs": job.n_most,
        "endpoint": job.bench.load.endpoint,
        "prompts": job.bench.load.prompts,
    }


def planned_of(job: Job) -> PlannedTune:
    """What would be started, at most; starts nothing."""
    rows = tuple(
        PlannedStep(
            name=step.name,
            title=step.title,
            flags=step.flags["sglang" if job.start.family == "sglang" else "vllm"],
            changes=(),
            why_none="chosen by simulation when the server's model is known",
            unpredicted=step.unpredicted,
        )
        for step in job.steps
    )
    rows += tuple(
        PlannedStep(
            name=words,
            title="of your own",
            flags=words,
            changes=(words,),
            why_none="",
            unpredicted="all of it",
        )
        for words in job.own
    )
    n_servers = most_servers(job)
    for_s = job.bench.load.workload.duration
    return PlannedTune(
        steps=rows,
        n_candidates=len(job.own),
        n_simulations=0,
        duration_s=None if for_s is None else n_servers * for_s,
        n_restarts=n_servers,
        cost=plan_words(job),
    )


def answered(job: Job) -> MeasuredTune:
    """Run or resume the tuning.

    Raises
    ------
    MeasureError, RecordError
        The server as it was given does not run; the folder is another question's.
    """
    with tuning_folder(job.bench.folder, _question(job)):
        return answer_of(job, measured(job), workload_of(job.bench.load.workload))
