"""Which options of an engine make a model faster on this machine: measured in pairs, taken or dropped?

The options as they are run first against themselves: the noise of the machine. Each change is then
measured against the options that hold by then, and taken or dropped. At the end all changes
together are measured in fresh pairs, both sides loaded again for each, with other prompts.
"""

import math
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from inferometer import suggestions
from inferometer.api import (
    measured as measuring,
    progress,
    server as servers,
    tune_engine_quality,
    tune_subject,
)
from inferometer.api.model_options import Engine, engine_of
from inferometer.api.question import option, parse_counts
from inferometer.api.tune_engine_pairs import (
    DOOR,
    Engines,
    OptionPairs,
    Runs,
    Version,
    compared,
)
from inferometer.api.tune_paired import (
    CONFIDENCE_AGAIN,
    N_LEAST,
    N_LEAST_CONFIRMED,
    N_LEAST_FRESH_LOADS,
    N_SAME,
    PairsFound,
    Results,
    decision_of,
    default_folder,
    step_row,
    tuning_folder,
)
from inferometer.api.tuning import PlannedStep, PlannedTune
from inferometer.decide.tuning import engine_steps
from inferometer.errors import MeasureError, SpecError, StoppedError
from inferometer.inputs import objectives, plans, resolve, types
from inferometer.measure.environments import find_environment
from inferometer.records import run_folder

STEP_NAMES: Final = engine_steps.ENGINE_STEP_NAMES
_CONFIRMING: Final = 100_000
"""First pair of the confirmation; a step's is its number times as many pairs as it has at most."""
_VERSION_FILE: Final = "engine.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTuning:
    """Options of tuning a model in an engine on this machine."""

    engine: Literal["transformers", "openvino"] | None = option(
        None,
        "Run MODEL here with this engine, and tune its options (those of `inferometer sweep`).",
        "Runs",
        is_common=True,
    )
    mode: types.EngineMode = option("eager", "With --engine: the mode to start from.", "Engine")
    attn: types.AttentionKernel | None = option(
        None, "With --engine: the attention kernel. [what it takes by itself]", "Engine"
    )
    device: str = option(
        "auto", "With --engine: where it runs.", "Engine", choices=("auto", "cpu", "cuda")
    )
    threads: int | None = option(
        None, "With --engine: CPU threads. [the cores this process may use]", "Engine", least=1
    )
    load_format: types.LoadFormat = option(
        "auto", "With --engine: the real weights, or random ones (dummy).", "Engine"
    )
    seq: str = option("128", "With --engine: prompt lengths in tokens.", "Workload")
    batch_sizes: str = option("1", "With --engine: sequences at once.", "Workload")
    gen_tokens: int = option(32, "With --engine: generated for each sequence.", "Workload", least=2)
    reps: int = option(2, "With --engine: repetitions of each side in a pair.", "Limits", least=1)
    quality_margin: float | None = option(
        None,
        "With --engine: check lossy changes that are faster by `inferometer quality`, and take"
        " those whose perplexity rises by no more than this share. [they are named, not taken]",
        "Limits",
        least=0,
        is_open=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """What to tune, and how far."""

    model: str
    resolved: resolve.ResolvedModel
    spec: types.EngineSpec
    runs: Runs
    steps: tuple[engine_steps.EngineStep, ...]
    named: frozenset[str]
    n_most: int
    quality_margin_fraction: float | None

    @property
    def engines(self) -> Engines:
        """Engines without any loaded model."""
        python = find_environment(self.spec.engine).python
        vocab_size = self.resolved.spec.vocab_size
        return Engines(measuring.reference_to(self.resolved), vocab_size, str(python))

    def tries(self, step: engine_steps.EngineStep, now: types.EngineSpec) -> engine_steps.Tries:
        """The changes of a step, or why there are none."""
        return engine_steps.tries_of(step, now, self.resolved.spec.checkpoint_dtype)

    def command(self, spec: types.EngineSpec, seq: str = "", batches: str = "") -> str:
        """The sweep that runs these options."""
        points = self.runs.points
        words = ["--engine", spec.engine, *engine_steps.option_words(spec)]
        words += _device_words(spec)
        words += [] if spec.load_format == "auto" else ["--load-format", spec.load_format]
        words += [] if spec.tensor_parallel_size == 1 else ["--tp", spec.tensor_parallel_size]
        words += ["--seq", seq or _listed({one.prompt_tokens for one in points})]
        words += ["--batch-sizes", batches or _listed({one.batch_size for one in points})]
        return suggestions.command(
            "sweep", self.model, *words, "--gen-tokens", points[0].gen_tokens
        )


class EngineRemainder(NamedTuple):
    """The rest of the question."""

    server: servers.Server
    wanted: tune_subject.Wanted
    steps: str | None
    n_most: int
    seed: int
    out: Path | None


class EngineDone(Results):
    """Results so far, and the options as they are now."""

    def __init__(self, version: Version, spec: types.EngineSpec, same: PairsFound) -> None:
        super().__init__(same)
        self.version = version
        self.spec = spec
        self.n_loads = 1 + same.n_loads  # one for its version
        self.lossy = list[str]()
        """Commands that check the quality of what was faster."""


def job_of(tuning: EngineTuning, rest: EngineRemainder) -> EngineJob:
    """The tuning job of these options.

    Raises
    ------
    SpecError
        The model is not here, or a step or an SLO does not exist for it.
    """
    spec = _spec(tuning, rest.server)
    resolved = resolve.resolve_model(rest.server.model, load_format=spec.load_format)
    goal, slo, least_gain = rest.wanted
    objective = (
        None
        if slo is None
        else objectives.parse_objective(slo, why_none="a batch that an engine runs here has none")
    )
    points = plans.sweep_points(
        prompts=parse_counts(tuning.seq, where="--seq"),
        batches=parse_counts(tuning.batch_sizes, where="--batch-sizes"),
        gen_tokens=tuning.gen_tokens,
        axes="grid",
    )
    _check_objective(objective)
    tune_engine_quality.check_margin(tuning.quality_margin, spec.load_format)
    steps = tune_subject.chosen_steps(
        rest.steps, engine_steps.ENGINE_STEPS, "--steps graphs_and_host,threads"
    )
    job = EngineJob(
        model=rest.server.model,
        resolved=resolved,
        spec=spec,
        runs=Runs(
            points=points,
            n_reps=tuning.reps,
            seed=rest.seed,
            objective=objective,
            goal=goal,
            least_gain_ratio=least_gain,
            folder=Path(),
        ),
        steps=steps,
        named=frozenset(one.name for one in steps) if rest.steps else frozenset(),
        n_most=rest.n_most,
        quality_margin_fraction=tuning.quality_margin,
    )
    folder = rest.out or default_folder(_question(job))
    return replace(job, runs=replace(job.runs, folder=folder))


def _spec(tuning: EngineTuning, server: servers.Server) -> types.EngineSpec:
    """The options as they are, by the flags of `inferometer sweep`."""
    quantization = None if server.quantization == "none" else server.quantization
    return engine_of(
        Engine(
            engine=tuning.engine or "transformers",
            mode=tuning.mode,
            attn=tuning.attn,
            dtype=server.dtype or "auto",
            kv_dtype=server.settings.kv_dtype,
            quantization=quantization,
            device=tuning.device,
            tp=server.tp or 1,
            threads=tuning.threads,
            load_format=tuning.load_format,
        )
    )


def _check_objective(objective: objectives.ObjectiveSpec | None) -> None:
    for one in () if objective is None else objective.thresholds:
        if one.metric == "queue" or one.percentile_fraction is None:
            raise SpecError(
                f"{one.text} of a batch that runs at once",
                where="--slo",
                allowed="percentiles of ttft, tpot and e2e",
                try_="--slo 'ttft:p50<500ms, tpot:p50<50ms'",
            )


def _question(job: EngineJob) -> dict[str, object]:
    """Identity of a tuning: equal for two that are the same."""
    objective = job.runs.objective
    return {
        "model": job.model,
        "spec": job.spec,
        "points": job.runs.points,
        "n_reps": job.runs.n_reps,
        "seed": job.runs.seed,
        "slo": None if objective is None else objective.text,
        "goal": job.runs.goal,
        "least_gain": job.runs.least_gain_ratio,
        "steps": [one.name for one in job.steps],
        "named": sorted(job.named),
        "pairs": job.n_most,
    }


def planned_of(job: EngineJob) -> PlannedTune:
    """What would be measured; loads the model once and times one repetition.

    Raises
    ------
    EngineError
        The model does not run, or fit, with the present options.
    """
    with closing(job.engines) as engines:
        began_s = time.monotonic()
        engines.version(job.spec)
        load_s = time.monotonic() - began_s
        times = engines.first_times(job.spec, job.runs)
    pair_s = 2 * job.runs.n_reps * sum(one.seconds("e2e") for one in times)
    costs = [
        _Cost.of(job, n_pairs, n_confirmed)
        for n_pairs, n_confirmed in ((N_LEAST, _least_confirmed(job)), (job.n_most, job.n_most))
    ]
    least_s, most_s = (one.n_loads * load_s + one.n_pairs * pair_s for one in costs)
    most = costs[-1]
    return PlannedTune(
        steps=tuple(_planned(job, step) for step in job.steps),
        n_candidates=len(_changed_specs(job)),
        n_simulations=0,
        duration_s=math.ceil(most_s),
        n_restarts=most.n_loads,
        is_engine=True,
        cost=(
            f"{max(least_s / 60, 0.1):.1f} to {most_s / 60:.1f} minutes and what is compiled:"
            f" at most {most.n_loads} loads of {load_s:.1f} s and {most.n_pairs} pairs of"
            f" {pair_s:.1f} s (one load and one repetition were timed)"
            + (
                ""
                if job.quality_margin_fraction is None
                else ", and quality of each faster lossy change"
            )
        ),
    )


def _planned(job: EngineJob, step: engine_steps.EngineStep) -> PlannedStep:
    tries = job.tries(step, job.spec)
    return PlannedStep(
        name=step.name,
        title=step.title,
        flags=step.flags,
        changes=() if isinstance(tries, str) else tuple(one.words for one in tries),
        why_none=tries if isinstance(tries, str) else "",
        unpredicted="all of it",
    )


def _changed_specs(job: EngineJob) -> list[types.EngineSpec]:
    """Options of all changes, applied to the present ones."""
    return [change.spec for step in job.steps for change in _changes_of(job, step, job.spec)]


def _again_specs(job: EngineJob) -> list[types.EngineSpec]:
    """Options of all changes that may be measured again."""
    steps = {one.name: one for one in job.steps}
    return [
        change.spec
        for later, earlier in engine_steps.AGAIN.items()
        if {later, earlier} <= set(steps)
        for taken in _changes_of(job, steps[later], job.spec)
        for change in _changes_of(job, steps[earlier], taken.spec)
    ]


def _changes_of(
    job: EngineJob, step: engine_steps.EngineStep, now: types.EngineSpec
) -> tuple[engine_steps.EngineChange, ...]:
    tries = job.tries(step, now)
    return () if isinstance(tries, str) else tries


class _Cost(NamedTuple):
    """Costs of baseline, changes and confirmation."""

    n_loads: int
    n_pairs: int

    @classmethod
    def of(cls, job: EngineJob, n_pairs: int, n_confirmed: int) -> "_Cost":
        """Costs with this number of pairs of each change; options that share a load are counted once."""
        specs = _changed_specs(job) + _again_specs(job)
        begins = {job.spec, *(one for one in specs if one.mode == "compiled")}
        n_alone = sum(
            any(not engine_steps.shares_load(before, after) for before in begins if before != after)
            for after in specs
        )
        return cls(2 + n_alone + 2 * n_confirmed, N_SAME + len(specs) * n_pairs + n_confirmed)


def _least_confirmed(job: EngineJob) -> int:
    return N_LEAST_CONFIRMED if job.runs.objective is not None else N_LEAST_FRESH_LOADS


def measured(job: EngineJob) -> EngineDone:
    """Measure all steps and confirm, or resume that.

    Raises
    ------
    MeasureError, RecordError
        The options as they are do not run, or it was interrupted; the folder is another question's.
    """
    try:
        with tuning_folder(job.runs.folder, _question(job)), closing(job.engines) as engines:
            return _measured(job, engines)
    except KeyboardInterrupt:
        raise StoppedError(
            "interrupted: whole pairs are stored",
            where=str(job.runs.folder),
            command=progress.command_line(),
        ) from None


def _measured(job: EngineJob, engines: Engines) -> EngineDone:
    version = _version(job, engines)
    pairs = OptionPairs("00-same", (job.spec, job.spec), 0, N_SAME, N_SAME)
    same = compared(job.runs, engines, pairs)
    if same.gain is None:
        raise MeasureError(same.fault, where=f"{job.runs.folder}, the options as they are")
    done = EngineDone(version, job.spec, same)
    for step in job.steps:
        _step(job, engines, done, step)
    if done.spec != job.spec:
        both = OptionPairs(
            "99-confirmation",
            (job.spec, done.spec),
            _CONFIRMING,
            _least_confirmed(job),
            job.n_most,
            CONFIDENCE_AGAIN,
            has_fresh_loads=True,
        )
        done.confirmed = compared(job.runs, engines, both)
        done.n_loads += done.confirmed.n_loads
    return done


def _version(job: EngineJob, engines: Engines) -> Version:
    """Version of the engine; a change of it during the tuning is an error."""
    path = job.runs.folder / _VERSION_FILE
    if path.exists():
        version = DOOR.json(DOOR.bytes_of(path), Version, where=str(path))
    else:
        progress.talk(f"loading {job.command(job.spec)}")
        version = engines.version(job.spec)
        run_folder.replace_file(path, msgspec.json.encode(version))
    engines.began_with = version.version
    return version


def _step(
    job: EngineJob, engines: Engines, done: EngineDone, step: engine_steps.EngineStep
) -> None:
    """Measure a step's changes, then earlier ones that may gain only together with them."""
    tries = job.tries(step, done.spec)
    if isinstance(tries, str):
        done.steps.append(step_row(step.name, step.title, None, ("not measured", tries)))
        return
    for change in tries:
        _change(job, engines, done, step, change)
    for earlier in job.steps:
        if earlier.name == engine_steps.AGAIN.get(step.name):
            for change in _again(job, done, earlier, tries[-1]):
                _change(job, engines, done, earlier, change)


def _again(
    job: EngineJob,
    done: EngineDone,
    earlier: engine_steps.EngineStep,
    later: engine_steps.EngineChange,
) -> tuple[engine_steps.EngineChange, ...]:
    """Changes of the earlier step with the later change, if that is taken or neither gained alone."""
    if done.spec == later.spec:
        return _changes_of(job, earlier, done.spec)
    gained = {one.name for one in done.steps if one.decision in {"keep", "check quality"}}
    if earlier.name in gained:
        return ()
    return tuple(
        engine_steps.EngineChange(f"{later.words} {one.words}", one.spec)
        for one in _changes_of(job, earlier, later.spec)
    )


def _change(
    job: EngineJob,
    engines: Engines,
    done: EngineDone,
    step: engine_steps.EngineStep,
    change: engine_steps.EngineChange,
) -> None:
    """Measure one change against the options adopted so far."""
    number = 1 + sum(one.change is not None for one in done.steps)
    found = compared(
        job.runs,
        engines,
        OptionPairs(
            f"{number:02d}-{step.name}",
            (done.spec, change.spec),
            number * job.n_most,
            N_LEAST,
            job.n_most,
        ),
    )
    done.n_loads += found.n_loads
    is_named = step.name in job.named
    is_unchecked = job.quality_margin_fraction is None and not is_named
    decision, why = decision_of(found, is_lossy=step.is_lossy and is_unchecked)
    if step.is_lossy and decision in {"keep", "check quality"}:
        why += f", taken as --steps names {step.name}" if is_named else ""
        quality = tune_engine_quality.decided(
            job.model,
            (done.spec, change.spec),
            tune_engine_quality.Judged(decision, why),
            margin=job.quality_margin_fraction,
            folder=job.runs.folder,
            door=DOOR,
        )
        decision, why = quality.judged
        done.lossy += quality.commands
    decided = decision, why
    done.steps.append(step_row(step.name, step.title, change.words, decided, found))
    if decision == "keep":
        done.spec = change.spec
        done.selected_log_ratio += found.log_gain


def _device_words(spec: types.EngineSpec) -> list[object]:
    """The device, unless it is the default."""
    usual = engine_of(Engine(engine=spec.engine)).device
    return [] if spec.device == usual else ["--device", spec.device]


def _listed(values: set[int]) -> str:
    return ",".join(map(str, sorted(values)))
