"""A simulation as a run, with the cautions that it needs.

The run has the same type as measured ones. Cautions report overload: more work than all replicas,
one of them, or one of two pools can do.

``replica_shares`` and ``transfer_shares`` are each replica's part of the work, and the utilisation
of the link between two pools.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.inputs.types import Caution, ModelSpec
from inferometer.records.columns import I32, I64, Bools
from inferometer.records.types import (
    ABSENT,
    RequestStatus,
    RequestTable,
    Run,
    RunManifest,
    StepMemoryTable,
    VisitTable,
)
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import DisaggregatedConfig, KvLink, Placement
from inferometer.simulate.gate_config import Reason
from inferometer.simulate.outcome import Outcome, Simulation, left_cautions, mean_waiting, n_running
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.trtllm_config import TrtllmConfig
from inferometer.units import NS_PER_S

_MIN_REQUESTS: Final = 30
"""Fewest requests for a statement about growth."""


class _Window(NamedTuple):
    """The second half of the time in which requests are sent."""

    start_ns: int
    end_ns: int


class _Growth(NamedTuple):
    n_arrived: int
    n_more: int
    """Arrivals less departures."""


def overload_cautions(
    simulation: Simulation, slots: Sequence[int], pools: DisaggregatedConfig | None
) -> tuple[Caution, ...]:
    """Cautions on queues that grow without bound at this load."""
    cautions, sent_ns = list[Caution](), simulation.requests.intended_send_ns
    if len(sent_ns) < _MIN_REQUESTS or sent_ns.max() == sent_ns.min():
        return ()
    window = _Window((int(sent_ns.min()) + int(sent_ns.max())) // 2, int(sent_ns.max()))
    growth = _growth(
        sent_ns,
        simulation.requests.finished_ns,
        window,
        min(sum(slots), n_running(simulation.requests, window.end_ns)),
    )
    if growth is not None:
        text = (
            f"the queue grows without bound while this load goes on: {growth.n_arrived} requests"
            f" came in the second half, {growth.n_arrived - growth.n_more} were completed in it"
        )
        remedy = (
            "a lower rate or more replicas; averages over such a run say only how long it lasted"
        )
        cautions.append(Caution(code="overload", text=text, remedy=remedy))
    else:
        cautions += _longer_queue(simulation.requests, window)
    n_prefill = 0 if pools is None else pools.prefill.n_replicas
    if n_prefill > 0:
        cautions += _of_pools(simulation, window, slots, n_prefill)
    for first, last in ((0, n_prefill), (n_prefill, len(slots))):
        grows = [
            replica
            for replica in range(first, last)
            if _grows(simulation, window, slots, range(replica, replica + 1))
        ]
        if 0 < len(grows) < last - first:
            text = (
                f"the queue grows without bound on {len(grows)} of {last - first} replicas, not on"
                " the others: "
            )
            text += ", ".join(f"replica {replica}" for replica in grows)
            remedy = (
                "a router that looks at the load (least-loaded), or more replicas for these classes"
                " or prefixes"
            )
            cautions.append(Caution(code="uneven", text=text, remedy=remedy))
    return tuple(cautions)


def _longer_queue(requests: RequestTable, window: _Window) -> list[Caution]:
    """A caution where the queue grows, though the growth may be of running requests.

    Compares means over halves of the window, because filling batches move momentary values.
    """
    middle_ns, sent_ns = sum(window) // 2, requests.intended_send_ns
    n_before = mean_waiting(requests, window.start_ns, middle_ns)
    n_after = mean_waiting(requests, middle_ns, window.end_ns)
    n_arrived = np.sum((sent_ns > window.start_ns) & (sent_ns <= window.end_ns))
    if n_after - n_before <= 3 * math.sqrt(n_arrived):
        return []
    text = (
        "the server falls behind while this load goes on: on average"
        f" {n_before:,.0f} requests waited in the third quarter of the time, {n_after:,.0f} in the last"
    )
    remedy = "a lower rate or more replicas; latencies of such a run grow with its length"
    return [Caution(code="behind", text=text, remedy=remedy)]


def _of_pools(
    simulation: Simulation, window: _Window, slots: Sequence[int], n_prefill: int
) -> list[Caution]:
    """Cautions on where requests accumulate between prefill and decode.

    KV caches that wait for their transfer keep their blocks: if more of them wait than prompts can
    be computed at once, they block the prefills.
    """
    moved, found = simulation.transfers, list[Caution]()
    n_stuck, is_link = 0, False
    if moved is not None:
        is_gone = (moved.received_ns != ABSENT) & (moved.received_ns <= window.end_ns)
        n_stuck = int(
            np.sum(
                (moved.prefilled_ns != ABSENT) & (moved.prefilled_ns <= window.end_ns) & ~is_gone
            )
        )
        is_link = (
            _growth(moved.prefilled_ns, moved.received_ns, window, sum(slots[n_prefill:]))
            is not None
        )
    is_prefill = _grows(simulation, window, slots, range(n_prefill))
    if is_link or (is_prefill and n_stuck > sum(slots[:n_prefill])):
        remedy = (
            "more replicas or KV blocks for the answers (--replicas), or a faster link (--kv-link)"
        )
        found.append(_bottleneck("of KV caches on their way from prompts to answers", remedy))
    elif is_prefill:
        found.append(
            _bottleneck(
                "before the replicas that compute prompts",
                "more prefill replicas (--prefill-replicas)",
            )
        )
    if _grows(simulation, window, slots, range(n_prefill, len(slots))):
        found.append(
            _bottleneck(
                "before the replicas that generate", "more replicas for the answers (--replicas)"
            )
        )
    return found


def _bottleneck(where: str, remedy: str) -> Caution:
    return Caution(code="bottleneck", text=f"the growing queue is the one {where}", remedy=remedy)


def _grows(simulation: Simulation, window: _Window, slots: Sequence[int], replicas: range) -> bool:
    """Does the number of requests on these replicas grow?"""
    visits = simulation.visits
    if visits is None:
        return False
    is_there = (visits.replica >= replicas.start) & (visits.replica < replicas.stop)
    n_slots = sum(slots[replicas.start : replicas.stop])
    return (
        _growth(visits.arrived_ns[is_there], visits.left_ns[is_there], window, n_slots) is not None
    )


def _growth(came_ns: I64, left_ns: I64, window: _Window, n_served: int) -> _Growth | None:
    """Growth of the number of requests in the window.

    None if it may be chance.

    Below capacity that number is bounded, at capacity it fluctuates by the square root of the
    arrivals, above capacity it grows with them: growth beyond three square roots plus the batch
    is significant. Missing arrivals and departures are ``ABSENT``.
    """
    n_arrived, n_left = (
        int(np.sum((times_ns > window.start_ns) & (times_ns <= window.end_ns)))
        for times_ns in (came_ns, left_ns)
    )
    growth = _Growth(n_arrived=n_arrived, n_more=n_arrived - n_left)
    return growth if growth.n_more > 3 * math.sqrt(n_arrived) + n_served else None


def simulated_run(
    simulation: Simulation,
    config: EngineConfig | DisaggregatedConfig | Placement,
    *,
    run_id: str,
    created_utc: str,
    command: tuple[str, ...],
    tool_version: str,
    model: ModelSpec | None = None,
) -> Run:
    """The run of a simulation; its manifest names the basis and the omissions."""
    manifest = RunManifest(
        run_id=run_id,
        origin="simulated",
        created_utc=created_utc,
        command=command,
        tool_version=tool_version,
        plan=None,
        model=model,
        engine=None,
        host=None,
        source=None,
        is_complete=True,
        cautions=(*cautions_of(simulation, config, model), *_shed_cautions(simulation)),
        refused_classes=tuple(
            np.unique(simulation.requests.class_index[is_refused(simulation)]).tolist()
        ),
    )
    return Run(
        manifest=manifest,
        sweep=None,
        steps=simulation.steps,
        ceilings=None,
        requests=simulation.requests,
        parts=simulation.parts,
        visits=simulation.visits,
        step_memory=_step_memory(simulation),
    )


def _step_memory(simulation: Simulation) -> StepMemoryTable | None:
    holes, swapped = simulation.holes, simulation.swapped_blocks
    if simulation.steps is None or (holes is None and swapped is None):
        return None
    unknown = np.full(len(simulation.steps.start_ns), ABSENT)
    swapped = unknown if swapped is None else swapped
    if holes is None:
        return StepMemoryTable(unknown, unknown, unknown, swapped, unknown)
    return StepMemoryTable(**holes._asdict(), swapped_blocks=swapped)


def cautions_of(
    simulation: Simulation,
    config: EngineConfig | DisaggregatedConfig | Placement,
    model: ModelSpec | None = None,
) -> tuple[Caution, ...]:
    """Cautions on the use of the run's numbers.

    Requests without an end are counted here, never dropped.
    """
    pools = config if isinstance(config, DisaggregatedConfig) else None
    if isinstance(config, Placement | DisaggregatedConfig):
        slots = tuple(engine.max_num_active for engine in config.engine_of_replicas)
        config = config.cluster.engine if isinstance(config, Placement) else config.decode.engine
    else:
        slots = (config.max_num_active,) * len(simulation.busy_ns)
    return (
        *_ending_cautions(simulation, config),
        *left_cautions(simulation.requests),
        *_refusal_cautions(simulation, config, model),
        *_cut_cautions(simulation, config, model),
        *overload_cautions(simulation, slots, pools),
        *_assumptions(simulation, config),
    )


def _ending_cautions(simulation: Simulation, config: EngineConfig) -> list[Caution]:
    """Cautions on requests without an end, or that were never sent."""
    status = simulation.requests.status
    n_requests, n_unfinished = len(status), int(np.sum(status == RequestStatus.UNFINISHED))
    n_in_all = n_requests + simulation.n_never_sent
    cautions = list[Caution]()
    if simulation.outcome is Outcome.STUCK:
        text = (
            f"{n_unfinished} of {n_requests} requests wait for ever: the next one does not fit into"
            f" {config.n_kv_blocks} KV blocks"
        )
        remedy = (
            "more KV blocks or a smaller max_model_len; this is a property of the configuration"
        )
        cautions.append(Caution(code="stuck", text=text, remedy=remedy))
    elif simulation.outcome is Outcome.LIVELOCK:
        text = (
            f"{n_unfinished} of {n_requests} requests preempt one another for ever, as"
            f" {config.engine} would; the last token came before that"
        )
        remedy = (
            "scheduler_reserve_full_isl on, or long_prefill_token_threshold off; this is a property"
            " of the configuration"
        )
        cautions.append(Caution(code="livelock", text=text, remedy=remedy))
    elif n_unfinished:
        text = f"{n_unfinished} of {n_requests} requests were unfinished when the time was over"
        remedy = "a longer time, or read the latencies as lower bounds"
        cautions.append(Caution(code="unfinished", text=text, remedy=remedy))
    if simulation.n_never_sent:
        text = (
            f"sent {n_requests:,} of {n_in_all:,} requests: the run ended before the others came,"
            " or before those that they follow ended"
        )
        remedy = (
            "a longer --until"
            if simulation.outcome is Outcome.HORIZON
            else "see there why those that they follow never end"
        )
        cautions.append(Caution(code="never sent", text=text, remedy=remedy))
    return cautions


def is_refused(simulation: Simulation) -> Bools:
    """Requests that the engine refused: not those the gate turned away."""
    is_rejected: Bools = simulation.requests.status == RequestStatus.REJECTED
    is_let_in: Bools = _shed_reasons(simulation) == Reason.NONE
    return is_rejected & is_let_in


def _refusal_cautions(
    simulation: Simulation, config: EngineConfig, model: ModelSpec | None
) -> list[Caution]:
    """Cautions on requests that the engine refused (not those the gate turned away)."""
    status, cautions = simulation.requests.status, list[Caution]()
    n_requests = len(status)
    is_rejected = is_refused(simulation)
    is_too_long = simulation.requests.prompt_tokens > config.max_prompt_tokens
    n_too_long = int(np.sum(is_rejected & is_too_long))
    n_refused = int(np.sum(is_rejected)) - n_too_long
    if n_refused:
        text = (
            f"{n_refused} of {n_requests} requests were refused: they waited too long or found the"
            " queue full"
        )
        remedy = "a longer time-out or queue, or a lower rate"
        cautions.append(Caution(code="refused", text=text, remedy=remedy))
    if n_too_long:
        why, remedy = _too_long(config, model)
        text = f"{n_too_long} of {n_requests} requests were refused: their prompts {why}"
        cautions.append(Caution(code="rejected", text=text, remedy=remedy))
    return cautions


def _too_long(config: EngineConfig, model: ModelSpec | None) -> tuple[str, str]:
    """Which prompts the server refuses, and the setting that would accept them."""
    if (remedy := larger_steps(config)) is not None:
        return f"have more than max_num_tokens = {config.step_budget_tokens} tokens", remedy
    why = f"reach max_model_len = {config.max_model_len}"
    return why, _longer(config, model, "shorter prompts")


def larger_steps(config: EngineConfig) -> str | None:
    """Settings that accept prompts longer than a step; None where the engine accepts them."""
    if not isinstance(config, TrtllmConfig) or config.max_prompt_tokens >= config.max_seq_len - 1:
        return None
    return f"--max-num-batched-tokens {config.max_seq_len}, or --set enable_chunked_prefill=true"


def _longer(config: EngineConfig, model: ModelSpec | None, shorter: str) -> str:
    """Remedy where the context limit is too short: a larger one where the model has positions for it."""
    if model is None or config.max_model_len < model.max_position_tokens:
        return f"a larger --max-model-len, or {shorter}"
    return f"{shorter}, or another model: the positions of this one end there"


def _cut_cautions(
    simulation: Simulation, config: EngineConfig, model: ModelSpec | None
) -> tuple[Caution, ...]:
    cut = simulation.cut
    if not cut.n_answers:
        return ()
    text = (
        f"{cut.n_answers:,} answers were cut: prompt and answer together reach max_model_len ="
        f" {config.max_model_len}; they got {cut.n_output_tokens:,} of {cut.n_wanted_tokens:,} tokens"
    )
    remedy = _longer(config, model, "shorter prompts or answers")
    return (Caution(code="cut", text=text, remedy=remedy),)


def _assumptions(simulation: Simulation, config: EngineConfig) -> tuple[Caution, ...]:
    """Cautions on assumptions that were not measured, or differ from the workload."""
    if (
        isinstance(config, SglangConfig)
        and config.enable_priority_scheduling
        and not config.schedule_low_priority_values_first
    ):
        if len(np.unique(simulation.requests.priority)) < 2:
            return ()
        text = (
            "the larger a priority the more urgent, as SGLang has it; in a workload the smaller is"
        )
        remedy = "--set schedule_low_priority_values_first=true"
        return (Caution(code="priorities", text=text, remedy=remedy),)
    if not isinstance(config, SchedulerConfig) or config.num_speculative_tokens == 0:
        return ()
    text = (
        f"that a draft is accepted with a chance of {config.acceptance_fraction} and takes"
        f" {config.draft_cost_ratio or 0} of the model's "
    )
    text += "time was assumed, the same for all requests; every request is drafted for in each step"
    remedy = (
        "vLLM's own counts of drafted and accepted tokens (vllm:spec_decode_*) under such traffic"
    )
    return (Caution(code="assumed acceptance", text=text, remedy=remedy),)


def _shed_reasons(simulation: Simulation) -> I32:
    """The gate's reason for each request of the table."""
    index = simulation.requests.request_index
    return (
        np.zeros(len(index), np.int32)
        if simulation.shed_reasons is None
        else simulation.shed_reasons[index]
    )


def _shed_cautions(simulation: Simulation) -> tuple[Caution, ...]:
    class_index, names = simulation.requests.class_index, simulation.gate_classes
    named = [
        names[index] if len(names) > index else f"class {index}"
        for index in range(int(class_index.max(initial=-1)) + 1)
    ]
    return shed_cautions(_shed_reasons(simulation), class_index, named)


# Nobody is dropped silently: these words go into the run's cautions.

_WORDS: Final = {
    Reason.QUEUE_FULL: "found the gate's queue full",
    Reason.CLASS_QUEUE_FULL: "found their class's queue full",
    Reason.TOKENS_FULL: "found too many tokens waiting",
    Reason.TOO_LARGE: "asked for more than their tenant's bucket holds",
    Reason.TOO_LATE: "could not meet their deadline any more",
    Reason.WAITED_TOO_LONG: "waited as long as they may",
}


class ShedCount(NamedTuple):
    """Requests of a class that were turned away for one reason."""

    class_index: int
    reason: Reason
    n_requests: int


def shed_counts(reasons: I32, class_index: I32) -> tuple[ShedCount, ...]:
    """Numbers of turned-away requests by class, then by reason.

    ``reasons`` has a ``Reason`` for each of the requests.
    """
    is_shed = reasons != Reason.NONE
    if not is_shed.any():  # of every simulation without a gate: to sort all took 5 % of a search
        return ()
    shed = np.stack([class_index[is_shed], reasons[is_shed]])
    pairs, counts = np.unique(shed, axis=1, return_counts=True)
    return tuple(
        ShedCount(class_index=which, reason=Reason(why), n_requests=n_requests)
        for which, why, n_requests in zip(*pairs.tolist(), counts.tolist(), strict=True)
    )


def shed_cautions(
    reasons: I32, class_index: I32, class_names: Sequence[str]
) -> tuple[Caution, ...]:
    """One caution for each class with turned-away requests."""
    n_of_class = np.bincount(class_index, minlength=len(class_names))
    counts = shed_counts(reasons, class_index)
    cautions = list[Caution]()
    for which, name in enumerate(class_names):
        of_class = [count for count in counts if count.class_index == which]
        n_shed = sum(count.n_requests for count in of_class)
        why = ", ".join(f"{count.n_requests} {_WORDS[count.reason]}" for count in of_class)
        if n_shed:
            text = f"the gate turned away {n_shed} of {n_of_class[which]} requests of {name}: {why}"
            remedy = (
                "a lower rate, more replicas, or a gate that lets more wait; latencies are of those"
                " who were let in"
            )
            cautions.append(Caution(code="shed", text=text, remedy=remedy))
    return tuple(cautions)


Role: TypeAlias = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShare:
    """Requests and work of one replica; tokens are of the requests sent to it."""

    replica: int
    role: Role
    """Prefill, decode or both; tokens of the other phase are 0."""
    n_requests: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens found in its prefix cache."""
    output_tokens: int
    n_preemptions: int
    busy_fraction: float
    """Share of the time from 0 to the end spent in completed steps."""


def replica_shares(
    simulation: Simulation, pools: DisaggregatedConfig | None = None
) -> tuple[ReplicaShare, ...]:
    """The shares of all replicas; none where there is one replica.

    ``pools`` where some compute prompts alone.
    """
    if simulation.visits is None:
        return ()
    shares = list[ReplicaShare]()
    for replica, busy_ns in enumerate(simulation.busy_ns.tolist()):
        own = requests_of(simulation.requests, simulation.visits, replica)
        role = _role(replica, pools)
        shares.append(
            ReplicaShare(
                replica=replica,
                role=role,
                n_requests=len(own.request_index),
                prompt_tokens=int(own.prompt_tokens.sum()) * (role != "decode"),
                cached_tokens=int(own.cached_tokens.sum()) * (role != "decode"),
                output_tokens=int(own.output_tokens.sum()) * (role != "prefill"),
                n_preemptions=int(own.n_preemptions.sum()),
                busy_fraction=busy_ns / simulation.end_ns if simulation.end_ns else 0.0,
            )
        )
    return tuple(shares)


def _role(replica: int, pools: DisaggregatedConfig | None) -> Role:
    if pools is None:
        return "both"
    return "prefill" if replica < pools.prefill.n_replicas else "decode"


def requests_of(requests: RequestTable, visits: VisitTable, replica: int) -> RequestTable:
    """Rows of requests that this replica was sent."""
    is_own = np.isin(requests.request_index, visits.request_index[visits.replica == replica])
    return RequestTable._make(column[is_own] for column in requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferShares:
    """All transfers of a run together. Means are those of this run, without an interval."""

    n_transfers: int
    """Prompts that were to go on elsewhere."""
    n_received: int
    moved_bytes: int
    """Bytes of the received ones."""
    mean_room_wait_s: float | None
    """Wait for blocks on the decode replica; None (like the next two): no request got so far."""
    mean_link_wait_s: float | None
    mean_moving_s: float | None
    """The latency included."""
    busiest_port_fraction: float
    """Share of the time from 0 to the end in which the busiest port (or shared link) sent."""


def transfer_shares(simulation: Simulation, link: KvLink) -> TransferShares:
    """The transfers of a run on prefill and decode replicas.

    Raises
    ------
    ValueError
        Each replica of this run computed prompts and answers.
    """
    moves = simulation.transfers
    if moves is None:
        raise ValueError("no transfers")
    requested, begun, came = (
        column != ABSENT for column in (moves.asked_ns, moves.begun_ns, moves.received_ns)
    )
    taken_ns = np.where(came, moves.received_ns - link.latency_ns - moves.begun_ns, 0)
    ports = (
        [np.zeros(len(came), np.int64)] if link.shape == "shared" else [moves.source, moves.replica]
    )
    busiest_ns = max(
        (int(np.bincount(port, weights=taken_ns).max(initial=0)) for port in ports), default=0
    )
    return TransferShares(
        n_transfers=len(came),
        n_received=int(came.sum()),
        moved_bytes=int(moves.n_blocks[came].sum()) * link.block_bytes,
        mean_room_wait_s=_mean_s(moves.asked_ns - moves.prefilled_ns, requested),
        mean_link_wait_s=_mean_s(moves.begun_ns - moves.asked_ns, begun),
        mean_moving_s=_mean_s(moves.received_ns - moves.begun_ns, came),
        busiest_port_fraction=busiest_ns / simulation.end_ns if simulation.end_ns else 0.0,
    )


def _mean_s(durations_ns: I64, has_it: Bools) -> float | None:
    return float(durations_ns[has_it].mean()) / NS_PER_S if has_it.any() else None
