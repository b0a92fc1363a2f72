"""How does a request go from the replica that computed its prompt to the one that generates its answer? In plain Python.

The decode side is that of vLLM 0.32.0 with a connector that loads asynchronously
(``Scheduler.schedule``, ``WAITING_FOR_REMOTE_KVS``): blocks for the whole prompt are taken in the
request's turn, then it waits aside, without a slot; whose KV cache has come is admitted before all
others, first come, first served. ``kernel/handover.py`` does the same on arrays.
"""

from collections import deque

from inferometer.records.types import ABSENT
from inferometer.simulate.outcome import Stage, Status
from inferometer.simulate.scheduler_config import SchedulerConfig
from reference.batch import Scheduled
from reference.blocks import KvCache
from reference.request import Request
from reference.vllm import Scheduler


class Transfer:
    """What a request needs beside, whose prompt and answer are computed by different replicas."""

    def __init__(self, request: Request) -> None:
        self.stage = Stage.ABSENT
        self.stop_tokens = request.stop_tokens
        self.max_tokens = request.max_tokens
        self.arrived_ns = request.arrival_ns
        self.source = -1
        self.source_blocks: list[int] = []
        self.num_moved_blocks = 0
        self.prefilled_ns = ABSENT
        self.asked_ns = ABSENT
        self.begun_ns = ABSENT
        self.received_ns = ABSENT


class Transfers:
    """The transfers of all requests that came to a prefill replica, by index."""

    def __init__(self) -> None:
        self._of: dict[int, Transfer] = {}

    def open(self, request: Request) -> None:
        """A request goes to a prefill replica, which is asked for one token."""
        self._of[request.index] = Transfer(request)
        request.stop_tokens = request.max_tokens = 1

    def of(self, request: Request) -> Transfer:
        """That of this request."""
        return self._of[request.index]

    def find(self, index: int) -> Transfer | None:
        """That of the request with this index, where it ever came to a replica."""
        return self._of.get(index)


class PrefillScheduler(Scheduler):
    """Computes prompts. Whoever has his one token keeps his blocks until they are fetched."""

    def __init__(
        self, config: SchedulerConfig, transfers: Transfers, *, gives_first_token: bool
    ) -> None:
        super().__init__(config)
        self._transfers = transfers
        self._gives_first_token = gives_first_token
        self.kv_cache = self._kv_cache = KvCache(config)

    def forget(self, request: Request) -> None:
        """A request's KV cache was fetched, or nobody wants it any more."""
        self._kv_cache.give_back(self._transfers.of(request).source_blocks)

    def _is_delivering(self, part: Scheduled, *, is_stale: bool) -> bool:
        """Who was thrown out computes his prompt again: a token without a KV cache is of no use."""
        return super()._is_delivering(part, is_stale=is_stale) and not is_stale

    def _end(self, request: Request) -> None:
        """The one token is there: is the request done by that?

        It wants again what its client asked for.
        """
        transfer = self._transfers.of(request)
        request.stop_tokens, request.max_tokens = transfer.stop_tokens, transfer.max_tokens
        if self._gives_first_token and request.stop_tokens == 1:
            request.status = Status.STOPPED if request.max_tokens > 1 else Status.LENGTH
        elif not self._gives_first_token or request.num_tokens < self._config.max_model_len:
            self._hand_over(request, transfer)
        super()._end(request)

    def _hand_over(self, request: Request, transfer: Transfer) -> None:
        request.status = Status.PREFILLED
        transfer.source_blocks, request.blocks = request.blocks, []
        request.num_output_placeholders = 0
        if not self._gives_first_token:
            request.num_tokens -= 1


class DecodeScheduler(Scheduler):
    """Generates answers to prompts that others computed."""

    def __init__(self, config: SchedulerConfig, transfers: Transfers) -> None:
        super().__init__(config)
        self.asked: list[Request] = []
        """Whose KV cache is to be fetched, until somebody takes them out."""
        self._transfers = transfers
        self._received: deque[Request] = deque()
        self.kv_cache = self._kv_cache = KvCache(config)

    @property
    def has_unfinished(self) -> bool:
        """Is anyone running or waiting? Whose KV cache is on its way does neither."""
        return bool(self._received) or super().has_unfinished

    @property
    def n_waiting(self) -> int:
        """How many wait: for room to fetch their KV cache into, or with it for a slot?"""
        return len(self.waiting) + len(self._received)

    def add(self, request: Request) -> None:
        """A request comes whose prompt is computed; it goes on as one that was preempted does."""
        request.status = Status.PREEMPTED
        request.num_computed_tokens = request.num_tokens - 1
        request.next_decode_eligible_step = request.num_spec_tokens = (
            0  # counted and drafted by the other engine
        )
        self._transfers.of(request).stage = Stage.FOR_ROOM
        self.waiting.add(request)

    def receive(self, request: Request) -> None:
        """A request's KV cache has come; where the client has gone meanwhile it is forgotten."""
        transfer = self._transfers.of(request)
        if request.status.is_finished:
            transfer.stage = Stage.OVER
            self.kv_cache.free(request)
        else:
            transfer.stage = Stage.RECEIVED
            self._received.append(request)

    def abort(self, request: Request) -> None:
        """A client has gone. What travels takes its time."""
        match self._transfers.of(request).stage:
            case Stage.MOVING:
                request.status = Status.ABORTED
            case Stage.RECEIVED:
                self._received.remove(request)
                self._transfers.of(request).stage = Stage.OVER
                request.status = Status.ABORTED
                self.kv_cache.free(request)
            case _:
                super().abort(request)

    def _admit_fetched(
        self, budget: int, threshold: int, chosen: dict[Request, int], *, is_padding: bool
    ) -> int:
        """Nobody else is admitted where one of them does not fit."""
        n_scheduled = len(chosen)
        while self._received and len(self.running) < self._config.max_num_active:
            if (input_budget := self._input_budget(budget, chosen)) <= 0:
                break
            request = self._received[0]
            n_tokens = self._admit(
                request, input_budget, threshold, n_scheduled=n_scheduled, is_padding=is_padding
            )
            if n_tokens == 0:
                return 0
            self._received.popleft()
            self._transfers.of(request).stage = Stage.OVER
            chosen[request] = n_tokens
            budget -= n_tokens
        return budget

    def _is_elsewhere(self, request: Request) -> bool:
        return self._transfers.of(request).stage is Stage.FOR_ROOM

    def _fetch(self, request: Request) -> bool:
        """Take blocks for a request and ask for its KV cache, if there are enough."""
        transfer = self._transfers.of(request)
        hits = self._kv_cache.computed_blocks(request)
        if not self._kv_cache.reserve(request, hits, has_running=bool(self.running)):
            return False
        transfer.num_moved_blocks = max(
            -(-request.num_prompt_tokens // self._config.block_size) - len(hits), 0
        )
        transfer.num_moved_blocks += self._config.num_state_blocks
        transfer.stage = Stage.MOVING
        self.asked.append(request)
        return True
