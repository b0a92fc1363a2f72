"""One way to drive any scheduler through a case, and to see all of its state after every call."""

from collections import deque
from typing import NamedTuple, Protocol

from cases import Case
from reference.request import Request
from reference.vllm import Scheduler

from inferometer.simulate.outcome import Status


class State(NamedTuple):
    """All that the scheduler has decided so far; requests by index."""

    scheduled: tuple[tuple[int, int], ...]
    """(request, tokens) in order; empty after an update."""
    preempted: tuple[int, ...]
    """Sorted: the real one tells a set."""
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    computed: tuple[int, ...]
    """Computed tokens of those that run."""
    blocks: tuple[tuple[int, ...], ...]
    """Block ids of those that run."""
    free_queue: tuple[int, ...]


class Driver(Protocol):
    def add(self, index: int) -> None: ...
    def schedule(self) -> None: ...
    def update(self) -> None: ...
    def abort(self, index: int) -> None: ...
    def has_unfinished(self) -> bool: ...
    def state(self) -> State: ...


def drive(case: Case, drivers: list[Driver]):
    """Drive all through the case; yields what they say after each call: (step, call, states)."""
    n_arrived, n_in_flight, n_idle = 0, 0, 0
    last_arrival = case.requests[-1].arrival_step
    last_event = max(last_arrival, *(request.abort_step or 0 for request in case.requests))
    for step in range(case.max_steps):
        while n_arrived < len(case.requests) and case.requests[n_arrived].arrival_step <= step:
            each(drivers, "add", n_arrived)
            n_arrived += 1
        if step > last_arrival and n_in_flight == 0 and not drivers[0].has_unfinished():
            return
        if step > last_event and n_idle > case.config.depth:
            return  # what waits will never fit
        each(drivers, "schedule")
        n_in_flight += 1
        states = [driver.state() for driver in drivers]
        yield step, "schedule", states
        n_idle = 0 if states[0].scheduled or states[0].preempted else n_idle + 1
        if n_in_flight < case.config.depth and drivers[0].has_unfinished():
            continue
        for index, request in enumerate(case.requests[:n_arrived]):
            if request.abort_step == step:
                each(drivers, "abort", index)
        n_updates = n_in_flight if step in case.drain_steps else 1
        for _ in range(n_updates):
            each(drivers, "update")
            yield step, "update", [driver.state() for driver in drivers]
        n_in_flight -= n_updates


def flat(tables) -> tuple[int, ...]:
    """Of several groups of layers: one table behind the other."""
    if tables and isinstance(tables[0], list):
        return tuple(block for table in tables for block in table)
    return tuple(tables)


def each(drivers, method, *arguments):
    for driver in drivers:
        getattr(driver, method)(*arguments)


class ReferenceDriver:
    def __init__(self, case: Case) -> None:
        self.scheduler = Scheduler(case.config)
        contents = case.contents()
        self.requests = [
            Request(
                i,
                arrival_ns=request.arrival,
                prompt=len(request.prompt),
                stop=len(request.outputs),
                max_tokens=request.max_tokens,
                priority=request.priority,
                contents=contents[i],
            )
            for i, request in enumerate(case.requests)
        ]
        self.in_flight = deque()
        self.batch = None

    def add(self, index):
        self.scheduler.add(self.requests[index])

    def schedule(self):
        self.batch = self.scheduler.schedule()
        self.in_flight.append(self.batch)

    def update(self):
        self.batch = None
        self.scheduler.update(self.in_flight.popleft())

    def abort(self, index):
        if self.requests[index].status is not Status.UNSEEN:
            self.scheduler.abort(self.requests[index])

    def has_unfinished(self):
        return self.scheduler.has_unfinished

    def state(self):
        running = self.scheduler.running
        batch = self.batch
        return State(
            scheduled=tuple((part.request.index, part.num_tokens) for part in batch.scheduled)
            if batch
            else (),
            preempted=tuple(sorted(request.index for request in batch.preempted)) if batch else (),
            running=tuple(request.index for request in running),
            waiting=tuple(request.index for request in self.scheduler.waiting.in_order()),
            computed=tuple(request.num_computed_tokens for request in running),
            blocks=tuple(flat(request.blocks) for request in running),
            free_queue=tuple(self.scheduler.kv_cache.pool.free_queue),
        )
