"""What happens when, from the first arrival to the last token? The engine's loop in plain Python.

Mirrors ``EngineCore.step`` and ``EngineCore.step_with_batch_queue`` of vLLM 0.32.0; see ``kernel_run`` for the order of events.
"""

from collections import deque
from heapq import heappop, heappush
from typing import NamedTuple

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.records.types import ABSENT
from inferometer.simulate import reference_price, step_statistics
from inferometer.simulate.demand import Demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.outcome import FAR_NS, Outcome, max_barren_steps
from inferometer.simulate.reference_batch import Batch
from inferometer.simulate.reference_policy import policy_of
from inferometer.simulate.reference_request import Request, Status


class _InFlight(NamedTuple):
    batch: Batch
    end_ns: int
    step_index: int


class Engine:
    """One engine: its clock, its device, and what is in flight."""

    def __init__(self, demand: Demand, requests: list[Request], config: EngineConfig, cost: StepTimeArrays, until_ns: int) -> None:
        self.scheduler = policy_of(config)
        self.requests = requests
        self.now_ns = 0
        self.admitted_ns = [ABSENT] * demand.n_requests
        self.first_token_ns = [ABSENT] * demand.n_requests
        self.finished_ns = [ABSENT] * demand.n_requests
        self.log: list[tuple[int, ...]] = []
        self.part_log: list[tuple[int, ...]] = []
        self._config = config
        self._cost = cost
        self._until_ns = until_ns
        self._device_free_ns = 0
        self._n_barren_steps = 0
        self._wake_ns = FAR_NS
        self._in_flight: deque[_InFlight] = deque()
        self._arrivals = [(request.arrival_ns, request.index) for request in self.requests if demand.follows[request.index] < 0]
        self._followers = {int(leader): i for i, leader in enumerate(demand.follows) if leader >= 0}
        self._demand = demand
        departures = [(int(when), i) for i, when in enumerate(demand.abort_ns) if when != ABSENT]
        self._departures = deque(sorted(departures))

    def run(self) -> Outcome:
        """Go on until all is done, the time is over, or no progress is possible."""
        while True:
            self._take_in()
            self._wake_ns = FAR_NS
            if self.scheduler.has_unfinished:
                launched = self._launch(self.scheduler.schedule(self.now_ns))
                is_idle = not launched.batch.scheduled and not any(flight.batch.scheduled for flight in self._in_flight)
                if is_idle and not launched.batch.preempted:
                    self._in_flight.clear()
                    if not self._jump():
                        return self._end_of_run()
                    continue
                self._in_flight.append(launched)
                if len(self._in_flight) < self._config.depth:
                    continue
            elif not self._in_flight:
                if not self._jump():
                    return self._end_of_run()
                continue
            if self._in_flight[0].end_ns > self._until_ns:
                self.now_ns = self._until_ns
                self._drop_aborted()
                self._take_in()
                return Outcome.HORIZON
            self._complete(self._in_flight.popleft())
            if self._n_barren_steps > max_barren_steps(self._config.max_model_len):
                return Outcome.LIVELOCK

    def _take_in(self) -> None:
        while self._arrivals and self._arrivals[0][0] <= self.now_ns:
            request = self.requests[heappop(self._arrivals)[1]]
            if request.status is not Status.UNSEEN:
                continue  # its client has gone already
            if request.num_prompt_tokens >= self._config.max_model_len:
                request.status = Status.REJECTED
            else:
                self.scheduler.add(request)
            if request.status.is_finished:
                self._end(request, request.arrival_ns)

    def _drop_aborted(self) -> None:
        while self._departures and self._departures[0][0] <= self.now_ns:
            when_ns, index = self._departures.popleft()
            request = self.requests[index]
            if request.status.is_finished:
                continue
            if request.status is Status.UNSEEN:
                request.status = Status.ABORTED
            else:
                self.scheduler.abort(request)
            self._end(request, when_ns)

    def _end(self, request: Request, when_ns: int) -> None:
        """A request has ended; whoever follows it will be sent."""
        self.finished_ns[request.index] = when_ns
        if request.index in self._followers:
            after = self.requests[self._followers[request.index]]
            after.arrival_ns = max(int(self._demand.arrival_ns[after.index]), when_ns + int(self._demand.think_ns[after.index]))
            heappush(self._arrivals, (after.arrival_ns, after.index))

    def _launch(self, batch: Batch) -> _InFlight:
        """Give the batch to the device, which works it off behind what it has, and log it."""
        step = step_statistics.step_statistics(batch)
        start_ns = max(self.now_ns, self._device_free_ns)
        self._device_free_ns = start_ns
        self._device_free_ns += reference_price.duration_ns(batch, step, self._config, self._cost)
        for part in batch.scheduled:
            if self.admitted_ns[part.request.index] == ABSENT:
                self.admitted_ns[part.request.index] = self.now_ns
        for request in batch.rejected:
            self._end(request, self.now_ns)
        self._wake_ns = batch.wake_ns
        self._n_barren_steps += bool(batch.preempted)
        if batch.scheduled or batch.preempted:
            duration = self._device_free_ns - start_ns
            counts = (step.n_prefill_requests, step.n_decode_requests, len(self.scheduler.waiting), len(batch.preempted))
            memory = (self.scheduler.n_kv_blocks_used, *(batch.holes or (ABSENT, ABSENT, ABSENT)))
            self.log.append((start_ns, duration, *counts, *step[2:], *memory))
        return _InFlight(batch, self._device_free_ns, len(self.log) - 1)

    def _complete(self, oldest: _InFlight) -> None:
        """Wait for a batch and deliver what it yielded."""
        self.now_ns = max(self.now_ns, oldest.end_ns)
        self._drop_aborted()
        served = self.scheduler.update(oldest.batch)
        delivered = {request.index: num_tokens for request, num_tokens in served}
        for part in oldest.batch.scheduled:
            row = (part.request.index, part.seat, part.kind, part.num_tokens, delivered.get(part.request.index, 0))
            self.part_log.append((oldest.step_index, *row))
        for request, _ in served:
            self._n_barren_steps = 0
            if self.first_token_ns[request.index] == ABSENT:
                self.first_token_ns[request.index] = self.now_ns
            if request.status.is_finished:
                self._end(request, self.now_ns)

    def _next_event_ns(self) -> int:
        arrival = self._arrivals[0][0] if self._arrivals else FAR_NS
        return min(arrival, self._departures[0][0] if self._departures else FAR_NS, self._wake_ns)

    def _jump(self) -> bool:
        """Nothing can be done now: go to when something can; False where that is never, or not in time."""
        when_ns = self._next_event_ns()
        if when_ns == FAR_NS or when_ns > self._until_ns:
            return False
        self.now_ns = max(self.now_ns, when_ns)
        self._take_in()
        self._drop_aborted()
        return True

    def _end_of_run(self) -> Outcome:
        """Nothing will happen any more, or not in time: how did it end?"""
        if self.scheduler.has_unfinished:
            return Outcome.STUCK if self._next_event_ns() == FAR_NS else Outcome.HORIZON
        return Outcome.HORIZON if self._arrivals else Outcome.FINISHED


__all__ = ["Engine"]
