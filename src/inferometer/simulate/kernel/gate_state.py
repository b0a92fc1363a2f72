"""What does the compiled gate keep in memory?

Everything it writes to is allocated here, once per simulation.

Whoever waits stands in a *lane*, that of its class and tenant: all of a lane may go in or none. A
lane is a heap in the order of the gate, and its room in ``heap`` is that of all requests it will
ever have. Letters of shapes: N requests, C classes, T tenants, L lanes.
"""

from enum import IntEnum
from typing import Any, Final, NamedTuple

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
from inferometer.simulate.kernel.state import Records, Whole
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


def _whole(names: str) -> np.dtype[Any]:
    return np.dtype([(name, np.int64) for name in names.split()], align=True)


RULES: Final = _whole("is_fair goes_by_deadline max_queue max_queued_tokens output_token_weight")
COUNTERS: Final = _whole(
    "n_waiting n_queued_tokens n_busy_lanes n_expiring n_let_in last_served refill_ns wake_ns"
)
CLASS: Final = _whole(
    "window_ns window_size max_in_flight max_queue n_in_flight n_waiting n_gathering"
    " first_gathering last_gathering"
)
TENANT: Final = _whole("tokens_per_s burst level filled_ns weight service n_waiting first")
"""``burst`` and ``level`` count billionths of a token; ``first`` is scratch."""
LANE: Final = _whole("start size n_waiting class_index is_busy")
TICKET: Final = np.dtype(
    [
        (name, np.int32)
        for name in (
            "place",
            "lane",
            "class_index",
            "tenant",
            "band",
            "reason",
            "shed_reason",
            "next_gathering",
        )
    ]
    + [
        (name, np.int64)
        for name in (
            "prompt_tokens",
            "max_tokens",
            "expected_tokens",
            "key",
            "patience_ns",
            "arrival_ns",
            "expires_ns",
        )
    ],
    align=True,
)


class GateState(NamedTuple):
    """All arrays of one gate."""

    rules: Records
    """(1) ``RULES``"""
    counters: Records
    """(1) ``COUNTERS``"""
    requests: Records
    """(N) ``TICKET``"""
    classes: Records
    """(C) ``CLASS``"""
    tenants: Records
    """(T) ``TENANT``"""
    lanes: Records
    """(L) ``LANE``"""
    heap: Whole
    """(N) The lanes, one behind the other. Who left without going in stays in its place until it
    comes up."""
    busy: Whole
    """(L) The lanes with somebody in them, in no order."""
    expiring: Whole
    """(N, or 0 where nobody is turned away for waiting) A heap by ``expires_ns``, then index;
    left as ``heap``."""
    asking: Whole
    """(T) Scratch."""
    let_in: Whole
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


def _rules(config: GateConfig) -> Records:
    record = np.zeros(1, RULES)
    record["is_fair"] = config.order == "fair"
    record["goes_by_deadline"] = goes_by_deadline(config)
    for name in ("max_queue", "max_queued_tokens", "output_token_weight"):
        record[name] = getattr(config, name)
    return record


def _counters() -> Records:
    record = np.zeros(1, COUNTERS)
    record["last_served"] = NOTHING
    record["refill_ns"] = record["wake_ns"] = FAR_NS
    return record


def _tickets(columns: GateColumns, lane: I32) -> Records:
    records = np.zeros(len(lane), TICKET)
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


def _classes(rules: tuple[ClassRules, ...]) -> Records:
    records = np.zeros(len(rules), CLASS)
    for name in ("window_ns", "window_size", "max_in_flight", "max_queue"):
        records[name] = [getattr(one, name) for one in rules]
    records["first_gathering"] = NOTHING
    return records


def _tenants(rules: tuple[TenantRules, ...]) -> Records:
    records = np.zeros(len(rules), TENANT)
    for name in ("tokens_per_s", "weight"):
        records[name] = [getattr(one, name) for one in rules]
    records["burst"] = records["level"] = [one.burst_tokens * NS_PER_S for one in rules]
    records["first"] = NOTHING
    return records


def _lanes(
    n_of_lane: np.ndarray[tuple[int], np.dtype[np.int64]],
    class_of_lane: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Records:
    records = np.zeros(len(n_of_lane), LANE)
    records["start"] = np.cumsum(n_of_lane) - n_of_lane
    records["class_index"] = class_of_lane
    return records
