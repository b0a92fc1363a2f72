"""Latencies of a closed loop as sums of step times, from one simulation of its schedule.

A user who sends as soon as the last answer has ended arrives at the end of a step, however long
that was. So which requests share a step follows from the lengths and the scheduler alone. The
scheduler is simulated once, with steps of equal length; first tokens, gaps and totals are then
sums of step times. Steps of nearly equal shape are counted together. Letters of shapes: S steps,
B kinds of steps, R sampled requests, K sets of parameters.

Prefill and decode workers have steps of different length, so their schedules depend on times, and
no single simulation serves all parameters. Means of a closed queueing network take its place:
prompts wait for the next free prefill worker, then decode beside a steady number of others.
Letters of shapes: B kinds of steps, K sets of parameters.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.perfmodel.roofline import ParallelPlan
from inferometer.perfmodel.steptime_terms import StepTimeArrays, WorkColumns, work_columns
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.records.columns import F64, I64
from inferometer.records.types import StepTable
from inferometer.simulate.demand import Demand, demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.outcome import Simulation
from inferometer.simulate.run import simulate

Statistic: TypeAlias = Literal["mean", "median"]

_STEP_NS: Final = 1_000_000
_KEY_PLACES: Final = 256 ** np.arange(5)[::-1]
"""Places of the rounded logarithms of five columns, each below 256."""
_PAUSE_NS: Final = _STEP_NS // 2
"""From the end of an answer until the engine knows the next request: it misses the step that starts
at once, and joins the next."""
_KINDS_PER_DOUBLING: Final = 4
_MOST_REQUESTS: Final = 120
_SEED: Final = 20261121
_TINY_S: Final = 1e-15


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoad:
    """A closed loop of ``concurrency`` users.

    Lengths are uniform between ``least_share_ratio`` of the nominal length and the nominal
    length.
    """

    concurrency: int
    prompt_tokens: int
    output_tokens: int
    least_share_ratio: float = 1.0
    n_rounds: int = 10
    """Requests of each user."""


class LoopSeen(NamedTuple):
    """Latencies and throughput as a client reports them (K each)."""

    ttft_s: F64
    tpot_s: F64
    output_tokens_per_s: F64
    """Of the whole deployment, from the first send to the last token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSchedule:
    """Kinds of steps of a closed loop (B), and how often each is part of each latency."""

    load: ClosedLoad
    shapes: tuple[BatchShape, ...]
    until_first: F64
    """(R, B)"""
    until_last: F64
    """(R, B) From the first token."""
    n_gaps: F64
    """(R)"""
    whole: F64
    """(B)"""
    n_output_tokens: int
    n_preempted: int
    n_waited_steps: int = 0
    """Steps that a prompt waits for others, by the engine's settings."""

    def seen(self, step_s: F64, front_end_s: F64, statistic: Statistic) -> LoopSeen:
        """Latencies when the kinds of steps take ``step_s`` (K, B).

        ``front_end_s`` (K) is the way to the engine and back.
        """
        middle = np.median if statistic == "median" else np.mean
        tpot_s = middle(step_s @ self.until_last.T / self.n_gaps, axis=1)
        before_s = front_end_s + self.n_waited_steps * tpot_s
        ttft_s = middle(step_s @ self.until_first.T, axis=1) + before_s
        whole_s = step_s @ self.whole + self.load.n_rounds * before_s
        return LoopSeen(ttft_s, tpot_s, self.n_output_tokens / whole_s)


def loop_schedule(
    load: ClosedLoad, config: EngineConfig, *, n_waited_steps: int = 0
) -> LoopSchedule:
    """Simulate the loop once.

    Raises
    ------
    SpecError
        The engine cannot hold such a request.
    """
    done = simulate(loop_demand(load), config, _EQUAL_STEPS)
    steps = done.steps
    if steps is None:  # pragma: no cover -- they were asked for
        raise AssertionError("a simulation without steps")
    kinds, shapes = _kinds(steps)
    ends_ns = steps.start_ns + steps.duration_ns
    sampled = _sampled(done)
    table = done.requests
    sent, first, last = (
        np.searchsorted(ends_ns, times[sampled], side="right") for times in _instants(done)
    )

    def counted(begin: I64, end: I64) -> F64:
        rows = [
            np.bincount(kinds[low:high], minlength=len(shapes))
            for low, high in zip(begin, end, strict=True)
        ]
        return np.array(rows, dtype=np.float64)

    return LoopSchedule(
        load=load,
        shapes=shapes,
        until_first=counted(sent, first),
        until_last=counted(first, last),
        n_gaps=np.maximum(table.output_tokens[sampled] - 1.0, 1.0),
        whole=np.bincount(kinds, minlength=len(shapes)).astype(np.float64),
        n_output_tokens=int(table.output_tokens.sum()),
        n_preempted=int(steps.n_preempted_requests.sum()),
        n_waited_steps=n_waited_steps,
    )


def loop_demand(load: ClosedLoad, pause_ns: int = _PAUSE_NS) -> Demand:
    """The requests of the loop, each user's one after another."""
    n_requests = load.concurrency * load.n_rounds
    rng = np.random.default_rng(_SEED)

    def lengths(nominal: int) -> I64:
        return rng.integers(
            max(1, round(load.least_share_ratio * nominal)), nominal, n_requests, endpoint=True
        )

    index = np.arange(n_requests)
    return demand(
        np.zeros(n_requests, np.int64),
        lengths(load.prompt_tokens),
        lengths(load.output_tokens),
        follows=np.where(index < load.concurrency, -1, index - load.concurrency),
        think_ns=np.full(n_requests, pause_ns),
    )


def _instants(done: Simulation) -> tuple[I64, I64, I64]:
    return done.requests.sent_ns, done.requests.first_token_ns, done.requests.finished_ns


def _sampled(done: Simulation) -> I64:
    """A sample of requests, evenly spread over the run, large enough for a median."""
    n_requests = len(done.requests.sent_ns)
    return np.unique(
        np.linspace(0, n_requests - 1, min(n_requests, _MOST_REQUESTS)).round().astype(np.int64)
    )


def _kinds(steps: StepTable) -> tuple[I64, tuple[BatchShape, ...]]:
    """The kind of each step (S), and the mean shape of each kind."""
    columns = np.column_stack(
        [
            steps.n_prefill_requests,
            steps.n_decode_requests,
            steps.prefill_tokens,
            steps.prefill_context_product_tokens2,
            steps.decode_context_tokens,
        ]
    ).astype(np.float64)
    key = np.round(np.log2(1.0 + columns) * _KINDS_PER_DOUBLING).astype(np.int64)
    # One number a step: sorting rows took a quarter of a schedule's time.
    _, kinds = np.unique(key @ _KEY_PLACES, return_inverse=True)
    kinds = kinds.reshape(-1).astype(np.int64)
    number = np.bincount(kinds)
    means = np.stack([np.bincount(kinds, weights=column) / number for column in columns.T], axis=1)
    return kinds, tuple(_shape(row) for row in np.round(means).astype(np.int64).tolist())


def _shape(row: list[int]) -> BatchShape:
    n_prefill, n_decode, prefill_tokens, product, context_tokens = row
    return BatchShape(
        n_prefill_requests=n_prefill,
        n_decode_requests=n_decode,
        prefill_tokens=prefill_tokens,
        prefill_context_product_tokens2=product,
        decode_context_tokens=context_tokens,
        n_logit_positions=n_prefill + n_decode,
    )


_NOTHING: Final = np.full(1, _TINY_S)
_EQUAL_STEPS: Final = StepTimeArrays(
    launch_s=_STEP_NS / 1e9,
    prefill_launch_s=_STEP_NS / 1e9,
    overlap_ratio=64.0,
    blend_ratio=1.0,
    sag_ratio=0.0,
    per_sequence_s=0.0,
    read_log_rows=np.zeros(1),
    read_s=_NOTHING,
    matmul_row_s=_TINY_S,
    head_read_s=_TINY_S,
    head_row_s=_TINY_S,
    kv_token_s=0.0,
    attention_pair_s=0.0,
    message_s=0.0,
    link_row_s=0.0,
    link_logit_s=0.0,
    window_tokens=np.inf,
    full_share_ratio=1.0,
    staircase_log_rows=np.zeros(1),
    staircase_log_ratio=np.zeros(1),
    computes_all_logits=False,
)


_HALVINGS: Final = 32
"""Bisections of a number of users: more change the tenth digit only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """Servers of one kind, each over the devices of its plan."""

    n_workers: int
    plan: ParallelPlan

    @property
    def n_replicas(self) -> int:
        """Schedulers of all these servers together."""
        return self.n_workers * self.plan.n_sharing

    @property
    def n_devices(self) -> int:
        """Devices of all these servers together."""
        return self.n_workers * self.plan.n_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartSchedule:
    """Steps of a prefill worker, then of a decode worker (B), and the number of each."""

    load: ClosedLoad
    shapes: tuple[BatchShape, ...]
    n_prefill_shapes: int
    n_prefill_replicas: int
    n_decode_replicas: int
    n_gaps: F64
    """(1) Of the mean request."""

    def seen(self, step_s: F64, front_end_s: F64, statistic: Statistic) -> LoopSeen:
        """Latencies when these steps take ``step_s`` (K, B)."""
        prompts = np.array([one.n_prefill_requests for one in self.shapes[: self.n_prefill_shapes]])
        service_s = (step_s[:, : self.n_prefill_shapes] / prompts).min(axis=1)
        alone_s, decode_s = step_s[:, 0], step_s[:, self.n_prefill_shapes :]
        low = np.zeros(len(step_s))
        high = np.full(len(step_s), self.load.concurrency / self.n_decode_replicas)
        for _ in range(_HALVINGS):
            batch = (low + high) / 2
            rate = self._rate_per_s(batch, decode_s)
            users = batch * self.n_decode_replicas + rate * (
                self._prefill_s(rate, alone_s, service_s) + front_end_s
            )
            is_low = users < self.load.concurrency
            low, high = np.where(is_low, batch, low), np.where(is_low, high, batch)
        rate = self._rate_per_s(low, decode_s)
        steady_s = self._prefill_s(rate, alone_s, service_s)
        # At the start all users send at once, and the mean of them waits for half of the others.
        wave_s = alone_s + service_s * (self.load.concurrency / self.n_prefill_replicas - 1) / 2
        first = 1 / self.load.n_rounds if statistic == "mean" else 0.0
        ttft_s = (1 - first) * steady_s + first * np.maximum(wave_s, steady_s) + front_end_s
        return LoopSeen(ttft_s, self._token_s(low, decode_s), rate * (self.n_gaps[0] + 1))

    def _token_s(self, batch: F64, decode_s: F64) -> F64:
        sizes = np.array([one.n_decode_requests for one in self.shapes[self.n_prefill_shapes :]])
        place = np.interp(np.maximum(batch, 1.0), sizes, np.arange(len(sizes)))
        below = np.minimum(place.astype(np.int64), max(len(sizes) - 2, 0))
        above = np.minimum(below + 1, len(sizes) - 1)
        rows, share = np.arange(len(batch)), place - below
        step_s = decode_s[rows, below] * (1 - share) + decode_s[rows, above] * share
        return np.asarray(step_s, dtype=np.float64)

    def _rate_per_s(self, batch: F64, decode_s: F64) -> F64:
        """Requests per second of all replicas that decode ``batch`` requests at once."""
        gaps_s = self.n_gaps[0] * self._token_s(batch, decode_s)
        return np.asarray(self.n_decode_replicas * batch / gaps_s, dtype=np.float64)

    def _prefill_s(self, rate: F64, alone_s: F64, service_s: F64) -> F64:
        """Time at the prefill workers: Sakasegawa's wait of M/D/c (Ann. Inst. Stat. Math. 29, 1977)."""
        n_servers = self.n_prefill_replicas
        load = np.minimum(rate * service_s / n_servers, 1 - 1e-9)
        power = np.sqrt(2.0 * (n_servers + 1)) - 1
        return np.asarray(
            alone_s + service_s * load**power / (2 * n_servers * (1 - load)), dtype=np.float64
        )


def apart_schedule(
    load: ClosedLoad, prefill: Workers, decode: Workers, *, budget: int
) -> ApartSchedule:
    """Kinds of steps: up to ``budget`` tokens of whole prompts, and batches up to the replica's share."""
    share = (1 + load.least_share_ratio) / 2
    prompt_tokens, output_tokens = (
        max(round(share * n_tokens), 1) for n_tokens in (load.prompt_tokens, load.output_tokens)
    )
    n_prompts = _doublings(max(budget // prompt_tokens, 1))
    sizes = _doublings(-(-load.concurrency // decode.n_replicas))
    context_tokens = prompt_tokens + max(output_tokens // 2, 1)
    return ApartSchedule(
        load=load,
        shapes=(
            *(prefill_shape(batch_size=n, prompt_tokens=prompt_tokens) for n in n_prompts),
            *(decode_shape(batch_size=n, context_tokens=context_tokens) for n in sizes),
        ),
        n_prefill_shapes=len(n_prompts),
        n_prefill_replicas=prefill.n_replicas,
        n_decode_replicas=decode.n_replicas,
        n_gaps=np.array([max(output_tokens - 1.0, 1.0)]),
    )


def apart_work(
    model: ModelSpec, engine: EngineSpec, schedule: ApartSchedule, plans: tuple[ParallelPlan, ...]
) -> WorkColumns:
    """Work of the steps, on the devices of prefill and of decode workers."""
    n_prefill = schedule.n_prefill_shapes
    parts = [
        work_columns(
            model,
            replace(engine, tensor_parallel_size=plan.n_tensor),
            shapes,
            kv_traffic_ratio=1.0,
            plan=plan,
        )
        for plan, shapes in zip(
            plans, (schedule.shapes[:n_prefill], schedule.shapes[n_prefill:]), strict=True
        )
    ]
    return WorkColumns(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _doublings(most: int) -> list[int]:
    """1, 2, 4, ... and ``most``."""
    sizes = [2**k for k in range(most.bit_length())]
    return [*(size for size in sizes if size < most), most]
