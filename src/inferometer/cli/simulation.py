"""What does a simulation answer: the likely run, both ends of what step times may be, and whether the objective is met?"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from inferometer.cli import cluster_options, simulated_record
from inferometer.measure.executors.parts import Executor
from inferometer.records import promises, request_summaries, types, whole_run
from inferometer.simulate import cluster, cluster_config, demand, gate_config, gate_rules, kernel, outcome, replica_shares, workload_demand
from inferometer.spec import gate as gates
from inferometer.spec import objectives
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
    n_replicas: int
    router: cluster_config.Router | None
    """None where there is one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What came of it if steps take so long."""

    step_times: Pace
    summary: request_summaries.RequestSummary
    judgement: promises.Judgement | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPromise:
    """Was what the workload promises to one class kept: at all three step times, or is it undecided?"""

    name: str
    verdict: Verdict
    likely: promises.Judgement


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
    replicas: tuple[replica_shares.ReplicaShare, ...]
    """Of the likely run, where there are several."""
    promises: tuple[ClassPromise, ...]
    """Of the classes that have an ``slo``; the verdict of the whole is that of ``--slo`` alone."""
    gate: gates.GateSpec | None
    verdict: Verdict | None
    cautions: tuple[types.Caution, ...]
    record: str | None
    """The folder of the likely run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The answer, and the run behind it."""

    answer: SimulateAnswer
    run: types.Run


class Asked(NamedTuple):
    """Which pace of the steps, and what is to be recorded of them?"""

    pace: Pace
    record_steps: bool = False
    record_parts: bool = False


class At(NamedTuple):
    """What one pace of the steps gives."""

    run: types.Run
    level: Level
    replicas: tuple[replica_shares.ReplicaShare, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """One server or several, the gate before them, their requests, and what is promised."""

    servers: cluster_options.Servers
    workload: plan.DrawnWorkload
    objective: objectives.ObjectiveSpec | None
    until_ns: int | None
    gate: gates.GateSpec | None

    def at(self, asked: Asked) -> At:
        """The run at these step times, and what it says."""
        pace = asked.pace
        simulation = self._simulation(pace, record_steps=asked.record_steps, record_parts=asked.record_parts)
        run = simulated_record.run_of(simulation, self.servers, self.gate)
        judgement = None if self.objective is None else promises.judge_objective(run, self.objective)
        level = Level(step_times=pace, summary=request_summaries.summarise_requests(run), judgement=judgement)
        return At(run, level, replica_shares.replica_shares(simulation))

    def _simulation(self, pace: Pace, *, record_steps: bool, record_parts: bool) -> outcome.Simulation:
        requests, cost, gate = self._requests(), getattr(self.servers.deployment.step_times, pace), self._gate_rules()
        if self.servers.n_replicas == 1:
            return kernel.simulate(
                requests,
                self.servers.deployment.config,
                cost,
                until_ns=self.until_ns,
                record_steps=record_steps,
                record_parts=record_parts,
                gate=gate,
            )
        return cluster.simulate_cluster(
            requests,
            self.servers.cluster,
            cost,
            until_ns=self.until_ns,
            record_steps=record_steps,
            record_parts=record_parts,
            gate=gate,
        )

    def _requests(self) -> demand.Demand:
        config = self.servers.deployment.config
        return workload_demand.demand_of(self.workload.plan, config.block_size, has_contents=config.enable_prefix_caching)

    def _gate_rules(self) -> gate_config.GateConfig | None:
        """What the gate predicts rests on the likely step times, whatever steps then take."""
        if self.gate is None:
            return None
        return gate_rules.gate_rules(
            self.gate, self.workload, gate_rules.first_token_pace(self.servers.deployment.step_times.likely), where="--gate"
        )


def simulate_workload(simulator: Simulator, executor: Executor, *, record_steps: bool = False, record_parts: bool = False) -> Simulated:
    """Simulate the same requests at likely, fast and slow step times; what is to be recorded is of the likely ones."""
    workload = simulator.workload
    promised = _promised(workload)
    asked = (Asked("likely", record_steps, record_parts), Asked("fast"), Asked("slow"))
    paces = executor.map(simulator.at, asked)
    likely = paces[0]
    run, levels = likely.run, tuple(pace.level for pace in paces)
    said = tuple(types.Caution(code=one.code, text=one.text, remedy=one.remedy) for one in workload.cautions)
    answer = SimulateAnswer(
        workload_name=workload.name,
        workload=description.describe(workload.plan),
        deployment=_view(simulator.servers),
        levels=levels,
        classes=_by_class(run, workload.class_names),
        replicas=likely.replicas,
        promises=_kept(tuple(pace.run for pace in paces), promised),
        gate=simulator.gate,
        verdict=_verdict([level.judgement.verdict for level in levels if level.judgement is not None]),
        cautions=(*simulated_record.origin_cautions(simulator.servers.deployment), *said, *run.manifest.cautions),
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


def _view(servers: cluster_options.Servers) -> DeploymentView:
    deployment = servers.deployment
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
        n_replicas=servers.n_replicas,
        router=servers.router if servers.n_replicas > 1 else None,
    )


class _Promised(NamedTuple):
    class_index: int
    name: str
    objective: objectives.ObjectiveSpec


def _promised(workload: plan.DrawnWorkload) -> list[_Promised]:
    """What does the workload promise to which class?"""
    named = enumerate(zip(workload.class_names, workload.class_slos, strict=True))
    return [
        _Promised(index, name, objectives.parse_objective(slo, where=f"slo of class {name}"))
        for index, (name, slo) in named
        if slo is not None
    ]


def _kept(runs: tuple[types.Run, ...], promised: list[_Promised]) -> tuple[ClassPromise, ...]:
    """Each promise judged at likely, fast and slow step times; those to classes of which no request came are left out."""
    judged = list[ClassPromise]()
    for index, name, objective in promised:
        rows = [run.requests.class_index == index for run in runs if run.requests is not None]
        if not all(bool(of_run.any()) for of_run in rows):
            continue
        judgements = [promises.judge_objective(run, objective, rows=of_run) for run, of_run in zip(runs, rows, strict=True)]
        verdict = _verdict([judgement.verdict for judgement in judgements])
        judged.append(ClassPromise(name=name, verdict=verdict or "undecided", likely=judgements[0]))
    return tuple(judged)


def _verdict(verdicts: list[Verdict]) -> Verdict | None:
    if not verdicts:
        return None
    return verdicts[0] if len(set(verdicts)) == 1 else "undecided"


__all__ = [
    "Asked",
    "At",
    "ClassPromise",
    "DeploymentView",
    "Level",
    "Pace",
    "SimulateAnswer",
    "Simulated",
    "Simulator",
    "simulate_workload",
    "store",
]
