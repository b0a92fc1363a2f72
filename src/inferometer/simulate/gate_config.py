"""Who goes in when?

The rules of a gate: what stands before the engines, holds requests back, orders them and turns some
away.

As the flow control of an inference gateway it knows classes, tenants and declared lengths, and
nothing of the engines but how many more requests they take. It works in front of every engine's
rules and of any number of replicas; whoever runs the replicas (a *loop*) talks to it in five calls.
Plain form: methods of ``reference.gate.Gate``. Compiled form: functions of ``kernel/gating.py``
over a ``kernel.gate_state.GateState`` (``new_gate_state(requests, config)``, allocated once), with
the same names and the ``gate`` first.

``offer(index, now_ns) -> bool``
    The request arrives (its deadline and waits count from ``now_ns``). True: it waits at the gate.
    False: it is turned away; the loop ends it as REJECTED at ``now_ns``.
``shed(now_ns) -> int``
    Who is turned away by now because it waited too long or its deadline is lost? An index, or
    ``NOTHING``; ask until ``NOTHING``. The loop ends it as REJECTED at ``now_ns``.
``release(now_ns, n_room) -> int``
    Who goes in now, if all replicas together have room for ``n_room`` more? An index, or
    ``NOTHING``; ask until ``NOTHING``, with ``n_room`` smaller by one each time. Whom a router
    sends it to is the loop's business.
``gone(index, now_ns)``
    The client of a request that waits at the gate went away. (Of one that was released: ``ended``.)
    Of others: nothing happens.
``ended(index, n_output_tokens, now_ns)``
    A released request has left its engine, however it did (stopped, cut, aborted, rejected by the
    engine), with so many tokens.
``wake_ns``
    When is the gate to be asked again if nothing else happens before? ``FAR_NS``: never. An
    attribute of ``Gate``, ``gate.counters[0].wake_ns`` in compiled code. Always later than the last
    ``now_ns``.
``n_waiting``
    How many wait at the gate: an attribute of ``Gate``, ``gate.counters[0].n_waiting`` in compiled
    code.

The contract: ``now_ns`` never decreases. At each instant at which anything happens (an arrival, an
end, a client going away, ``wake_ns``) the loop first tells all that happened, in its own order of
events, then asks ``shed`` until ``NOTHING``, then ``release`` until ``NOTHING`` (also with
``n_room`` = 0), then reads ``wake_ns``. Room is ``max_in_flight`` (where 0: the engine's
``max_num_active``) less what is in flight, summed over replicas that take requests. Where
``max_in_flight`` is 0 there is none, too, while those that were let in and are not admitted yet
have as many prompt tokens as the engines' batches in flight can compute, or more than fit into free
KV blocks: engines that lack memory or step budget queue too, and whoever waits longer waits at the
gate. A gate never deadlocks: where requests wait and none is in flight, ``release`` with room gives
one, or ``wake_ns`` is not ``FAR_NS``.

Before a simulation ``cut_answers(requests, config)`` applies the classes' caps on tokens: a longer
answer then ends as LENGTH. After it ``gate_outcome.shed_counts`` says who was turned away why, from
``reasons`` (N, ``Gate.reasons`` and ``gate.requests["reason"]``).

Ties, in this order: priority band (where bands count), the tenant's service (fair queueing), the
order's key, arrival, index.
"""

from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final, Literal, TypeAlias, TypeVar

import numpy as np

from inferometer.errors import SpecError
from inferometer.records.columns import I32
from inferometer.simulate.demand import Demand

Order: TypeAlias = Literal[
    "fcfs", "priority", "shortest-remaining", "earliest-deadline", "least-slack", "fair"
]
Lengths: TypeAlias = Literal["declared", "oracle"]
Lateness: TypeAlias = Literal["keep", "passed", "hopeless"]

Rules = TypeVar("Rules")

NOTHING: Final = -1
"""Nobody goes in, nobody is turned away."""


MAX_WEIGHT: Final = 1000
MAX_BURST_TOKENS: Final = 9 * 10**9
"""In billionths of a token, in which buckets count, int64 holds so many."""
MAX_NS: Final = 10**18


class Reason(IntEnum):
    """Why was a request turned away at the gate?"""

    NONE = 0
    """It was not."""
    QUEUE_FULL = 1
    CLASS_QUEUE_FULL = 2
    TOKENS_FULL = 3
    """Those who wait would ask for more tokens than may wait."""
    TOO_LARGE = 4
    """It asks for more tokens than its tenant's bucket ever holds."""
    TOO_LATE = 5
    """Its first token can no longer come in time."""
    WAITED_TOO_LONG = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRules:
    """What holds for the requests of one class; 0 and None mean: no such rule.

    Limits count all replicas together.
    """

    name: str = ""
    priority: int | None = None
    """Its band, the smaller the more urgent; None: each request's own."""
    window_ns: int = 0
    """Requests of the class gather until the oldest of them has waited so long, …"""
    window_size: int = 0
    """… or until so many are there; then all of them may go in."""
    max_in_flight: int = 0
    max_tokens: int = 0
    """Of an answer."""
    max_queue: int = 0
    max_wait_ns: int = 0
    ttft_limit_ns: int = 0
    """A request's deadline is its arrival and this; without one it has none, and comes after all
    that do."""

    def __post_init__(self) -> None:
        _check(
            "a class of the gate",
            self,
            tuple(one.name for one in fields(self) if one.name not in {"name", "priority"}),
        )
        if self.window_size and not self.window_ns:
            text = f"a window that ends with {self.window_size} requests, and else never"
            raise SpecError(
                text,
                where="a class of the gate",
                allowed="a window's size with its time",
                try_="window_ns",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """What holds for one tenant.

    Its bucket holds ``burst_tokens``, full at first, and fills at a rate; 0: no bucket.

    A release takes prompt and ``max_tokens`` (as cut) out of it; what the answer does not use is
    not given back.
    """

    tokens_per_s: int = 0
    burst_tokens: int = 0
    weight: int = 1
    """Its share where tenants are served fairly."""

    def __post_init__(self) -> None:
        _check("a tenant of the gate", self, ("tokens_per_s", "burst_tokens"))
        if (self.tokens_per_s > 0) != (
            self.burst_tokens > 0
        ) or self.burst_tokens > MAX_BURST_TOKENS:
            text = f"tokens_per_s = {self.tokens_per_s}, burst_tokens = {self.burst_tokens}"
            raise SpecError(
                text,
                where="a tenant of the gate",
                allowed=f"both above 0 (a burst up to {MAX_BURST_TOKENS:.0e}), or none",
            )
        if not 1 <= self.weight <= MAX_WEIGHT:
            raise SpecError(
                f"weight = {self.weight}",
                where="a tenant of the gate",
                allowed=f"a whole number from 1 to {MAX_WEIGHT}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """A gate's rules for a workload whose classes and tenants are numbered; 0 means: no such rule.

    Orders: ``fcfs``; ``priority`` (fcfs within bands); ``shortest-remaining`` (the fewest tokens to
    compute, prompt and answer: at the gate nothing is computed yet); ``earliest-deadline``;
    ``least-slack`` (deadline less the predicted time to the first token); ``fair`` (virtual token
    counters, Sheng et al., OSDI 2024, with predicted lengths). Lengths are ``declared``
    (``max_tokens``) or an ``oracle``'s.
    """

    order: Order = "fcfs"
    has_bands: bool = False
    """The more urgent band before all others, the order within it; ``priority`` has them always."""
    lengths: Lengths = "declared"
    max_in_flight: int = 0
    """Of each replica; 0: what the engine can admit soon, so that the gate's order is the order
    of admission."""
    classes: tuple[ClassRules, ...] = field(default_factory=lambda: (ClassRules(),))
    """One for each class, by number; a single one holds for each."""
    tenants: tuple[TenantRules, ...] = field(default_factory=lambda: (TenantRules(),))
    """As classes."""
    max_queue: int = 0
    max_queued_tokens: int = 0
    """Prompts and ``max_tokens`` of all who wait."""
    max_wait_ns: int = 0
    lateness: Lateness = "keep"
    """Whom to turn away: nobody, whose deadline has passed, or whose predicted first token would
    come after it."""
    first_token_ns: int = 0
    """The predicted time to the first token is this and …"""
    first_token_per_prompt_token_ns: float = 0.0
    output_token_weight: int = 2
    """How much service is a token of the answer, for ``fair``, when one of the prompt is 1?"""

    def __post_init__(self) -> None:
        _check(
            "the gate",
            self,
            ("max_in_flight", "max_queue", "max_queued_tokens", "max_wait_ns", "first_token_ns"),
        )
        if not 1 <= self.output_token_weight <= MAX_WEIGHT:
            text = f"output_token_weight = {self.output_token_weight}"
            raise SpecError(text, where="the gate", allowed=f"1 to {MAX_WEIGHT}")
        if not 0 <= self.first_token_per_prompt_token_ns <= MAX_NS:
            text = f"first_token_per_prompt_token_ns = {self.first_token_per_prompt_token_ns}"
            raise SpecError(text, where="the gate", allowed=f"0 to {MAX_NS:.0e}")

    @property
    def class_names(self) -> tuple[str, ...]:
        """What are the classes called, where they are?"""
        return tuple(rules.name or f"class {index}" for index, rules in enumerate(self.classes))

    @property
    def knows_tenants(self) -> bool:
        """Do any rules tell tenants apart?"""
        return self.order == "fair" or any(rules.tokens_per_s for rules in self.tenants)


def cut_answers(requests: Demand, config: GateConfig) -> Demand:
    """The same requests, allowed no more tokens than their class is: a longer answer ends as LENGTH."""
    rules = rules_by_index(config.classes, requests.class_index, "class")
    caps = np.array([one.max_tokens or np.iinfo(np.int32).max for one in rules], np.int32)
    return requests._replace(max_tokens=np.minimum(requests.max_tokens, caps[requests.class_index]))


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


def _check(where: str, rules: object, names: tuple[str, ...]) -> None:
    for name in names:
        value = getattr(rules, name)
        if not 0 <= value <= MAX_NS:
            raise SpecError(
                f"{name} = {value}", where=where, allowed=f"0 (no such rule) to {MAX_NS:.0e}"
            )
