"""Which requests compute how many tokens in the next step?

vLLM's v1 scheduler in plain Python, to be read.

Mirrors ``Scheduler`` and ``AsyncScheduler`` of vLLM 0.32.0 (``vllm/v1/core/sched``): one group of
full-attention layers, no connectors, no pipeline parallelism. ``kernel/vllm.py`` does the same on
arrays; tests hold both to the real one.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterable

from inferometer.records.types import PartKind
from inferometer.simulate.outcome import Status
from inferometer.simulate.scheduler_config import SchedulerConfig, n_accepted
from reference.batch import Batch, Delivery, Scheduled, Slots, launch
from reference.blocks import KvCache
from reference.groups import GroupedKvCache
from reference.holes import ContiguousKvCache
from reference.pools import PooledKvCache
from reference.request import Request


class WaitingQueue:
    """Who is next? First come, first served, or the most urgent first."""

    def __init__(self, *, is_priority: bool) -> None:
        self._is_priority = is_priority
        self._requests: deque[Request] = deque()
        self._by_order: list[Request] = []

    def __len__(self) -> int:
        return len(self._by_order) if self._is_priority else len(self._requests)

    def add(self, request: Request) -> None:
        """A request joins at the end, or where its priority puts it."""
        if self._is_priority:
            insort(self._by_order, request, key=lambda other: other.order)
        else:
            self._requests.append(request)

    def put_back(self, request: Request) -> None:
        """A request that was taken out goes to the front, or where its priority puts it."""
        if self._is_priority:
            self.add(request)
        else:
            self._requests.appendleft(request)

    def peek(self) -> Request:
        """The next one, which stays."""
        return self._by_order[0] if self._is_priority else self._requests[0]

    def pop(self) -> Request:
        """The next one, which leaves."""
        return self._by_order.pop(0) if self._is_priority else self._requests.popleft()

    def remove(self, request: Request) -> None:
        """A request leaves from anywhere."""
        (self._by_order if self._is_priority else self._requests).remove(request)

    def in_order(self) -> list[Request]:
        """All that wait, next one first."""
        return list(self._by_order if self._is_priority else self._requests)


class Scheduler:
    """Call ``schedule``, compute, ``update``.

    In asynchronous mode ``schedule`` the next step before ``update`` of the last.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._contiguous = ContiguousKvCache(config) if config.is_contiguous else None
        self.pooled = PooledKvCache(config) if config.kv_pools else None
        """Where the KV cache is divided."""
        paged = GroupedKvCache if config.sliding_window else KvCache
        self.kv_cache = self._contiguous or self.pooled or paged(config)
        self.running: list[Request] = []
        self.waiting = WaitingQueue(is_priority=config.policy != "fcfs")
        self.n_host_free = config.n_host_blocks
        self._num_swapped_blocks = 0
        self._current_step = 0
        self._slots = Slots(config.max_num_active)
        self._closed = set[int]()
        """Pools that let nobody in in this step any more, …"""
        self._ended = set[int]()
        """… and those in which nobody goes on either."""

    @property
    def has_unfinished(self) -> bool:
        """Is anyone running or waiting?"""
        return bool(self.running or len(self.waiting))

    @property
    def n_waiting(self) -> int:
        """How many wait?"""
        return len(self.waiting)

    @property
    def n_kv_blocks_used(self) -> int:
        """How many blocks do requests hold?"""
        return self._config.n_kv_blocks - self.kv_cache.n_free

    @property
    def n_evicted(self) -> int:
        """How many blocks of cached prefixes made room for others?"""
        return self.kv_cache.n_evicted

    def add(self, request: Request) -> None:
        """A request arrives."""
        request.status = Status.WAITING
        if self._config.policy == "srpt":
            request.priority = self._num_left(request)
        self.waiting.add(request)

    def schedule(self, now_ns: int = 0) -> Batch:
        """Decide the next step; what time it is matters to a memory that is compacted alone."""
        if self._contiguous is not None:
            self._contiguous.take_moved(now_ns)
        self._num_swapped_blocks = 0
        self._current_step += 1
        self._closed, self._ended = set(), set()
        chosen: dict[Request, int] = {}
        preempted = list[Request]()
        self._choose(chosen, preempted)
        is_async = self._config.async_scheduling
        n_drafts = self._config.num_speculative_tokens
        scheduled = tuple(
            launch(request, n, is_async=is_async, num_speculative_tokens=n_drafts)
            for request, n in chosen.items()
        )
        for part in scheduled if is_async else ():
            if part.yields_token:
                part.request.next_decode_eligible_step = (
                    self._current_step + self._config.pipeline_parallel_size
                )
        holes = None
        if self._contiguous is not None:
            self._contiguous.plan_moves(now_ns, self.waiting.in_order())
            holes = self._contiguous.holes(self.waiting.in_order(), is_logged=bool(scheduled))
        batch = Batch(
            scheduled, tuple(preempted), holes=holes, num_swapped_blocks=self._num_swapped_blocks
        )
        return batch if self.pooled is None else _by_bytes(batch, self.pooled)

    def update(self, batch: Batch) -> list[Delivery]:
        """Process what a step yielded; returns the requests that got a token, in order."""
        served, stopped = list[Delivery](), list[Request]()
        for part in batch.scheduled:
            request = part.request
            is_stale = request.num_stale_output_tokens > 0
            request.num_in_flight_tokens -= part.num_tokens
            if is_stale:
                request.num_stale_output_tokens -= part.num_tokens
            if not self._is_delivering(part, is_stale=is_stale):
                continue
            num_tokens_before, num_accepted = (
                request.num_tokens,
                self._verify(part, is_stale=is_stale),
            )
            if self._deliver_tokens(request, 1 + num_accepted, is_stale=is_stale):
                stopped.append(request)
            served.append(Delivery(request, request.num_tokens - num_tokens_before))
            if not self._config.async_scheduling:
                request.num_spec_tokens = self._config.num_speculative_tokens
        if stopped:
            self.running = [request for request in self.running if request not in stopped]
        return served

    def abort(self, request: Request) -> None:
        """A client has gone."""
        if request.status.is_finished:
            return
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        request.status = Status.ABORTED
        self._leave(request)

    def _choose(self, chosen: dict[Request, int], preempted: list[Request]) -> None:
        """Who computes how much, and who has to go?"""
        rules, budget = self._config.rules, self._config.step_budget_tokens
        threshold = self._long_prefill_threshold()
        if rules == "vllm-v0":
            self._admit_waiting(budget, threshold, chosen)
            if not chosen:
                self._schedule_running(budget, threshold, chosen, preempted)
        elif rules == "sarathi":
            budget = self._schedule_running(budget, threshold, chosen, preempted, is_prefill=False)
            budget = self._schedule_running(budget, threshold, chosen, preempted, is_prefill=True)
            self._admit_waiting(budget, threshold, chosen)
        else:
            self._make_way(preempted)
            n_made_way = len(preempted)
            budget = self._schedule_running(budget, threshold, chosen, preempted)
            if len(preempted) == n_made_way or self.pooled is not None:
                self._admit_waiting(budget, threshold, chosen)

    def _make_way(self, preempted: list[Request]) -> None:
        """Shortest remaining first.

        Who has to go, so that the next in the queue, with less left to compute, finds a slot and
        blocks?
        """
        config = self._config
        while config.policy == "srpt" and len(self.waiting) and self.running:
            following, victim = self.waiting.peek(), self.running[self._victim()]
            n_blocks = config.n_blocks_of(following.num_tokens) + config.watermark_blocks
            has_room = (
                len(self.running) < config.max_num_active and n_blocks <= self.kv_cache.n_free
            )
            if (
                has_room
                or following.num_stale_output_tokens > 0
                or self._num_left(victim) <= following.priority
            ):
                break
            self.running.remove(victim)
            self._preempt(victim)
            preempted.append(victim)

    def _num_left(self, request: Request) -> int:
        """How many tokens has a request at most left to compute?"""
        return (
            min(request.num_prompt_tokens + request.max_tokens, self._config.max_model_len)
            - request.num_computed_tokens
        )

    def _urgency(self, request: Request) -> tuple[int, int]:
        """The smaller, the more urgent."""
        return (
            self._num_left(request) if self._config.policy == "srpt" else request.priority,
            request.arrival_ns,
        )

    def _long_prefill_threshold(self) -> int:
        """How many tokens may one request compute in this step (0: any number)?

        A lone request is never capped.
        """
        n_eligible = len(self.running) + self.n_waiting
        threshold = self._config.long_prefill_token_threshold if n_eligible > 1 else 0
        if threshold > 0 and self._config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, self._config.step_budget_tokens // n_eligible)
        return threshold

    def _schedule_running(
        self,
        budget: int,
        threshold: int,
        chosen: dict[Request, int],
        preempted: list[Request],
        *,
        is_prefill: bool | None = None,
    ) -> int:
        """Those that run, in order of admission, decodes and prefill chunks alike or one kind only.

        Returns the budget left.
        """
        i_running = 0
        while i_running < len(self.running) and self._input_budget(budget, chosen) > 0:
            request = self.running[i_running]
            n_tokens = self._num_running_tokens(
                request, self._input_budget(budget, chosen), threshold
            )
            if n_tokens == 0 or is_prefill is (not request.is_prefill_chunk):
                i_running += 1
                continue
            if self._pool(request) in self._ended:
                i_running += 1
                continue
            is_fitting = True
            while not self.kv_cache.allocate_slots(request, n_tokens):
                i_victim = self._victim() if self.pooled is None else self._victim_beside(request)
                victim = self.running.pop(i_victim)
                i_running -= i_victim < i_running
                budget += chosen.pop(victim, 0)
                self._preempt(victim)
                preempted.append(victim)
                self._close(request)
                if victim is request:
                    is_fitting = False
                    break
            if not is_fitting:
                if self.pooled is None:
                    break
                self._ended.add(self._pool(request))
                continue  # those of other pools may find blocks
            chosen[request] = n_tokens
            budget -= n_tokens
            i_running += 1
        return budget

    def _input_budget(self, budget: int, chosen: dict[Request, int]) -> int:
        """How many tokens may one more request compute, if the draft takes its own rows for each, or padding to the longest?"""
        if self._config.rules == "vllm-v0":
            padded = self._config.step_budget_tokens // (len(chosen) + 1)
            return padded if max(chosen.values(), default=0) <= padded else 0
        return budget - self._config.num_draft_slots * (len(chosen) + 1)

    def _num_running_tokens(self, request: Request, budget: int, threshold: int) -> int:
        """How many tokens would this running request compute now?"""
        config = self._config
        placeholders = request.num_output_placeholders
        num_max = request.num_prompt_tokens + request.max_tokens
        if placeholders > 0 and request.num_computed_tokens + 2 - placeholders >= num_max:
            return 0  # its last token is in flight
        if self._current_step < request.next_decode_eligible_step:
            return 0  # of a pipeline: its last token is not known on the first stage
        n_tokens = (
            request.num_tokens
            + request.num_spec_tokens
            + placeholders
            - request.num_computed_tokens
        )
        if 0 < threshold < n_tokens:
            n_tokens = threshold
        return min(n_tokens, budget, config.max_model_len - request.num_computed_tokens - 1)

    def _pool(self, request: Request) -> int:
        """Where are its blocks? 0 where the KV cache is one."""
        return 0 if self.pooled is None else self.pooled.number_of(request)

    def _close(self, request: Request) -> None:
        """Its pool lets nobody in any more in this step."""
        if self.pooled is not None:
            self._closed.add(self._pool(request))

    def _victim(self) -> int:
        """Who has to go?

        The last admitted; under priorities the least urgent, of equals the first in the list.
        """
        if self._config.policy == "fcfs":
            return len(self.running) - 1
        return max(range(len(self.running)), key=lambda i: self._urgency(self.running[i]))

    def _victim_beside(self, request: Request) -> int:
        """The same among those that have blocks of the same pool as this one."""
        those = [i for i, one in enumerate(self.running) if self._pool(one) == self._pool(request)]
        if self._config.policy == "fcfs":
            return those[-1]
        return max(those, key=lambda i: self._urgency(self.running[i]))

    def _preempt(self, request: Request) -> None:
        """Take everything from a request but its tokens; what does not go to the host it will compute again."""
        self._leave(request)
        request.status = Status.PREEMPTED
        request.num_spec_tokens = 0
        request.num_preemptions += 1
        if not self._swap_out(request):
            request.start_over()
        if self._config.policy == "srpt":
            request.priority = self._num_left(request)
        self.waiting.put_back(request)

    def _swap_out(self, request: Request) -> bool:
        """Copy what a request has computed to the host, if there is room.

        What is in flight will be there by then.
        """
        n_blocks = -(-request.num_computed_tokens // self._config.block_size)
        if n_blocks > self.n_host_free:
            return False
        request.num_host_blocks = n_blocks
        self.n_host_free -= n_blocks
        self._num_swapped_blocks += n_blocks
        return True

    def _swap_in(self, request: Request) -> None:
        """Copy back what a request has on the host."""
        self._num_swapped_blocks += request.num_host_blocks
        self._drop_host_blocks(request)

    def _drop_host_blocks(self, request: Request) -> None:
        self.n_host_free += request.num_host_blocks
        request.num_host_blocks = 0

    def _admit_waiting(self, budget: int, threshold: int, chosen: dict[Request, int]) -> None:
        """Those that wait, strictly in order: the first that does not fit ends it."""
        skipped = list[Request]()
        is_padding, n_scheduled = (
            not any(request.is_prefill_chunk for request in chosen),
            len(chosen),
        )
        budget = self._admit_fetched(budget, threshold, chosen, is_padding=is_padding)
        while (
            len(self.waiting)
            and len(self.running) < self._config.max_num_active
            and not self._is_prefill_full(chosen)
        ):
            if (input_budget := self._input_budget(budget, chosen)) <= 0:
                break
            request = self.waiting.peek()
            if (
                request.num_stale_output_tokens > 0
                or (request.num_host_blocks > 0 and request.num_in_flight_tokens > 0)
                or self._pool(request) in self._closed
            ):
                skipped.append(self.waiting.pop())
                continue
            if self._is_elsewhere(request):
                if not self._fetch(request):
                    break
                self.waiting.pop()
                continue
            n_tokens = self._admit(
                request, input_budget, threshold, n_scheduled=n_scheduled, is_padding=is_padding
            )
            if n_tokens == 0 and self._pool(request) in self._closed:
                continue
            if n_tokens == 0:
                break
            self.waiting.pop()
            chosen[request] = n_tokens
            budget -= n_tokens
        for request in reversed(skipped):
            self.waiting.put_back(request)

    def _admit_fetched(
        self,
        budget: int,
        threshold: int,  # noqa: ARG002
        chosen: dict[Request, int],  # noqa: ARG002
        *,
        is_padding: bool,  # noqa: ARG002
    ) -> int:
        """Those whose KV cache was computed elsewhere and is here, before all others.

        Returns the budget left.
        """
        return budget

    def _is_elsewhere(self, request: Request) -> bool:  # noqa: ARG002 -- others fetch what they compute on
        """Is the KV cache of a request that waits still to be fetched from where its prompt was computed?"""
        return False

    def _fetch(self, request: Request) -> bool:  # noqa: ARG002
        """Ask for it, if there is room."""
        return False

    def _admit(
        self, request: Request, budget: int, threshold: int, *, n_scheduled: int, is_padding: bool
    ) -> int:
        """Give the next one a slot, whose blocks may be here already.

        Returns the tokens that it computes, 0 where it does not fit.
        """
        is_swapped, is_here = request.num_host_blocks > 0, bool(request.blocks)
        hits = [] if is_swapped or is_here else self.kv_cache.computed_blocks(request)
        size = (self._config if self.pooled is None else self.pooled.pool_of(request)).block_size
        num_cached = request.num_computed_tokens + len(hits) * size
        n_padding = (
            self._num_padded_drafts(request, num_cached)
            if is_padding and num_cached + n_scheduled > 0
            else 0
        )
        n_tokens = request.num_tokens - num_cached + n_padding
        if 0 < threshold < n_tokens:
            n_tokens = threshold
        if n_tokens > budget and (n_padding or not self._config.enable_chunked_prefill):
            return 0
        n_tokens = min(n_tokens, budget)
        if not self.kv_cache.allocate_slots(
            request, n_tokens, hits, is_admission=not is_here, has_running=bool(self.running)
        ):
            self._close(request)
            return 0
        self.running.append(request)
        request.num_spec_tokens, request.has_padded_drafts = n_padding, n_padding > 0
        self._slots.take(request)
        if request.status is Status.WAITING:
            request.num_cached_tokens = num_cached
        request.status = Status.RUNNING
        request.num_computed_tokens = num_cached
        request.is_prefill_chunk = request.is_prefill_chunk or not (is_swapped or is_here)
        self._swap_in(request)
        return n_tokens

    def _num_padded_drafts(self, request: Request, num_computed_tokens: int) -> int:
        """How many drafts that cannot be accepted fill up a request that needs one token, so that all decodes have as many rows?"""
        n_drafts = self._config.num_speculative_tokens
        is_decode = request.num_tokens - num_computed_tokens == 1
        return (
            n_drafts
            if is_decode and num_computed_tokens + n_drafts + 2 <= self._config.max_model_len
            else 0
        )

    def _is_prefill_full(self, chosen: dict[Request, int]) -> bool:
        """May nobody begin his prefill in this step?"""
        return self._config.one_prefill_at_a_time and any(
            request.is_prefill_chunk for request in chosen
        )

    def _is_delivering(self, part: Scheduled, *, is_stale: bool) -> bool:  # noqa: ARG002 -- a prefill replica asks
        """Does this part yield something for its request?"""
        return part.yields_token and not part.request.status.is_finished

    def _verify(self, part: Scheduled, *, is_stale: bool) -> int:
        """How many drafts were accepted?

        The others were computed for nothing, and are taken back.
        """
        request, num_accepted = part.request, 0
        if part.num_spec_tokens == 0:
            return 0
        if not part.has_padded_drafts:
            num_accepted = n_accepted(
                self._config.acceptance,
                request.index,
                request.num_output_tokens,
                part.num_spec_tokens,
            )
        if not is_stale:
            request.num_computed_tokens -= part.num_spec_tokens - num_accepted
            if self._config.async_scheduling:
                request.num_output_placeholders -= part.num_spec_tokens - num_accepted
        return num_accepted

    def _deliver_tokens(self, request: Request, num_tokens: int, *, is_stale: bool) -> bool:
        """A request got tokens, those beyond its end not counted; is it finished by that?"""
        was_running = request.status is Status.RUNNING
        num_tokens = min(
            num_tokens,
            request.stop_tokens - request.num_output_tokens,
            self._config.max_model_len - request.num_tokens,
        )
        request.num_tokens += num_tokens
        if request.num_output_tokens == request.stop_tokens:
            request.status = (
                Status.STOPPED if request.stop_tokens < request.max_tokens else Status.LENGTH
            )
        elif (
            request.num_tokens >= self._config.max_model_len
            or request.num_output_tokens >= request.max_tokens
        ):
            request.status = Status.LENGTH
        if self._config.async_scheduling and not is_stale:
            request.num_output_placeholders -= num_tokens
        if self._config.async_scheduling and was_running:
            self.kv_cache.cache_blocks(
                request, request.num_computed_tokens - request.num_output_placeholders
            )
        if not request.status.is_finished:
            return False
        if not was_running:
            self.waiting.remove(request)
        self._end(request)
        return was_running

    def _end(self, request: Request) -> None:
        """A request has all its tokens."""
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """A request gives up its blocks and its slot."""
        self._drop_host_blocks(request)
        self.kv_cache.free(request)
        self._slots.release(request)


def _by_bytes(batch: Batch, pooled: PooledKvCache) -> Batch:
    """The same batch, with what its decodes read where pools have formats of their own."""

    def parts_of(parts: Iterable[Scheduled]) -> list[tuple[Request, int]]:
        return [(one.request, one.num_computed_tokens + one.num_tokens) for one in parts]

    decodes = (one for one in batch.scheduled if one.kind is not PartKind.CONTEXT)
    yielding = (one for one in batch.scheduled if one.yields_token)
    return batch._replace(
        num_read_tokens=pooled.num_read(parts_of(decodes)),
        num_drafted_read_tokens=pooled.num_read(parts_of(yielding)),
    )
