"""Router, gate and KV link in front of replicas whose requests are not known in advance.

The arrays of ``kernel/routing.py`` are sized for a known set of requests. Here they begin empty, grow
with the requests that arrive, and are reused.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from inferometer.records.columns import I32
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.fleet import DRAWING_ROUTERS, ClusterConfig, Fleet, Placement
from inferometer.simulate.gate_config import NOTHING, GateConfig, cut_answers
from inferometer.simulate.kernel.gate_state import GateState, gate_columns
from inferometer.simulate.kernel.routing import Front, RouterState, new_front, router_draws
from inferometer.simulate.kernel.state import Request
from inferometer.simulate.outcome import FAR_NS

Array = TypeVar("Array", bound=NDArray[Any])
_ONE: Final = demand([0], [1], [1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Class and tenant of a request, by which router and gate treat it."""

    class_index: int = 0
    tenant_index: int = 0


def every_kind(fleet: Fleet, prompt_tokens: int) -> Demand:
    """One request of each class and tenant of the fleet, for which the first arrays are made."""
    gate = fleet.gate or GateConfig()
    n_classes = max(len(gate.classes), *(len(one.class_replicas) for one in routers_of(fleet)), 1)
    pairs = [(i, j) for i in range(n_classes) for j in range(len(gate.tenants))]
    n = len(pairs)
    return demand(
        [0] * n,
        [prompt_tokens] * n,
        [1] * n,
        class_index=np.array([i for i, _ in pairs], np.int32),
        tenant_index=np.array([j for _, j in pairs], np.int32),
    )


def routers_of(fleet: Fleet) -> tuple[ClusterConfig, ...]:
    """The routers that a request passes: of its first replica, then of its decode replica."""
    return (fleet.replicas,) if fleet.prefill is None else (fleet.prefill.replicas, fleet.replicas)


class LiveFront:
    """The routers and the gate of a live fleet, with arrays that grow with the requests."""

    def __init__(self, fleet: Fleet, requests: Demand) -> None:
        self._fleet = fleet
        self._n_routed = Counter[int]()
        self.front: Front = new_front(requests, fleet)
        tickets = self.front.gate.requests
        pairs = zip(tickets["class_index"].tolist(), tickets["tenant"].tolist(), strict=True)
        self._lane_of = dict(zip(pairs, tickets["lane"].tolist(), strict=True))
        self.forget()

    @property
    def keeps_numbers(self) -> bool:
        """Must the n-th request have slot n, since a router draws replicas at random by slot?"""
        return any(one.router in DRAWING_ROUTERS for one in routers_of(self._fleet))

    @property
    def wake_ns(self) -> int:
        """Time at which the gate must be called again."""
        return FAR_NS if self._fleet.gate is None else int(self.front.gate.counters["wake_ns"][0])

    @property
    def n_waiting(self) -> int:
        """Requests that wait at the gate."""
        return int(self.front.gate.counters["n_waiting"][0])

    def allowed_tokens(self, kind: Kind, max_tokens: int) -> int:
        """Largest output length that the gate allows."""
        if self._fleet.gate is None:
            return max_tokens
        return int(cut_answers(_one(kind, 1, 1, max_tokens), self._fleet.gate).max_tokens[0])

    def note(self, slot: int, kind: Kind, request: Request) -> None:
        """Write what router and gate know of a request that will arrive to its slot.

        Raises
        ------
        SpecError
            No group of replicas accepts the request.
        """
        place, placement = kind.class_index, self._fleet.placement
        if placement is not None:  # the router then routes by group, in place of the class
            lone = _one(kind, int(request["num_prompt_tokens"]), 1, 1)
            place = self._group_of(placement, lone)
        for router in (self.front.router, self.front.decode_router):
            router.class_index[slot] = place
        if self._fleet.gate is None:
            return
        prompt, stop, most = (
            int(request[name]) for name in ("num_prompt_tokens", "stop_tokens", "max_tokens")
        )
        lone = _one(kind, prompt, stop, max(stop, most), priority=int(request["priority"]))
        columns, ticket = gate_columns(lone, self._fleet.gate), self.front.gate.requests[slot]
        for name in columns._fields:
            ticket["tenant" if name == "tenant_index" else name] = getattr(columns, name)[0]
        ticket["lane"] = self._lane_of[int(ticket["class_index"]), int(ticket["tenant"])]

    def _group_of(self, placement: Placement, lone: Demand) -> int:
        """The group of replicas for one request.

        If groups share a class by weights: by how many requests of that class came before.
        """
        for number, route in enumerate(placement.routes):
            if placement.is_of(route, lone)[0]:
                n_before = self._n_routed[number]
                self._n_routed[number] += 1
                return int(route.shared(1, n_before)[0])
        return int(placement.group_of(lone)[0])

    def give_slots(self, n_slots: int) -> None:
        """Make room for this number of requests."""
        routers = [
            self._longer_router(router, config, n_slots)
            for router, config in zip(
                (self.front.router, self.front.decode_router)[: len(routers_of(self._fleet))],
                routers_of(self._fleet),
                strict=True,
            )
        ]
        self.front = self.front._replace(
            router=routers[0],
            decode_router=routers[-1],
            gate=(
                self.front.gate
                if self._fleet.gate is None
                else _longer_gate(self.front.gate, n_slots)
            ),
        )

    def _longer_router(self, old: RouterState, config: ClusterConfig, n_slots: int) -> RouterState:
        draws = router_draws(
            config.seed, n_slots if config.router in DRAWING_ROUTERS else 0, config.n_replicas
        )
        return old._replace(draws=draws, class_index=longer(old.class_index, n_slots, 0))

    def give_contents(self, n_contents: int, forgotten: I32) -> None:
        """Make room for ``n_contents`` numbers of contents, and drop the ``forgotten`` ones."""
        routers = list[RouterState]()
        for router, config in zip(
            (self.front.router, self.front.decode_router), routers_of(self._fleet), strict=False
        ):
            if config.router == "prefix-affine":
                known = np.zeros((config.n_replicas, n_contents), np.bool_)
                known[:, : router.is_known.shape[1]] = router.is_known
                known[:, forgotten] = False
                router.n_known[:] = known.sum(axis=1)
                routers.append(router._replace(is_known=known))
            else:
                routers.append(router)
        self.front = self.front._replace(router=routers[0], decode_router=routers[-1])

    def forget(self) -> None:
        """Forget all requests: the next one gets slot 0."""
        gate = self.front.gate
        for name in ("n_busy_lanes", "n_expiring", "n_unadmitted"):
            gate.counters[name] = 0
        for name in ("size", "n_waiting", "is_busy"):
            gate.lanes[name] = 0
        gate.classes["first_gathering"], gate.classes["n_gathering"] = NOTHING, 0
        gate.requests[:] = 0


def _one(kind: Kind, prompt: int, stop: int, most: int, *, priority: int = 0) -> Demand:
    def one(number: int) -> I32:
        return np.array([number], np.int32)

    return _ONE._replace(
        prompt_tokens=one(prompt),
        output_tokens=one(stop),
        max_tokens=one(most),
        priority=one(priority),
        class_index=one(kind.class_index),
        tenant_index=one(kind.tenant_index),
    )


def _longer_gate(old: GateState, n_slots: int) -> GateState:
    """The gate with room for ``n_slots`` requests, each of which may be in any lane."""
    heap = np.zeros(len(old.lanes) * n_slots, np.int32)
    for place, lane in enumerate(old.lanes):
        start, size = int(lane["start"]), int(lane["size"])
        heap[place * n_slots : place * n_slots + size] = old.heap[start : start + size]
        lane["start"] = place * n_slots
    return old._replace(
        requests=longer(old.requests, n_slots, 0),
        heap=heap,
        expiring=longer(old.expiring, n_slots, 0),
        unadmitted=longer(old.unadmitted, n_slots, 0),
    )


def longer(array: Array, length: int, fill: int) -> Array:
    """The array with this length: cut, or filled up with ``fill`` at its end."""
    filled = np.full(length, fill, array.dtype) if fill else np.zeros(length, array.dtype)
    n_kept = min(len(array), length)
    filled[:n_kept] = array[:n_kept]
    return cast("Array", filled)
