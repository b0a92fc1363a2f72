"""The run that a simulation leaves, and descriptions of the simulated servers."""

from dataclasses import asdict, dataclass, replace

import msgspec
import numpy as np

from inferometer import __version__, suggestions
from inferometer.api.cluster import Groups, Servers, gate_text
from inferometer.api.progress import command_line
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.types import Caution, Source
from inferometer.perfmodel.types import Basis
from inferometer.records import pitfalls, run_series
from inferometer.records.latencies import HandoverSummary, summarise_handovers
from inferometer.records.request_summaries import RequestSummary, summarise_groups
from inferometer.records.run_folder import new_run_id, now_utc
from inferometer.records.types import ABSENT, KvPoolFacts, RequestTable, Run, VisitTable
from inferometer.simulate import engine_config, outcome, prefill_pool, simulated_run
from inferometer.simulate.deployment import Deployment
from inferometer.simulate.fleet import AnswerBeginsAt, ClusterConfig, LinkShape, Router
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.simulated_run import TransferShares
from inferometer.units import counted, format_duration, format_number

_WHOLE_BATCHES = frozenset({"static", "dynamic"})


def run_of(simulation: outcome.Simulation, servers: Servers, gate: GateSpec | None = None) -> Run:
    """The run behind a simulation that was made now, by this command."""
    created_utc, deployment = now_utc(), servers.deployment
    run = simulated_run.simulated_run(
        simulation,
        servers.fleet().rules,
        run_id=new_run_id(created_utc),
        created_utc=created_utc,
        command=command_line(),
        tool_version=__version__,
        model=deployment.model,
    )
    rests_on = _server_text(deployment)
    if servers.groups is not None:
        rests_on = "; ".join(
            f"{counted(one.n_replicas, 'replica')} for {one.rule_text}: {_server_text(one.deployment)}"
            for one in servers.groups.groups
        )
    elif servers.n_replicas > 1 or servers.prefill is not None:
        together = " in lockstep" if servers.rules.in_lockstep else ""
        rests_on = (
            f"{counted(servers.n_replicas, 'replica')}{together} behind a {servers.rules.router}"
            f" router, each with {rests_on}"
        )
    if servers.prefill is not None:
        rests_on += f"; prompts computed by {prefill_text(servers.prefill)}"
    rests_on += "" if gate is None else f"; behind a gate: {gate_text(gate)}"
    cautions = (*run.manifest.cautions, *_idle_order_cautions(simulation, servers, gate))
    return replace(
        run,
        manifest=replace(
            run.manifest,
            source=Source(kind="derived", where=rests_on),
            cautions=cautions,
            kv_pools=kv_pools_of(simulation, deployment.config),
        ),
    )


def batch_checks(
    run: Run, policy: str, parts: run_series.E2eParts | None
) -> tuple[pitfalls.CheckRow, ...]:
    """Pitfalls of gathered batches (padding, too wide a window); empty for other servers."""
    values: dict[pitfalls.PitfallName, float | None] = {}
    if policy in _WHOLE_BATCHES and run.requests is not None:
        values["padding"] = padded_fraction(run.requests, run.visits)
    if parts is not None and parts.window_s is not None:
        before_s = [
            parts.network_s, parts.front_end_s, parts.queue_s, parts.window_s, parts.handover_s
        ]  # fmt: skip
        ttft_s = sum(one or 0.0 for one in before_s) + parts.prefill_s
        values["wide_window"] = parts.window_s / ttft_s if ttft_s > 0 else None
    return pitfalls.judged_all(values) if values else ()


def padded_fraction(requests: RequestTable, visits: VisitTable | None) -> float | None:
    """Share of computed rows that are padding, or belong to ended answers.

    A batch is what one replica admits at one instant: its prompts are padded to the longest, and
    its rows are computed until the longest answer ends. None where no request was finished.
    """
    rows = np.flatnonzero(requests.finished_ns != ABSENT)
    rows = rows[(requests.admitted_ns[rows] != ABSENT) & (requests.output_tokens[rows] > 0)]
    if not rows.size:
        return None
    replica = np.zeros(len(requests.admitted_ns), dtype=np.int64)
    if visits is not None:
        replica[_rows_of(visits, requests)] = visits.replica
    when = np.stack([requests.admitted_ns[rows], replica[rows]])
    _, batch = np.unique(when, axis=1, return_inverse=True)
    n = np.bincount(batch.ravel())
    wanted = computed = 0.0
    for tokens in (requests.prompt_tokens[rows], requests.output_tokens[rows]):
        longest = np.zeros(len(n))
        np.maximum.at(longest, batch.ravel(), tokens)
        wanted, computed = wanted + float(tokens.sum()), computed + float((longest * n).sum())
    return 1 - wanted / computed


def _rows_of(
    visits: VisitTable, requests: RequestTable
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Each visit's request, by its row; requests of a closed loop stand as they were sent."""
    order = np.argsort(requests.request_index)
    return order[np.searchsorted(requests.request_index, visits.request_index, sorter=order)]


def _server_text(deployment: Deployment) -> str:
    """Basis of one replica's numbers, in words."""
    config = deployment.config
    return (
        f"rules of {config.engine}; step times: {deployment.step_times.origin};"
        f" {config.n_kv_blocks} KV blocks, {deployment.kv_origin}"
    )


def _idle_order_cautions(
    simulation: outcome.Simulation, servers: Servers, gate: GateSpec | None
) -> tuple[Caution, ...]:
    """A caution that an order changed nothing, since no request waited.

    Of two pools it is not known who waited where.
    """
    if gate is None or gate.order == "fcfs" or servers.prefill is not None or simulation.n_held:
        return ()
    own = {"shortest-remaining": "policy=srpt", "priority": "policy=priority"}.get(gate.order)
    is_vllm = isinstance(servers.deployment.config, SchedulerConfig)
    remedy = "a higher load, or a max_in_flight in a file for --gate"
    return (
        Caution(
            code="order unused",
            text=(
                f"the order {gate.order} changed nothing: the engine admitted every request before"
                " it had to wait at the gate"
            ),
            remedy=(
                f"{remedy}; to order inside the engine: {suggestions.flags('--set', own)}"
                if own and is_vllm
                else remedy
            ),
        ),
    )


def prefill_text(pool: prefill_pool.PrefillPool) -> str:
    """Prefill replicas and KV link, in words."""
    config, link = pool.deployment.config, pool.link
    way = "one link" if link.shape == "shared" else "a port of each replica"
    latency = f" and {format_duration(link.latency_s)}" if link.latency_s else ""
    return (
        f"{counted(pool.cluster.n_replicas, 'replica')} of"
        f" {counted(pool.deployment.n_devices, 'device')} with {config.n_kv_blocks} KV blocks,"
        f" {pool.deployment.kv_origin}; KV caches travel by {way} with"
        f" {format_number(link.bytes_per_s / 1e9)} GB/s{latency} ({pool.link_origin}); the"
        f" first token is given by {pool.answer_begins_at}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The server that was simulated, and where its numbers are from."""

    model_id: str
    hardware: str | None
    dtype: str
    quantization: str | None
    """The format of weights, where it is another."""
    kv_cache_dtype: str
    tensor_parallel_size: int
    n_devices: int
    """Devices of one replica, all pipeline stages together."""
    parallelism: str
    """Such as TP2 PP2."""
    engine: str
    knobs: dict[str, bool | int | float | str | None]
    """Settings of the engine's scheduler, by its own names."""
    n_kv_blocks: int
    n_kv_blocks_low: int
    n_kv_blocks_high: int
    """The fewest and the most of the plausible servers: versions reserve other shares of memory."""
    n_kv_tokens: int
    """Tokens that the likely number of blocks holds, as engines' logs say."""
    kv_block_bytes: int
    """On all devices of a replica."""
    kv_blocks_from: str
    step_times_basis: Basis
    step_times_from: str
    machine_share_fraction: float | None
    """Share of the variance of a step's log time that all layouts on the device have alike; None: of a
    datasheet, by which it is not known."""
    n_replicas: int
    data_parallel_size: int
    """Replicas that share experts and run each step together; 1: none do."""
    router: Router | None
    """None where there is one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregationView:
    """Prefill replicas and KV transfers in the likely run."""

    prefill: DeploymentView
    answer_begins_at: AnswerBeginsAt
    link_shape: LinkShape
    link_bytes_per_s: float
    link_latency_s: float
    link_from: str
    """Source of the link's speed."""
    kv_block_bytes: int
    transfers: TransferShares
    handovers: HandoverSummary | None
    """Time from the end of the prefill to the arrival of the KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group of replicas, and its requests in the likely run."""

    name: str
    rule: str
    """Rule of the group's requests, in words."""
    deployment: DeploymentView
    summary: RequestSummary | None
    """None where no request went there."""


def kv_pools_of(
    simulation: outcome.Simulation, config: engine_config.EngineConfig
) -> tuple[KvPoolFacts, ...]:
    """All KV pools in order; empty where the KV cache is undivided."""
    use, pools = simulation.kv_pools, engine_config.kv_pools_of(config)
    if use is None:
        return ()
    facts = list[KvPoolFacts]()
    for number, pool in enumerate(pools):
        block_ns, step_ns = int(use.block_ns[:, number].sum()), int(use.step_ns[:, number].sum())
        tail_ns = float(use.tail_token_ns[:, number].sum())
        facts.append(
            KvPoolFacts(
                rule=pool.rule_text,
                class_indices=pool.class_indices,
                max_prompt_tokens=pool.max_prompt_tokens,
                kv_dtype=pool.kv_dtype,
                block_size=pool.block_size,
                n_blocks=pool.n_blocks,
                mean_used_fraction=block_ns / (pool.n_blocks * step_ns) if step_ns else None,
                peak_used_fraction=int(use.peak_blocks[:, number].max()) / pool.n_blocks,
                tail_waste_fraction=tail_ns / (block_ns * pool.block_size) if block_ns else None,
            )
        )
    return tuple(facts)


def group_views(groups: Groups | None, run: Run) -> tuple[GroupView, ...]:
    """All groups in order; empty where all replicas are of one kind."""
    if groups is None or run.requests is None or run.visits is None:
        return ()
    sizes = [one.n_replicas for one in groups.groups]
    of_replica = np.repeat(np.arange(len(sizes)), sizes)
    group_index = np.full(len(run.requests.request_index), len(sizes), np.int32)
    group_index[_rows_of(run.visits, run.requests)] = of_replica[run.visits.replica]
    names = [one.name for one in groups.groups]
    summaries = {one.name: one for one in summarise_groups(run, group_index, names)}
    return tuple(
        GroupView(
            name=one.name,
            rule=one.rule_text,
            deployment=deployment_view(
                one.deployment,
                ClusterConfig(
                    engine=one.deployment.config, n_replicas=one.n_replicas, router="least-loaded"
                ),
            ),
            summary=summaries.get(one.name),
        )
        for one in groups.groups
    )


def deployment_view(deployment: Deployment, rules: ClusterConfig) -> DeploymentView:
    """The description of a server and the number of its replicas."""
    engine, config = deployment.engine, deployment.config
    fewest, most = deployment.kv_block_ends
    return DeploymentView(
        model_id=deployment.model.model_id,
        hardware=None if deployment.hardware is None else deployment.hardware.name,
        dtype=engine.dtype,
        quantization=engine.quantization,
        kv_cache_dtype=engine.kv_cache_dtype or engine.dtype,
        tensor_parallel_size=engine.tensor_parallel_size,
        n_devices=deployment.n_devices,
        parallelism=deployment.parallelism,
        engine=config.engine,
        knobs=msgspec.to_builtins(
            {name: value for name, value in asdict(config).items() if name != "kv_pools"}
        ),
        n_kv_blocks=config.n_kv_blocks,
        n_kv_blocks_low=fewest,
        n_kv_blocks_high=most,
        n_kv_tokens=deployment.n_kv_tokens,
        kv_block_bytes=deployment.kv_block_bytes,
        kv_blocks_from=deployment.kv_origin,
        step_times_basis=deployment.step_times.basis,
        step_times_from=deployment.step_times.origin,
        machine_share_fraction=deployment.step_times.machine_share_fraction,
        n_replicas=rules.n_replicas,
        data_parallel_size=rules.n_replicas if rules.in_lockstep else 1,
        router=rules.router if rules.n_replicas > 1 else None,
    )


def disaggregation_view(
    pool: prefill_pool.PrefillPool | None, transfers: TransferShares | None, run: Run
) -> DisaggregationView | None:
    """The description of the prefill replicas; None where there are none."""
    if pool is None or transfers is None:
        return None
    return DisaggregationView(
        prefill=deployment_view(pool.deployment, pool.cluster),
        answer_begins_at=pool.answer_begins_at,
        link_shape=pool.link.shape,
        link_bytes_per_s=pool.link.bytes_per_s,
        link_latency_s=pool.link.latency_s,
        link_from=pool.link_origin,
        kv_block_bytes=pool.link.block_bytes,
        transfers=transfers,
        handovers=summarise_handovers(run),
    )
