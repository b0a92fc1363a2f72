"""Which requests form the next batch, and what does it compute until its last row stops?

In plain Python.

The forming mirrors ``DynamicBatchScheduler::GetDynamicBatch`` and ``PriorityQueue`` of Triton's
core (``src/``, commits 01ea7d90 and 05295b70) for requests of batch size 1: without its rules it is
static batching, with one row none at all. ``kernel/batches.py`` does the same on arrays.
"""

from bisect import insort
from collections import deque
from typing import NamedTuple

from inferometer.records.types import PartKind
from inferometer.simulate.batch_config import BatchConfig
from inferometer.simulate.outcome import FAR_NS, Status
from reference.batch import Batch, Delivery, Scheduled, Slots
from reference.request import Request


class _Formed(NamedTuple):
    """What the walk through the queue led to.

    How many of the first leave now, or when to look again, and who was refused.
    """

    n_sent: int
    wake_ns: int
    rejected: tuple[Request, ...]


class _Instance:
    """A device that runs one batch after the other; as long as one runs nobody joins."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: list[Request] = []
        """Of its batch, those that have stopped too."""
        self.n_kv_blocks_used = 0
        self.is_computing = False


class BatchScheduler:
    """One queue, and instances that take whole batches from it."""

    def __init__(self, config: BatchConfig) -> None:
        self._config = config
        self._rules = config.rules
        self._slots = Slots(config.max_num_active)
        self._delayed = set[int]()
        self.n_evicted = 0
        self.waiting: list[Request] = []
        """In order of urgency, then those that did not wait too long, then of arrival."""
        self._instances = [_Instance(number) for number in range(config.rules.n_instances)]
        self._unanswered = deque[Request]()
        """Where order is preserved: who left the queue, in order, until its answer is given."""
        self._computed = set[int]()
        """Of these, whose batch is over."""

    @property
    def n_waiting(self) -> int:
        """How many wait?"""
        return len(self.waiting)

    @property
    def n_kv_blocks_used(self) -> int:
        """How many blocks are reserved?"""
        return sum(instance.n_kv_blocks_used for instance in self._instances)

    @property
    def has_unfinished(self) -> bool:
        """Is anyone running or waiting?"""
        return bool(self.waiting) or any(instance.rows for instance in self._instances)

    def add(self, request: Request) -> None:
        """A request arrives; where the queue of its level is full it is refused."""
        n_queued = sum(self._level(other) == self._level(request) for other in self.waiting)
        if 0 < self._rules.max_queue_size <= n_queued:
            request.status = Status.REJECTED
            return
        request.status = Status.WAITING
        insort(self.waiting, request, key=self._order)

    def schedule(self, now_ns: int) -> Batch:
        """The next step of a batch, or the first one of a new batch, or nothing yet; some instance must be idle."""
        formed = _Formed(0, FAR_NS, ())
        instance = min(
            (one for one in self._instances if not one.is_computing), key=lambda one: not one.rows
        )
        if not instance.rows:
            formed = self._form(now_ns)
            instance.rows, self.waiting = (
                self.waiting[: formed.n_sent],
                self.waiting[formed.n_sent :],
            )
            for request in instance.rows:
                request.status = Status.RUNNING
                self._slots.take(request)
            self._unanswered.extend(instance.rows if self._rules.is_preserving else ())
            instance.n_kv_blocks_used = self._n_blocks(instance.rows)
        instance.is_computing = bool(instance.rows)
        is_context = bool(instance.rows) and instance.rows[0].num_computed_tokens == 0
        scheduled = tuple(self._launch(request) for request in instance.rows)
        longest = max((request.num_prompt_tokens for request in instance.rows), default=0)
        n_padding = (
            sum(longest - request.num_prompt_tokens for request in instance.rows)
            if is_context
            else 0
        )
        return Batch(
            scheduled,
            rejected=formed.rejected,
            num_padding_tokens=n_padding,
            wake_ns=formed.wake_ns,
            instance=instance.number,
        )

    def update(self, batch: Batch) -> list[Delivery]:
        """Process a step: each live row has one token more; when the last one has all of its tokens the batch is over."""
        instance = self._instances[batch.instance]
        instance.is_computing = False
        live = [request for request in instance.rows if request.status is Status.RUNNING]
        is_over = all(_n_outputs(request) >= self._n_wanted(request) for request in live)
        if self._rules.is_streaming:
            served = [self._deliver(request, 1) for request in live]
        else:
            served = [
                self._deliver(request, self._n_wanted(request))
                for request in self._answered(instance, is_over=is_over)
            ]
        if is_over:
            for request in instance.rows:
                self._slots.release(request)
            instance.rows, instance.n_kv_blocks_used = [], 0
        return served

    def abort(self, request: Request) -> None:
        """A client has gone.

        Its row, where it has one, is computed on with the others, which do not wait for it.
        """
        if request.status is Status.WAITING:
            self.waiting.remove(request)
        request.status = Status.ABORTED

    def _answered(self, instance: _Instance, *, is_over: bool) -> list[Request]:
        """Who gets its answer now: the rows of a batch that is over, or in order whoever waits for nobody's any more."""
        if not is_over or not self._rules.is_preserving:
            return [
                request for request in instance.rows if is_over and request.status is Status.RUNNING
            ]
        self._computed.update(request.index for request in instance.rows)
        answered = list[Request]()
        while self._unanswered and self._unanswered[0].index in self._computed:
            answered.append(self._unanswered.popleft())
        return [request for request in answered if request.status is Status.RUNNING]

    def _deliver(self, request: Request, n_tokens: int) -> Delivery:
        """So many tokens more; a request that has all that it wants ends."""
        request.num_tokens += n_tokens
        if request.num_output_tokens == self._n_wanted(request):
            is_stopped = request.num_output_tokens == request.stop_tokens < request.max_tokens
            request.status = Status.STOPPED if is_stopped else Status.LENGTH
        return Delivery(request, n_tokens)

    def _form(self, now_ns: int) -> _Formed:
        """Walk through the queue from its front: who would leave, and is it time?"""
        rules, rejected = self._rules, list[Request]()
        n_pending, best, is_full = 0, 0, False
        while True:
            self._apply_timeouts(n_pending, now_ns, rejected)
            if n_pending == len(self.waiting):
                break
            is_full = (
                n_pending == rules.max_batch_size
                or self._n_blocks(self.waiting[: n_pending + 1]) > self._config.num_blocks
            )
            if is_full:
                break
            n_pending += 1
            if n_pending in rules.preferred_batch_size:
                best = n_pending
        if n_pending == 0:
            return _Formed(0, FAR_NS, tuple(rejected))
        pending = self.waiting[:n_pending]
        due_ns = min(request.arrival_ns for request in pending) + rules.max_delay_ns
        if best and (rules.max_delay_ns == 0 or now_ns < due_ns):
            return _Formed(best, FAR_NS, tuple(rejected))
        if is_full or n_pending >= rules.largest or now_ns >= due_ns:
            return _Formed(n_pending, FAR_NS, tuple(rejected))
        timeouts = [
            request.arrival_ns + rules.timeout_ns + 1
            for request in pending
            if rules.timeout_ns and not self._is_delayed(request)
        ]
        return _Formed(0, min([due_ns, *timeouts]), tuple(rejected))

    def _apply_timeouts(self, cursor: int, now_ns: int, rejected: list[Request]) -> None:
        """Whoever at the cursor has waited too long is refused or goes behind those of its level."""
        while cursor < len(self.waiting) and self._is_expired(self.waiting[cursor], now_ns):
            request = self.waiting.pop(cursor)
            if self._rules.is_delaying:
                self._delayed.add(request.index)
                insort(self.waiting, request, key=self._order)
            else:
                request.status = Status.REJECTED
                rejected.append(request)

    def _launch(self, request: Request) -> Scheduled:
        """One row of a step; a row that has stopped is computed on."""
        num_before = request.num_computed_tokens
        num_tokens = 1 if num_before else request.num_prompt_tokens
        is_live = request.status is Status.RUNNING and (
            num_before == 0 or _n_outputs(request) < self._n_wanted(request)
        )
        kind = (
            PartKind.CONTEXT
            if num_before == 0
            else PartKind.GENERATION
            if is_live
            else PartKind.ENDED
        )
        request.num_computed_tokens += num_tokens
        return Scheduled(request, num_tokens, num_before, kind, is_live, request.slot)

    def _n_wanted(self, request: Request) -> int:
        """After how many tokens does this request stop?"""
        return min(request.stop_tokens, self._n_allowed(request))

    def _n_allowed(self, request: Request) -> int:
        return min(request.max_tokens, self._config.max_model_len - request.num_prompt_tokens)

    def _n_blocks(self, rows: list[Request]) -> int:
        """How many blocks are reserved for such a batch?"""
        if not rows:
            return 0
        n_tokens = max(request.num_prompt_tokens for request in rows) + max(
            self._n_allowed(request) for request in rows
        )
        return len(rows) * -(-n_tokens // self._config.block_size)

    def _level(self, request: Request) -> int:
        return request.priority if self._rules.has_priorities else 0

    def _order(self, request: Request) -> tuple[int, bool, int, int]:
        return (self._level(request), self._is_delayed(request), request.arrival_ns, request.index)

    def _is_delayed(self, request: Request) -> bool:
        return request.index in self._delayed

    def _is_expired(self, request: Request, now_ns: int) -> bool:
        return 0 < self._rules.timeout_ns < now_ns - request.arrival_ns and not self._is_delayed(
            request
        )


def _n_outputs(request: Request) -> int:
    """Tokens that its row has yielded, wanted or not: the prompt's step yields one."""
    return request.num_computed_tokens - request.num_prompt_tokens + 1
