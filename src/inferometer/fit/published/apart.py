"""Latencies of a closed loop whose prompts and tokens are computed by workers of their own.

Prefill and decode workers have steps of different length, so their schedules depend on times, and
no single simulation serves all parameters. Means of a closed queueing network take its place:
prompts wait for the next free prefill worker, then decode beside a steady number of others.
Letters of shapes: B kinds of steps, K sets of parameters.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from inferometer.fit.published.closed_loop import ClosedLoad, LoopSeen, Statistic
from inferometer.inputs.types import EngineSpec, ModelSpec
from inferometer.perfmodel.roofline import ParallelPlan
from inferometer.perfmodel.steptime_terms import WorkColumns, work_columns
from inferometer.perfmodel.types import BatchShape, decode_shape, prefill_shape
from inferometer.records.columns import F64

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
