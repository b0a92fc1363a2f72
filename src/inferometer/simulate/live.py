"""A fleet whose requests become known only while it runs: the simulator's loop on somebody's clock.

The compiled loops (``kernel/one_replica.py``, ``kernel/cluster_run.py``) can be stopped at any time
and told to go on. Here requests are written into its memory as they come, and what it logs is read out and told
to a listener, in the order in which it happened. It has no clock: whoever has one calls ``advance``
with the present, and again at the instant that it returns.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from inferometer.records.types import ABSENT
from inferometer.simulate import notices
from inferometer.simulate.fleet import Fleet
from inferometer.simulate.kernel import config, loop
from inferometer.simulate.live_front import Kind
from inferometer.simulate.live_memory import LiveMemory
from inferometer.simulate.outcome import Outcome, new_log, new_part_log
from inferometer.simulate.pointers import pointed
from inferometer.simulate.status import Status

_LOG_ROWS: Final = 256
_ANY_KIND: Final = Kind()
_RESUMABLE: Final = (Outcome.LOG_FULL, Outcome.LIVELOCK)
"""The loop has returned early. Requests that preempt one another for ever do so here too."""


class LiveRequest:
    """A request to a live engine, and what became of it so far.

    ``stop``: after how many tokens the model would stop by itself; ``max_tokens``: what the client
    allows; ``contents``: what each full block of prompt and output holds, equal numbers for equal
    tokens from the start; ``kind``: its class and tenant, for a router and a gate.
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
        """``UNSEEN`` until it has ended."""
        self.slot = ABSENT
        """Its place in the engine's memory."""
        self.admitted_ns = ABSENT
        self.num_cached_tokens = 0
        """Tokens found in the prefix cache at the first admission."""
        self.num_output_tokens = 0
        """Tokens generated and delivered so far."""
        self.num_preemptions = 0


class Delivery(NamedTuple):
    """How many tokens a request got by a step; its status says whether they are the last."""

    request: LiveRequest
    num_tokens: int


class Listener(Protocol):
    """Hears what the engine does; instants are virtual: when something is due, not when it is told."""

    def on_scheduled(self, admitted: Sequence[LiveRequest], n_preempted: int) -> None:
        """Steps were decided: these requests have their first part in one of them."""
        ...

    def on_step(self, deliveries: Sequence[Delivery], now_ns: int) -> None:
        """A step has ended."""
        ...

    def on_dropped(self, request: LiveRequest, now_ns: int) -> None:
        """A request has ended before its last token: it was refused, or its client has gone."""
        ...


class LiveFleet:
    """The replicas of a fleet, what stands before them, and what is in flight."""

    def __init__(self, fleet: Fleet, listener: Listener) -> None:
        self._listener = listener
        self._memory = LiveMemory(fleet)
        self._loop = _loop_of(fleet, self._memory)
        # Step times of a pool that only computes prompts come first, those of the other stand in
        # the front.
        costs = fleet.step_times if fleet.prefill is None else fleet.prefill.step_times
        self._cost = pointed(costs)
        engines = (fleet.replicas.engine,) if fleet.pools is None else fleet.pools.engines
        n_rows = max(fleet.n_replicas * max(one.depth for one in engines), _LOG_ROWS)
        n_parts = 4 * fleet.n_replicas * max(one.max_num_active for one in engines)
        self._log, self._part_log = new_log(n_rows), new_part_log(max(n_parts, _LOG_ROWS))
        self._logs = pointed(self._log), pointed(self._part_log)
        self._n_kv_blocks = self._memory.states.config["n_kv_blocks"][:, 0]
        self._requests: dict[int, LiveRequest] = {}
        """By slot; those that have not ended."""
        self._leaving: set[int] = set()
        """Slots of those whose clients go away."""
        self._n_steps = 0
        self._ends_ns: dict[int, int] = {}
        """When each step in flight ends, by its number."""
        notices.tell_of_compiling(self._loop)
        self._run(0)  # compiles the loop, or loads it, before anybody waits for it

    @property
    def n_unfinished(self) -> int:
        """Requests that came and have not ended."""
        return self._memory.n_unfinished

    @property
    def n_waiting(self) -> int:
        """Requests that wait."""
        return self._memory.n_waiting

    @property
    def n_running(self) -> int:
        """Requests that have a place in a batch."""
        return max(self.n_unfinished - self.n_waiting, 0)

    @property
    def kv_used_fraction(self) -> float:
        """KV blocks that are taken, of all."""
        n_free = int(self._memory.counters["n_free"].sum())
        return 1 - n_free / max(int(self._n_kv_blocks.sum()), 1)

    def submit(self, request: LiveRequest) -> None:
        """A request comes at its ``arrival_ns``, which is not before that of any other so far."""
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
        """The client of a submitted request goes away."""
        if request.slot in self._requests and request.slot not in self._leaving:
            self._leaving.add(request.slot)
            self._memory.note_abort(request.slot, when_ns)

    def advance(self, until_ns: int) -> int:
        """Do all that is due until then; when will the next thing be due if nobody comes or goes?

        ``FAR_NS``: never.
        """
        while True:
            outcome = self._run(until_ns)
            self._tell()
            next_ns = self._memory.next_event_ns()
            if outcome not in _RESUMABLE and next_ns > until_ns:
                return next_ns

    def _run(self, until_ns: int) -> Outcome:
        self._log.n_filled[0] = self._part_log.n_filled[0] = 0
        return Outcome(self._loop(*self._memory.handles, self._cost, *self._logs, until_ns))

    def _tell(self) -> None:
        """Tell the listener what the loop has logged, in order of time; of one instant, first who goes."""
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
        """Steps that were launched, and who has a first part in one."""
        n_launched = int(self._log.n_filled[0])
        ends_ns = self._log.start_ns[:n_launched] + self._log.duration_ns[:n_launched]
        self._ends_ns |= dict(enumerate(ends_ns.tolist(), self._n_steps))
        self._n_steps += n_launched
        slots = self._memory.newly_admitted(self._part_log.request_index[: self._n_parts])
        admitted = [self._requests[slot] for slot in slots]
        for request in admitted:
            row = self._memory.states.requests[request.slot]
            request.admitted_ns = int(row["admitted_ns"])
            request.num_cached_tokens = int(row["num_cached_tokens"])
        if n_launched:
            n_preempted = int(self._log.n_preempted_requests[:n_launched].sum())
            self._listener.on_scheduled(admitted, n_preempted)

    @property
    def _n_parts(self) -> int:
        return int(self._part_log.n_filled[0])

    def _deliveries(self) -> list[tuple[int, list[Delivery]]]:
        """Of each step that has ended: when, and who got how many tokens."""
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
        """Who has ended without a last token, and when?"""
        rows, found = self._memory.states.requests, list[tuple[int, LiveRequest]]()
        turned_away = self._memory.turned_away(self._requests)
        for slot in dict.fromkeys([*self._memory.take_ended(), *turned_away, *self._leaving]):
            status = int(rows[slot]["status"])
            if slot in self._requests and status in {Status.ABORTED, Status.REJECTED}:
                found.append((int(rows[slot]["finished_ns"]), self._requests[slot]))
        return found

    def _update(self, request: LiveRequest, n_tokens: int) -> None:
        """A request has got tokens: were they its last?"""
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


def _loop_of(fleet: Fleet, memory: LiveMemory) -> Callable[..., int]:
    kind = config.Kind(int(memory.states.config["kind"][0, 0]))
    if memory.is_alone:
        return loop.loop_of(kind)
    return loop.cluster_loop_of(
        kind,
        has_gate=fleet.gate is not None,
        is_split=fleet.prefill is not None,
        is_lockstep=fleet.replicas.in_lockstep,
    )
