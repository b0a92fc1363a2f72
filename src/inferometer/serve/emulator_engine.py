"""What does the engine do, and when, while requests come that nobody knew of?

The simulator's loop, one event at a time.

Mirrors ``simulate.reference.engine.Engine``, with arrivals and departures that are told while it
runs: a test holds both to the same nanosecond. It has no clock: whoever has one calls ``advance``
with the present, and again at the instant that it returns.
"""

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.engine_config import EngineConfig, n_stages_of
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.reference import price, stages
from inferometer.simulate.reference.batch import Batch, Delivery
from inferometer.simulate.reference.policy import policy_of
from inferometer.simulate.reference.request import Request, Status
from inferometer.simulate.step_statistics import step_statistics


class Listener(Protocol):
    """Whoever wants to know what the engine does; instants are virtual: when it is due, not when it is told."""

    def on_scheduled(self, batch: Batch, now_ns: int) -> None:
        """A step was decided."""
        ...

    def on_step(self, deliveries: Sequence[Delivery], now_ns: int) -> None:
        """A step has ended: who got how many tokens? Statuses say who has ended by that."""
        ...

    def on_dropped(self, request: Request, now_ns: int) -> None:
        """A request has ended before its last token: it was refused, or its client has gone."""
        ...


class _Phase(Enum):
    """What is the engine at?"""

    IDLE = 0
    """Nobody is there, or nobody can be served."""
    DECIDE = 1
    COMPUTE = 2
    """As many batches as may be are in flight."""


class _InFlight(NamedTuple):
    batch: Batch
    end_ns: int


class _Departure(NamedTuple):
    when_ns: int
    request: Request


class LiveEngine:
    """One engine: its scheduler, its device, and what is in flight."""

    def __init__(self, config: EngineConfig, cost: StepTimeArrays, listener: Listener) -> None:
        self.scheduler = policy_of(config)
        self.now_ns = 0
        self.n_unfinished = 0
        self._config = config
        self._cost = cost
        self._listener = listener
        self._phase = _Phase.IDLE
        self._stages = stages.Stages(n_stages_of(config))
        self._wake_ns = FAR_NS
        self._in_flight: deque[_InFlight] = deque()
        self._arrivals: deque[Request] = deque()
        self._departures: deque[_Departure] = deque()

    @property
    def n_running(self) -> int:
        """How many requests have a seat?"""
        return max(self.n_unfinished - self.scheduler.n_waiting, 0)

    def submit(self, request: Request) -> None:
        """A request comes at its ``arrival_ns``, which is not before that of any other so far."""
        self._arrivals.append(request)

    def abort(self, request: Request, when_ns: int) -> None:
        """The client of a submitted request goes away."""
        self._departures.append(_Departure(when_ns, request))

    def advance(self, until_ns: int) -> int:
        """Do all that is due until then; when will the next thing be due if nobody comes or goes?

        ``FAR_NS``: never.
        """
        while True:
            if self._phase is _Phase.DECIDE:
                self._decide()
            elif self._phase is _Phase.COMPUTE:
                if self._in_flight[0].end_ns > until_ns:
                    return self._in_flight[0].end_ns
                self._complete(self._in_flight.popleft())
            else:
                next_ns = self._next_event_ns()
                if next_ns > until_ns:
                    return next_ns
                self._wake(next_ns)

    def _decide(self) -> None:
        """Catch up with who has come and gone and decide a step, or find that there is nothing to decide."""
        self._catch_up(self.now_ns)
        self._wake_ns = FAR_NS
        if not self.scheduler.has_unfinished:
            self._phase = _Phase.COMPUTE if self._in_flight else _Phase.IDLE
            return
        launched = self._launch(self.scheduler.schedule(self.now_ns))
        is_idle = not launched.batch.scheduled and not any(
            flight.batch.scheduled for flight in self._in_flight
        )
        if is_idle and not launched.batch.preempted:
            self._in_flight.clear()
            self._phase = _Phase.IDLE
            return
        self._in_flight.append(launched)
        if len(self._in_flight) >= self._config.depth:
            self._phase = _Phase.COMPUTE

    def _launch(self, batch: Batch) -> _InFlight:
        """Give the batch to the device, which works it off behind what it has."""
        duration_ns = price.duration_ns(batch, step_statistics(batch), self._config, self._cost)
        passage = self._stages.work(
            self.now_ns, duration_ns, is_sampling=any(part.yields_token for part in batch.scheduled)
        )
        self._listener.on_scheduled(batch, self.now_ns)
        for request in batch.rejected:
            self._drop(request, self.now_ns)
        self._wake_ns = batch.wake_ns
        return _InFlight(batch, passage.end_ns)

    def _complete(self, oldest: _InFlight) -> None:
        """A batch is done: deliver what it yielded."""
        self.now_ns = max(self.now_ns, oldest.end_ns)
        self._catch_up(self.now_ns - 1)
        served = self.scheduler.update(oldest.batch)
        self.n_unfinished -= sum(request.status.is_finished for request, _ in served)
        self._phase = _Phase.DECIDE
        self._listener.on_step(served, self.now_ns)

    def _wake(self, when_ns: int) -> None:
        """Something happens while nothing is computed."""
        self.now_ns = max(self.now_ns, when_ns)
        self._phase = _Phase.DECIDE

    def _catch_up(self, until_ns: int) -> None:
        """Who has gone by now, and who has come until then, in order of time.

        At one instant who goes is before who comes.
        """
        while True:
            if self._departure_ns <= min(self._arrival_ns, self.now_ns):
                self._depart(self._departures.popleft())
            elif self._arrival_ns <= until_ns:
                self._take_in(self._arrivals.popleft())
            else:
                return

    def _take_in(self, request: Request) -> None:
        if request.status is not Status.UNSEEN:
            return  # its client has gone in the very instant
        self.n_unfinished += 1
        if request.num_prompt_tokens > self._config.max_prompt_tokens:
            request.status = Status.REJECTED
        else:
            self.scheduler.add(request)
        if request.status.is_finished:
            self._drop(request, request.arrival_ns)

    def _depart(self, departure: _Departure) -> None:
        when_ns, request = departure
        if request.status is Status.UNSEEN:
            request.status = Status.ABORTED
            self._listener.on_dropped(request, when_ns)
        elif not request.status.is_finished:
            self.scheduler.abort(request)
            self._drop(request, when_ns)

    def _drop(self, request: Request, when_ns: int) -> None:
        self.n_unfinished -= 1
        self._listener.on_dropped(request, when_ns)

    @property
    def _arrival_ns(self) -> int:
        return self._arrivals[0].arrival_ns if self._arrivals else FAR_NS

    @property
    def _departure_ns(self) -> int:
        return self._departures[0].when_ns if self._departures else FAR_NS

    def _next_event_ns(self) -> int:
        return min(self._arrival_ns, self._departure_ns, self._wake_ns)
