"""Which requests compute how many tokens in the next step?

TensorRT-LLM's in-flight batching in plain Python, to be read.

Mirrors ``PyCapacityScheduler`` and ``PyMicroBatchScheduler``
(``tensorrt_llm/_torch/pyexecutor/scheduler/scheduler.py``, commit 002f3cc3), the block counts of
``kvCacheManager.cpp`` and the order of ``PyExecutor``'s loops: one window, beam width 1, no drafts,
no pipeline parallelism. A step is decided in two stages: who fits into the KV cache, and who into
the batch. What can be reused counts in both; TensorRT-LLM's estimate of it may count the last block
of a prompt, which is computed again: here it never does.
"""

from collections import deque
from collections.abc import Sequence

from inferometer.records.types import PartKind
from inferometer.simulate.outcome import Status
from inferometer.simulate.trtllm_config import TrtllmConfig
from reference.batch import Batch, Delivery, Scheduled, Slots, launch
from reference.request import Request
from reference.trtllm_blocks import ReuseTree
from reference.trtllm_chunks import chunk_sizes


class TrtllmScheduler:
    """Call ``schedule``, compute, ``update``.

    With the overlap scheduler ``schedule`` the next step before ``update`` of the last.
    """

    def __init__(self, config: TrtllmConfig) -> None:
        self._config = config
        self._slots = Slots(config.max_batch_size)
        self._queue: deque[Request] = deque()
        self.active: list[Request] = []
        """In order of arrival, at most ``max_batch_size``: only these are looked at. Whoever is
        paused keeps its place."""
        self.blocks = ReuseTree(config)

    @property
    def waiting(self) -> list[Request]:
        """Who has no blocks: new, or paused."""
        return [request for request in self.active if request.status is not Status.RUNNING] + list(
            self._queue
        )

    @property
    def has_unfinished(self) -> bool:
        """Is anyone there?"""
        return bool(self.active or self._queue)

    @property
    def n_waiting(self) -> int:
        """How many wait?"""
        return len(self.waiting)

    @property
    def n_kv_blocks_used(self) -> int:
        """How many blocks are taken?"""
        return self._config.num_blocks - self.blocks.n_free

    @property
    def n_evicted(self) -> int:
        """How many blocks of cached prefixes made room for others?"""
        return self.blocks.n_evicted

    def add(self, request: Request) -> None:
        """A request arrives."""
        request.status = Status.WAITING
        self._queue.append(request)

    def schedule(self, now_ns: int) -> Batch:
        """Decide the next step: contexts first, then generations."""
        del now_ns  # nothing here waits for a time
        while self._queue and len(self.active) < self._config.max_batch_size:
            self.active.append(self._queue.popleft())
        fitting, paused = self._fitting()
        contexts, generations = self._micro_batch(fitting)
        for (
            request,
            _,
        ) in contexts:  # all of them before anybody takes a block: ``addSequenceBatch`` claims what is reused first
            self._begin(request)
        parts = [self._launch(request, n_tokens) for request, n_tokens in contexts]
        parts += [self._launch(request, 1) for request in generations]
        return Batch(scheduled=tuple(parts), preempted=tuple(paused))

    def update(self, batch: Batch) -> list[Delivery]:
        """Process what a step yielded.

        A token that was in flight when its request was paused is delivered, unless a context
        yielded it: that comes again.
        """
        served = list[Delivery]()
        for part in batch.scheduled:
            request = part.request
            is_stale = request.num_stale_output_tokens > 0
            request.num_in_flight_tokens -= part.num_tokens
            if is_stale:
                request.num_stale_output_tokens -= part.num_tokens
            if (
                request.status.is_finished
                or not part.yields_token
                or (is_stale and part.kind is PartKind.CONTEXT)
            ):
                continue
            served.append(Delivery(request, 1))
            self._deliver_token(
                request, is_context=part.kind is PartKind.CONTEXT, is_stale=is_stale
            )
        return served

    def abort(self, request: Request) -> None:
        """A client has gone."""
        if request in self.active:
            self._end(request, Status.ABORTED)
        else:
            self._queue.remove(request)
            request.status = Status.ABORTED

    def _fitting(self) -> tuple[Sequence[Request], Sequence[Request]]:
        """Who fits into the KV cache, in which order, and who is paused for that?"""
        if self._config.capacity_scheduler_policy == "MAX_UTILIZATION":
            return self._fitting_for_a_step()
        return self._fitting_to_completion(), ()

    def _fitting_to_completion(self) -> list[Request]:
        """Whoever generates, then in order whoever can be given all blocks that it may ever need.

        The first that cannot ends it.
        """
        fitting = [request for request in self.active if _is_generating(request)]
        is_static = self._config.capacity_scheduler_policy == "STATIC_BATCH"
        if fitting and is_static:
            return fitting
        n_available = self.blocks.n_free - sum(
            self._n_blocks_to_completion(request) for request in fitting
        )
        coming = self._contents_that_come()
        for request in self.active:
            if _is_generating(request) or (
                not is_static and self._is_worth_waiting(request, coming)
            ):
                continue
            n_needed = self._n_blocks_to_completion(request)
            if n_needed > n_available:
                break
            fitting.append(request)
            n_available -= n_needed
        return fitting

    def _fitting_for_a_step(self) -> tuple[list[Request], list[Request]]:
        """In order whoever can be given the blocks of its next step; for that the last one that has blocks is paused."""
        fitting, paused = list[Request](), list[Request]()
        n_scheduled, i_active, n_active = 0, 0, len(self.active)
        coming = self._contents_that_come()
        while i_active < n_active:
            request = self.active[i_active]
            if self._is_worth_waiting(request, coming):
                i_active += 1
                continue
            n_needed = self._n_blocks_for_a_step(request)
            if n_scheduled + n_needed <= self.blocks.n_free:
                fitting.append(request)
                n_scheduled += n_needed
                i_active += 1
                continue
            started = [
                i for i in range(i_active, n_active) if self.active[i].status is Status.RUNNING
            ]
            if not started:
                break
            n_active = started[-1]
            paused.append(self.active[n_active])
            self._pause(self.active[n_active])
            n_scheduled = sum(
                self._n_blocks_for_a_step(other) for other in fitting
            )  # what they would share may have come free
        return fitting, paused

    def _contents_that_come(self) -> set[int]:
        """What those will leave first whose contexts are computed in chunks."""
        started = (
            request
            for request in self.active
            if request.status is Status.RUNNING and request.is_prefill_chunk
        )
        contents = (self.blocks.first_new_content(request) for request in started)
        return {content for content in contents if content is not None}

    def _is_worth_waiting(self, request: Request, coming: set[int]) -> bool:
        """Will another one leave the first block that this one, which has not begun, would compute?

        If not, this one will.
        """
        if request.status is Status.RUNNING or not self._config.enable_prefix_aware_scheduling:
            return False
        content = self.blocks.first_new_content(request)
        if content is None or content in coming:
            return content is not None
        coming.add(content)
        return False

    def _micro_batch(
        self, fitting: Sequence[Request]
    ) -> tuple[list[tuple[Request, int]], list[Request]]:
        """Who of these fits into the batch: contexts with their tokens, and generations?

        The first that does not ends it.
        """
        config, n_tokens = self._config, 0
        contexts, generations = list[Request](), list[Request]()
        for request in fitting:
            if self._will_complete(request):
                continue
            if request.status is not Status.RUNNING:
                request.num_computed_tokens = (
                    len(self.blocks.hits(request)) * config.tokens_per_block
                )
            n_own = 1 if _is_generating(request) else _n_remaining(request)
            cost = 0 if config.enable_chunked_prefill and not _is_generating(request) else n_own
            if n_tokens + cost > config.max_num_tokens:
                break
            n_tokens += cost
            (generations if _is_generating(request) else contexts).append(request)
            if len(contexts) + len(generations) >= config.max_batch_size:
                break
        remaining = [_n_remaining(request) for request in contexts]
        n_left = config.max_num_tokens - n_tokens
        if not config.enable_chunked_prefill or sum(remaining) <= n_left:
            return list(zip(contexts, remaining, strict=True)), generations
        sizes = chunk_sizes(
            remaining, n_left, config.tokens_per_block, config.context_chunking_policy
        )
        chunks = [
            (request, size) for request, size in zip(contexts, sizes, strict=True) if size > 0
        ]
        chunks.sort(key=lambda chunk: chunk[1] == _n_remaining(chunk[0]))  # last chunks go last
        return chunks, generations

    def _will_complete(self, request: Request) -> bool:
        """Is its last token in flight? It keeps its blocks and its place, and computes nothing."""
        n_output = request.num_output_tokens + request.num_output_placeholders
        return request.num_output_placeholders > 0 and n_output >= self._max_new_tokens(request)

    def _begin(self, request: Request) -> None:
        """A context begins on top of what can be reused."""
        if request.status is Status.RUNNING:
            return
        self.blocks.claim(request)
        if request.status is Status.WAITING:
            request.num_cached_tokens = request.num_computed_tokens
        request.status = Status.RUNNING
        self._slots.take(request)

    def _launch(self, request: Request, num_tokens: int) -> Scheduled:
        """The blocks of the whole context are taken at its first chunk, then one whenever a token needs it."""
        n_reserved = (
            request.num_tokens
            if request.is_prefill_chunk
            else request.num_computed_tokens + num_tokens
        )
        self.blocks.extend(request, n_reserved)
        return launch(request, num_tokens, is_async=not self._config.disable_overlap_scheduler)

    def _pause(self, request: Request) -> None:
        """Take everything from a request but its tokens; it will compute them again, but for what is still there."""
        self._release(request)
        request.lose_place()

    def _deliver_token(self, request: Request, *, is_context: bool, is_stale: bool) -> None:
        request.num_tokens += 1
        if is_context:
            self.blocks.store(request, request.num_tokens - 1)
        if not self._config.disable_overlap_scheduler and not is_stale:
            request.num_output_placeholders -= 1
        if request.num_output_tokens == request.stop_tokens:
            self._end(
                request,
                Status.STOPPED if request.stop_tokens < request.max_tokens else Status.LENGTH,
            )
        elif request.num_output_tokens >= self._max_new_tokens(request):
            self._end(request, Status.LENGTH)

    def _end(self, request: Request, status: Status) -> None:
        self._release(request)
        self.active.remove(request)
        request.status = status

    def _release(self, request: Request) -> None:
        """The last token's KV is not in the cache: ``storeBlocksForReuse`` takes no account of it."""
        self.blocks.release(request, min(request.num_tokens - 1, request.num_computed_tokens))
        self._slots.release(request)

    def _max_new_tokens(self, request: Request) -> int:
        """What the client asks for, as far as the sequence may grow."""
        return min(request.max_tokens, self._config.max_seq_len - request.num_prompt_tokens)

    def _n_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._config.tokens_per_block)

    def _n_blocks_to_completion(self, request: Request) -> int:
        """How many more free blocks would it need if it went on to its last allowed token?"""
        n_total = self._n_blocks(request.num_prompt_tokens + self._max_new_tokens(request))
        return n_total - self._n_blocks_given(request)

    def _n_blocks_for_a_step(self, request: Request) -> int:
        """How many more does its next step need?"""
        if request.is_prefill_chunk:
            return (
                0
                if request.status is Status.RUNNING
                else self._n_blocks(request.num_tokens) - self._n_blocks_given(request)
            )
        n_most = request.num_prompt_tokens + self._max_new_tokens(request)
        return self._n_blocks(min(request.num_computed_tokens + 1, n_most)) - len(request.blocks)

    def _n_blocks_given(self, request: Request) -> int:
        """What it has, or could have without taking a free block."""
        return (
            len(request.blocks)
            if request.status is Status.RUNNING
            else self.blocks.n_hits_in_use(request)
        )


def _is_generating(request: Request) -> bool:
    return request.status is Status.RUNNING and not request.is_prefill_chunk


def _n_remaining(request: Request) -> int:
    """Tokens of the context that are still to be computed."""
    return request.num_tokens - request.num_computed_tokens
