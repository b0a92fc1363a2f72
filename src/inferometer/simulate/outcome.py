"""What comes out of a simulation, and how may it end?

Both simulators fill the same tables, so that one test compares them cell by cell. Letters of shapes: N requests, S steps.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.types import I64, Phase, RequestStatus, RequestTable, StepTable
from inferometer.simulate.compiling import compiled
from inferometer.simulate.demand import Demand
from inferometer.simulate.reference_request import Status

FAR_NS: Final = 2**62
"""Later than anything."""


class Outcome(IntEnum):
    """How did a simulation end?"""

    LOG_FULL = -1
    """Not yet: there is no room to log another step."""
    FINISHED = 0
    HORIZON = 1
    """The time asked for was over."""
    STUCK = 2
    """Requests wait that will never fit: nothing runs, nothing will arrive or go away."""
    LIVELOCK = 3
    """Requests preempt one another for ever."""


class StepLog(NamedTuple):
    """Room for the rows of a ``StepTable``; the columns have its names."""

    start_ns: I64
    duration_ns: I64
    n_prefill_requests: I64
    n_decode_requests: I64
    n_waiting_requests: I64
    n_preempted_requests: I64
    prefill_tokens: I64
    prefill_context_product_tokens2: I64
    decode_context_tokens: I64
    kv_blocks_used: I64
    n_filled: I64
    """(1) How many rows are filled."""


class RequestFacts(NamedTuple):
    """What became of N requests, in order of arrival."""

    status: I64
    """A ``Status``."""
    admitted_ns: I64
    first_token_ns: I64
    finished_ns: I64
    num_tokens: I64
    num_cached_tokens: I64
    num_preemptions: I64


class Simulation(NamedTuple):
    """What happened, and why it ended."""

    outcome: Outcome
    end_ns: int
    """When the last thing happened."""
    requests: RequestTable
    steps: StepTable


@compiled
def max_barren_steps(max_model_len: int) -> int:
    """After how many steps that preempt, without a token from any step between them, do requests preempt one another for ever?

    Whoever is never preempted computes at least one token a step and needs at most ``max_model_len``; twice that is patience.
    """
    return 2 * max_model_len + 16


def new_log(n_rows: int) -> StepLog:
    """An empty log with room for so many steps."""
    columns = [np.empty(n_rows, np.int64) for _ in StepLog._fields[:-1]]
    return StepLog._make([*columns, np.zeros(1, np.int64)])


def simulation(demand: Demand, facts: RequestFacts, logs: Sequence[StepLog], *, outcome: Outcome, end_ns: int) -> Simulation:
    """The tables of a simulation, from what a simulator noted. Requests that would have come after its end are left out."""
    return Simulation(outcome=outcome, end_ns=end_ns, requests=_request_table(demand, facts, end_ns), steps=_step_table(logs))


def _request_table(demand: Demand, facts: RequestFacts, end_ns: int) -> RequestTable:
    came = (facts.status != Status.UNSEEN) | (demand.arrival_ns <= end_ns)
    translation = np.full(len(Status), RequestStatus.UNFINISHED, np.int8)
    for status in (Status.STOPPED, Status.LENGTH, Status.ABORTED, Status.REJECTED):
        translation[status] = RequestStatus[status.name]
    prompt = demand.prompt_tokens
    table = RequestTable(
        intended_send_ns=demand.arrival_ns,
        sent_ns=demand.arrival_ns,
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
    return table if bool(came.all()) else RequestTable._make(column[came] for column in table)


def _step_table(logs: Sequence[StepLog]) -> StepTable:
    *columns, _ = (np.concatenate(parts) for parts in zip(*(_filled(log) for log in logs), strict=True))
    all_steps = StepLog._make([*columns, np.zeros(1, np.int64)])
    has_prefill, has_decode = all_steps.n_prefill_requests > 0, all_steps.n_decode_requests > 0
    outside = np.full(len(has_prefill), -1, np.int32)
    return StepTable(
        point_index=outside,
        repetition=outside,
        is_warmup=np.zeros(len(has_prefill), np.bool_),
        phase=np.where(has_prefill & has_decode, Phase.MIXED, np.where(has_decode, Phase.DECODE, Phase.PREFILL)).astype(np.int8),
        start_ns=all_steps.start_ns,
        duration_ns=all_steps.duration_ns,
        n_prefill_requests=all_steps.n_prefill_requests.astype(np.int32),
        n_decode_requests=all_steps.n_decode_requests.astype(np.int32),
        n_waiting_requests=all_steps.n_waiting_requests.astype(np.int32),
        n_preempted_requests=all_steps.n_preempted_requests.astype(np.int32),
        prefill_tokens=all_steps.prefill_tokens,
        prefill_context_product_tokens2=all_steps.prefill_context_product_tokens2,
        decode_context_tokens=all_steps.decode_context_tokens,
        kv_blocks_used=all_steps.kv_blocks_used,
    )


def _filled(log: StepLog) -> list[I64]:
    return [column[: log.n_filled[0]] for column in log]


__all__ = ["FAR_NS", "Outcome", "RequestFacts", "Simulation", "StepLog", "max_barren_steps", "new_log", "simulation"]
