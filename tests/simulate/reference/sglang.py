"""Who computes how many tokens in the next step? SGLang's scheduler in plain Python, to be read.

Mirrors ``Scheduler.get_next_batch_to_run`` and ``ScheduleBatch.retract_decode``
(``sglang/srt/managers``) of SGLang 0.5.23: a step computes prompts or generates, and prompts come
first; with mixed chunks who generates joins a step of prompts. ``sglang_order`` has the orders of
the queue. No speculation, no hierarchical cache.
"""

from collections.abc import Sequence

from inferometer.records.types import PartKind
from inferometer.simulate.kernel.sglang_admission import Verdict
from inferometer.simulate.outcome import Status
from inferometer.simulate.sglang_config import RETRACT_DECODE_STEPS, SglangConfig
from reference.batch import Batch, Delivery, Scheduled, Slots, launch
from reference.request import Request
from reference.sglang_admission import PrefillAdder, max_new_tokens
from reference.sglang_cache import PageCache
from reference.sglang_order import QueueOrder


class SglangScheduler:
    """Call ``schedule``, compute, ``update``; with overlap ``schedule`` the next step before ``update`` of the last."""

    def __init__(self, config: SglangConfig) -> None:
        self._config = config
        self._slots = Slots(config.max_running_requests)
        self.cache = PageCache(config)
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        """Who generates."""
        self.new_token_ratio = config.initial_new_token_ratio
        self._last_extend: list[Request] = []
        """Whose prompts were computed in the step before."""
        self._cut: Request | None = None
        """The only one whose prompt is computed in part."""
        self._is_batch_full = False
        self._order = QueueOrder(config, self.cache)
        self._n_turns = 0
        self._preempted: list[Request] = []
        """Who had to go for somebody more urgent, in the step that is decided."""

    @property
    def has_unfinished(self) -> bool:
        """Is anyone there?"""
        return bool(self.waiting or self.cache.rows)

    @property
    def n_waiting(self) -> int:
        """How many wait?"""
        return len(self.waiting)

    @property
    def n_kv_blocks_used(self) -> int:
        """How many pages do requests hold? What only the tree holds can go at any time."""
        return (
            self._config.n_kv_blocks - self.cache.n_free_pages - self.cache.tree.n_evictable_pages
        )

    @property
    def n_evicted(self) -> int:
        """How many pages of cached prefixes made room for others?"""
        return self.cache.tree.n_evicted

    def add(self, request: Request) -> None:
        """A request arrives."""
        request.status = Status.WAITING
        self._queue([request])

    def schedule(self, now_ns: int) -> Batch:
        """Decide the next step."""
        if not self.cache.rows and all(
            request.arrival_ns == now_ns for request in self.waiting
        ):  # nothing was to do before
            self.new_token_ratio = self._config.initial_new_token_ratio
        self._merge()
        self._preempted = []
        chosen = self._prefill()
        if chosen and self._config.enable_mixed_chunk:
            chosen += [(request, 1) for request in self._mix()]
        self._last_extend = [request for request, _ in chosen]
        if not chosen:
            decoding, retracted = self._decode()
            chosen = [(request, 1) for request in decoding]
            self._preempted += retracted
        return Batch(
            scheduled=tuple(self._launch(request, n_tokens) for request, n_tokens in chosen),
            preempted=tuple(self._preempted),
        )

    def update(self, batch: Batch) -> list[Delivery]:
        """Process what a step yielded.

        What was in flight when its request was thrown out comes again.
        """
        served = list[Delivery]()
        for part in batch.scheduled:
            request = part.request
            is_stale = request.num_stale_output_tokens > 0
            request.num_in_flight_tokens -= part.num_tokens
            if is_stale:
                request.num_stale_output_tokens -= part.num_tokens
            if request.status.is_finished or is_stale or not part.yields_token:
                continue
            served.append(Delivery(request, 1))
            self._deliver_token(request, is_first=part.kind is PartKind.CONTEXT)
        return served

    def abort(self, request: Request) -> None:
        """A client has gone; what was computed stays in the tree."""
        if request in self.cache.rows:
            self._end(request, Status.ABORTED)
        else:
            self.waiting.remove(request)
            request.status = Status.ABORTED

    def _merge(self) -> None:
        """Whoever has its whole prompt joins those who generate; whoever is done leaves."""
        if self._cut is not None:
            self.cache.checkpoint(self._cut, self._cut.num_computed_tokens)
        joining = [
            request
            for request in self._last_extend
            if not request.status.is_finished and request is not self._cut
        ]
        staying = [request for request in self.running if not request.status.is_finished]
        if len(joining) < len(self._last_extend) or len(staying) < len(self.running):
            self._is_batch_full = False
        self.running = staying + joining

    def _prefill(self) -> list[tuple[Request, int]]:
        """Whose prompts are computed, and how much of them?

        Nobody's, where nobody waits or nothing is left for them.
        """
        if not self.running or self._config.is_preempting:
            self._is_batch_full = False
        if self._cut is None and (self._is_batch_full or not self.waiting):
            return []
        if self._cut is None and self._n_places([]) <= 0 and not self._config.is_preempting:
            self._is_batch_full = True
            return []
        self.waiting = self._order.of(self.waiting)
        adder = PrefillAdder(self._config, self.cache, self.running, self.new_token_ratio)
        if self._cut is not None:
            adder.go_on(self._cut)
            if not adder.chosen:
                return []
        n_old = len(adder.chosen)
        self._cut = None
        self._take_from_queue(adder)
        self._open(adder, n_old)
        self._queue(self._preempted)
        return adder.chosen

    def _take_from_queue(self, adder: PrefillAdder) -> None:
        """Those who wait, in order, until one does not fit."""
        for request in self.waiting:
            if adder.verdict is Verdict.OTHER:
                return
            if len(adder.chosen) >= self._n_places(adder.chosen):
                self._is_batch_full = True
            if self._is_batch_full and not (
                self._config.is_preempting and self._preempt_for(request, adder)
            ):
                return
            num_cached, node = self.cache.match(request, request.num_tokens - 1)
            request.num_known_tokens = request.num_tokens - num_cached
            verdict = adder.try_to_add(request, node, num_cached)
            if verdict is Verdict.NO_TOKEN:
                self._is_batch_full = bool(adder.chosen or self.running)
            if verdict is not Verdict.CONTINUE:
                return

    def _open(self, adder: PrefillAdder, n_old: int) -> None:
        """Give the chosen ones slots, but the first that have theirs, and pages."""
        self._cut = adder.cut
        for request, _ in adder.chosen[n_old:]:
            self.waiting.remove(request)
            if request.status is Status.WAITING:
                request.num_cached_tokens = request.num_computed_tokens
            request.status = Status.RUNNING
            request.num_known_tokens = request.num_tokens
            self._slots.take(request)
        size = self._config.page_size
        n_tokens = sum(n for _, n in adder.chosen)
        self.cache.make_room(n_tokens + (len(adder.chosen) * size if size > 1 else 0))
        for request, n in adder.chosen:
            self.cache.extend(request, request.num_computed_tokens + n)

    def _preempt_for(self, request: Request, adder: PrefillAdder) -> bool:
        """Throw out those who generate and are much less urgent than one that waits, if that is enough."""
        victims = adder.victims_of(request, self.running)
        for victim in [other for other in self.running if other in victims]:
            self.running.remove(victim)
            adder.forget(victim)
            self._throw_out(victim)
            self._preempted.append(victim)
        return bool(victims)

    def _mix(self) -> list[Request]:
        """Who generates a token in a step of prompts? All or, where memory lacks, none."""
        n_before = len(self.running)
        self.running = [request for request in self.running if not self._will_finish(request)]
        if len(self.running) < n_before:
            self._is_batch_full = False
        if not self.running or not self._fits(self.running):
            return []
        for request in self.running:
            request.num_known_tokens = request.num_tokens
        mixed, self.running = self._extended(), []
        return mixed

    def _n_places(self, chosen: Sequence[object]) -> int:
        """How many may the next batch have, of whom these have theirs already?"""
        n_most = self._config.max_running_requests
        return min(n_most - len(self.running), n_most - len(self.cache.rows) + len(chosen))

    def _decode(self) -> tuple[list[Request], list[Request]]:
        """Who generates a token, and who has to go for that?"""
        n_before = len(self.running)
        self.running = [request for request in self.running if not self._will_finish(request)]
        n_finishing, retracted = n_before - len(self.running), list[Request]()
        if self.running:
            if not self._fits(self.running):
                if n_finishing:  # their pages come free with this step
                    self._is_batch_full = False
                    return [], []
                retracted = self._retract()
            else:
                self.new_token_ratio = max(
                    self.new_token_ratio - self._config.new_token_ratio_decay_ratio,
                    self._config.least_new_token_ratio,
                )
        if len(self.running) < n_before:
            self._is_batch_full = False
        if not self.running or not self._fits(self.running):
            return [], retracted
        return self._extended(), retracted

    def _extended(self) -> list[Request]:
        """All who generate, with room for one more token each."""
        self.cache.make_room(len(self.running) * self._config.page_size)
        for request in self.running:
            self.cache.extend(request, request.num_computed_tokens + 1)
        return self.running

    def _fits(self, requests: list[Request]) -> bool:
        """Is there room for one more token of each, if what nobody uses goes?"""
        size = self._config.page_size
        n_tokens = sum(request.num_computed_tokens % size == 0 for request in requests) * size
        self.cache.make_room(n_tokens)
        return self.cache.n_free_pages * size >= n_tokens

    def _retract(self) -> list[Request]:
        """Throw out whoever has said least, of these who has the longest prompt, until the others fit; the last one stays."""
        self.running.sort(
            key=lambda request: (request.num_output_tokens, -request.num_prompt_tokens),
            reverse=True,
        )
        retracted = list[Request]()
        while len(self.running) > 1 and (not retracted or not self._fits(self.running)):
            retracted.append(self.running.pop())
            self._throw_out(retracted[-1])
        self._queue(retracted)
        n_said = sum(request.num_output_tokens for request in self.running)
        n_most = sum(max_new_tokens(self._config, request) for request in self.running)
        self.new_token_ratio = min(
            (n_said + RETRACT_DECODE_STEPS * len(self.running)) / (n_most + 1), 1.0
        )
        return retracted

    def _throw_out(self, request: Request) -> None:
        """Take everything from one that is no longer among those who generate."""
        self.cache.release(request, None)
        self._slots.release(request)
        self.cache.make_room(len(self.running) * RETRACT_DECODE_STEPS)
        request.lose_place()

    def _queue(self, requests: Sequence[Request]) -> None:
        """They come into the queue, behind all others."""
        for request in requests:
            self._n_turns += 1
            request.turn = self._n_turns
            self.waiting.append(request)

    def _will_finish(self, request: Request) -> bool:
        """Is its last token in flight?"""
        return (
            request.num_output_placeholders > 0
            and request.num_output_tokens + 1 >= max_new_tokens(self._config, request)
        )

    def _launch(self, request: Request, num_tokens: int) -> Scheduled:
        return launch(request, num_tokens, is_async=not self._config.disable_overlap_schedule)

    def _deliver_token(self, request: Request, *, is_first: bool) -> None:
        request.num_tokens += 1
        if not self._config.disable_overlap_schedule:
            request.num_output_placeholders -= 1
        if request.num_output_tokens == request.stop_tokens:
            self._end(
                request,
                Status.STOPPED if request.stop_tokens < request.max_tokens else Status.LENGTH,
            )
        elif request.num_output_tokens >= max_new_tokens(self._config, request):
            self._end(request, Status.LENGTH)
        elif is_first:
            self.cache.checkpoint(request, request.num_tokens - 1)

    def _end(self, request: Request, status: Status) -> None:
        self.cache.release(request, min(request.num_computed_tokens, request.num_tokens))
        self._slots.release(request)
        if request is self._cut:
            self._cut = None
        request.status = status
