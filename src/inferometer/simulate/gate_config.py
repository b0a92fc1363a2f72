"""Rules of the gate before the engines, which holds requests back, orders and rejects them.

Like the flow control of an inference gateway, it knows classes, tenants and declared lengths, and
of the engines only how many more requests they can take. It works with every engine and any number
of replicas; the event loop of the replicas makes five calls to it. Plain form: methods of
``reference.gate.Gate``. Compiled form: functions of ``kernel/gating.py`` over a
``kernel.gate_state.GateState`` (``new_gate_state(requests, config)``, allocated once), with the
same names and the ``gate`` first.

``offer(index, now_ns) -> bool``
    The request arrives (its deadline and waits count from ``now_ns``). True: it waits at the gate.
    False: it is turned away; the loop ends it as REJECTED at ``now_ns``.
``shed(now_ns) -> int``
    A request to reject now, because it waited too long or cannot meet its deadline; repeat until
    ``NOTHING``. The loop ends it as REJECTED at ``now_ns``.
``release(now_ns, n_room) -> int``
    The next request to release, if all replicas together have room for ``n_room`` more; repeat
    until ``NOTHING``, with ``n_room`` smaller by one each time. The loop routes it to a replica.
``gone(index, now_ns)``
    The client of a request at the gate has disconnected. (For released requests: ``ended``.)
    Ignored for others.
``ended(index, n_output_tokens, now_ns)``
    A released request has left its engine in any way (stopped, cut, aborted, rejected by the
    engine), with this number of tokens.
``wake_ns``
    Time of the next call if nothing else happens before; ``FAR_NS``: none. An attribute of
    ``Gate``, ``gate.counters[0].wake_ns`` in compiled code. Always later than the last ``now_ns``.
``n_waiting``
    Number of requests at the gate: an attribute of ``Gate``, ``gate.counters[0].n_waiting`` in
    compiled code.

The contract: ``now_ns`` never decreases. At each event time (an arrival, an end, a disconnection,
``wake_ns``) the loop first reports all events, in its own order, then calls ``shed`` until
``NOTHING``, then ``release`` until ``NOTHING`` (also with ``n_room`` = 0), then reads ``wake_ns``.
Room is ``max_in_flight`` (where 0: the engine's ``max_num_active``) less the requests in flight,
summed over replicas that take requests. With ``max_in_flight`` = 0 there is also no room while the
released requests that no engine has admitted yet have as many prompt tokens as the engines' batches
in flight can compute, or more than fit into free KV blocks: engines short of memory or step budget
hold a short queue of their own; longer waits are at the gate. A gate never deadlocks: if requests
wait and none is in flight, ``release`` with room returns one, or ``wake_ns`` is not ``FAR_NS``.

Before a simulation ``cut_answers(requests, config)`` applies the classes' caps on tokens: a longer
answer then ends as LENGTH. Afterwards ``gate_outcome.shed_counts`` counts rejections by reason,
from ``reasons`` (N, ``Gate.reasons`` and ``gate.requests["reason"]``).

Ties, in this order: priority band (where bands count), the tenant's service (fair queueing), the
order's key, arrival, index.

``gate_rules`` converts the user's rules to a configuration for a workload: classes and tenants by
number, times in nanoseconds. Compiled code trusts a configuration, so each part refuses at birth
what no gate can be. Buckets hold up to 2**31 tokens, and times up to 1e18 ns, so that int64 holds
them in billionths of a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, get_args

import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.gate import OTHERS, GateClass, GateSpec, GateTenant
from inferometer.inputs.objectives import parse_objective
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import I32
from inferometer.simulate.demand import Demand
from inferometer.simulate.step_cost import duration_ns
from inferometer.units import ns_from_s

Order: TypeAlias = Literal[
    "fcfs", "priority", "shortest-remaining", "earliest-deadline", "least-slack", "fair"
]
Lengths: TypeAlias = Literal["declared", "oracle"]
Lateness: TypeAlias = Literal["keep", "passed", "hopeless"]

Rules = TypeVar("Rules")

NOTHING: Final = -1
"""No request to release or to reject."""


Named = TypeVar("Named", GateClass, GateTenant)

_WHERE: Final = "the gate"
_MOST_NS: Final = 10**18
_MOST: Final = 2**31 - 1
"""Largest count and largest number of tokens."""
_SHORT_TOKENS: Final = 128
_LONG_TOKENS: Final = 2048


class Reason(IntEnum):
    """Why the gate turned a request away."""

    NONE = 0
    """Not turned away."""
    QUEUE_FULL = 1
    CLASS_QUEUE_FULL = 2
    TOKENS_FULL = 3
    """The waiting requests would exceed the limit on queued tokens."""
    TOO_LARGE = 4
    """It needs more tokens than its tenant's bucket can hold."""
    TOO_LATE = 5
    """Its first token can no longer meet its deadline."""
    WAITED_TOO_LONG = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRules:
    """Rules for requests of one class; 0 and None mean: no such rule.

    Limits count all replicas together.
    """

    name: str = ""
    priority: int | None = None
    """Priority band, smaller is more urgent; None: each request's own."""
    window_ns: int = 0
    """Requests of the class gather until the oldest of them has waited this time, …"""
    window_size: int = 0
    """… or until this number is waiting; then all of them are released."""
    widest_window_ns: int = 0
    """The window grows with the class's requests in flight: ``window_ns`` with none, this length …"""
    widest_at: int = 0
    """… with this number or more."""
    max_in_flight: int = 0
    max_tokens: int = 0
    """Mean output length."""
    max_queue: int = 0
    max_wait_ns: int = 0
    ttft_limit_ns: int = 0
    """A request's deadline is its arrival and this; without one it has none, and comes after all
    that do."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.window_size and not self.window_ns:
            raise SpecError(
                f"window_size = {self.window_size} without window_ns",
                where=_WHERE,
                allowed="both: else the last requests would wait for ever",
            )
        if bool(self.widest_window_ns) != bool(self.widest_at) or (
            self.widest_at and not 0 < self.window_ns <= self.widest_window_ns
        ):
            raise SpecError(
                f"window_ns = {self.window_ns}, widest_window_ns = {self.widest_window_ns},"
                f" widest_at = {self.widest_at}",
                where=_WHERE,
                allowed="a window that grows has all three, and widest_window_ns is the longer one",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """Rules for one tenant.

    Its bucket holds ``burst_tokens``, full at first, and fills at a rate; 0: no bucket.

    A release takes prompt tokens and ``max_tokens`` (as cut) out of it; unused tokens are not given
    back.
    """

    tokens_per_s: int = 0
    burst_tokens: int = 0
    weight: int = 1
    """Share under fair ordering."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if bool(self.tokens_per_s) != bool(self.burst_tokens):
            raise SpecError(
                f"tokens_per_s = {self.tokens_per_s}, burst_tokens = {self.burst_tokens}",
                where=_WHERE,
                allowed="both, or none: a bucket has a rate and a size",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """A gate's rules for numbered classes and tenants; 0 means: no such rule.

    Orders: ``fcfs``; ``priority`` (fcfs within bands); ``shortest-remaining`` (the fewest tokens to
    compute, prompt and answer: at the gate nothing is computed yet); ``earliest-deadline``;
    ``least-slack`` (deadline less the predicted time to the first token); ``fair`` (virtual token
    counters, Sheng et al., OSDI 2024, with predicted lengths). Lengths are ``declared``
    (``max_tokens``) or an ``oracle``'s.
    """

    order: Order = "fcfs"
    has_bands: bool = False
    """More urgent bands first, the order within each; ``priority`` always has bands."""
    lengths: Lengths = "declared"
    max_in_flight: int = 0
    """Limit for each replica; 0: what the engine can admit soon, so the gate decides the order."""
    classes: tuple[ClassRules, ...] = field(default_factory=lambda: (ClassRules(),))
    """Rules of each class, by number; a single entry applies to all."""
    tenants: tuple[TenantRules, ...] = field(default_factory=lambda: (TenantRules(),))
    """Rules of each tenant; a single entry applies to all."""
    max_queue: int = 0
    max_queued_tokens: int = 0
    """Limit of prompt tokens and ``max_tokens`` of all waiting requests."""
    max_wait_ns: int = 0
    lateness: Lateness = "keep"
    """Reject: none, requests past their deadline, or those predicted to miss it."""
    first_token_ns: int = 0
    """The predicted time to the first token is this and …"""
    first_token_per_prompt_token_ns: float = 0.0
    output_token_weight: int = 2
    """Service of an output token, for ``fair``, in units of a prompt token's."""
    oversized_above_tokens: int = 0
    """Requests with longer prompts are treated as of class ``oversized_class``; 0: none are."""
    oversized_class: int = 0

    def __post_init__(self) -> None:
        _check_numbers(self)
        for name, word, words in (
            ("order", self.order, get_args(Order)),
            ("lengths", self.lengths, get_args(Lengths)),
            ("lateness", self.lateness, get_args(Lateness)),
        ):
            if word not in words:
                raise SpecError(f"{name} = {word!r}", where=_WHERE, allowed=", ".join(words))
        for name, rules in (("classes", self.classes), ("tenants", self.tenants)):
            if not rules:
                raise SpecError(f"no rules of {name}", where=_WHERE, allowed="one or more")
        n_classes = len(self.classes)
        if self.oversized_above_tokens and 1 < n_classes <= self.oversized_class:
            raise SpecError(
                f"oversized_class = {self.oversized_class}",
                where=_WHERE,
                allowed=f"0 to {n_classes - 1}, a class that has rules",
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes; empty where they have none."""
        return tuple(rules.name or f"class {index}" for index, rules in enumerate(self.classes))

    @property
    def knows_tenants(self) -> bool:
        """Do any rules distinguish tenants?"""
        return self.order == "fair" or any(rules.tokens_per_s for rules in self.tenants)


_NO_NUMBERS: Final = ("name", "order", "has_bands", "lengths", "classes", "tenants", "lateness")
_LEAST: Final = {"weight": 1, "output_token_weight": 1, "priority": -_MOST - 1}


def _check_numbers(rules: ClassRules | TenantRules | GateConfig) -> None:
    """Refuse numbers that the compiled gate cannot hold, or with which it would let none through."""
    for one in fields(rules):
        value: object = getattr(rules, one.name)
        least, most = _LEAST.get(one.name, 0), _MOST_NS if one.name.endswith("_ns") else _MOST
        if one.name in _NO_NUMBERS or (one.name == "priority" and value is None):
            continue
        if not (isinstance(value, int | float | np.integer) and least <= value <= most):
            raise SpecError(
                f"{one.name} = {value!r}", where=_WHERE, allowed=f"{least:,} to {most:,}"
            )


def treated_as(requests: Demand, config: GateConfig) -> I32:
    """The class whose rules apply to each request: its own, except for oversized prompts."""
    if config.oversized_above_tokens == 0:
        return requests.class_index
    is_oversized = requests.prompt_tokens > config.oversized_above_tokens
    return np.where(is_oversized, np.int32(config.oversized_class), requests.class_index)


def cut_answers(requests: Demand, config: GateConfig) -> Demand:
    """The requests with ``max_tokens`` cut to their class's; a longer answer ends as LENGTH."""
    class_index = treated_as(requests, config)
    rules = rules_by_index(config.classes, class_index, "class")
    caps = np.array([one.max_tokens or np.iinfo(np.int32).max for one in rules], np.int32)
    return requests._replace(max_tokens=np.minimum(requests.max_tokens, caps[class_index]))


def rules_by_index(rules: tuple[Rules, ...], index: I32, noun: str) -> tuple[Rules, ...]:
    """The rules of each class or tenant that occurs, by its number."""
    n_known = int(index.max()) + 1
    if len(rules) == 1:
        return rules * n_known
    if len(rules) < n_known or index.min() < 0:
        text = f"requests of {noun} {index.max() if index.min() >= 0 else index.min()}"
        raise SpecError(
            text,
            where="the workload",
            allowed=f"0 to {len(rules) - 1}: the gate has rules for no others",
        )
    return rules


class Names(Protocol):
    """Classes and tenants by number, of a drawn workload or of a server."""

    @property
    def class_names(self) -> tuple[str, ...]:
        """Name of each class."""
        ...

    @property
    def class_slos(self) -> tuple[str | None, ...]:
        """SLO of each class in the workload's file."""
        ...

    @property
    def tenant_names(self) -> tuple[str, ...]:
        """Name of each tenant."""
        ...


class FirstTokenPace(NamedTuple):
    """The predicted time to the first token of a request released now."""

    base_ns: int
    per_prompt_token_ns: float


def first_token_pace(cost: StepTimeArrays) -> FirstTokenPace:
    """The line through the times of two prompts alone in a step.

    Known to a gate without insight into the engines.
    """
    short_ns, long_ns = (
        duration_ns(cost, 1, 0, n, n * (n + 1) // 2, 0) for n in (_SHORT_TOKENS, _LONG_TOKENS)
    )
    per_token_ns = max(long_ns - short_ns, 0) / (_LONG_TOKENS - _SHORT_TOKENS)
    return FirstTokenPace(
        base_ns=max(round(short_ns - per_token_ns * _SHORT_TOKENS), 0),
        per_prompt_token_ns=per_token_ns,
    )


def gate_rules(gate: GateSpec, workload: Names, pace: FirstTokenPace) -> GateConfig:
    """The gate's rules for this workload; ``pace`` is the default prediction of first tokens.

    Raises
    ------
    SpecError
        Rules for a class or tenant that the workload does not have; an order or a rule by deadlines
        where no class has one.
    """
    by_deadline = (
        gate.order in {"earliest-deadline", "least-slack"} or gate.admission.too_late != "keep"
    )
    slos = tuple(slo if by_deadline else None for slo in workload.class_slos)
    names = _with_background(workload.class_names, gate)
    found = _by_name(gate.classes, names, "class")
    slos += (None,) * (len(names) - len(slos))
    classes = tuple(
        _class_rules(rules, name, slo) for rules, name, slo in zip(found, names, slos, strict=True)
    )
    if by_deadline and not any(rules.ttft_limit_ns for rules in classes):
        text = (
            f"order = {gate.order}, too_late = {gate.admission.too_late}, but no class has a"
            " deadline"
        )
        raise SpecError(
            text,
            where="--gate, --order",
            allowed=f"classes {', '.join(workload.class_names)}",
            try_="slo = 'ttft:p95<1s' of a class in the file of --workload, or its ttft_limit_s in"
            " that of --gate",
        )
    if gate.first_token is not None:
        pace = FirstTokenPace(
            ns_from_s(gate.first_token.base_s), gate.first_token.per_prompt_token_s * 1e9
        )
    return GateConfig(
        order=gate.order,
        has_bands=gate.priority_bands,
        lengths=gate.lengths,
        max_in_flight=gate.max_in_flight or 0,
        classes=classes,
        tenants=tuple(
            _tenant_rules(rules)
            for rules in _by_name(gate.tenants, workload.tenant_names, "tenant")
        ),
        max_queue=gate.admission.max_queue or 0,
        max_queued_tokens=gate.admission.max_queued_tokens or 0,
        max_wait_ns=_ns(gate.admission.max_wait_s),
        lateness=gate.admission.too_late,
        first_token_ns=pace.base_ns,
        first_token_per_prompt_token_ns=pace.per_prompt_token_ns,
        output_token_weight=gate.output_token_weight,
        oversized_above_tokens=gate.oversized.above_prompt_tokens if gate.oversized else 0,
        oversized_class=names.index(gate.oversized.class_name) if gate.oversized else 0,
    )


def _with_background(names: tuple[str, ...], gate: GateSpec) -> tuple[str, ...]:
    """The workload's classes, then the gate's own class of oversized prompts."""
    if gate.oversized is None or gate.oversized.class_name in names:
        return names
    return (*names, gate.oversized.class_name)


def _by_name(rules: Sequence[Named], names: tuple[str, ...], noun: str) -> list[Named | None]:
    """Rules of each name; a name without rules gets those for all others."""
    known = {one.name: one for one in rules}
    strangers = [name for name in known if name not in {*names, OTHERS}]
    if strangers:
        some = ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
        raise SpecError(
            f"the workload has no {noun} {strangers[0]!r}",
            where="--gate",
            allowed=f"{some}, or {OTHERS} for all others",
        )
    return [known.get(name, known.get(OTHERS)) for name in names]


def _class_rules(rules: GateClass | None, name: str, slo: str | None) -> ClassRules:
    rules = rules if rules is not None else GateClass(name=name)
    limit_s = rules.ttft_limit_s if rules.ttft_limit_s is not None else _ttft_limit_s(slo, name)
    return ClassRules(
        name=name,
        priority=rules.priority,
        window_ns=_ns(rules.window_s),
        window_size=rules.window_size or 0,
        widest_window_ns=_ns(rules.widest_window_s),
        widest_at=rules.widest_at or 0,
        max_in_flight=rules.max_in_flight or 0,
        max_tokens=rules.max_tokens or 0,
        max_queue=rules.max_queue or 0,
        max_wait_ns=_ns(rules.max_wait_s),
        ttft_limit_ns=_ns(limit_s),
    )


def _ttft_limit_s(slo: str | None, name: str) -> float | None:
    if slo is None:
        return None
    limits = [
        one.limit_s
        for one in parse_objective(slo, where=f"slo of class {name}", has_workflows=True).thresholds
        if one.metric == "ttft"
    ]
    return min(limits, default=None)


def _tenant_rules(rules: GateTenant | None) -> TenantRules:
    if rules is None:
        return TenantRules()
    return TenantRules(
        tokens_per_s=rules.tokens_per_s or 0,
        burst_tokens=rules.burst_tokens or 0,
        weight=rules.weight,
    )


def _ns(duration_s: float | None) -> int:
    """Whole nanoseconds, at least 1; 0: no such rule."""
    return 0 if duration_s is None else max(ns_from_s(duration_s), 1)
