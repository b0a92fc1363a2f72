"""What does a simulation answer: the likely run, both ends of what step times may be, and whether the objective is met?"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from inferometer.cli.simulated_record import origin_cautions, run_of
from inferometer.records import promises, request_summaries, types, whole_run
from inferometer.simulate import demand, kernel, workload_demand
from inferometer.simulate.deployment import Deployment
from inferometer.spec.objectives import ObjectiveSpec
from inferometer.spec.workload import description, plan
from inferometer.stats.estimate import Verdict

Pace: TypeAlias = Literal["likely", "fast", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The server that was simulated, and where its numbers are from."""

    model_id: str
    hardware: str | None
    dtype: str
    tensor_parallel_size: int
    engine: str
    knobs: dict[str, bool | int | float | str | None]
    """Of the engine's scheduler, under its own names."""
    n_kv_blocks: int
    kv_blocks_from: str
    step_times_basis: Literal["fitted", "datasheet"]
    step_times_from: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What came of it if steps take so long."""

    step_times: Pace
    summary: request_summaries.RequestSummary
    judgement: promises.Judgement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateAnswer:
    """The simulated run of the likely step times, the same requests at both ends of their interval, and the verdict of all three.

    A verdict is *met* or *missed* where it is so at all three; else *undecided*. None without an objective.
    """

    workload_name: str
    workload: description.PlanDescription
    deployment: DeploymentView
    levels: tuple[Level, ...]
    classes: tuple[request_summaries.RequestSummary, ...]
    """Of the likely run, where the workload has several."""
    verdict: Verdict | None
    cautions: tuple[types.Caution, ...]
    record: str | None
    """The folder of the likely run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The answer, and the run behind it."""

    answer: SimulateAnswer
    run: types.Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """One server, its requests, and what is promised."""

    deployment: Deployment
    requests: demand.Demand
    objective: ObjectiveSpec | None
    until_ns: int | None

    def at(self, pace: Pace, *, record_steps: bool = False, record_parts: bool = False) -> tuple[types.Run, Level]:
        """The run at these step times, and what it says."""
        arrays = getattr(self.deployment.step_times, pace)
        simulation = kernel.simulate(
            self.requests,
            self.deployment.config,
            arrays,
            until_ns=self.until_ns,
            record_steps=record_steps,
            record_parts=record_parts,
        )
        run = run_of(simulation, self.deployment)
        judgement = None if self.objective is None else promises.judge_objective(run, self.objective)
        return run, Level(step_times=pace, summary=request_summaries.summarise_requests(run), judgement=judgement)


def simulate_workload(
    deployment: Deployment,
    workload: plan.DrawnWorkload,
    objective: ObjectiveSpec | None,
    *,
    until_ns: int | None = None,
    record_steps: bool = False,
    record_parts: bool = False,
) -> Simulated:
    """Simulate the same requests at likely, fast and slow step times."""
    requests = workload_demand.demand_of(workload.plan, deployment.config.block_size, has_contents=deployment.config.enable_prefix_caching)
    simulator = Simulator(deployment=deployment, requests=requests, objective=objective, until_ns=until_ns)
    run, likely = simulator.at("likely", record_steps=record_steps, record_parts=record_parts)
    levels = (likely, simulator.at("fast")[1], simulator.at("slow")[1])
    said = tuple(types.Caution(code=one.code, text=one.text, remedy=one.remedy) for one in workload.cautions)
    answer = SimulateAnswer(
        workload_name=workload.name,
        workload=description.describe(workload.plan),
        deployment=_view(deployment),
        levels=levels,
        classes=_by_class(run, workload.class_names),
        verdict=_verdict(levels),
        cautions=(*origin_cautions(deployment), *said, *run.manifest.cautions),
        record=None,
    )
    return Simulated(answer=answer, run=replace(run, manifest=replace(run.manifest, cautions=answer.cautions)))


def store(simulated: Simulated, folder: Path) -> Simulated:
    """Write the likely run, and say where."""
    whole_run.write_run(folder, simulated.run)
    return replace(simulated, answer=replace(simulated.answer, record=str(folder)))


def _by_class(run: types.Run, names: tuple[str, ...]) -> tuple[request_summaries.RequestSummary, ...]:
    if run.requests is None or len(names) < 2:
        return ()
    return request_summaries.summarise_groups(run, run.requests.class_index, names)


def _view(deployment: Deployment) -> DeploymentView:
    engine, config = deployment.engine, deployment.config
    return DeploymentView(
        model_id=deployment.model.model_id,
        hardware=None if deployment.hardware is None else deployment.hardware.name,
        dtype=engine.dtype,
        tensor_parallel_size=engine.tensor_parallel_size,
        engine=config.engine,
        knobs=msgspec.to_builtins(asdict(config)),
        n_kv_blocks=config.n_kv_blocks,
        kv_blocks_from=deployment.kv_origin,
        step_times_basis=deployment.step_times.basis,
        step_times_from=deployment.step_times.origin,
    )


def _verdict(levels: tuple[Level, ...]) -> Verdict | None:
    verdicts: set[Verdict] = {level.judgement.verdict for level in levels if level.judgement is not None}
    if not verdicts:
        return None
    return verdicts.pop() if len(verdicts) == 1 else "undecided"


__all__ = ["DeploymentView", "Level", "Pace", "SimulateAnswer", "Simulated", "Simulator", "simulate_workload", "store"]
