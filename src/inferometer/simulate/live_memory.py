"""The memory of replicas whose requests are not known beforehand: it grows, and is used again.

The simulator's arrays (``kernel/state.py``) are made for requests that are all known. Here each new
request gets the next slot, and each different content of a KV block a number. Full arrays are
doubled. When no request is left, slots begin at 0 again (not where drafts or replicas are drawn by
slot); when the numbers run out, those that no KV block and no request needs any more are given again.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from inferometer.records.columns import I32, Bools
from inferometer.records.types import ABSENT
from inferometer.simulate.fleet import Fleet
from inferometer.simulate.kernel import replicas
from inferometer.simulate.kernel.front import behind_gate
from inferometer.simulate.kernel.rows import Rows
from inferometer.simulate.kernel.state import NOTHING, SHARED, Counters, Request, State
from inferometer.simulate.live_front import Kind, LiveFront, every_kind, longer
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.pointers import pointed
from inferometer.simulate.status import Status

_N_SLOTS: Final = 1024
_N_CONTENTS: Final = 1 << 14


class LiveMemory:
    """The state of all replicas of a fleet, what stands before them, and their handles for compiled code.

    One replica behind no gate is a stack of one, whose loop is that of a single replica.
    """

    def __init__(self, fleet: Fleet) -> None:
        pools, engine, gate = fleet.pools, fleet.replicas.engine, fleet.gate
        engines = (engine,) if pools is None else pools.engines
        requests = every_kind(fleet, max(max(one.max_model_len for one in engines) - 1, 1))
        states = (
            replicas.new_states(requests, engine, fleet.replicas.n_replicas)
            if pools is None
            else replicas.new_pools(requests, pools)
        )
        if gate is not None:
            states = behind_gate(states, gate)
        self.is_alone = fleet.n_replicas == 1 and gate is None and engine.n_instances == 1
        self._has_gate = gate is not None
        self._n_rows = [(one.max_num_active, one.n_kv_blocks) for one in engines]
        self._has_contents = fleet.has_contents
        self._front = LiveFront(fleet, requests)
        self._blank: Rows[Request] = states.requests[:1].copy()
        self._blank["sent_ns"] = self._blank["arrival_ns"] = FAR_NS
        self._n_slots = 0
        self._n_positions = 0
        """Of ``State.contents``."""
        self._numbers: dict[int, int] = {}
        """Of contents."""
        self._free_numbers: list[int] = []
        # Whether a draft is accepted is drawn by slot, and so are replicas: the n-th request keeps
        # the n-th.
        self._is_drawn = bool(states.config["num_spec_tokens"].any()) or self._front.keeps_numbers
        self._is_priority = bool(states.config["is_priority"][0, 0])
        self._is_admitted: Bools = np.zeros(0, np.bool_)
        self.states: State = states._replace(
            arrival_order=np.empty(0, np.int32), requests=self._blank[:0]
        )
        self.counters = cast("Rows[Counters]", states.counters[:, 0])
        self._give_slots(_N_SLOTS)

    @property
    def n_waiting(self) -> int:
        """Requests that wait, at the gate or in a replica."""
        at_gate = self._front.n_waiting if self._has_gate else 0
        return int(self.counters["n_waiting"].sum()) + at_gate

    @property
    def n_unfinished(self) -> int:
        """Requests that came and have not ended."""
        n_inside = int((self.counters["n_taken"] - self.counters["n_ended"]).sum())
        return n_inside + (self._front.n_waiting if self._has_gate else 0)

    def next_event_ns(self) -> int:
        """When does the oldest batch of a replica end, or anything else happen?"""
        world, counters = self.states.world[0], self.counters
        when_ns = min(self._next_arrival_ns(), self._next_abort_ns())
        if self.is_alone:
            alone = counters[0]
            if alone["n_in_flight"] > 0:
                return int(self.states.batches[0, alone["first_batch"]]["end_ns"])
            return min(int(alone["wake_ns"]), when_ns)
        when_ns = min(when_ns, int(counters["ready_ns"].min()), self._front.wake_ns)
        if world["n_arriving"] > 0:
            transfers = self.states.transfers
            when_ns = min(when_ns, int(transfers[transfers[0]["nth_arriving"]]["received_ns"]))
        is_untold = self._has_gate and world["n_told"] < world["n_ended"]
        return min(when_ns, int(world["now_ns"])) if is_untold else when_ns

    def allowed_tokens(self, kind: Kind, max_tokens: int) -> int:
        """How long the answer of such a request may be."""
        return self._front.allowed_tokens(kind, max_tokens)

    def note(self, slot: int, kind: Kind) -> None:
        """Tell the router and the gate who comes: its lengths stand in its slot."""
        if not self.is_alone:
            self._front.note(slot, kind, self.states.requests[slot])

    def add(self, contents: Sequence[int]) -> int:
        """The slot of one more request, whose KV blocks will have these contents."""
        contents = contents if self._has_contents else ()
        self._make_room(len(contents))
        slot, start = self._n_slots, self._n_positions
        self._n_slots, self._n_positions = slot + 1, start + len(contents)
        for position, content in enumerate(contents, start):
            number = self._numbers.get(content)
            if number is None:
                number = self._numbers[content] = self._free_numbers.pop()
            self.states.contents[position] = number
        self.states.requests[slot]["content_start"] = start
        return slot

    def note_abort(self, slot: int, when_ns: int) -> None:
        """The client of the request in this slot goes away then."""
        state, world = self.states, self.states.world[0]
        state.abort_ns[slot] = when_ns
        n_leaving = int(world["n_leaving"])
        slots = [*state.leaving[:n_leaving].tolist(), slot]
        slots.sort(key=lambda one: (int(state.abort_ns[one]), one))  # what is sorted is a heap
        state.leaving[: n_leaving + 1] = slots
        world["n_leaving"] = n_leaving + 1

    def _next_arrival_ns(self) -> int:
        """When does the next request come? ``FAR_NS`` where none is known to."""
        place = int(self.states.world["next_arrival"][0])
        return int(self.states.requests["arrival_ns"][place]) if place < self._n_slots else FAR_NS

    def _next_abort_ns(self) -> int:
        """When does the next client go away? ``FAR_NS`` where none is known to."""
        has_any = self.states.world["n_leaving"][0] > 0
        return int(self.states.abort_ns[self.states.leaving[0]]) if has_any else FAR_NS

    def take_ended(self) -> list[int]:
        """The slots of requests that have ended in a replica since the last call, in order of that.

        Behind a gate: of those that it was told of.
        """
        world, ended = self.states.world[0], self.states.ended
        n_ended = int(world["n_ended"])
        n_taken = int(world["n_told"]) if self._has_gate else n_ended
        taken: list[int] = ended[:n_taken].tolist()
        ended[: n_ended - n_taken] = ended[n_taken:n_ended].copy()
        world["n_ended"], world["n_told"] = n_ended - n_taken, 0
        return taken

    def turned_away(self, slots: Iterable[int]) -> list[int]:
        """Who of these was turned away before a replica had it?"""
        if not self._has_gate:
            return []
        asked = np.fromiter(slots, np.int64)
        is_rejected = self.states.requests["status"][asked] == int(Status.REJECTED)
        found: list[int] = asked[is_rejected].tolist()
        return found

    def newly_admitted(self, computed: I32) -> list[int]:
        """The slots of requests with a first part in a step in flight, or in what has been ``computed``."""
        batches, requests = self.states.batches, self.states.parts["request"]
        in_flight = [tuple(one) for one in np.argwhere(batches["is_in_flight"])]
        found = np.concatenate(
            [computed, *(requests[batch][: batches["n_parts"][batch]] for batch in in_flight)]
        )
        new: list[int] = np.unique(found[~self._is_admitted[found]]).tolist()
        self._is_admitted[new] = True
        return new

    def _make_room(self, n_contents: int) -> None:
        """For one more request."""
        state = self.states
        is_full = self._n_slots == len(state.requests)
        if (is_full or self._n_positions + n_contents > len(state.contents)) and self._is_idle():
            self._begin_again()
        if self._n_slots == len(state.requests):
            self._give_slots(2 * len(state.requests))
        if self._n_positions + n_contents > len(state.contents):
            n_positions = max(2 * len(state.contents), self._n_positions + n_contents, _N_CONTENTS)
            self._set(self.states._replace(contents=longer(state.contents, n_positions, 0)))
        if len(self._free_numbers) < n_contents:
            self._collect_numbers(n_contents)

    def _set(self, states: State) -> None:
        self.states = states
        self._point()

    def _point(self) -> None:
        """The handles that the loop takes before the step times."""
        if self.is_alone:
            own = {name: getattr(self.states, name) for name in State._fields if name not in SHARED}
            alone = self.states._replace(**{name: array[0] for name, array in own.items()})
            self.handles: tuple[object, ...] = (pointed(alone),)
        else:
            self.handles = (replicas.pointed_states(self.states), pointed(self._front.front))

    def _give_slots(self, n_slots: int) -> None:
        """Room for this number of requests; those that are there keep their slots."""
        state, n_old, counters = self.states, len(self.states.requests), self.counters
        waiting = state.waiting[:, :n_old]
        if not self._is_priority:  # the ring begins at 0, before it gets longer
            heads = counters["waiting_head"].tolist()
            rolled = [np.roll(row, -head) for row, head in zip(waiting, heads, strict=True)]
            waiting, counters["waiting_head"] = np.stack(rolled), 0
        self._is_admitted = np.concatenate([self._is_admitted, np.zeros(n_slots - n_old, np.bool_)])
        self._front.give_slots(n_slots)
        requests = np.concatenate([state.requests, np.repeat(self._blank, n_slots - n_old)])
        self._set(
            self.states._replace(
                requests=cast("Rows[Request]", requests),
                waiting=_wider(waiting, n_slots, 0),
                skipped=np.empty(n_slots, np.int32),
                abort_ns=longer(state.abort_ns[:n_old], n_slots, ABSENT),
                leaving=longer(state.leaving[:n_old], n_slots, 0),
                arrival_order=np.arange(n_slots, dtype=np.int32),
                ended=longer(state.ended[:n_old], n_slots, 0),
                **self._of_pools(n_slots),
            )
        )

    def _of_pools(self, n_slots: int) -> dict[str, Any]:
        """KV caches on their way, and rows for the blocks of who has no seat, where there are two pools."""
        old = self.states.block_table
        if not len(self.states.transfers):
            return {}
        n_seats = max(n_active for n_active, _ in self._n_rows)
        n_rows = n_seats + max(min(n_slots, n_blocks) for _, n_blocks in self._n_rows)
        table = np.zeros((len(old), n_rows, old.shape[2]), old.dtype)
        table[:, : old.shape[1]] = old
        return {"block_table": table, "transfers": longer(self.states.transfers, n_slots, 0)}

    def _is_idle(self) -> bool:
        """May slots begin at 0 again: has every request ended, with nothing in flight, and does nothing name one?"""
        status, world = self.states.requests["status"][: self._n_slots], self.states.world[0]
        return (
            bool(np.all(status >= int(Status.STOPPED)))
            and not self._is_drawn
            and not self.counters["n_in_flight"].any()
            and not self.counters["first_unanswered"].any()
            and not world["n_leaving"]
            and not world["n_ended"]
            and not world["n_arriving"]
            and bool(np.all(self.states.sglang["cut"] == NOTHING))
        )

    def _begin_again(self) -> None:
        """Nobody is there: the next request gets slot 0. What is cached stays."""
        state = self.states
        state.requests[:] = self._blank[0]
        state.abort_ns[:] = ABSENT
        for name in ("next_arrival", "n_handed", "n_joined", "n_asked", "n_begun"):
            state.world[name] = 0
        state.transfers[:] = 0
        self._front.forget()
        self.counters["waiting_head"] = self.counters["waiting_size"] = 0
        # SGLang drops who has ended when it decides the next step; they are dropped here.
        state.sglang["n_generating"] = state.sglang["n_joining"] = 0
        self._is_admitted[:] = False
        self._n_slots = self._n_positions = 0
        # SGLang's tree refers to contents where they stand.
        runs = self._runs()
        kept = [state.contents[start:end].copy() for _, start, end in runs]
        for (node, _, _), run in zip(runs, kept, strict=True):
            state.nodes["start"][node] = self._n_positions
            state.contents[self._n_positions : self._n_positions + len(run)] = run
            self._n_positions += len(run)

    def _runs(self) -> list[tuple[tuple[int, int], int, int]]:
        """The nodes of SGLang's trees, by replica, and where the contents of each begin and end."""
        runs = list[tuple[tuple[int, int], int, int]]()
        for replica, nodes in enumerate(self.states.nodes):
            node = int(nodes["next"][0]) if len(nodes) else 0
            while node != 0:
                start = int(nodes["start"][node])
                runs.append(((replica, node), start, start + int(nodes["n_pages"][node])))
                node = int(nodes["next"][node])
        return runs

    def _collect_numbers(self, n_wanted: int) -> None:
        """Take back the numbers of contents that neither a block nor a request needs; add more where too few are left."""
        state, n_old = self.states, self.states.first_equal.shape[1]
        is_needed = (state.first_equal != NOTHING).any(axis=0)
        for blocks, config in zip(state.blocks, state.config[:, 0], strict=True):
            registered = blocks["content"][: config["n_kv_blocks"] + 1]  # others are no blocks
            is_needed[registered[registered >= 0]] = True
        status = state.requests["status"][: self._n_slots]
        unfinished = np.flatnonzero(status < int(Status.STOPPED))
        first = int(state.requests["content_start"][unfinished[0]]) if len(unfinished) else None
        spans = [(start, end) for _, start, end in self._runs()]
        spans += [] if first is None else [(first, self._n_positions)]
        for start, end in spans:
            is_needed[state.contents[start:end]] = True
        self._numbers = {one: number for one, number in self._numbers.items() if is_needed[number]}
        n_new = n_old
        while n_new - len(self._numbers) < max(n_wanted, n_new // 2, _N_CONTENTS // 2):
            n_new = max(2 * n_new, _N_CONTENTS)
        last_equal = state.last_equal.copy()
        last_equal[:, ~is_needed] = NOTHING
        taken = set(self._numbers.values())
        self._free_numbers = [number for number in range(n_new) if number not in taken]
        self._front.give_contents(n_new, np.array(self._free_numbers, np.int32))
        self._set(
            self.states._replace(
                first_equal=_wider(state.first_equal, n_new, NOTHING),
                last_equal=_wider(last_equal, n_new, NOTHING),
            )
        )


def _wider(rows: NDArray[Any], length: int, fill: int) -> NDArray[Any]:
    """The same with rows of this length, filled up at their ends."""
    filled = np.full((len(rows), length), fill, rows.dtype)
    filled[:, : rows.shape[1]] = rows
    return filled
