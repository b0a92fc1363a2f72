"""State of the compiled gate.

``gate_columns`` is what both forms of the gate read; the rest is the compiled one's.
"""

from enum import IntEnum
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import I32, I64
from inferometer.simulate.demand import Demand
from inferometer.simulate.gate_config import (
    NOTHING,
    ClassRules,
    GateConfig,
    Reason,
    TenantRules,
    cut_answers,
    rules_by_index,
    treated_as,
)
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.pointers import Row, Rows, blank, i32, i64
from inferometer.units import NS_PER_S

_NO_DEADLINE_NS: Final = 2**61
"""After all deadlines, and any instant can be added to it."""


class GateColumns(NamedTuple):
    """N requests, as their classes and tenants are treated."""

    class_index: I32
    tenant_index: I32
    """0 where no rule tells tenants apart."""
    band: I32
    """0 where bands do not count."""
    prompt_tokens: I64
    max_tokens: I64
    """As limited by the gate."""
    expected_tokens: I64
    """Expected output tokens."""
    key: I64
    """Sort key within bands and tenants, least first; for deadlines plus the arrival."""
    patience_ns: I64
    """Longest wait after arrival; ``FAR_NS``: no limit. Below 1: turned away at once."""
    shed_reason: I32
    """``Reason`` for turning it away then."""


def goes_by_deadline(config: GateConfig) -> bool:
    """Does the order depend on the arrival time?"""
    return config.order in {"earliest-deadline", "least-slack"}


def gate_columns(requests: Demand, config: GateConfig) -> GateColumns:
    """The columns of these requests at this gate.

    Raises
    ------
    SpecError
        A class or tenant for which the gate has no rules.
    """
    cut = cut_answers(requests, config)
    requests = requests._replace(class_index=treated_as(requests, config))
    prompt, most = cut.prompt_tokens.astype(np.int64), cut.max_tokens.astype(np.int64)
    expected = (
        most
        if config.lengths == "declared"
        else np.minimum(cut.output_tokens.astype(np.int64), most)
    )
    predicted_ns = config.first_token_ns + np.rint(
        config.first_token_per_prompt_token_ns * prompt
    ).astype(np.int64)
    limit_ns = _of_classes(requests, config, "ttft_limit_ns")
    patience_ns, shed_reason = _patience(requests, config, limit_ns, predicted_ns)
    return GateColumns(
        class_index=requests.class_index,
        tenant_index=(
            requests.tenant_index if config.knows_tenants else np.zeros_like(requests.tenant_index)
        ),
        band=_bands(requests, config),
        prompt_tokens=prompt,
        max_tokens=most,
        expected_tokens=expected,
        key=_keys(config, prompt + expected, limit_ns, predicted_ns),
        patience_ns=patience_ns,
        shed_reason=shed_reason,
    )


def _keys(config: GateConfig, size_tokens: I64, limit_ns: I64, predicted_ns: I64) -> I64:
    if config.order == "shortest-remaining":
        return size_tokens
    if not goes_by_deadline(config):
        return np.zeros_like(size_tokens)
    slack_ns = limit_ns - predicted_ns if config.order == "least-slack" else limit_ns
    return np.where(limit_ns > 0, slack_ns, _NO_DEADLINE_NS)


def _bands(requests: Demand, config: GateConfig) -> I32:
    if not config.has_bands and config.order != "priority":
        return np.zeros_like(requests.priority)
    rules = rules_by_index(config.classes, requests.class_index, "class")
    says = np.array([one.priority is not None for one in rules])
    priority = np.array([one.priority or 0 for one in rules], np.int32)
    return np.where(says[requests.class_index], priority[requests.class_index], requests.priority)


def _patience(
    requests: Demand, config: GateConfig, limit_ns: I64, predicted_ns: I64
) -> tuple[I64, I32]:
    """The earlier of the longest wait, of all or of the class, and of the instant when the deadline is lost."""
    wait_ns = _of_classes(requests, config, "max_wait_ns")
    wait_ns = np.where(wait_ns > 0, wait_ns, FAR_NS)
    wait_ns = np.minimum(wait_ns, config.max_wait_ns or FAR_NS)
    lost_ns = np.full_like(limit_ns, FAR_NS)
    if config.lateness != "keep":
        lost_ns = np.where(
            limit_ns > 0, limit_ns - (predicted_ns if config.lateness == "hopeless" else 0), FAR_NS
        )
    reason = np.where(lost_ns <= wait_ns, Reason.TOO_LATE, Reason.WAITED_TOO_LONG).astype(np.int32)
    return np.minimum(wait_ns, lost_ns), reason


def _of_classes(requests: Demand, config: GateConfig, name: str) -> I64:
    rules = rules_by_index(config.classes, requests.class_index, "class")
    return np.array([getattr(one, name) for one in rules], np.int64)[requests.class_index]


class Place(IntEnum):
    """Where a request is."""

    OUTSIDE = 0
    GATHERING = 1
    """Waiting in the window of its class."""
    READY = 2
    """Waiting in its lane."""
    INSIDE = 3
    """Released."""
    AWAY = 4
    """Done, or turned away."""


class GateRules(Row):
    """The gate's rules of choice."""

    is_fair: i64
    goes_by_deadline: i64
    max_queue: i64
    max_queued_tokens: i64
    output_token_weight: i64


class GateCounters(Row):
    """Counters of the gate."""

    n_waiting: i64
    n_queued_tokens: i64
    n_busy_lanes: i64
    n_expiring: i64
    n_let_in: i64
    last_served: i64
    refill_ns: i64
    wake_ns: i64


class GateClass(Row):
    """Rules of a class of requests, and its counts."""

    window_ns: i64
    window_size: i64
    widening_ns: i64
    """Growth of the window with each request in flight, …"""
    widest_at: i64
    """… up to this number."""
    max_in_flight: i64
    max_queue: i64
    n_in_flight: i64
    n_waiting: i64
    n_gathering: i64
    first_gathering: i64
    last_gathering: i64


class Tenant(Row):
    """A tenant: its allowance and its share.

    ``burst`` and ``level`` count billionths of a token; ``first`` is scratch.
    """

    tokens_per_s: i64
    burst: i64
    level: i64
    filled_ns: i64
    weight: i64
    service: i64
    n_waiting: i64
    first: i64


class Lane(Row):
    """Waiting requests of one class and tenant."""

    start: i64
    size: i64
    n_waiting: i64
    class_index: i64
    is_busy: i64


class Ticket(Row):
    """A request as the gate sees it."""

    place: i32
    lane: i32
    class_index: i32
    tenant: i32
    band: i32
    reason: i32
    shed_reason: i32
    next_gathering: i32
    prompt_tokens: i64
    max_tokens: i64
    expected_tokens: i64
    key: i64
    patience_ns: i64
    arrival_ns: i64
    expires_ns: i64


class GateState(NamedTuple):
    """All arrays of one gate."""

    rules: Rows[GateRules]
    """(1)"""
    counters: Rows[GateCounters]
    """(1)"""
    requests: Rows[Ticket]
    """(N)"""
    classes: Rows[GateClass]
    """(C)"""
    tenants: Rows[Tenant]
    """(T)"""
    lanes: Rows[Lane]
    """(L)"""
    heap: I32
    """(N) The lanes, one behind the other. Who left without going in stays in its place until it
    comes up."""
    busy: I32
    """(L) The lanes with somebody in them, in no order."""
    expiring: I32
    """(N, or 0 where nobody is turned away for waiting) A heap by ``expires_ns``, then index;
    left as ``heap``."""
    asking: I32
    """(T) Scratch."""
    let_in: I32
    """(N) Whom the gate let in, until they are admitted."""


def new_gate_state(requests: Demand, config: GateConfig) -> GateState:
    """A gate at which nobody has arrived yet.

    Raises
    ------
    SpecError
        A class or tenant for which the gate has no rules.
    """
    columns = gate_columns(requests, config)
    tenants = rules_by_index(config.tenants, columns.tenant_index, "tenant")
    pairs = columns.class_index.astype(np.int64) * len(tenants) + columns.tenant_index
    lanes, lane_of, n_of_lane = np.unique(pairs, return_inverse=True, return_counts=True)
    return GateState(
        rules=_rules(config),
        counters=_counters(),
        requests=_tickets(columns, lane_of.astype(np.int32)),
        classes=_classes(rules_by_index(config.classes, columns.class_index, "class")),
        tenants=_tenants(tenants),
        lanes=_lanes(n_of_lane, lanes // len(tenants)),
        heap=np.empty(requests.n_requests, np.int32),
        busy=np.empty(len(lanes), np.int32),
        expiring=np.empty(
            requests.n_requests if bool(np.any(columns.patience_ns < FAR_NS)) else 0, np.int32
        ),
        asking=np.empty(len(tenants), np.int32),
        let_in=np.empty(requests.n_requests, np.int32),
    )


def _rules(config: GateConfig) -> Rows[GateRules]:
    record = blank(1, GateRules)
    record["is_fair"] = config.order == "fair"
    record["goes_by_deadline"] = goes_by_deadline(config)
    for name in ("max_queue", "max_queued_tokens", "output_token_weight"):
        record[name] = getattr(config, name)
    return record


def _counters() -> Rows[GateCounters]:
    record = blank(1, GateCounters)
    record["last_served"] = NOTHING
    record["refill_ns"] = record["wake_ns"] = FAR_NS
    return record


def _tickets(columns: GateColumns, lane: I32) -> Rows[Ticket]:
    records = blank(len(lane), Ticket)
    records["lane"], records["tenant"] = lane, columns.tenant_index
    for name in (
        "class_index",
        "band",
        "shed_reason",
        "prompt_tokens",
        "max_tokens",
        "expected_tokens",
        "key",
        "patience_ns",
    ):
        records[name] = getattr(columns, name)
    return records


def _classes(rules: tuple[ClassRules, ...]) -> Rows[GateClass]:
    records = blank(len(rules), GateClass)
    for name in ("window_ns", "window_size", "widest_at", "max_in_flight", "max_queue"):
        records[name] = [getattr(one, name) for one in rules]
    records["widening_ns"] = [
        (one.widest_window_ns - one.window_ns) // one.widest_at if one.widest_at else 0
        for one in rules
    ]
    records["first_gathering"] = NOTHING
    return records


def _tenants(rules: tuple[TenantRules, ...]) -> Rows[Tenant]:
    records = blank(len(rules), Tenant)
    for name in ("tokens_per_s", "weight"):
        records[name] = [getattr(one, name) for one in rules]
    records["burst"] = records["level"] = [one.burst_tokens * NS_PER_S for one in rules]
    records["first"] = NOTHING
    return records


def _lanes(
    n_of_lane: np.ndarray[tuple[int], np.dtype[np.int64]],
    class_of_lane: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Rows[Lane]:
    records = blank(len(n_of_lane), Lane)
    records["start"] = np.cumsum(n_of_lane) - n_of_lane
    records["class_index"] = class_of_lane
    return records
