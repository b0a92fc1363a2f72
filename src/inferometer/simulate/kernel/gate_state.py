"""State of the compiled gate.

``gate_columns`` has what the gate knows of each request, for the compiled gate and for
``reference/gate.py``; everything else is used by the compiled gate only.
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
"""Sort key of requests without a deadline: after all deadlines, and no overflow if a time is added.
"""


class GateColumns(NamedTuple):
    """What the gate knows of each of N requests, by the rules of its class and tenant."""

    class_index: I32
    tenant_index: I32
    """0 for all requests if no rule depends on the tenant."""
    band: I32
    """Priority band, lowest first; 0 for all requests if the gate has no bands."""
    prompt_tokens: I64
    max_tokens: I64
    """Largest output length, as limited by the gate."""
    expected_tokens: I64
    """Expected output tokens."""
    key: I64
    """Sort key within a band and tenant, least first; the arrival time is added to deadlines."""
    patience_ns: I64
    """Longest wait after arrival; ``FAR_NS``: no limit. Below 1: rejected on arrival."""
    shed_reason: I32
    """``Reason`` of the rejection if the request waits longer than ``patience_ns``."""


def goes_by_deadline(config: GateConfig) -> bool:
    """Does the gate order requests by deadlines, so that sort keys include the arrival time?"""
    return config.order in {"earliest-deadline", "least-slack"}


def gate_columns(requests: Demand, config: GateConfig) -> GateColumns:
    """What this gate knows of these requests.

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
    """Sort keys within a band and tenant, least first, by the gate's order."""
    if config.order == "shortest-remaining":
        return size_tokens
    if not goes_by_deadline(config):
        return np.zeros_like(size_tokens)
    slack_ns = limit_ns - predicted_ns if config.order == "least-slack" else limit_ns
    return np.where(limit_ns > 0, slack_ns, _NO_DEADLINE_NS)


def _bands(requests: Demand, config: GateConfig) -> I32:
    """Priority bands: of the class if it has one, else of the request."""
    if not config.has_bands and config.order != "priority":
        return np.zeros_like(requests.priority)
    rules = rules_by_index(config.classes, requests.class_index, "class")
    says = np.array([one.priority is not None for one in rules])
    priority = np.array([one.priority or 0 for one in rules], np.int32)
    return np.where(says[requests.class_index], priority[requests.class_index], requests.priority)


def _patience(
    requests: Demand, config: GateConfig, limit_ns: I64, predicted_ns: I64
) -> tuple[I64, I32]:
    """How long each request may wait, and the reason of its rejection after that.

    The shortest of the gate's longest wait, the class's, and (depending on ``config.lateness``) the
    time until the deadline has passed or can no longer be met.
    """
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
    """(N) The rule ``name`` of each request's class."""
    rules = rules_by_index(config.classes, requests.class_index, "class")
    return np.array([getattr(one, name) for one in rules], np.int64)[requests.class_index]


class Place(IntEnum):
    """Where a request is, seen from the gate."""

    OUTSIDE = 0
    """Not arrived yet."""
    GATHERING = 1
    """Waiting for the end of its class's gathering window."""
    READY = 2
    """Waiting in its lane for release."""
    INSIDE = 3
    """Released to the engines."""
    AWAY = 4
    """Ended, aborted or rejected."""


class GateRules(Row):
    """The gate's rules for all classes and tenants."""

    is_fair: i64
    goes_by_deadline: i64
    max_queue: i64
    max_queued_tokens: i64
    output_token_weight: i64


class GateCounters(Row):
    """Counters and times of the gate.

    ``n_busy_lanes``, ``n_expiring`` and ``n_unadmitted`` are the numbers of entries in the arrays
    of these names. ``last_served`` is the tenant that most recently ran out of waiting requests,
    ``refill_ns`` the time when a bucket has enough tokens for a request that waits for them,
    ``wake_ns`` the time when ``release`` must be called again.
    """

    n_waiting: i64
    n_queued_tokens: i64
    n_busy_lanes: i64
    n_expiring: i64
    n_unadmitted: i64
    last_served: i64
    refill_ns: i64
    wake_ns: i64


class GateClass(Row):
    """Rules of a class of requests, and the numbers of its requests."""

    window_ns: i64
    window_size: i64
    widening_ns: i64
    """Growth of the gathering window with each request of the class in flight."""
    widest_at: i64
    """The number of requests in flight from which on the window no longer grows."""
    max_in_flight: i64
    max_queue: i64
    n_in_flight: i64
    n_waiting: i64
    n_gathering: i64
    first_gathering: i64
    last_gathering: i64


class Tenant(Row):
    """A tenant's token bucket and its fair share.

    ``burst`` (the bucket's size) and ``level`` (its content at ``filled_ns``) are in billionths of
    a token. ``service`` is the weighted number of tokens served. ``first`` is scratch memory.
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
    """The waiting requests of one class and tenant: a heap within ``GateState.heap``.

    ``start`` and ``size`` are its place there; ``is_busy``: is it in ``GateState.busy``?
    """

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
    """(N) The heaps of all lanes, one after the other. A request that leaves without being released
    stays in its heap until it is the first one."""
    busy: I32
    """(L) The lanes with waiting requests, in no order."""
    expiring: I32
    """(N, or 0 if no request is rejected for waiting) A heap by ``expires_ns``, then index.
    Requests that leave stay in it, as in ``heap``."""
    candidate_tenants: I32
    """(T) Scratch memory: tenants that have a request to release."""
    unadmitted: I32
    """(N) Requests that the gate has released and no engine has admitted yet."""


def new_gate_state(requests: Demand, config: GateConfig) -> GateState:
    """Initial state of a gate, before any request arrives.

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
        candidate_tenants=np.empty(len(tenants), np.int32),
        unadmitted=np.empty(requests.n_requests, np.int32),
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
