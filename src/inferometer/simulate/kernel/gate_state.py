"""What does the compiled gate keep in memory?

Everything it writes to is allocated here, once per simulation.

Whoever waits stands in a *lane*, that of its class and tenant: all of a lane may go in or none. A
lane is a heap in the order of the gate, and its room in ``heap`` is that of all requests it will
ever have. Letters of shapes: N requests, C classes, T tenants, L lanes.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from inferometer.records.columns import I32
from inferometer.simulate.demand import Demand
from inferometer.simulate.gate_columns import GateColumns, gate_columns, goes_by_deadline
from inferometer.simulate.gate_config import (
    NOTHING,
    ClassRules,
    GateConfig,
    TenantRules,
    rules_by_index,
)
from inferometer.simulate.kernel.rows import Row, Rows, blank, i32, i64
from inferometer.simulate.outcome import FAR_NS
from inferometer.units import NS_PER_S


class Place(IntEnum):
    """Where does a request stand?"""

    OUTSIDE = 0
    GATHERING = 1
    """In the window of its class."""
    READY = 2
    """In its lane."""
    INSIDE = 3
    """It was released."""
    AWAY = 4
    """Nothing will happen to it any more."""


class GateRules(Row):
    """How does the gate choose?"""

    is_fair: i64
    goes_by_deadline: i64
    max_queue: i64
    max_queued_tokens: i64
    output_token_weight: i64


class GateCounters(Row):
    """Where does the gate stand?"""

    n_waiting: i64
    n_queued_tokens: i64
    n_busy_lanes: i64
    n_expiring: i64
    n_let_in: i64
    last_served: i64
    refill_ns: i64
    wake_ns: i64


class GateClass(Row):
    """The rules of a class of requests, and who of it is where."""

    window_ns: i64
    window_size: i64
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
    """Those of one class and tenant that wait."""

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
    for name in ("window_ns", "window_size", "max_in_flight", "max_queue"):
        records[name] = [getattr(one, name) for one in rules]
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
