"""What would happen? The plain simulator: the engine's loop in Python, to be read and to hold the compiled one to.

Mirrors ``EngineCore.step`` and ``EngineCore.step_with_batch_queue`` of vLLM 0.32.0; see ``kernel_run`` for the order of events.
"""

from collections import deque
from typing import NamedTuple

import numpy as np

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.records.types import ABSENT, PartKind
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.outcome import FAR_NS, Outcome, RequestFacts, Simulation, StepLog, max_barren_steps, simulation
from inferometer.simulate.reference_batch import Batch
from inferometer.simulate.reference_policy import policy_of
from inferometer.simulate.reference_request import Request, Status
from inferometer.simulate.step_cost import duration_ns


class _InFlight(NamedTuple):
    batch: Batch
    end_ns: int


class _Engine:
    """One engine: its clock, its device, and what is in flight."""

    def __init__(self, demand: Demand, config: EngineConfig, cost: StepTimeArrays, until_ns: int) -> None:
        self.scheduler = policy_of(config)
        self.requests = _requests(demand)
        self.now_ns = 0
        self.admitted_ns = [ABSENT] * demand.n_requests
        self.first_token_ns = [ABSENT] * demand.n_requests
        self.finished_ns = [ABSENT] * demand.n_requests
        self.log: list[tuple[int, ...]] = []
        self._config = config
        self._cost = cost
        self._until_ns = until_ns
        self._device_free_ns = 0
        self._n_barren_steps = 0
        self._wake_ns = FAR_NS
        self._in_flight: deque[_InFlight] = deque()
        self._arrivals = deque(self.requests)
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
                return Outcome.HORIZON
            self._complete(self._in_flight.popleft())
            if self._n_barren_steps > max_barren_steps(self._config.max_model_len):
                return Outcome.LIVELOCK

    def _take_in(self) -> None:
        while self._arrivals and self._arrivals[0].arrival_ns <= self.now_ns:
            request = self._arrivals.popleft()
            if request.status is not Status.UNSEEN:
                continue  # its client has gone already
            if request.num_prompt_tokens >= self._config.max_model_len:
                request.status = Status.REJECTED
                self.finished_ns[request.index] = request.arrival_ns
                continue
            self.scheduler.add(request)
            if request.status.is_finished:
                self.finished_ns[request.index] = request.arrival_ns

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
            self.finished_ns[index] = when_ns

    def _launch(self, batch: Batch) -> _InFlight:
        """Give the batch to the device, which works it off behind what it has, and log it."""
        prefills = [part for part in batch.scheduled if part.kind is PartKind.CONTEXT]
        decodes = [part for part in batch.scheduled if part.kind is not PartKind.CONTEXT]
        prefill_tokens = sum(part.num_tokens for part in prefills) + batch.num_padding_tokens
        pairs = sum(part.num_tokens * part.num_computed_tokens + part.num_tokens * (part.num_tokens + 1) // 2 for part in prefills)
        context = sum(part.num_computed_tokens + part.num_tokens for part in decodes)
        start_ns = max(self.now_ns, self._device_free_ns)
        self._device_free_ns = start_ns
        if batch.scheduled:
            self._device_free_ns += duration_ns(self._cost, len(prefills), len(decodes), prefill_tokens, pairs, context)
        for part in batch.scheduled:
            if self.admitted_ns[part.request.index] == ABSENT:
                self.admitted_ns[part.request.index] = self.now_ns
        for request in batch.rejected:
            self.finished_ns[request.index] = self.now_ns
        self._wake_ns = batch.wake_ns
        self._n_barren_steps += bool(batch.preempted)
        if batch.scheduled or batch.preempted:
            duration = self._device_free_ns - start_ns
            counts = (len(prefills), len(decodes), len(self.scheduler.waiting), len(batch.preempted))
            self.log.append((start_ns, duration, *counts, prefill_tokens, pairs, context, self.scheduler.n_kv_blocks_used))
        return _InFlight(batch, self._device_free_ns)

    def _complete(self, oldest: _InFlight) -> None:
        """Wait for a batch and deliver what it yielded."""
        self.now_ns = max(self.now_ns, oldest.end_ns)
        self._drop_aborted()
        for request, _ in self.scheduler.update(oldest.batch):
            self._n_barren_steps = 0
            if self.first_token_ns[request.index] == ABSENT:
                self.first_token_ns[request.index] = self.now_ns
            if request.status.is_finished:
                self.finished_ns[request.index] = self.now_ns

    def _next_event_ns(self) -> int:
        arrival = self._arrivals[0].arrival_ns if self._arrivals else FAR_NS
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


def simulate_plainly(requests: Demand, config: EngineConfig, cost: StepTimeArrays, *, until_ns: int | None = None) -> Simulation:
    """What becomes of these requests? The same as ``kernel.simulate``, some hundred times slower."""
    requests = contents_checked(requests, config)
    engine = _Engine(requests, config, cost, FAR_NS if until_ns is None else until_ns)
    outcome = engine.run()
    facts = RequestFacts(
        status=_column([request.status for request in engine.requests]),
        admitted_ns=_column(engine.admitted_ns),
        first_token_ns=_column(engine.first_token_ns),
        finished_ns=_column(engine.finished_ns),
        num_tokens=_column([request.num_tokens for request in engine.requests]),
        num_cached_tokens=_column([request.num_cached_tokens for request in engine.requests]),
        num_preemptions=_column([request.num_preemptions for request in engine.requests]),
    )
    rows = np.array(engine.log, dtype=np.int64).reshape(len(engine.log), len(StepLog._fields) - 1)
    log = StepLog._make([*rows.T, _column([len(rows)])])
    end_ns = until_ns if outcome is Outcome.HORIZON and until_ns is not None else engine.now_ns
    return simulation(requests, facts, [log], outcome=outcome, end_ns=end_ns)


def _requests(demand: Demand) -> list[Request]:
    start, contents = demand.content_start.tolist(), demand.contents.tolist()
    columns = zip(
        demand.arrival_ns.tolist(),
        demand.prompt_tokens.tolist(),
        demand.output_tokens.tolist(),
        demand.max_tokens.tolist(),
        demand.priority.tolist(),
        strict=True,
    )
    return [
        Request(
            i, arrival_ns=arrival, prompt=prompt, stop=stop, max_tokens=most, priority=priority, contents=contents[start[i] : start[i + 1]]
        )
        for i, (arrival, prompt, stop, most, priority) in enumerate(columns)
    ]


def _column(values: list[int] | list[Status]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


__all__ = ["simulate_plainly"]
