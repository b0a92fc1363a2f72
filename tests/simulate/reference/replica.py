"""What does one replica do: take requests in, launch batches, finish them?

In plain Python; the loops call it, one replica or many.

Mirrors ``EngineCore.step`` and ``EngineCore.step_with_batch_queue`` of vLLM 0.32.0;
``kernel/steps.py`` does the same on arrays.
"""

from collections import deque
from typing import NamedTuple

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.types import ABSENT
from inferometer.simulate import engine_config, scheduler_config
from inferometer.simulate.outcome import FAR_NS, Status, max_barren_steps
from reference import log as reference_log, price, router, step_statistics, vllm
from reference.batch import Batch
from reference.clients import Clients
from reference.policy import Policy, policy_of
from reference.request import Request
from reference.stages import Stages


class _Decided(NamedTuple):
    """A step of a group that is decided, and has not begun."""

    batch: Batch
    step: step_statistics.StepStatistics


class _InFlight(NamedTuple):
    batch: Batch
    end_ns: int
    busy_ns: int
    step_index: int


class Replica:
    """One engine: its clock, its device, and what is in flight."""

    def __init__(
        self,
        config: engine_config.EngineConfig,
        cost: StepTimeArrays,
        clients: Clients,
        log: reference_log.Log,
        number: int = 0,
        scheduler: Policy | None = None,
    ) -> None:
        self.scheduler = policy_of(config) if scheduler is None else scheduler
        self.now_ns = 0
        self.busy_ns = 0
        """The time of steps that are done, on the mean stage."""
        self.n_inside = 0
        """Requests that were taken in and have not ended."""
        self.number = number
        self.ended: list[Request] = []
        """Who has ended here, until somebody takes them out."""
        self.prefilled: list[Request] = []
        """Whose prompt is computed here, and whose answer is not for here."""
        self._config = config
        self._n_instances = config.n_instances
        self._cost = cost
        self._clients = clients
        self._log = log
        self._n_stages = engine_config.n_stages_of(config)
        self._stages = Stages(self._n_stages)
        self._n_barren_steps = 0
        self._wake_ns = FAR_NS
        self._in_flight: deque[_InFlight] = deque()
        self._decided: deque[_Decided] = deque()

    @property
    def is_computing(self) -> bool:
        """Is a batch in flight?"""
        return bool(self._in_flight)

    @property
    def is_idle(self) -> bool:
        """Is there a device that does nothing?"""
        return len(self._in_flight) < self._n_instances

    @property
    def ready_ns(self) -> int:
        """When is the first batch in flight done, or a wait over?"""
        return (
            min(self._in_flight[self._i_first].end_ns, self._wake_ns)
            if self._in_flight
            else self._wake_ns
        )

    @property
    def _i_first(self) -> int:
        """Which batch in flight is done first?"""
        return min(
            range(len(self._in_flight)),
            key=lambda i: (self._in_flight[i].end_ns, self._in_flight[i].batch.instance),
        )

    def report(self) -> router.Report:
        """How much has it to do?"""
        n_waiting = self.scheduler.n_waiting
        return router.Report(n_waiting, self.n_inside - n_waiting, self.scheduler.n_kv_blocks_used)

    @property
    def kv_cache(self) -> object:
        """Where the engine keeps what requests have computed; None of engines other than vLLM."""
        return getattr(self.scheduler, "kv_cache", None)

    @property
    def n_free_tokens(self) -> int:
        """For how many tokens is there memory that nobody holds?"""
        n_free = self._config.n_kv_blocks - self.scheduler.n_kv_blocks_used
        return n_free // getattr(self._config, "n_kv_groups", 1) * self._config.block_size

    def take(self, request: Request) -> None:
        """A request comes to this replica."""
        self._clients.replica[request.index] = self.number
        self.n_inside += 1
        if request.num_prompt_tokens > self._config.max_prompt_tokens:
            request.status = Status.REJECTED
        else:
            self.scheduler.add(request)
        if request.status.is_finished:
            self._end(request, request.arrival_ns)

    def drop(self, request: Request, when_ns: int) -> None:
        """The client of a request that was taken in has gone."""
        if not request.status.is_finished:
            self.scheduler.abort(request)
            self._end(request, when_ns)

    def fill(self) -> bool:
        """Launch batches until as many are in flight as may be; False where none is: nothing can be done now."""
        self._wake_ns = FAR_NS
        while len(self._in_flight) < self._config.depth and self.scheduler.has_unfinished:
            launched = self._launch(self.scheduler.schedule(self.now_ns))
            n_busy = sum(bool(flight.batch.scheduled) for flight in self._in_flight)
            is_idle = not launched.batch.scheduled and (self._n_instances > 1 or n_busy == 0)
            if is_idle and not launched.batch.preempted:
                if n_busy == 0:
                    self._in_flight.clear()
                break
            self._in_flight.append(launched)
        return bool(self._in_flight)

    def joins(self) -> bool:
        """Has it a part in the step of its group that begins now?

        It decides that now, if it did not before.
        """
        if not self._decided:
            self._decide()
        return bool(self._decided)

    @property
    def has_decided(self) -> bool:
        """Is its part of the next step of its group decided?"""
        return bool(self._decided)

    def decide_ahead(self, *, takes_part: bool = True) -> None:
        """While a step of its group runs, what is next is decided, where the engine does that."""
        n_most = self._config.depth - (not takes_part)
        while len(self._in_flight) + len(self._decided) < n_most and self._decide():
            pass

    def own_rows(self) -> price.SharedRows:
        """What its part in the next step adds to the rows of the group."""
        return price.rows_of(*self._decided[0])

    def own_duration_ns(self, shared: price.SharedRows) -> int:
        """How long would its part in the next step take, if the others waited for nothing else?"""
        return price.duration_ns(*self._decided[0], self._config, self._cost, shared)

    def begin(self, duration_ns: int) -> None:
        """Its part in the step of the group begins, and takes as long as everybody's."""
        batch, step = self._decided.popleft()
        self._note(batch, step, self.now_ns, duration_ns)
        self._in_flight.append(
            _InFlight(batch, self.now_ns + duration_ns, duration_ns, len(self._log.steps) - 1)
        )

    def complete_oldest(self) -> bool:
        """If the first batch in flight is done, deliver what it yielded.

        False where requests preempt one another for ever.
        """
        oldest = self._in_flight[self._i_first]
        if oldest.end_ns > self.now_ns:
            return True  # a wait is over
        del self._in_flight[self._i_first]
        self.busy_ns += oldest.busy_ns
        served = self.scheduler.update(oldest.batch)
        delivered = {request.index: num_tokens for request, num_tokens in served}
        for part in oldest.batch.scheduled:
            row = (
                part.request.index,
                part.slot,
                part.kind,
                part.num_tokens,
                delivered.get(part.request.index, 0),
            )
            self._log.parts.append((oldest.step_index, *row))
        for request, num_tokens in served:
            self._n_barren_steps = 0
            if num_tokens > 0 and self._clients.first_token_ns[request.index] == ABSENT:
                self._clients.first_token_ns[request.index] = self.now_ns
            if request.status is Status.PREFILLED:
                self.n_inside -= 1
                self.prefilled.append(request)
            elif request.status.is_finished:
                self._end(request, self.now_ns)
        return self._n_barren_steps <= max_barren_steps(self._config.max_model_len)

    def _launch(self, batch: Batch) -> _InFlight:
        """Give the batch to the device, which works it off behind what it has, and log it."""
        step = step_statistics.step_statistics(batch)
        duration_ns = price.duration_ns(batch, step, self._config, self._cost)
        stages = self._stages if self._n_instances == 1 else Stages(1)  # each works by itself
        start_ns, end_ns = stages.work(
            self.now_ns, duration_ns, is_sampling=any(part.yields_token for part in batch.scheduled)
        )
        self._admit(batch)
        for request in batch.rejected:
            self._end(request, self.now_ns)
        self._wake_ns = batch.wake_ns
        self._note(batch, step, start_ns, end_ns - start_ns)
        return _InFlight(batch, end_ns, duration_ns // self._n_stages, len(self._log.steps) - 1)

    def _decide(self) -> bool:
        """Decide the step behind those that are decided; False where nothing can be done in it."""
        if not self.scheduler.has_unfinished:
            return False
        batch = self.scheduler.schedule(self.now_ns)
        self._admit(batch)
        if not batch.scheduled and not batch.preempted:
            return False
        self._decided.append(_Decided(batch, step_statistics.step_statistics(batch)))
        return True

    def _admit(self, batch: Batch) -> None:
        """Whose first part is this?"""
        for part in batch.scheduled:
            if self._clients.admitted_ns[part.request.index] == ABSENT:
                self._clients.admitted_ns[part.request.index] = self.now_ns

    def _note(
        self, batch: Batch, step: step_statistics.StepStatistics, start_ns: int, duration_ns: int
    ) -> None:
        """Log a batch that computes or that cost somebody his place."""
        self._n_barren_steps += bool(batch.preempted)
        if batch.scheduled or batch.preempted:
            if isinstance(self.scheduler, vllm.Scheduler) and self.scheduler.pooled is not None:
                self.scheduler.pooled.note(self.scheduler.running, duration_ns)
            counts = (
                step.n_prefill_requests,
                step.n_decode_requests,
                self.scheduler.n_waiting,
                len(batch.preempted),
            )
            memory = (
                self.scheduler.n_kv_blocks_used,
                self.number,
                *(batch.holes or (ABSENT,) * 4),
                self._swapped_blocks(batch),
            )
            self._log.steps.append((start_ns, duration_ns, *counts, *step[2:], *memory))

    def _swapped_blocks(self, batch: Batch) -> int:
        config = self._config
        return (
            batch.num_swapped_blocks
            if isinstance(config, scheduler_config.SchedulerConfig) and config.n_host_blocks > 0
            else ABSENT
        )

    def _end(self, request: Request, when_ns: int) -> None:
        self.n_inside -= 1
        self.ended.append(request)
        self._clients.end(request, when_ns)
