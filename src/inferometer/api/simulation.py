"""What does a simulation answer: the likely run, the ends of its interval, the verdict?"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from inferometer import suggestions
from inferometer.api import simulated_record
from inferometer.api.answer import Answer
from inferometer.api.cluster import Servers, equals_cautions, unused_cautions
from inferometer.api.server import check_some_are_taken, origin_cautions
from inferometer.api.workload import (
    alone_in_a_step,
    begun_at_once,
    held_back,
    in_step,
    left_alone,
)
from inferometer.errors import EXIT_OF_SLO, SpecError
from inferometer.inputs import gate as gates, objectives
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import description, plan, reading
from inferometer.measure.executors.local import Executor
from inferometer.records import (
    kv_pools as pooled,
    pitfalls,
    request_summaries,
    run_series,
    store as runs,
    types,
)
from inferometer.records.columns import F64
from inferometer.simulate import deployment, gate_config, outcome, run, simulated_run
from inferometer.stats.estimate import Verdict, agreed_verdict, worst_verdict
from inferometer.units import NS_PER_S, format_duration

MEMORY_KNOBS: Final = frozenset(
    {"kv_allocation", "preemption_mode", "compaction_bytes_per_s", "kv_pools"}
)
"""Settings of KV memory: where one is given, its use is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evictions:
    """Cached prefixes that were evicted, on all replicas together."""

    n_blocks: int
    blocks_per_s: float
    """Mean from 0 to the end of the run."""
    bytes_per_s: float
    """On all devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Results at one pace of the steps.

    Or in one of the plausible servers, where a fit of load tests offers draws.
    """

    step_times: deployment.Pace | Literal["draw"]
    summary: request_summaries.RequestSummary
    busy_fraction: float
    """Share of the time from 0 to the end spent in steps, mean of the replicas."""
    judgement: request_summaries.Judgement | None
    evictions: Evictions | None = None
    """None where no prefix is cached, and of pools and groups, whose blocks differ; of KV pools too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSlo:
    """Verdict of one class on its own SLO, over all plausible step times."""

    name: str
    """'': ``--slo``, of all requests."""
    verdict: Verdict
    likely: request_summaries.Judgement
    verdicts: tuple[Verdict, ...]
    """At each of the levels, in their order."""

    @property
    def hangs_on_step_times(self) -> bool:
        """Is it met at some plausible step times, and missed at others?"""
        return {"met", "missed"} <= set(self.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateAnswer(Answer):
    """Results at likely step times, and at the ends of their interval or in draws; the verdict.

    An SLO is *met* or *missed* where it is so at the likely step times and at 90 % of the others;
    else *undecided*. The verdict is the worst of ``--slo`` and of the classes' own; None where
    there is neither.
    """

    table = "levels"

    workload_name: str
    workload: description.PlanDescription
    deployment: simulated_record.DeploymentView
    levels: tuple[Level, ...]
    classes: tuple[request_summaries.RequestSummary, ...]
    """Classes of the likely run, and parts of workflows, where there are several."""
    replicas: tuple[simulated_run.ReplicaShare, ...]
    """Replicas of the likely run, where there are several."""
    groups: tuple[simulated_record.GroupView, ...]
    """Groups of the likely run, where replicas are of different kinds."""
    kv_pools: tuple[pooled.KvPoolView, ...]
    """KV pools of the likely run."""
    disaggregation: simulated_record.DisaggregationView | None
    """None where each replica computes prompts and answers."""
    memory: run_series.StepMemorySummary | None
    """KV memory of the likely run, where its steps were recorded (--out, or a --set on memory)."""
    e2e_parts: run_series.E2eParts | None
    """Means of the likely run; None where no request finished."""
    checks: tuple[pitfalls.CheckRow, ...]
    """Pitfalls of gathered requests, in the likely run; none where nothing is gathered."""
    slos: tuple[ClassSlo, ...]
    """Verdicts on the classes with an ``slo``."""
    gate: gates.GateSpec | None
    verdict: Verdict | None
    cautions: tuple[Caution, ...]
    record: str | None
    """The folder of the likely run."""
    next_step: str | None = None
    """A change that would meet a missed SLO."""
    assumptions: tuple[str, ...] = ()
    """What was taken to be so without having been given, in words."""
    given_rate_per_s: float | None = None
    """Steady rate of ``--rate`` or of the workload's file, about which the drawn arrivals scatter;
    None of closed loops, traces and rates that change."""

    @property
    def every_slo(self) -> tuple[ClassSlo, ...]:
        """``--slo`` where it was given, then the classes' own."""
        return (*_of_all(self.levels), *self.slos)

    @property
    def exit_code(self) -> int:
        """Exit code of the verdict."""
        return EXIT_OF_SLO[self.verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The answer, and the run behind it."""

    answer: SimulateAnswer
    run: types.Run
    plan: plan.RequestPlan
    """The requests of the likely run."""


class OneCase(NamedTuple):
    """One plausible server, and what to record of it."""

    case: deployment.Case
    record_steps: bool = False
    record_parts: bool = False


class At(NamedTuple):
    """Results of one plausible server."""

    plan: plan.RequestPlan
    """Its requests: in a closed loop for a duration those that were sent by then."""
    run: types.Run
    level: Level
    replicas: tuple[simulated_run.ReplicaShare, ...]
    transfers: simulated_run.TransferShares | None
    kv_pools: tuple[pooled.KvPoolView, ...]
    e2e: run_series.E2eParts | None
    n_too_long: int
    """Requests that an engine refused, or whose answer it cut; not those a gate turned away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulator:
    """Servers, gate, requests and SLO of a simulation."""

    servers: Servers
    workload: plan.DrawnWorkload
    objective: objectives.ObjectiveSpec | None
    until_ns: int | None
    gate: gates.GateSpec | None
    network_s: float | None = None
    post_s: float | None = None
    sent_until_ns: int | None = None
    """End of sending in a closed loop, whose ``workload`` then has more requests than are sent."""
    are_lengths_known: bool = True
    """Else every second draw has answers of other lengths, where equal ones keep users in step."""

    @property
    def runs_whole_batches(self) -> bool:
        """Does a single replica gather a batch, and run it to the end?"""
        return self.servers.deployment.knobs.policy == "dynamic" and self.servers.n_in_all == 1

    def cases(
        self, *, record_steps: bool, record_parts: bool, is_likely_alone: bool
    ) -> tuple[OneCase, ...]:
        """Plausible servers, the likely one first, which alone is recorded."""
        first, *others = self.servers.cases[: 1 if is_likely_alone else None]
        own = self.servers.deployment.knobs.own
        needs_steps = self.runs_whole_batches or not MEMORY_KNOBS.isdisjoint(own)
        likely = OneCase(first, record_steps or needs_steps, record_parts)
        return (likely, *(OneCase(case) for case in others))

    def at(self, asked: OneCase) -> At:
        """Simulate this server, and summarise the run."""
        servers = self.servers.at(asked.case)
        if not self.are_lengths_known:
            is_varied = asked.case == "fast" or (isinstance(asked.case, int) and asked.case % 2)
            return (self.varied() if is_varied else replace(self, are_lengths_known=True)).at(asked)
        if self.sent_until_ns is not None:
            return replace(self, workload=self.sent_at(servers), sent_until_ns=None).at(asked)
        simulation = self._simulation(
            servers,
            until_ns=self.until_ns,
            record_steps=asked.record_steps,
            record_parts=asked.record_parts,
        )
        run = simulated_record.run_of(simulation, servers, self.gate)
        if plan.has_workflows(self.workload.plan):
            run = replace(run, drawn=self.workload.plan)
        judgement = (
            None
            if self.objective is None
            else request_summaries.judge_objective(run, self.objective)
        )
        label: deployment.Pace | Literal["draw"] = (
            asked.case if isinstance(asked.case, str) else "draw"
        )
        level = Level(
            step_times=label,
            summary=request_summaries.summarise_requests(run),
            busy_fraction=simulation.busy_fraction,
            judgement=judgement,
            evictions=_evictions(simulation, servers),
        )
        moved = (
            None
            if servers.prefill is None
            else simulated_run.transfer_shares(simulation, servers.prefill.link)
        )
        parts = run_series.e2e_parts(
            simulation.requests,
            self._around(servers),
            self._window_ns(simulation, self._around(servers)),
            simulation.transfers and simulation.transfers.on_way_ns(simulation.requests),
        )
        shares = simulated_run.replica_shares(simulation, servers.fleet().pools)
        pools = pooled.kv_pool_views(run) if run.manifest.kv_pools else ()
        n_too_long = int(simulated_run.is_refused(simulation).sum()) + simulation.cut.n_answers
        return At(self.workload.plan, run, level, shares, moved, pools, parts, n_too_long)

    def varied_run(self, case: deployment.Case) -> types.Run | None:
        """The run with answers whose lengths vary; None where those of the answers are known."""
        return None if self.are_lengths_known else self.varied().at(OneCase(case)).run

    def varied(self) -> "Simulator":
        """With answers whose lengths vary, as where models end them."""
        most_tokens = min(one.config.max_model_len for one in self.servers.kinds)
        return replace(
            self,
            workload=plan.with_varied_answers(self.workload, most_tokens),
            are_lengths_known=True,
        )

    def sent_at(self, servers: Servers) -> plan.DrawnWorkload:
        """The requests that a closed loop sends by ``sent_until_ns``, without those that follow.

        The servers know nothing of later requests: what was simulated until then happens again.
        """
        requests = self._simulation(servers, until_ns=self.sent_until_ns).requests
        is_sent = requests.intended_send_ns <= (self.sent_until_ns or 0)
        places = requests.request_index[is_sent]
        return replace(self.workload, plan=plan.only_at(self.workload.plan, places))

    def _window_ns(self, simulation: outcome.Simulation, around: run_series.Around) -> F64 | None:
        """Wait of each request for its window; None: no windows, or inseparable from the queue."""
        requests, gate = simulation.requests, self._gate_rules()
        if self.runs_whole_batches and simulation.steps is not None:
            return run_series.idle_ns(requests, around, simulation.steps)
        if gate is None or not any(one.window_ns for one in gate.classes):
            return None
        if gate.oversized_above_tokens or any(one.widest_at for one in gate.classes):
            return None
        return run_series.gathered_ns(
            run_series.arrived_ns(requests, around),
            requests.class_index,
            [(one.window_ns, one.window_size) for one in gate.classes],
        )

    def _around(self, servers: Servers) -> run_series.Around:
        sent = plan.sent_by_server(self.workload.plan.accompanies)
        return run_series.Around(
            front_end_s=servers.front_end_s or None,
            network_s=self.network_s,
            post_s=self.post_s,
            is_added=~sent if sent.any() else None,
        )

    def _simulation(
        self,
        servers: Servers,
        *,
        until_ns: int | None,
        record_steps: bool = False,
        record_parts: bool = False,
    ) -> outcome.Simulation:
        fleet, plan = servers.fleet(self._gate_rules()), self.workload.plan
        fleet = replace(fleet, front_end_s=self._around(servers).added_s)
        _check_that_some_come(plan, fleet.front_end_s, until_ns)
        check_some_are_taken(self.servers.kinds, plan)
        return run.run(
            fleet,
            plan,
            until_ns=until_ns,
            record_steps=record_steps,
            record_parts=record_parts,
        )

    def _gate_rules(self) -> gate_config.GateConfig | None:
        return self.servers.gate_rules(self.gate, self.workload)


def _evictions(simulation: outcome.Simulation, servers: Servers) -> Evictions | None:
    is_cached = servers.deployment.config.enable_prefix_caching
    if (
        servers.prefill is not None
        or servers.groups is not None
        or simulation.kv_pools is not None
        or not is_cached
        or simulation.evicted_blocks is None
    ):
        return None
    n_blocks, end_s = int(simulation.evicted_blocks.sum()), simulation.end_ns / NS_PER_S
    per_s = n_blocks / end_s if end_s else 0.0
    return Evictions(
        n_blocks=n_blocks, blocks_per_s=per_s, bytes_per_s=per_s * servers.deployment.kv_block_bytes
    )


def simulate_workload(
    simulator: Simulator,
    executor: Executor,
    *,
    record_steps: bool = False,
    record_parts: bool = False,
    is_likely_alone: bool = False,
) -> Simulated:
    """Simulate the same requests on each plausible server; only the likely one is recorded.

    ``is_likely_alone``: on the likely one, for a first answer without what step times leave open.
    """
    wanted = simulator.cases(
        record_steps=record_steps, record_parts=record_parts, is_likely_alone=is_likely_alone
    )
    cases = tuple(executor.map(simulator.at, wanted))
    likely = cases[0]
    aside = None if is_likely_alone else simulator.varied_run(wanted[0].case)
    workload = replace(simulator.workload, plan=likely.plan)
    run, levels = likely.run, tuple(case.level for case in cases)
    slos = _kept(tuple(case.run for case in cases), workload.class_objectives)
    answer = SimulateAnswer(
        workload_name=workload.name,
        workload=description.describe(workload.plan, is_closed=workload.n_users is not None),
        given_rate_per_s=workload.asked_rate_per_s,
        deployment=simulated_record.deployment_view(
            simulator.servers.deployment, simulator.servers.cluster
        ),
        levels=levels,
        classes=request_summaries.summarise_classes(run, workload.class_names),
        replicas=likely.replicas,
        disaggregation=simulated_record.disaggregation_view(
            simulator.servers.prefill, likely.transfers, run
        ),
        groups=simulated_record.group_views(simulator.servers.groups, run),
        kv_pools=likely.kv_pools,
        memory=None if simulator.servers.groups else run_series.summarise_memory(run),
        e2e_parts=likely.e2e,
        checks=simulated_record.batch_checks(
            run, simulator.servers.deployment.knobs.policy, likely.e2e
        ),
        slos=slos,
        gate=simulator.gate,
        verdict=worst_verdict(one.verdict for one in (*_of_all(levels), *slos)),
        cautions=(*_cautions(simulator, cases), *in_step(workload, run, aside)),
        assumptions=(*simulator.servers.assumptions, *reading.prefix_words(workload.name)),
        record=None,
    )
    return Simulated(
        answer=answer,
        run=replace(run, manifest=replace(run.manifest, cautions=answer.cautions)),
        plan=workload.plan,
    )


def _ran_out(simulator: Simulator, n_sent: tuple[int, ...]) -> tuple[Caution, ...]:
    """A caution where a closed loop sent all that it had before its time was over."""
    n_made = simulator.workload.plan.n_requests
    n_out = n_sent.count(n_made)
    if simulator.sent_until_ns is None or not n_out:
        return ()
    return (
        Caution(
            code="RAN_OUT",
            text=f"all {n_made:,} requests had been sent before"
            f" {format_duration(simulator.sent_until_ns / NS_PER_S)} were over, at {n_out} of"
            f" {len(n_sent)} step times: the users were then idle",
            remedy="a shorter --for, or more --requests without it",
        ),
    )


def _too_few_blocks(simulator: Simulator, cases: tuple[At, ...]) -> tuple[Caution, ...]:
    """A caution where some plausible servers refuse or cut what the likely one serves."""
    servers = simulator.servers
    kinds = (*servers.kinds, *([] if servers.prefill is None else [servers.prefill.deployment]))
    ends = dict.fromkeys(one.kv_block_ends for one in kinds)
    uncertain = [f"{fewest:,} to {most:,} blocks" for fewest, most in ends if fewest < most]
    likely, *others = (case.n_too_long for case in cases)
    n_worse = sum(n_too_long > likely for n_too_long in others)
    if not n_worse or not uncertain:
        return ()
    is_wide = any((one.engine.kv_cache_dtype or one.engine.dtype) != "float8" for one in kinds)
    return (
        Caution(
            code="TOO_FEW_KV_BLOCKS",
            text=f"{n_worse} of {len(others)} plausible servers refuse or cut requests that are"
            " longer than their KV cache: versions of the engine leave"
            f" {' and '.join(uncertain)}",
            remedy="the number in the server's log: --num-blocks"
            + "; or --kv-dtype float8" * is_wide,
        ),
    )


def _cautions(simulator: Simulator, cases: tuple[At, ...]) -> tuple[Caution, ...]:
    """Cautions on step times, workload, gate and run, in this order."""
    likely, run = cases[0].level, cases[0].run
    workload = replace(simulator.workload, plan=cases[0].plan)
    requests = run.requests
    assert requests is not None  # noqa: S101 -- a simulation has requests
    return (
        *(
            caution
            for one in simulator.servers.kinds
            if (remedy := simulated_run.larger_steps(one.config)) is not None
            for caution in alone_in_a_step(one.config.step_budget_tokens or 0, remedy, requests)
        ),
        *dict.fromkeys(
            caution for one in simulator.servers.kinds for caution in origin_cautions(one)
        ),
        *workload.cautions,
        *held_back(workload, likely.summary.offered_requests_per_s),
        *(found for look in (begun_at_once, left_alone) for found in look(workload, requests)),
        *equals_cautions(simulator.gate, workload),
        *unused_cautions(simulator.servers),
        *run.manifest.cautions,
        *_too_few_blocks(simulator, cases),
        *_ran_out(simulator, tuple(case.plan.n_requests for case in cases)),
    )


def store(simulated: Simulated, folder: Path) -> Simulated:
    """Write the likely run, and note its folder."""
    runs.write_run(folder, simulated.run)
    return replace(simulated, answer=replace(simulated.answer, record=str(folder)))


def _check_that_some_come(
    requests: plan.RequestPlan, front_end_s: float, until_ns: int | None
) -> None:
    first_ns = int(requests.arrival_ns[requests.follows == plan.NONE].min())
    first_ns += round(front_end_s * NS_PER_S)
    if until_ns is not None and until_ns < first_ns:
        raise SpecError(
            f"no request comes by {format_duration(until_ns / NS_PER_S)}: the first one comes after"
            f" {format_duration(first_ns / NS_PER_S)}",
            where="--until",
            allowed="a time after the first arrival",
            try_=suggestions.flags("--until", f"{math.ceil(2 * first_ns / NS_PER_S)}s"),
        )


def _kept(
    runs: tuple[types.Run, ...], promised: tuple[objectives.ClassObjective, ...]
) -> tuple[ClassSlo, ...]:
    """Verdicts on the classes' SLOs over the plausible servers; classes need requests."""
    judged = list[ClassSlo]()
    for name, objective, index in promised:
        rows = [run.requests.class_index == index for run in runs if run.requests is not None]
        if not all(bool(of_run.any()) for of_run in rows):
            continue
        judgements = [
            request_summaries.judge_objective(run, objective, rows=of_run)
            for run, of_run in zip(runs, rows, strict=True)
        ]
        judged.append(_agreed(name, judgements))
    return tuple(judged)


def _of_all(levels: tuple[Level, ...]) -> tuple[ClassSlo, ...]:
    """``--slo``; nothing where it was not given."""
    judgements = [level.judgement for level in levels if level.judgement is not None]
    return (_agreed("", judgements),) if judgements else ()


def _agreed(name: str, judgements: list[request_summaries.Judgement]) -> ClassSlo:
    """Verdict of the likely server (the first) where the others agree, else undecided."""
    verdicts: tuple[Verdict, ...] = tuple(one.verdict for one in judgements)
    return ClassSlo(
        name=name,
        verdict=agreed_verdict(verdicts),
        likely=judgements[0],
        verdicts=verdicts,
    )
