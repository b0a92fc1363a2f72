"""A fleet with requests that are added during the run: the simulator on an external clock.

The compiled loops (``kernel/one_replica.py``, ``kernel/cluster_run.py``) can be stopped at any time
and continued. Here requests are written into the loop's memory as they arrive, and logged events
are reported to a listener in order of time. The class has no clock: its caller calls ``advance``
with the present time, and again at the time that it returns.

The simulator's arrays (``kernel/state.py``) are sized for known requests. Here each new request
gets the next slot in them, and each different content of a KV block gets a number. Full arrays are
doubled. When all requests have ended, slots begin at 0 again (not if the acceptance of drafts or
the replica is drawn at random by slot). When content numbers run out, unused ones are reused.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from inferometer.records.columns import I32, Bools
from inferometer.records.types import ABSENT
from inferometer.simulate import hooks
from inferometer.simulate.fleet import Fleet
from inferometer.simulate.kernel import config as kernel_config, loop, routing
from inferometer.simulate.kernel.state import NO_BLOCK, NOTHING, Counters, Request, State
from inferometer.simulate.live_front import Kind, LiveFront, every_kind, longer
from inferometer.simulate.outcome import FAR_NS, Outcome, Status, new_log, new_part_log
from inferometer.simulate.pointers import Rows, pointed

_N_SLOTS: Final = 1024
_N_CONTENTS: Final = 1 << 14
_LOG_ROWS: Final = 256
_ANY_KIND: Final = Kind()
_RESUMABLE: Final = (Outcome.LOG_FULL, Outcome.LIVELOCK)
"""Outcomes after which the loop is called again: requests in a livelock may still be aborted."""


class LiveMemory:
    """State of all replicas with router and gate, and pointers for compiled code.

    A single replica without a gate uses the event loop of a single replica.
    """

    def __init__(self, fleet: Fleet) -> None:
        engines = fleet.engines
        requests = every_kind(fleet, max(max(one.max_model_len for one in engines) - 1, 1))
        states = routing.new_states(requests, fleet, are_all=False)
        self.is_alone = fleet.is_lone
        self._has_gate = fleet.gate is not None
        self._n_rows = [(one.max_num_active, one.n_kv_blocks) for one in engines]
        self._has_contents = fleet.has_contents
        self._front = LiveFront(fleet, requests)
        self._blank: Rows[Request] = states.requests[:1].copy()
        self._blank["sent_ns"] = self._blank["arrival_ns"] = FAR_NS
        self._n_slots = 0
        self._n_positions = 0
        """Used length of ``State.contents``."""
        self._numbers: dict[int, int] = {}
        """Number of each block content."""
        self._free_numbers: list[int] = []
        # Acceptance of drafts and choice of replicas are drawn by slot: request n must have slot n.
        self._is_drawn = bool(states.config["num_spec_tokens"].any()) or self._front.keeps_numbers
        self._is_priority = bool(states.config["is_priority"][0, 0])
        self._is_admitted: Bools = np.zeros(0, np.bool_)
        nobody = states.arrivals._replace(arrival_order=np.empty(0, np.int32))
        self.states: State = states._replace(arrivals=nobody, requests=self._blank[:0])
        self.counters = cast("Rows[Counters]", states.counters[:, 0])
        self._give_slots(_N_SLOTS)

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait at the gate or in a replica."""
        at_gate = self._front.n_waiting if self._has_gate else 0
        return int(self.counters["n_waiting"].sum()) + at_gate

    @property
    def n_unfinished(self) -> int:
        """The number of requests that have arrived and have not ended."""
        n_inside = int((self.counters["n_taken"] - self.counters["n_ended"]).sum())
        return n_inside + (self._front.n_waiting if self._has_gate else 0)

    def next_event_ns(self) -> int:
        """Time of the next event of any replica."""
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
        is_due = self._has_gate and world["n_ends_reported"] < world["n_ended"]
        return min(when_ns, int(world["now_ns"])) if is_due else when_ns

    def allowed_tokens(self, kind: Kind, max_tokens: int) -> int:
        """Largest output length of a request of this kind, as the gate limits it."""
        return self._front.allowed_tokens(kind, max_tokens)

    def note(self, slot: int, kind: Kind) -> None:
        """Announce a request, whose lengths are already in its slot, to router and gate."""
        if not self.is_alone:
            self._front.note(slot, kind, self.states.requests[slot])

    def add(self, contents: Sequence[int]) -> int:
        """Add a request with these block contents; returns its slot."""
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
        """Schedule the disconnection of the client of the request in this slot."""
        state, world = self.states, self.states.world[0]
        state.arrivals.abort_ns[slot] = when_ns
        n_leaving = int(world["n_leaving"])
        slots = [*state.arrivals.leaving[:n_leaving].tolist(), slot]
        # a sorted list is a valid heap
        slots.sort(key=lambda one: (int(state.arrivals.abort_ns[one]), one))
        state.arrivals.leaving[: n_leaving + 1] = slots
        world["n_leaving"] = n_leaving + 1

    def _next_arrival_ns(self) -> int:
        """Time of the next arrival; ``FAR_NS`` if none is known."""
        place = int(self.states.world["next_arrival"][0])
        return int(self.states.requests["arrival_ns"][place]) if place < self._n_slots else FAR_NS

    def _next_abort_ns(self) -> int:
        """Time when the next client disconnects; ``FAR_NS`` if none is known."""
        has_any = self.states.world["n_leaving"][0] > 0
        return (
            int(self.states.arrivals.abort_ns[self.states.arrivals.leaving[0]])
            if has_any
            else FAR_NS
        )

    def take_ended(self) -> list[int]:
        """Slots of requests that have ended in a replica since the last call, in that order.

        With a gate: only those whose ends have been reported to it.
        """
        world, ended = self.states.world[0], self.states.arrivals.ended
        n_ended = int(world["n_ended"])
        n_taken = int(world["n_ends_reported"]) if self._has_gate else n_ended
        taken: list[int] = ended[:n_taken].tolist()
        ended[: n_ended - n_taken] = ended[n_taken:n_ended].copy()
        world["n_ended"], world["n_ends_reported"] = n_ended - n_taken, 0
        return taken

    def rejected_by_gate(self, slots: Iterable[int]) -> list[int]:
        """Those of these slots whose requests the gate has rejected."""
        if not self._has_gate:
            return []
        indices = np.fromiter(slots, np.int64)
        is_rejected = self.states.requests["status"][indices] == int(Status.REJECTED)
        found: list[int] = indices[is_rejected].tolist()
        return found

    def newly_admitted(self, computed: I32) -> list[int]:
        """Slots of requests first computed in a step in flight, or in ``computed`` (completed)."""
        batches, requests = self.states.batches, self.states.parts["request"]
        in_flight = [tuple(one) for one in np.argwhere(batches["is_in_flight"])]
        found = np.concatenate(
            [computed, *(requests[batch][: batches["n_parts"][batch]] for batch in in_flight)]
        )
        new: list[int] = np.unique(found[~self._is_admitted[found]]).tolist()
        self._is_admitted[new] = True
        return new

    def _make_room(self, n_contents: int) -> None:
        """Make room for one more request with this number of block contents."""
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
        """Set ``handles``: the pointers that compiled loops take before that of the step times."""
        if self.is_alone:
            self.handles: tuple[object, ...] = (pointed(routing.one_of(self.states, 0)),)
        else:
            self.handles = (routing.pointed_states(self.states), pointed(self._front.front))

    def _give_slots(self, n_slots: int) -> None:
        """Make room for this number of requests; requests keep their slots."""
        state, n_old, counters = self.states, len(self.states.requests), self.counters
        waiting = state.queue.waiting[:, :n_old]
        if not self._is_priority:  # rotate the ring so that it begins at 0 before it grows
            heads = counters["waiting_head"].tolist()
            rolled = [np.roll(row, -head) for row, head in zip(waiting, heads, strict=True)]
            waiting, counters["waiting_head"] = np.stack(rolled), 0
        self._is_admitted = np.concatenate([self._is_admitted, np.zeros(n_slots - n_old, np.bool_)])
        self._front.give_slots(n_slots)
        requests = np.concatenate([state.requests, np.repeat(self._blank, n_slots - n_old)])
        arrivals = state.arrivals._replace(
            abort_ns=longer(state.arrivals.abort_ns[:n_old], n_slots, ABSENT),
            leaving=longer(state.arrivals.leaving[:n_old], n_slots, 0),
            arrival_order=np.arange(n_slots, dtype=np.int32),
            ended=longer(state.arrivals.ended[:n_old], n_slots, 0),
        )
        self._set(
            self._with_pools(n_slots)._replace(
                requests=cast("Rows[Request]", requests),
                queue=state.queue._replace(waiting=_wider(waiting, n_slots)),
                arrivals=arrivals,
                skipped=np.empty(n_slots, np.int32),
            )
        )

    def _with_pools(self, n_slots: int) -> State:
        """The state with room for the KV transfers of ``n_slots`` requests (disaggregation)."""
        states, old = self.states, self.states.memory.block_table
        if not len(states.transfers):
            return states
        n_batch_slots = max(n_active for n_active, _ in self._n_rows)
        n_rows = n_batch_slots + max(min(n_slots, n_blocks) for _, n_blocks in self._n_rows)
        table = np.zeros((len(old), n_rows, old.shape[2]), old.dtype)
        table[:, : old.shape[1]] = old
        return states._replace(
            memory=states.memory._replace(block_table=table),
            transfers=longer(states.transfers, n_slots, 0),
        )

    def _is_idle(self) -> bool:
        """Have all requests ended, so that slots can begin at 0 again?"""
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
        """Let slots begin at 0 again when idle; cached prefixes stay."""
        state = self.states
        state.requests[:] = self._blank[0]
        state.arrivals.abort_ns[:] = ABSENT
        for name in ("next_arrival", "n_prefilled", "n_routed_on", "n_transfers", "n_queued"):
            state.world[name] = 0
        state.transfers[:] = 0
        self._front.forget()
        self.counters["waiting_head"] = self.counters["waiting_size"] = 0
        # SGLang drops ended requests when it decides the next step; here they are dropped at once.
        state.sglang["n_generating"] = state.sglang["n_joining"] = 0
        self._is_admitted[:] = False
        self._n_slots = self._n_positions = 0
        # SGLang's tree refers to positions in State.contents: move its contents to the begin.
        runs = self._runs()
        contents = [state.contents[start:end].copy() for _, start, end in runs]
        for (node, _, _), run in zip(runs, contents, strict=True):
            state.memory.nodes["start"][node] = self._n_positions
            state.contents[self._n_positions : self._n_positions + len(run)] = run
            self._n_positions += len(run)

    def _runs(self) -> list[tuple[tuple[int, int], int, int]]:
        """Each (replica, node) of SGLang's trees, with the begin and end of its contents."""
        runs = list[tuple[tuple[int, int], int, int]]()
        for replica, nodes in enumerate(self.states.memory.nodes):
            node = int(nodes["next"][0]) if len(nodes) else 0
            while node != 0:
                start = int(nodes["start"][node])
                runs.append(((replica, node), start, start + int(nodes["n_pages"][node])))
                node = int(nodes["next"][node])
        return runs

    def _collect_numbers(self, n_wanted: int) -> None:
        """Free content numbers that no block or request uses; add more if too few are free."""
        state, n_groups = self.states, int(self.states.config["n_kv_groups"].max())
        n_old = state.memory.first_equal.shape[1] // n_groups
        is_needed = np.zeros(n_old, np.bool_)
        for first_equal, blocks, config in zip(
            state.memory.first_equal, state.memory.blocks, state.config[:, 0], strict=True
        ):
            n_own = config["n_kv_groups"]  # entries of each content
            is_cached = first_equal[: n_old * n_own].reshape(n_old, n_own) != NO_BLOCK
            is_needed |= is_cached.any(axis=1)
            registered = blocks["content"][: config["n_kv_blocks"] + 1]  # the rest is padding
            is_needed[registered[registered >= 0] // n_own] = True
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
        last_equal = state.memory.last_equal.copy()
        for row, n_own in zip(last_equal, state.config["n_kv_groups"][:, 0], strict=True):
            row[: n_old * n_own].reshape(n_old, n_own)[~is_needed] = NO_BLOCK
        taken = set(self._numbers.values())
        self._free_numbers = [number for number in range(n_new) if number not in taken]
        self._front.give_contents(n_new, np.array(self._free_numbers, np.int32))
        self._set(
            state._replace(
                memory=state.memory._replace(
                    first_equal=_wider(state.memory.first_equal, n_new * n_groups),
                    last_equal=_wider(last_equal, n_new * n_groups),
                )
            )
        )


def _wider(rows: NDArray[Any], length: int) -> NDArray[Any]:
    """The rows with this length, zeros at their ends."""
    filled = np.zeros((len(rows), length), rows.dtype)
    filled[:, : rows.shape[1]] = rows
    return filled


class LiveRequest:
    """A request to a live engine, and its progress.

    ``stop``: tokens after which the model stops; ``max_tokens``: the client's limit; ``contents``:
    ids of the full blocks of prompt and output, as in ``Demand.contents``.
    """

    __slots__ = (
        "admitted_ns",
        "arrival_ns",
        "contents",
        "index",
        "kind",
        "max_tokens",
        "num_cached_tokens",
        "num_output_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "priority",
        "replica",
        "slot",
        "status",
        "stop_tokens",
    )

    def __init__(  # noqa: PLR0913 -- one for each of its facts
        self,
        index: int,
        *,
        arrival_ns: int,
        prompt: int,
        stop: int,
        max_tokens: int,
        priority: int,
        contents: Sequence[int],
        kind: Kind = _ANY_KIND,
    ) -> None:
        self.index = index
        self.arrival_ns = arrival_ns
        self.num_prompt_tokens = prompt
        self.stop_tokens = stop
        self.max_tokens = max_tokens
        self.priority = priority
        self.contents = contents
        self.kind = kind
        self.status = Status.UNSEEN
        """``UNSEEN`` until the request has ended."""
        self.slot = ABSENT
        """Its index in the simulator's arrays."""
        self.replica = ABSENT
        """The replica that computes it, from its first admission on."""
        self.admitted_ns = ABSENT
        self.num_cached_tokens = 0
        """Tokens found in the prefix cache at the first admission."""
        self.num_output_tokens = 0
        """Tokens generated and delivered so far."""
        self.num_preemptions = 0


class Delivery(NamedTuple):
    """Tokens that a request got in a step; the request's status shows whether they are the last."""

    request: LiveRequest
    num_tokens: int


class ReplicaLoad(NamedTuple):
    """What one replica has to do at an instant."""

    n_running: int
    n_waiting: int
    kv_used_fraction: float


class Listener(Protocol):
    """Callbacks for events of the engine; times are those of the simulation."""

    def on_scheduled(self, admitted: Sequence[LiveRequest], n_preempted: int, replica: int) -> None:
        """A replica's steps were scheduled; the first ones to compute the ``admitted`` requests."""
        ...

    def on_step(self, deliveries: Sequence[Delivery], now_ns: int) -> None:
        """A step has ended and delivered these tokens."""
        ...

    def on_dropped(self, request: LiveRequest, now_ns: int) -> None:
        """A request has ended without its last token: rejected, or its client has disconnected."""
        ...


class LiveFleet:
    """A fleet's replicas with router and gate, and its requests in flight."""

    def __init__(self, fleet: Fleet, listener: Listener) -> None:
        self._listener = listener
        self._memory = LiveMemory(fleet)
        kind = kernel_config.Kind(int(self._memory.states.config["kind"][0, 0]))
        self._loop = loop.loop_of(kind) if fleet.is_lone else loop.loop_of_fleet(kind, fleet)
        costs, engines = fleet.step_times_of_groups, fleet.engines
        self._cost = pointed(costs[0]) if self._memory.is_alone else routing.pointed_costs(costs)
        n_rows = max(fleet.n_replicas * max(one.depth for one in engines), _LOG_ROWS)
        n_parts = 4 * fleet.n_replicas * max(one.max_num_active for one in engines)
        self._log, self._part_log = new_log(n_rows), new_part_log(max(n_parts, _LOG_ROWS))
        self._logs = pointed(self._log), pointed(self._part_log)
        self._n_kv_blocks = self._memory.states.config["n_kv_blocks"][:, 0]
        self._requests: dict[int, LiveRequest] = {}
        """Requests that have not ended, by slot."""
        self._leaving: set[int] = set()
        """Slots of requests whose client disconnects or has disconnected."""
        self._n_steps = 0
        self._ends_ns: dict[int, int] = {}
        """End of each step in flight, by the step's number."""
        hooks.tell_of_compiling(self._loop)
        self._run(0)  # compiles or loads the loop before the first request waits for it

    @property
    def n_unfinished(self) -> int:
        """The number of requests that have arrived and have not ended."""
        return self._memory.n_unfinished

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait at the gate or in a replica."""
        return self._memory.n_waiting

    @property
    def n_running(self) -> int:
        """The number of requests that run (have a place in a batch)."""
        return max(self.n_unfinished - self.n_waiting, 0)

    @property
    def kv_used_fraction(self) -> float:
        """Share of the KV blocks of all replicas that are used."""
        n_free = int(self._memory.counters["n_free"].sum())
        return 1 - n_free / max(int(self._n_kv_blocks.sum()), 1)

    def load_of(self, replica: int) -> ReplicaLoad:
        """The load of one replica; requests that wait at a gate are at none."""
        counters, n_blocks = self._memory.counters[replica], int(self._n_kv_blocks[replica])
        n_waiting = int(counters["n_waiting"])
        n_inside = int(counters["n_taken"] - counters["n_ended"])
        used_fraction = 1 - int(counters["n_free"]) / max(n_blocks, 1)
        return ReplicaLoad(max(n_inside - n_waiting, 0), n_waiting, used_fraction)

    def submit(self, request: LiveRequest) -> None:
        """Add a request that arrives at its ``arrival_ns``; call in order of arrival."""
        request.slot = self._memory.add(request.contents)
        row = self._memory.states.requests[request.slot]
        row["num_tokens"] = row["num_prompt_tokens"] = request.num_prompt_tokens
        row["stop_tokens"] = request.stop_tokens
        row["max_tokens"] = self._memory.allowed_tokens(request.kind, request.max_tokens)
        row["priority"] = request.priority
        self._memory.note(request.slot, request.kind)
        row["sent_ns"] = row["arrival_ns"] = request.arrival_ns
        self._requests[request.slot] = request

    def abort(self, request: LiveRequest, when_ns: int) -> None:
        """Let the client of a submitted request disconnect at this time."""
        if request.slot in self._requests and request.slot not in self._leaving:
            self._leaving.add(request.slot)
            self._memory.note_abort(request.slot, when_ns)

    def advance(self, until_ns: int) -> int:
        """Process all events up to ``until_ns``; returns the time of the next event.

        That is ``FAR_NS`` if nothing more happens without a new request.
        """
        while True:
            outcome = self._run(until_ns)
            self._notify()
            next_ns = self._memory.next_event_ns()
            if outcome not in _RESUMABLE and next_ns > until_ns:
                return next_ns

    def _run(self, until_ns: int) -> Outcome:
        self._log.n_filled[0] = self._part_log.n_filled[0] = 0
        return Outcome(self._loop(*self._memory.handles, self._cost, *self._logs, until_ns))

    def _notify(self) -> None:
        """Report the logged events to the listener in order of time; aborted requests first."""
        self._note_launches()
        happened: list[tuple[int, int, LiveRequest | list[Delivery]]] = [
            *((when_ns, 0, request) for when_ns, request in self._dropped()),
            *((when_ns, 1, step) for when_ns, step in self._deliveries()),
        ]
        for when_ns, _, what in sorted(happened, key=lambda event: event[:2]):
            if isinstance(what, LiveRequest):
                self._end(what)
                self._listener.on_dropped(what, when_ns)
                continue
            for request, n_tokens in what:
                self._update(request, n_tokens)
            self._listener.on_step(what, when_ns)
        done_ns = int(self._memory.counters["now_ns"].max())
        self._ends_ns = {step: end for step, end in self._ends_ns.items() if end > done_ns}

    def _note_launches(self) -> None:
        """Record the ends of launched steps, and report them with their newly admitted requests."""
        n_launched = int(self._log.n_filled[0])
        ends_ns = self._log.start_ns[:n_launched] + self._log.duration_ns[:n_launched]
        self._ends_ns |= dict(enumerate(ends_ns.tolist(), self._n_steps))
        self._n_steps += n_launched
        slots = self._memory.newly_admitted(self._part_log.request_index[: self._n_parts])
        admitted = [self._requests[slot] for slot in slots]
        for request in admitted:
            row = self._memory.states.requests[request.slot]
            request.replica = int(row["replica"])
            request.admitted_ns = int(row["admitted_ns"])
            request.num_cached_tokens = int(row["num_cached_tokens"])
        launched = self._log.replica[:n_launched]
        first = {replica: list[LiveRequest]() for replica in launched.tolist()}
        for request in admitted:  # one that was handed over since then is at another replica
            first[request.replica if request.replica in first else int(launched[0])].append(request)
        for replica, own in first.items():
            n_preempted = self._log.n_preempted_requests[:n_launched][launched == replica].sum()
            self._listener.on_scheduled(own, int(n_preempted), replica)

    @property
    def _n_parts(self) -> int:
        return int(self._part_log.n_filled[0])

    def _deliveries(self) -> list[tuple[int, list[Delivery]]]:
        """End and deliveries of each step that has ended."""
        log, found = self._part_log, list[tuple[int, list[Delivery]]]()
        number = ABSENT
        rows = (log.step_index, log.request_index, log.n_delivered_tokens)
        for step, slot, n_tokens in zip(
            *(column[: self._n_parts].tolist() for column in rows), strict=True
        ):
            if n_tokens == 0:
                continue
            if step != number:
                number = step
                found.append((self._ends_ns[step], []))
            found[-1][1].append(Delivery(self._requests[slot], n_tokens))
        return found

    def _dropped(self) -> list[tuple[int, LiveRequest]]:
        """Requests that were rejected or aborted, with the time when they ended."""
        rows, found = self._memory.states.requests, list[tuple[int, LiveRequest]]()
        rejected = self._memory.rejected_by_gate(self._requests)
        for slot in dict.fromkeys([*self._memory.take_ended(), *rejected, *self._leaving]):
            status = int(rows[slot]["status"])
            if slot in self._requests and status in {Status.ABORTED, Status.REJECTED}:
                found.append((int(rows[slot]["finished_ns"]), self._requests[slot]))
        return found

    def _update(self, request: LiveRequest, n_tokens: int) -> None:
        """Count tokens that a request got, and end the request if they are its last."""
        request.num_output_tokens += n_tokens
        row = self._memory.states.requests[request.slot]
        is_whole = request.num_output_tokens == row["num_tokens"] - request.num_prompt_tokens
        if is_whole and row["status"] in {Status.STOPPED, Status.LENGTH}:
            self._end(request)

    def _end(self, request: LiveRequest) -> None:
        row = self._memory.states.requests[request.slot]
        request.status = Status(int(row["status"]))
        request.num_preemptions = int(row["num_preemptions"])
        del self._requests[request.slot]
        self._leaving.discard(request.slot)
