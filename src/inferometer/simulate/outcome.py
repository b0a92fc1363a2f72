"""Results of a simulation, how it ended, and states of requests.

Both simulators fill the same tables, so that one test compares them cell by cell. States of
requests have vLLM's names. Letters of shapes: N requests, S steps.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inferometer.inputs.types import Caution
from inferometer.records.columns import I8, I32, I64, Bools
from inferometer.records.types import (
    ABSENT,
    Phase,
    RequestStatus,
    RequestTable,
    StepPartTable,
    StepTable,
    VisitTable,
)
from inferometer.simulate.demand import Demand

FAR_NS: Final = 2**62
"""Later than anything."""


class Status(IntEnum):
    """State of a request."""

    UNSEEN = 0
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    STOPPED = 4
    LENGTH = 5
    ABORTED = 6
    REJECTED = 7
    PREFILLED = 8
    """Done where it was, to go on at a decode replica."""

    @property
    def is_finished(self) -> bool:
        """Is the request over?"""
        return self >= Status.STOPPED


class Stage(IntEnum):
    """State of the KV cache of a request with a separate prefill replica."""

    ABSENT = 0
    FOR_ROOM = 1
    """Computed; waits for blocks on the decode replica."""
    MOVING = 2
    RECEIVED = 3
    """Transferred; the request waits for a slot."""
    OVER = 4
    """The request has gone on, or away."""


class Outcome(IntEnum):
    """How a simulation ended."""

    LOG_FULL = -1
    """Not ended: the log is full."""
    FINISHED = 0
    HORIZON = 1
    """The requested time was over."""
    STUCK = 2
    """Waiting requests will never fit: nothing runs, and no event will follow."""
    LIVELOCK = 3
    """Requests preempt one another forever."""


class StepLog(NamedTuple):
    """Room for the rows of a ``StepTable``; the columns have its names."""

    start_ns: I64
    duration_ns: I64
    n_prefill_requests: I32
    n_decode_requests: I32
    n_waiting_requests: I32
    n_preempted_requests: I32
    prefill_tokens: I64
    prefill_context_product_tokens2: I64
    decode_context_tokens: I64
    kv_blocks_used: I64
    replica: I64
    free_blocks: I64
    """With the next three, the columns of a ``HoleTable``; ABSENT where the KV cache is paged."""
    largest_hole_blocks: I64
    compaction_debt_blocks: I64
    moved_blocks: I64
    swapped_blocks: I64
    """Copied to the host or back before the step; ABSENT where nothing is swapped."""
    launched_ns: I64
    """When the step was launched. Empty: the rows are in this order, each step is for itself."""
    launch_order: I64
    """(as launched_ns) Order of the steps that were launched at the same time."""
    n_filled: I64
    """(1) How many rows are filled."""


class PartLog(NamedTuple):
    """Room for the rows of a ``StepPartTable``; the columns have its names.

    Empty arrays: parts are not recorded.
    """

    step_index: I32
    request_index: I32
    slot: I32
    kind: I8
    n_computed_tokens: I32
    n_delivered_tokens: I32
    n_filled: I64
    """(1) How many rows are filled."""


class RequestFacts(NamedTuple):
    """Results of N requests, in the workload's order."""

    status: I64
    """A ``Status``."""
    arrival_ns: I64
    """Arrival; ``FAR_NS`` where it follows a request that has not ended."""
    admitted_ns: I64
    first_token_ns: I64
    finished_ns: I64
    num_tokens: I64
    num_cached_tokens: I64
    num_preemptions: I64
    arrived_ns: I64
    """At its replica."""
    replica: I64
    """-1 where none got it."""


class HoleTable(NamedTuple):
    """Fragmentation by contiguous allocation: one row per step (S rows), after its admissions."""

    free_blocks: I64
    largest_hole_blocks: I64
    compaction_debt_blocks: I64
    """The fewest blocks to move, neighbours sliding together, so that the largest request that
    waits fits. 0 if none waits or it fits; -1 if too little is free, so that moving does not
    help. Moves under way count in full."""
    moved_blocks: I64
    """Blocks moved by compaction since the row before; ABSENT without compaction."""


class TransferTable(NamedTuple):
    """One row per request with a KV transfer (T rows), in the workload's order."""

    request_index: I32
    source: I32
    """The replica that computed the prompt."""
    replica: I32
    """The decode replica."""
    n_blocks: I64
    """Blocks sent, without those already cached there; ABSENT where there was no room yet."""
    prefilled_ns: I64
    asked_ns: I64
    """Time when there was room; ABSENT (like the next two): never."""
    begun_ns: I64
    """Time when the link was free for it."""
    received_ns: I64

    def on_way_ns(self, requests: RequestTable) -> tuple[I64, I64]:
        """End of prefill and arrival of the KV cache, for each request.

        Both are the first token's instant where it stays in one place.
        """
        came = self.received_ns != ABSENT
        order = np.argsort(requests.request_index)  # a closed loop's stand as they were sent
        places = np.searchsorted(requests.request_index, self.request_index[came], sorter=order)
        left_ns, came_ns = requests.first_token_ns.copy(), requests.first_token_ns.copy()
        left_ns[order[places]] = self.prefilled_ns[came]
        came_ns[order[places]] = self.received_ns[came]
        return left_ns, came_ns


class KvPoolUse(NamedTuple):
    """Time-weighted occupancy of the KV pools (replicas, pools) over steps."""

    peak_blocks: I64
    block_ns: I64
    """Blocks in use, integrated over time."""
    tail_token_ns: I64
    """Unused token slots in blocks of running requests, integrated over time."""
    step_ns: I64


class CutAnswers(NamedTuple):
    """The answers that ended before the model or the client would have ended them.

    The sequence was as long as the server allows.
    """

    n_answers: int
    n_output_tokens: int
    n_wanted_tokens: int
    """Tokens without the cut."""


class Simulation(NamedTuple):
    """Results of a simulation, and why it ended."""

    outcome: Outcome
    end_ns: int
    """Time of the last event."""
    requests: RequestTable
    steps: StepTable | None
    """None where not requested."""
    parts: StepPartTable | None
    """Each request's tokens in each step; None where not requested."""
    n_never_sent: int
    """Requests that are not in the table: the run ended before they came, or before those that
    they follow had ended."""
    holes: HoleTable | None
    """None where the KV cache is paged."""
    busy_ns: I64
    """(replicas) The time of each one's steps that were done."""
    visits: VisitTable | None
    """None where there is one replica."""
    shed_reasons: I32 | None = None
    """(N) Why the gate turned a request away, a ``gate_config.Reason``, in the workload's order;
    None where there is no gate."""
    gate_classes: tuple[str, ...] = ()
    """The names of the classes, as the gate knows them."""
    swapped_blocks: I64 | None = None
    """(S) Copied to the host or back before each step; None where nothing is swapped."""
    transfers: TransferTable | None = None
    """None where prompts and answers are computed by the same replicas."""
    evicted_blocks: I64 | None = None
    """(replicas) Blocks or pages of cached prefixes that made room for others."""
    kv_pools: KvPoolUse | None = None
    """None where all requests share the KV cache."""
    n_held: int = 0
    """Requests that waited before their replica got them: at the gate."""
    cut: CutAnswers = CutAnswers(0, 0, 0)

    @property
    def busy_fraction(self) -> float:
        """Share of the time from 0 to the end spent in steps, mean of the replicas."""
        return float(self.busy_ns.mean()) / self.end_ns if self.end_ns else 0.0


def max_barren_steps(max_model_len: int) -> int:
    """Number of preempting steps without a token between them after which it is a livelock.

    A request that is never preempted computes at least one token per step, and needs at most
    ``max_model_len`` of them; the limit is twice that.
    """
    return 2 * max_model_len + 16


def new_log(
    n_rows: int, *, has_holes: bool = True, has_swaps: bool = True, has_launches: bool = False
) -> StepLog:
    """An empty log with room for ``n_rows`` steps; ``has_launches``: in any order of replicas.

    The columns of contiguous memory and of swapping are empty where no engine has them; where one
    of several has, the others' rows stay as they are here.
    """
    is_filled = dict.fromkeys(HoleTable._fields, has_holes) | {"swapped_blocks": has_swaps}
    is_wanted = is_filled | dict.fromkeys(("launched_ns", "launch_order"), has_launches)
    columns = [
        np.empty(
            n_rows * is_wanted.get(name, True),
            np.int32 if name.endswith("_requests") else np.int64,
        )
        for name in StepLog._fields[:-1]
    ]
    log = StepLog._make([*columns, np.zeros(1, np.int64)])
    for name in is_filled:
        getattr(log, name).fill(ABSENT)
    return log


def new_part_log(n_rows: int) -> PartLog:
    """An empty log with room for this number of parts of steps."""
    whole = [np.empty(n_rows, np.int32) for _ in range(5)]
    step_index, request_index, slot, n_computed_tokens, n_delivered_tokens = whole
    kind = np.empty(n_rows, np.int8)
    return PartLog(
        step_index,
        request_index,
        slot,
        kind,
        n_computed_tokens,
        n_delivered_tokens,
        np.zeros(1, np.int64),
    )


def simulation(
    demand: Demand,
    facts: RequestFacts,
    logs: Sequence[StepLog] | None,
    part_logs: Sequence[PartLog] | None,
    *,
    outcome: Outcome,
    end_ns: int,
    busy_ns: I64,
) -> Simulation:
    """Tables of a simulation from a simulator's logs.

    Requests that would have come after its end are left out.
    """
    came = (facts.status != Status.UNSEEN) | (facts.arrival_ns <= end_ns)
    logs = None if logs is None else _in_order(logs)
    return Simulation(
        outcome=outcome,
        end_ns=end_ns,
        requests=_request_table(demand, facts, came),
        steps=None if logs is None else _step_table(logs),
        parts=None if part_logs is None else _part_table(part_logs),
        n_never_sent=int(np.sum(~came)),
        holes=None if logs is None else _hole_table(logs),
        busy_ns=busy_ns,
        visits=None if len(busy_ns) == 1 else _visit_table(facts),
        swapped_blocks=None if logs is None else _swapped_blocks(logs),
        n_held=int(np.sum((facts.replica >= 0) & (facts.arrived_ns > facts.arrival_ns))),
        cut=_cut_answers(demand, facts),
    )


def slots_numbered_through(simulation: Simulation, n_slots: int) -> Simulation:
    """Slots numbered over all replicas: replica 1 after the ``n_slots`` of replica 0."""
    steps, parts = simulation.steps, simulation.parts
    if steps is None or parts is None:
        return simulation
    return simulation._replace(
        parts=parts._replace(
            slot=(parts.slot + steps.replica[parts.step_index] * n_slots).astype(np.int32)
        )
    )


def n_running(requests: RequestTable, at_ns: int) -> int:
    """The number of requests that were running on engines at this time.

    Fewer than the slots where KV blocks are short.
    """
    has_left = (requests.finished_ns != ABSENT) & (requests.finished_ns <= at_ns)
    return int(
        np.sum((requests.admitted_ns != ABSENT) & (requests.admitted_ns <= at_ns) & ~has_left)
    )


def mean_waiting(requests: RequestTable, start_ns: int, end_ns: int) -> float:
    """Mean number of requests over this time that were sent, and neither let in nor gone."""
    let_in_ns = np.where(requests.admitted_ns != ABSENT, requests.admitted_ns, requests.finished_ns)
    until_ns = np.where(let_in_ns == ABSENT, end_ns, np.minimum(let_in_ns, end_ns))
    waited_ns = until_ns - np.maximum(requests.intended_send_ns, start_ns)
    return float(np.sum(np.maximum(waited_ns, 0))) / max(end_ns - start_ns, 1)


def _request_table(demand: Demand, facts: RequestFacts, came: Bools) -> RequestTable:
    translation = np.full(len(Status), RequestStatus.UNFINISHED, np.int8)
    for status in (Status.STOPPED, Status.LENGTH, Status.ABORTED, Status.REJECTED):
        translation[status] = RequestStatus[status.name]
    prompt = demand.prompt_tokens
    table = RequestTable(
        intended_send_ns=facts.arrival_ns,
        sent_ns=facts.arrival_ns,
        admitted_ns=facts.admitted_ns,
        first_token_ns=facts.first_token_ns,
        finished_ns=facts.finished_ns,
        prompt_tokens=prompt,
        cached_tokens=facts.num_cached_tokens.astype(np.int32),
        output_tokens=(facts.num_tokens - prompt).astype(np.int32),
        n_preemptions=facts.num_preemptions.astype(np.int32),
        status=translation[facts.status],
        priority=demand.priority,
        class_index=demand.class_index,
        request_index=np.arange(demand.n_requests, dtype=np.int32),
    )
    if bool(came.all()) and not np.any(demand.follows >= 0):
        return table
    rows = np.flatnonzero(came)
    rows = rows[np.argsort(facts.arrival_ns[rows], kind="stable")]
    return RequestTable._make(column[rows] for column in table)


def _cut_answers(demand: Demand, facts: RequestFacts) -> CutAnswers:
    wanted = np.minimum(demand.output_tokens, demand.max_tokens).astype(np.int64)
    got = facts.num_tokens - demand.prompt_tokens
    is_cut = (facts.status == Status.LENGTH) & (got < wanted)
    return CutAnswers(int(np.sum(is_cut)), int(got[is_cut].sum()), int(wanted[is_cut].sum()))


def _visit_table(facts: RequestFacts) -> VisitTable:
    sent = np.flatnonzero(facts.replica >= 0)
    return VisitTable(
        request_index=sent.astype(np.int32),
        replica=facts.replica[sent].astype(np.int32),
        arrived_ns=facts.arrived_ns[sent],
        left_ns=facts.finished_ns[sent],
    )


def _in_order(logs: Sequence[StepLog]) -> Sequence[StepLog]:
    """The rows in order of launch, in one log where replicas ran ahead of one another."""
    if not len(logs[0].launched_ns):
        return logs
    rows = np.lexsort((_column(logs, "launch_order"), _column(logs, "launched_ns")))
    bare = logs[0]._replace(launched_ns=np.empty(0, np.int64), launch_order=np.empty(0, np.int64))
    names = (name for name in StepLog._fields[:-1] if len(getattr(bare, name)))
    columns: dict[str, Any] = {name: _column(logs, name)[rows] for name in names}
    return [bare._replace(**columns, n_filled=np.array([len(rows)]))]


def _hole_table(logs: Sequence[StepLog]) -> HoleTable | None:
    columns = [_column(logs, name) for name in HoleTable._fields]
    return None if np.all(columns[0] == ABSENT) else HoleTable._make(columns)


def _swapped_blocks(logs: Sequence[StepLog]) -> I64 | None:
    swapped = _column(logs, "swapped_blocks")
    return None if np.all(swapped == ABSENT) else swapped


def _part_table(logs: Sequence[PartLog]) -> StepPartTable:
    filled = [[column[: log.n_filled[0]] for column in log[:-1]] for log in logs]
    table = StepPartTable._make(np.concatenate(parts) for parts in zip(*filled, strict=True))
    if bool(np.all(np.diff(table.step_index) >= 0)):
        return table
    in_order = np.argsort(
        table.step_index, kind="stable"
    )  # replicas end their steps in another order
    return StepPartTable._make(column[in_order] for column in table)


def _step_table(logs: Sequence[StepLog]) -> StepTable:
    names = (name for name in StepTable._fields if name in StepLog._fields)
    columns: dict[str, Any] = {name: _column(logs, name) for name in names}
    for name, column in columns.items():
        if name.endswith("_requests"):
            columns[name] = column.astype(np.int32, copy=False)
    n_steps = len(columns["start_ns"])
    phase = np.full(n_steps, Phase.PREFILL, np.int8)
    has_decode = columns["n_decode_requests"] > 0
    phase[has_decode] = Phase.DECODE
    phase[has_decode & (columns["n_prefill_requests"] > 0)] = Phase.MIXED
    outside = np.full(n_steps, -1, np.int32)
    return StepTable(
        point_index=outside,
        repetition=outside,
        is_warmup=np.zeros(n_steps, np.bool_),
        phase=phase,
        **columns,
    )


def _column(logs: Sequence[StepLog], name: str) -> I64:
    return np.concatenate([getattr(log, name)[: log.n_filled[0]] for log in logs])


class HandoverFacts(NamedTuple):
    """Results of N requests between two replicas, in the workload's order.

    Of those that stayed where they were ``stage`` alone.
    """

    stage: I64
    """A ``Stage``."""
    source: I64
    replica: I64
    """Last replica; -1: none."""
    num_moved_blocks: I64
    arrived_ns: I64
    """At the source."""
    prefilled_ns: I64
    asked_ns: I64
    begun_ns: I64
    """May be after the end of the simulation, like the next."""
    received_ns: I64


def with_handovers(simulation: Simulation, facts: HandoverFacts) -> Simulation:
    """The simulation with KV transfers, and two visits of each transferred request.

    The time between these visits is that of the transfer, including its waits.
    """
    return simulation._replace(
        visits=_visits(simulation, facts), transfers=_transfers(simulation, facts)
    )


def _transfers(simulation: Simulation, facts: HandoverFacts) -> TransferTable:
    rows = np.flatnonzero(facts.stage != Stage.ABSENT)
    is_asked = facts.asked_ns[rows] != ABSENT
    return TransferTable(
        request_index=rows.astype(np.int32),
        source=facts.source[rows].astype(np.int32),
        replica=facts.replica[rows].astype(np.int32),
        n_blocks=np.where(is_asked, facts.num_moved_blocks[rows], ABSENT),
        prefilled_ns=facts.prefilled_ns[rows],
        asked_ns=facts.asked_ns[rows],
        begun_ns=_until(facts.begun_ns[rows], simulation.end_ns),
        received_ns=_until(facts.received_ns[rows], simulation.end_ns),
    )


def _visits(simulation: Simulation, facts: HandoverFacts) -> VisitTable | None:
    once = simulation.visits
    if once is None:
        return None
    handed = facts.stage[once.request_index] != Stage.ABSENT
    received_ns = _until(facts.received_ns[once.request_index], simulation.end_ns)
    again = np.flatnonzero(handed & (received_ns != ABSENT))
    index = once.request_index
    visits = VisitTable(
        request_index=_both(index, index, again),
        replica=_both(
            np.where(handed, facts.source[index], once.replica).astype(np.int32),
            once.replica,
            again,
        ),
        arrived_ns=_both(
            np.where(handed, facts.arrived_ns[index], once.arrived_ns), received_ns, again
        ),
        left_ns=_both(
            np.where(handed, facts.prefilled_ns[index], once.left_ns), once.left_ns, again
        ),
    )
    order = np.argsort(visits.request_index, kind="stable")
    return VisitTable._make(column[order] for column in visits)


def _both(first: NDArray[Any], second: NDArray[Any], again: NDArray[np.intp]) -> NDArray[Any]:
    return np.concatenate([first, second[again]])


def _until(instants_ns: I64, end_ns: int) -> I64:
    return np.where(instants_ns > end_ns, ABSENT, instants_ns)


def left_cautions(requests: RequestTable) -> tuple[Caution, ...]:
    """A caution on users who left before they got their answers; empty where none did."""
    n_left = int(np.sum(requests.status == RequestStatus.ABORTED))
    if not n_left:
        return ()
    text = (
        f"the users of {n_left:,} of {len(requests.status):,} requests left before the answer was"
        " complete: TPOT is that of the others alone"
    )
    remedy = "read goodput, which counts all; or a lower rate, more replicas, a longer patience_s"
    return (Caution(code="left", text=text, remedy=remedy),)
