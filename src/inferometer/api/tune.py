"""inferometer tune: which changes of the settings help this server, and by how much?"""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from inferometer.api import tune_engine, tune_engine_answer, tune_preset
from inferometer.api.deployment_folder import check_free
from inferometer.api.fleet import FleetOptions
from inferometer.api.progress import PartsDone, talk
from inferometer.api.question import SERVER, option, words_of
from inferometer.api.server import Server
from inferometer.api.tune_answer import answer_of
from inferometer.api.tune_started import Remainder, Starting, answered, job_of, planned_of
from inferometer.api.tune_subject import Subject, Wanted, chosen_steps, now_of, subject_of
from inferometer.api.tuning import MeasuredTune, PlannedStep, PlannedTune, PresetAnswer, TuneAnswer
from inferometer.api.workload import Workload
from inferometer.decide.tuning.playbook import PLAYBOOK, STEP_NAMES, Step
from inferometer.decide.tuning.search import ROUNDS, Tuning
from inferometer.decide.tuning.trials import N_PAIRS, Goal, pairs_of
from inferometer.errors import SpecError

_ENGINES: Final = ("vllm", "sglang")
_OF_START: Final = frozenset(
    {"hardware", "fit", "policy", "tp", "dtype", "quantization", "set", "preset"}
    | {"max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_blocks", "block_size"}
)
"""Options that --start itself sets for a measured server."""
_OF_ENGINE: Final = frozenset(
    {
        "engine",
        "mode",
        "attn",
        "device",
        "threads",
        "load_format",
        "quality_margin",
        "seq",
        "batch_sizes",
        "gen_tokens",
        "reps",
    }
)
_ALSO_OF_ENGINE: Final = frozenset(
    {"model", "dtype", "kv_dtype", "quantization", "tp", "goal", "slo", "least_gain", "steps"}
    | {"pairs", "seed", "dry_run", "out"}
)
_OF_STARTING: Final = frozenset(
    {"own", "pairs", "usd_per_hour", "start_timeout", "endpoint", "prompts"}
)
_OF_PRESET: Final = frozenset(
    {"model", "preset", "hardware", "tp", "pp", "fit", "transfer", "datasheet", "link"}
    | {"all_reduce_us", "dtype", "quantization", "kv_dtype", "policy", "set"}
    | {"max_model_len", "block_size", "num_blocks"}
)
"""A preset knows the server, no traffic."""
_CAPACITY_SIMULATIONS: Final = 9
"""Simulations of a search for the highest rate, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune:
    """The server as it is, its traffic, and the goal."""

    server: Server
    goal: Goal = option(
        "interactive",
        "interactive: latencies further below the SLO; throughput: more requests/s within it;"
        " cost: the same for each device.",
        "Limits",
        is_common=True,
    )
    slo: str | None = option(
        None, "The SLO: ttft:p95<500ms, tpot:p95<50ms.", "Limits", is_common=True, metavar="SLO"
    )
    workload: Workload = field(default_factory=Workload)
    fleet: FleetOptions = field(default_factory=FleetOptions)
    starting: Starting = field(default_factory=Starting)
    of_engine: tune_engine.EngineTuning = field(default_factory=tune_engine.EngineTuning)
    least_gain: float = option(
        0.02,
        "Gains below this share are not worth a change.",
        "Limits",
        least=0,
        most=1,
        is_open=True,
    )
    steps: str | None = option(
        None,
        f"Only these steps, with commas between. [{','.join(STEP_NAMES)}; of --engine:"
        f" {','.join(tune_engine.STEP_NAMES)}]",
        "Limits",
        metavar="NAMES",
    )
    preset: Literal["interactive", "batch"] | None = option(
        None,
        "Print recommended values to start from, each with its reason; nothing is searched.",
        "Limits",
        is_common=True,
    )
    dry_run: bool = option(
        False, "Print what would be tried, and how long it takes.", is_common=True
    )
    out: Path | None = option(
        None, "Folder for the answer, its page and the command.", is_common=True, metavar="DIR"
    )
    force: bool = option(False, "Overwrite what is in --out.")
    given: frozenset[str] = frozenset()


def tune(question: Tune) -> TuneAnswer | MeasuredTune | PlannedTune | PresetAnswer:
    """Changes of the settings that help this server under its traffic, with their gains.

    Each step of a playbook is simulated on 19 plausible machines, with the same requests
    before and after. What gains in all of them is taken. The gain of all together is that of fresh
    requests.

    Raises
    ------
    SpecError, ModelError
        The question cannot be answered as it is put.
    """
    if question.of_engine.engine is not None:
        return _of_engine(question)
    _check_not_of_engine(question)
    target = SERVER(question.server.model, "MODEL")
    if question.starting.start is not None or "://" in target:
        return _measured(question, target)
    _check_not_of_start(question)
    policy = question.server.policy or _ENGINES[0]
    if policy not in _ENGINES:
        raise SpecError(
            f"the playbook of {policy} is not known",
            where="--policy",
            allowed=", ".join(_ENGINES),
            try_="--policy vllm",
        )
    if question.preset is not None:
        _check_of_preset(question.given)
        same = words_of(question, tuple(_OF_PRESET - {"model", "policy", "preset"}))
        return tune_preset.preset_of(question.preset, question.server, policy, same)
    steps = chosen_steps(question.steps, PLAYBOOK, "--steps max_num_seqs,step_budget")
    if question.out is not None:
        check_free(question.out, is_forced=question.force)
    wanted = Wanted(question.goal, question.slo, question.least_gain)
    subject = subject_of(wanted, question.server, question.workload, question.fleet, policy)
    if question.dry_run:
        return _planned(subject, steps)
    what = f"step{'s' * (len(steps) != 1)} under {subject.aim.n_requests:,} requests"
    talk(f"{len(steps)} {what} of {subject.aim.spec.name}")
    tuned = Tuning(
        trials=subject.trials,
        steps=steps,
        now_of=lambda variant: now_of(subject, variant),
        least_gain_ratio=question.least_gain,
        seed=subject.aim.spec.seed,
        on_step=lambda step: talk(PartsDone("steps", steps.index(step), len(steps))),
    ).run()
    return answer_of(question, subject, tuned, question.out)


def _measured(question: Tune, url: str) -> MeasuredTune | PlannedTune:
    _check_no_force(question)
    stated = sorted(question.given & _OF_START)
    if stated:
        raise SpecError(
            f"--{stated[0].replace('_', '-')} describes a simulated server",
            where="--start",
            allowed="its own flags, in --start",
            try_="--start 'vllm serve MODEL --max-num-seqs 64'",
        )
    wanted = Wanted(question.goal, question.slo, question.least_gain)
    steps = chosen_steps(question.steps, PLAYBOOK, "--steps max_num_seqs,step_budget")
    named = frozenset(one.name for one in steps) if question.steps is not None else frozenset()
    remainder = Remainder(wanted, question.workload, steps, named, question.out)
    job = job_of(url, question.starting, remainder)
    if question.dry_run:
        return planned_of(job)
    return answered(job)


def _of_engine(question: Tune) -> MeasuredTune | PlannedTune:
    _check_no_force(question)
    other = sorted(question.given - _ALSO_OF_ENGINE - _OF_ENGINE)
    if other:
        raise SpecError(
            f"--{other[0].replace('_', '-')} says nothing of a batch that an engine runs here",
            where="--engine",
            allowed=", ".join(f"--{one.replace('_', '-')}" for one in sorted(_OF_ENGINE)),
            try_="--seq 128 --batch-sizes 1 --gen-tokens 32",
        )
    rest = tune_engine.EngineRemainder(
        server=question.server,
        wanted=Wanted(question.goal, question.slo, question.least_gain),
        steps=question.steps,
        n_most=question.starting.pairs,
        seed=question.workload.seed or 0,
        out=question.out,
    )
    job = tune_engine.job_of(question.of_engine, rest)
    if question.dry_run:
        return tune_engine.planned_of(job)
    return tune_engine_answer.answer_of(job, tune_engine.measured(job))


def _check_no_force(question: Tune) -> None:
    """Refuse --force: measurements are not overwritten, they are resumed."""
    if question.force:
        raise SpecError(
            "--force over what was measured",
            where="--force",
            allowed="the same command, which goes on with its folder, or another folder",
            try_="--out tuned-again",
        )


def _check_of_preset(given: frozenset[str]) -> None:
    """Refuse options that a preset would ignore."""
    other = sorted(given - _OF_PRESET)
    if other:
        raise SpecError(
            f"--{other[0].replace('_', '-')} says nothing to a preset, which is for a TPOT of 50 ms"
            " under any traffic",
            where="--preset",
            allowed="the model, its device and its formats beside it",
            try_="the same without --preset: your traffic and your SLO decide",
        )


def _check_not_of_start(question: Tune) -> None:
    stated = sorted(question.given & _OF_STARTING)
    if stated:
        flag = "try" if stated[0] == "own" else stated[0].replace("_", "-")
        raise SpecError(
            f"--{flag} is of a server that is started here, and {question.server.model} is simulated",
            where=f"--{flag}",
            allowed="a URL of this machine, and --start",
            try_="http://127.0.0.1:8000 --start 'vllm serve MODEL'",
        )


def _check_not_of_engine(question: Tune) -> None:
    stated = sorted(question.given & _OF_ENGINE)
    if stated:
        raise SpecError(
            f"--{stated[0].replace('_', '-')} is of an engine that runs the model here",
            where="--engine",
            allowed="it beside --engine",
            try_="--engine transformers",
        )


def _planned(subject: Subject, steps: tuple[Step, ...]) -> PlannedTune:
    """What would be tried; times one simulation."""
    now, rows, n_simulations = now_of(subject, ()), list[PlannedStep](), N_PAIRS
    pairs = pairs_of(2, subject.aim.spec.seed)
    subject.trials.outcomes([()], pairs[:1])  # compiles what is not in the cache
    began_s = time.perf_counter()
    subject.trials.outcomes([()], pairs)
    each_s = time.perf_counter() - began_s
    n_candidates = 0
    for step in steps:
        tries = step.tries(now)
        words = () if isinstance(tries, str) else tuple(one.words for one in tries)
        n_candidates += len(words)
        if words:
            n_simulations += _n_simulations(len(words))
        rows.append(
            PlannedStep(
                name=step.name,
                title=step.title,
                flags=step.flags[subject.policy],
                changes=words,
                why_none=tries if isinstance(tries, str) else "",
                unpredicted=step.unpredicted,
            )
        )
    n_simulations += 2 * N_PAIRS
    n_each = _CAPACITY_SIMULATIONS if subject.aim.is_capacity else 1
    return PlannedTune(
        steps=tuple(rows),
        n_candidates=n_candidates,
        n_simulations=n_simulations * n_each,
        duration_s=math.ceil(n_simulations * each_s),
        n_restarts=0,
    )


def _n_simulations(n_changes: int) -> int:
    """Simulations of a step with this number of changes."""
    n_left, n_simulations = n_changes, 0
    for n_pairs, n_next in ROUNDS:
        n_simulations += n_left * n_pairs
        n_left = min(n_left, n_next)
    return n_simulations + N_PAIRS
