"""What does batching do, seen on a clock of ticks?

A teaching model: no memory, no bandwidth, only slots and turns.

A context (prefill) costs p ticks, which may be cut into c chunks of p/c; a generated token costs
one tick. A step takes the sum of its contexts' chunks, and at least one tick: contexts compute one
after the other, generation is memory traffic that hides behind them. The last chunk yields the
first token. Plain Python, for runs that can be looked at.

Source: the batching simulator of NVIDIA's course "Sizing LLM Inference Systems" (S-FX-18), whose
rules these are, but for arrivals at a rate: they count from the instant at which they come, not
from the next step. docs/ticks.md lists what other such games do otherwise, and which options follow
them.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import numpy as np

from inferometer.errors import SpecError
from inferometer.records import tables
from inferometer.records.types import (
    PartKind,
    Phase,
    RequestStatus,
    RequestTable,
    StepPartTable,
    StepTable,
)

TICK_NS: Final = 1_000_000
"""A tick in the tables of a run: one millisecond, so that ticks can be read as milliseconds."""

Batching: TypeAlias = Literal["static", "in-flight", "one-prefill"]
Load: TypeAlias = Literal["batch", "concurrency", "rate"]
Rng: TypeAlias = Literal["numpy", "numpy-legacy"]
Counted: TypeAlias = Literal["ended", "started"]
Horizon: TypeAlias = Literal["exclusive", "inclusive"]

_WHERE: Final = "the tick model"
_MOST_REQUESTS: Final = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TickQuestion:
    """``n_slots`` slots under a load, for ``horizon_ticks``.

    Loads: *batch*: ``load_amount`` requests at the start; *concurrency*: as many in the system at
    all times; *rate*: as many in each 1,000 ticks, evenly. Output lengths are ``output_tokens``, or
    normal around it with ``output_deviation_tokens``, drawn by ``rng``: numpy's ``default_rng``, or
    its legacy ``RandomState``, whose draws are those of ``numpy.random.seed`` and ``normal``.
    ``counted``: TTFT and ITL are averaged over requests that ended, or over all that got a first
    token. ``horizon``: the last step is the last one that begins before the horizon, or at the
    horizon too.
    """

    batching: Batching = "in-flight"
    n_slots: int = 4
    prefill_ticks: int = 2
    n_prefill_chunks: int = 1
    output_tokens: int = 10
    output_deviation_tokens: float = 0.0
    load: Load = "batch"
    load_amount: int = 100
    horizon_ticks: int = 100
    seed: int = 0
    rng: Rng = "numpy"
    counted: Counted = "ended"
    horizon: Horizon = "exclusive"

    def __post_init__(self) -> None:
        for name in (
            "n_slots",
            "prefill_ticks",
            "n_prefill_chunks",
            "output_tokens",
            "load_amount",
            "horizon_ticks",
        ):
            if getattr(self, name) < 1:
                raise SpecError(
                    f"{name} = {getattr(self, name)}", where=_WHERE, allowed="1 or more"
                )
        if self.seed < 0 or (self.rng == "numpy-legacy" and self.seed >= 2**32):
            raise SpecError(
                f"seed = {self.seed}",
                where=_WHERE,
                allowed="0 or more, below 2^32 with numpy-legacy",
            )
        if not 0 <= self.output_deviation_tokens < float("inf"):
            raise SpecError(
                f"output_deviation_tokens = {self.output_deviation_tokens}",
                where=_WHERE,
                allowed="0 or more",
            )
        if TICK_NS * self.prefill_ticks % self.n_prefill_chunks:
            raise SpecError(
                f"{self.prefill_ticks} ticks in {self.n_prefill_chunks} chunks",
                where=_WHERE,
                allowed="chunks of whole millionths of a tick",
                try_=f"prefill_ticks = {self.n_prefill_chunks}",
            )
        if (
            self.load != "concurrency"
            and self.load_amount * (1 if self.load == "batch" else self.horizon_ticks / 1000)
            > _MOST_REQUESTS
        ):
            raise SpecError(
                f"a load of {self.load_amount}",
                where=_WHERE,
                allowed=f"at most {_MOST_REQUESTS} requests in all",
            )

    @property
    def chunk_ns(self) -> int:
        """Duration of a chunk of a context."""
        return TICK_NS * self.prefill_ticks // self.n_prefill_chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class TickReport:
    """Mean times in ticks.

    E2E is averaged over requests that ended, TTFT and ITL as ``counted`` says; None where there is
    none.
    """

    n_finished: int
    n_unfinished: int
    n_queued_at_end: int
    """Waiting, not in a slot."""
    run_ticks: float
    e2e_ticks: float | None
    ttft_ticks: float | None
    itl_ticks: float | None
    requests_per_1000_ticks: float
    output_tokens_per_1000_ticks: float
    """Includes requests still in slots at the end."""
    busy_slot_fraction: float
    """Slots that computed, weighted with the time of each step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRun:
    """The report and the tables behind it.

    A request's prompt counts as many tokens as it has chunks.
    """

    question: TickQuestion
    report: TickReport
    requests: RequestTable
    steps: StepTable
    parts: StepPartTable


@dataclass(slots=True, kw_only=True)
class _Request:
    index: int
    arrival_ns: int
    target_tokens: int
    admitted_ns: int | None = None
    n_chunks: int = 0
    token_ns: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.token_ns) == self.target_tokens


def run_ticks(question: TickQuestion) -> TickRun:
    """Play it: every step that begins before the horizon (or at it, where it is inclusive) is played to its end.

    Example
    -------
    >>> one_by_one = run_ticks(TickQuestion(batching="one-prefill", n_prefill_chunks=2, horizon_ticks=100))
    >>> static = run_ticks(TickQuestion(batching="static"))
    >>> one_by_one.report.requests_per_1000_ticks > static.report.requests_per_1000_ticks
    True
    """
    game = _Game(question)
    end_ns = question.horizon_ticks * TICK_NS + (question.horizon == "inclusive")
    while game.now_ns < end_ns and game.play_step():
        pass
    return game.result()


class _Game:
    def __init__(self, question: TickQuestion) -> None:
        self._question = question
        self._random = _random_numbers(question)
        self._requests = list[_Request]()
        self._queue = deque[_Request]()
        self._slots: list[_Request | None] = [None] * question.n_slots
        self._step_rows = list[dict[str, object]]()
        self._part_rows = list[dict[str, object]]()
        self.now_ns = 0

    def play_step(self) -> bool:
        """Run one step, or wait for the next arrival; False when nothing further will happen."""
        self._take_in()
        self._fill_slots()
        active = [
            (slot, request)
            for slot, request in enumerate(self._slots)
            if request is not None and not request.is_done
        ]
        if not active:
            return self._wait()
        contexts = [request for _, request in active if self._is_context(request)]
        duration_ns = max(len(contexts) * self._question.chunk_ns, TICK_NS)
        self._note_step(duration_ns, n_contexts=len(contexts), n_active=len(active))
        self.now_ns += duration_ns
        for slot, request in active:
            self._advance(slot, request)
        self._empty_slots()
        return True

    def _take_in(self) -> None:
        question = self._question
        if question.load == "rate":
            n_due = self.now_ns * question.load_amount // (1000 * TICK_NS)
            for number in range(len(self._requests) + 1, n_due + 1):
                self._arrive(-(-number * 1000 * TICK_NS // question.load_amount))
            return
        n_present = len(self._queue) + sum(
            request is not None and not request.is_done for request in self._slots
        )
        n_new = question.load_amount - (
            len(self._requests) if question.load == "batch" else n_present
        )
        for _ in range(n_new):
            self._arrive(self.now_ns)

    def _arrive(self, arrival_ns: int) -> None:
        length = self._random.normal(
            self._question.output_tokens, self._question.output_deviation_tokens
        )
        request = _Request(
            index=len(self._requests), arrival_ns=arrival_ns, target_tokens=int(max(length, 1))
        )
        self._requests.append(request)
        self._queue.append(request)

    def _fill_slots(self) -> None:
        free = [slot for slot, request in enumerate(self._slots) if request is None]
        if self._question.batching == "static" and len(free) < len(self._slots):
            return
        if self._question.batching == "one-prefill":
            has_context = any(
                request is not None and self._is_context(request) for request in self._slots
            )
            free = [] if has_context else free[:1]
        for slot in free[: len(self._queue)]:
            request = self._queue.popleft()
            request.admitted_ns = self.now_ns
            self._slots[slot] = request

    def _advance(self, slot: int, request: _Request) -> None:
        is_context = self._is_context(request)
        request.n_chunks += is_context
        yields_token = not self._is_context(request)
        if yields_token:
            request.token_ns.append(self.now_ns)
        self._note_part(
            slot,
            request,
            PartKind.CONTEXT if is_context else PartKind.GENERATION,
            n_delivered=int(yields_token),
        )

    def _empty_slots(self) -> None:
        is_all_done = all(request is None or request.is_done for request in self._slots)
        if self._question.batching != "static" or is_all_done:
            self._slots = [
                None if request is None or request.is_done else request for request in self._slots
            ]

    def _is_context(self, request: _Request) -> bool:
        return request.n_chunks < self._question.n_prefill_chunks

    def _wait(self) -> bool:
        if self._question.load != "rate":
            return False
        self.now_ns = -(-(len(self._requests) + 1) * 1000 * TICK_NS // self._question.load_amount)
        return True

    def _note_step(self, duration_ns: int, *, n_contexts: int, n_active: int) -> None:
        n_generations = n_active - n_contexts
        phase = (
            Phase.MIXED
            if n_contexts and n_generations
            else Phase.PREFILL
            if n_contexts
            else Phase.DECODE
        )
        for slot, request in enumerate(self._slots):
            if request is not None and request.is_done:
                self._note_part(slot, request, PartKind.ENDED, n_delivered=0)
        self._step_rows.append(
            {
                "point_index": -1,
                "repetition": -1,
                "is_warmup": False,
                "phase": phase,
                "start_ns": self.now_ns,
                "duration_ns": duration_ns,
                "n_prefill_requests": n_contexts,
                "n_decode_requests": n_generations,
                "n_waiting_requests": len(self._queue),
                "n_preempted_requests": 0,
                "prefill_tokens": n_contexts,
            }
        )

    def _note_part(self, slot: int, request: _Request, kind: PartKind, *, n_delivered: int) -> None:
        step_index = len(self._step_rows) - (kind is not PartKind.ENDED)
        self._part_rows.append(
            {
                "step_index": step_index,
                "request_index": request.index,
                "slot": slot,
                "kind": kind,
                "n_computed_tokens": int(kind is not PartKind.ENDED),
                "n_delivered_tokens": n_delivered,
            }
        )

    def result(self) -> TickRun:
        if self._question.load == "rate":
            self._take_in()  # who came during the last step waits too
        return TickRun(
            question=self._question,
            report=self._report(),
            requests=tables.from_rows(
                RequestTable, [self._request_row(request) for request in self._requests]
            ),
            steps=tables.from_rows(StepTable, self._step_rows),
            parts=tables.from_rows(StepPartTable, self._part_rows),
        )

    def _report(self) -> TickReport:
        done = [request for request in self._requests if request.is_done]
        counted = (
            done
            if self._question.counted == "ended"
            else [request for request in self._requests if request.token_ns]
        )
        gaps = [gap for request in counted for gap in np.diff(request.token_ns).tolist()]
        n_tokens = sum(len(request.token_ns) for request in self._requests)
        busy_ns = sum(
            int(row["duration_ns"])  # type: ignore[call-overload]
            * (int(row["n_prefill_requests"]) + int(row["n_decode_requests"]))  # type: ignore[call-overload]
            for row in self._step_rows
        )
        return TickReport(
            n_finished=len(done),
            n_unfinished=len(self._requests) - len(done),
            n_queued_at_end=len(self._queue),
            run_ticks=self.now_ns / TICK_NS,
            e2e_ticks=_mean_ticks([request.token_ns[-1] - request.arrival_ns for request in done]),
            ttft_ticks=_mean_ticks(
                [request.token_ns[0] - request.arrival_ns for request in counted]
            ),
            itl_ticks=_mean_ticks(gaps),
            requests_per_1000_ticks=1000 * len(done) * TICK_NS / self.now_ns,
            output_tokens_per_1000_ticks=1000 * n_tokens * TICK_NS / self.now_ns,
            busy_slot_fraction=busy_ns / (self.now_ns * self._question.n_slots),
        )

    def _request_row(self, request: _Request) -> dict[str, object]:
        return {
            "intended_send_ns": request.arrival_ns,
            "sent_ns": request.arrival_ns,
            "admitted_ns": request.admitted_ns,
            "first_token_ns": request.token_ns[0] if request.token_ns else None,
            "finished_ns": request.token_ns[-1] if request.is_done else None,
            "prompt_tokens": self._question.n_prefill_chunks,
            "cached_tokens": 0,
            "output_tokens": len(request.token_ns),
            "n_preemptions": 0,
            "status": RequestStatus.STOPPED if request.is_done else RequestStatus.UNFINISHED,
            "priority": 0,
            "class_index": 0,
            "request_index": request.index,
        }


def _random_numbers(question: TickQuestion) -> np.random.Generator | np.random.RandomState:
    if question.rng == "numpy":
        return np.random.default_rng(question.seed)
    return np.random.RandomState(question.seed)


def _mean_ticks(durations_ns: list[int]) -> float | None:
    return sum(durations_ns) / len(durations_ns) / TICK_NS if durations_ns else None
