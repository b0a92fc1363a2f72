"""Load tests as data, and the simulation of their requests as they were sent.

Without a simulation, how many requests were in flight, how many answers streamed and how many
tokens were held bound the server's limits from below; the pace of answers beside what else was in
flight gives a first estimate of its step times. Letters of shapes: N requests, R runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import scipy

from inferometer.errors import ModelError
from inferometer.inputs.workload.plan import NONE, RequestPlan, block_contents
from inferometer.perfmodel.steptime import StepTimeModel, arrays_of
from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.records.columns import F64, I32, I64, Bools
from inferometer.records.latencies import COMPLETED, is_one_of
from inferometer.records.types import ABSENT, ChunkTable, RequestStatus, RequestTable, Run
from inferometer.simulate.demand import Demand, SharedBlocks, demand, with_contents
from inferometer.simulate.fleet import ClusterConfig, Fleet, Router
from inferometer.simulate.outcome import Simulation
from inferometer.simulate.run import simulate_fleet
from inferometer.simulate.scheduler_config import SchedulerConfig

Pricing: TypeAlias = Callable[[StepTimeModel], StepTimeArrays]
"""Turns a model's step times into a simulator's: ``arrays_of``, or ``lockstep_arrays`` where
replicas step together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An engine's scheduler, the prefix blocks that prompts share, and how a step is priced."""

    config: SchedulerConfig
    shared: SharedBlocks | None = None
    pricing: Pricing = arrays_of
    n_replicas: int = 1
    """Several replicas take each step together, behind this router."""
    router: Router = "least-loaded"

    def simulated(
        self, requests: RequestTable, model: StepTimeModel, front_end_s: float
    ) -> Simulation:
        """Simulate requests sent at the same times; the rows keep their order."""
        arrival_ns = requests.sent_ns + round(front_end_s * 1e9)
        asked = demand(arrival_ns, requests.prompt_tokens, requests.output_tokens)
        if self.config.enable_prefix_caching:
            asked = with_contents(asked, self.config.block_size, self.shared)
        group = ClusterConfig(
            engine=self.config,
            n_replicas=self.n_replicas,
            in_lockstep=self.n_replicas > 1,
            router=self.router,
        )
        return simulate_fleet(Fleet(replicas=group, step_times=self.pricing(model)), asked)


class Latencies(NamedTuple):
    """Latencies of N requests from their send; NaN where there is none."""

    ttft_s: F64
    tpot_s: F64
    e2e_s: F64


def latencies(asked: RequestTable, found: RequestTable) -> Latencies:
    """Latencies of ``found``, from the sends of the same requests in ``asked``."""
    n_found = len(found.sent_ns)
    sent_ns = asked.sent_ns[:n_found]
    first_s = np.where(found.first_token_ns >= 0, (found.first_token_ns - sent_ns) / 1e9, np.nan)
    is_done = is_one_of(found, COMPLETED)
    last_s = np.where(is_done, (found.finished_ns - sent_ns) / 1e9, np.nan)
    n_gaps = np.where(found.output_tokens > 1, found.output_tokens - 1.0, np.nan)
    lost = np.full(len(asked.sent_ns) - n_found, np.nan)
    return Latencies(
        *(
            np.concatenate([column, lost])
            for column in (first_s, (last_s - first_s) / n_gaps, last_s)
        )
    )


STATISTICS: Final = ("mean", "p50", "p90", "p99")


class Agreement(NamedTuple):
    """One statistic of one latency, measured and simulated."""

    metric: str
    statistic: str
    measured_s: float
    simulated_s: float

    @property
    def error_fraction(self) -> float:
        """Signed, relative to what was measured."""
        return self.simulated_s / self.measured_s - 1


def agreements(
    measured: Latencies, simulated: Latencies, keep: Bools | None = None
) -> tuple[Agreement, ...]:
    """Mean and percentiles of TTFT, TPOT and E2E, of the requests in ``keep`` (N)."""
    found: list[Agreement] = []
    for name in Latencies._fields:
        seen, made = getattr(measured, name), getattr(simulated, name)
        both = ~np.isnan(seen) & ~np.isnan(made) & (True if keep is None else keep)
        for statistic in STATISTICS:
            values = statistic_of(seen[both], statistic), statistic_of(made[both], statistic)
            found.append(Agreement(name.removesuffix("_s"), statistic, *values))
    return tuple(found)


def statistic_of(values: F64, statistic: str) -> float:
    """The mean or a percentile, linear between ranks."""
    return (
        float(np.mean(values))
        if statistic == "mean"
        else float(np.percentile(values, float(statistic[1:])))
    )


_NEVER_INSIDE: Final = (RequestStatus.REJECTED, RequestStatus.FAILED)
MIN_REQUESTS: Final = 30
"""Fewest finished requests of a load test for a model of the server."""
_N_GROUPS: Final = 10
_N_LENGTHS: Final = 3
_LEAST_GAPS: Final = 4
_LEAST_SHARE: Final = 0.05
"""Least share of the pace for the base, which the first regression may not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """A run of requests, and its workload's plan if known: which prompts share prefixes."""

    run: Run
    plan: RequestPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServedLoad:
    """The requests of a load test that reached the server, in order of sending.

    Equal to itself alone, so that what follows from it is worked out once for all simulations.
    """

    run_id: str
    requests: RequestTable
    output_tokens: I32
    """Requested output tokens of each."""
    plan: RequestPlan | None
    seen: Latencies
    is_used: Bools
    """Requests that ended: their latencies enter the fit, the others only load the server."""
    gap_s: F64 | None = None
    """(N) Mean gap between tokens at a random instant of the answer. It exceeds TPOT by what steps
    differ, which shows how prompts were cut into steps. NaN where chunks do not carry one token
    each; None: no chunk was recorded."""

    def demand(self, front_end_s: float, block_size: int, *, has_contents: bool) -> Demand:
        """The requests as they reach the scheduler."""
        sent, delay_ns = _as_sent(self, block_size, has_contents), round(front_end_s * 1e9)
        ends_ns = sent.abort_ns
        return sent._replace(
            arrival_ns=sent.arrival_ns + delay_ns,
            abort_ns=np.where(ends_ns == ABSENT, ABSENT, ends_ns + delay_ns),
        )

    @property
    def has_shared_prefixes(self) -> bool:
        """Do some prompts share a known prefix?"""
        return bool(self.shared_tokens().any())

    def shared_tokens(self) -> I64:
        """Tokens of each prompt that other prompts begin with, too, as far as is known."""
        if self.plan is None:
            return np.zeros(len(self.requests.request_index), np.int64)
        return self.plan.prefix_tokens[self.requests.request_index].astype(np.int64)

    def shared_blocks(self, block_size: int) -> SharedBlocks | None:
        """Blocks of prefixes that prompts share, as far as is known."""
        if self.plan is None:
            return None
        contents, rows = block_contents(self.plan, block_size), self.requests.request_index
        n_full = (self.requests.prompt_tokens.astype(np.int64) + self.output_tokens) // block_size
        counts = np.minimum(n_full, contents.start[rows + 1] - contents.start[rows])
        start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        candidates = np.repeat(contents.start[rows] - start[:-1], counts) + np.arange(start[-1])
        return SharedBlocks(start=start, ids=contents.ids[candidates].astype(np.int64))


@lru_cache(16)
def _as_sent(one: ServedLoad, block_size: int, has_contents: bool) -> Demand:  # noqa: FBT001 -- a key
    table = one.requests
    leaves = table.status == RequestStatus.ABORTED
    requested = demand(
        table.sent_ns,
        table.prompt_tokens,
        one.output_tokens,
        abort_ns=np.where(leaves, np.maximum(table.finished_ns, table.sent_ns), ABSENT),
    )
    if not has_contents:
        return requested
    return with_contents(requested, block_size, one.shared_blocks(block_size))


class PeakLoad(NamedTuple):
    """The most that was in flight at once, over all runs."""

    n_inside: int
    """Requests sent and not ended: a larger max_num_seqs makes no difference."""
    n_streaming: int
    """Answers streaming: max_num_seqs is at least this."""
    n_held_tokens: int
    """Of prompts whose answers streamed, without what they may have shared: the KV cache holds at
    least these."""
    n_inside_tokens: int
    """Tokens of prompts and whole answers in flight: a larger KV cache makes no difference."""
    n_prompt_tokens: int
    """Prompt tokens in flight: a larger step budget makes no difference."""
    longest_tokens: int
    """Prompt and answer of one request."""
    has_known_prefixes: bool
    """Is it known which prompts share prefixes?"""


class StepPace(NamedTuple):
    """Seconds of a step by its contents, from the pace of answers; None where not visible."""

    base_s: float
    sequence_s: float | None
    context_token_s: float | None
    prompt_token_s: float | None


def served_load(test: LoadTest) -> ServedLoad:
    """The requests of a load test that reached the server.

    Raises
    ------
    ModelError
        The run has no requests, or too few of them ended.
    """
    run = test.run
    if run.requests is None:
        raise ModelError(f"run {run.manifest.run_id} has no requests", allowed="a load test")
    inside = np.flatnonzero(
        ~np.isin(run.requests.status, _NEVER_INSIDE) & (run.requests.sent_ns != ABSENT)
    )
    rows = inside[np.argsort(run.requests.sent_ns[inside], kind="stable")]
    table = RequestTable._make(column[rows] for column in run.requests)
    is_used = is_one_of(table, COMPLETED) & (table.first_token_ns != ABSENT)
    if is_used.sum() < MIN_REQUESTS:
        raise ModelError(
            f"{is_used.sum()} requests that ended well are too few for a fit",
            where=run.manifest.run_id,
            allowed=f"{MIN_REQUESTS} or more",
            try_="a longer load test, of more requests",
        )
    asked = (
        table.output_tokens
        if run.exchanges is None
        else np.maximum(run.exchanges.asked_output_tokens[rows], table.output_tokens)
    )
    output = np.where(is_one_of(table, COMPLETED), table.output_tokens, asked)
    plan = test.plan if test.plan is not None and is_plan_of(test.plan, table) else None
    return ServedLoad(
        run_id=run.manifest.run_id,
        requests=table,
        output_tokens=np.maximum(output, 1).astype(np.int32),
        plan=plan,
        seen=latencies(table, table),
        is_used=is_used,
        gap_s=None if run.chunks is None else _gaps(table, run.chunks),
    )


def _gaps(table: RequestTable, chunks: ChunkTable) -> F64:
    """(N) Sum of squared gaps over their sum, of requests all of whose chunks carry one token."""
    gap_s = np.full(len(table.status), np.nan)
    order = np.lexsort((chunks.arrived_ns, chunks.request_index))
    index, arrived_s = chunks.request_index[order], chunks.arrived_ns[order] / 1e9
    first, last = (
        np.searchsorted(index, table.request_index, side=side) for side in ("left", "right")
    )
    is_single = np.concatenate([[0], np.cumsum(chunks.n_tokens[order] == 1)])
    is_plain = (
        (last - first == table.output_tokens)
        & (is_single[last] - is_single[first] == last - first)
        & (last - first > _LEAST_GAPS)
    )
    squares = np.concatenate([[0.0, 0.0], np.cumsum(np.diff(arrived_s) ** 2)])[: len(index) + 1]
    rows = np.flatnonzero(is_plain)
    start, end = first[rows], last[rows] - 1
    took_s = arrived_s[end] - arrived_s[start]
    gap_s[rows] = np.where(
        took_s > 0, (squares[end + 1] - squares[start + 1]) / np.maximum(took_s, 1e-9), np.nan
    )
    return gap_s


@lru_cache(16)
def cells_of(one: ServedLoad) -> I64:
    """Cell of each used request: neighbours in time with prompts of similar length."""
    neighbours = np.arange(int(one.is_used.sum())) * _N_GROUPS // int(one.is_used.sum())
    by_length = np.lexsort((one.requests.prompt_tokens[one.is_used], neighbours))
    rank = np.empty_like(neighbours)
    rank[by_length] = np.arange(len(rank))
    first, size = np.searchsorted(neighbours, neighbours), np.bincount(neighbours)[neighbours]
    return np.asarray(neighbours * _N_LENGTHS + (rank - first) * _N_LENGTHS // size, dtype=np.int64)


def groups_of(one: ServedLoad) -> I64:
    """Group of each cell: neighbours in time, whose residuals are correlated."""
    return np.arange(int(cells_of(one).max()) + 1) // _N_LENGTHS


def peak_load(loads: Sequence[ServedLoad]) -> PeakLoad:
    """The peaks over all runs."""
    rows = [_crowd(one) for one in loads]
    most = PeakLoad(*(max(column) for column in zip(*rows, strict=True)))
    return most._replace(has_known_prefixes=all(one.has_known_prefixes for one in rows))


def _crowd(one: ServedLoad) -> PeakLoad:
    table, output = one.requests, one.output_tokens.astype(np.int64)
    prompt = table.prompt_tokens.astype(np.int64)
    end_ns = np.where(table.finished_ns == ABSENT, np.iinfo(np.int64).max, table.finished_ns)
    streams = one.is_used & (one.output_tokens > 1)
    ones, shared = np.ones(len(prompt), np.int64), one.shared_tokens()
    first_ns, last_ns = table.first_token_ns[streams], end_ns[streams]
    return PeakLoad(
        n_inside=_most(table.sent_ns, end_ns, ones),
        n_streaming=_most(first_ns, last_ns, ones[streams]),
        n_held_tokens=_most(first_ns, last_ns, (prompt - shared)[streams]),
        n_inside_tokens=_most(table.sent_ns, end_ns, prompt + output),
        n_prompt_tokens=_most(table.sent_ns, end_ns, prompt) + int(ones.sum()),
        longest_tokens=int((prompt + output).max()),
        has_known_prefixes=one.plan is not None,
    )


def _most(start_ns: I64, end_ns: I64, weight: I64) -> int:
    """Largest sum of the weights of what is in flight at once.

    What ends at an instant has left before another begins.
    """
    instants = np.concatenate([start_ns, end_ns])
    order = np.lexsort((np.repeat([1, 0], len(start_ns)), instants))
    return int(np.cumsum(np.concatenate([weight, -weight])[order]).max(initial=0))


def step_pace(loads: Sequence[ServedLoad]) -> StepPace:
    """Non-negative regression of each answer's time per token on what else was in flight."""
    rows = [_company(one) for one in loads]
    company = np.concatenate([columns for columns, _ in rows])
    tpot_s = np.concatenate([pace for _, pace in rows])
    if len(tpot_s) < MIN_REQUESTS:
        raise ModelError(
            f"{len(tpot_s)} answers of several tokens",
            allowed=f"{MIN_REQUESTS} or more",
            try_="longer answers",
        )
    scale = np.maximum(company.max(axis=0), 1e-9)
    found = scipy.optimize.nnls(company / scale / tpot_s[:, None], np.ones(len(tpot_s)))[0] / scale
    base_s = max(float(found[0]), _LEAST_SHARE * float(tpot_s.min()))
    return StepPace(base_s, *(float(seconds) or None for seconds in found[1:]))


def _company(one: ServedLoad) -> tuple[F64, F64]:
    """Regressors of each answer (rows), and its time per token.

    1, mean answers streaming, mean context tokens, and prompt tokens per step.
    """
    rows = np.flatnonzero(one.is_used & (one.output_tokens > 2) & (one.seen.tpot_s > 0))
    table = one.requests
    first_s, last_s = table.first_token_ns[rows] / 1e9, table.finished_ns[rows] / 1e9
    took_s, n_steps = last_s - first_s, one.output_tokens[rows] - 1.0
    context = table.prompt_tokens[rows] + one.output_tokens[rows] / 2.0
    n_answers = _under_way(first_s, last_s, np.ones(len(rows))) / took_s
    n_context = _under_way(first_s, last_s, context) / took_s
    firsts = np.argsort(first_s)
    computed = np.concatenate(
        [[0.0], np.cumsum(table.prompt_tokens[rows][firsts].astype(np.float64))]
    )
    n_prompt = (
        computed[np.searchsorted(first_s[firsts], last_s)]
        - computed[np.searchsorted(first_s[firsts], first_s, side="right")]
    )
    columns = np.column_stack([np.ones(len(rows)), n_answers, n_context, n_prompt / n_steps])
    return columns, np.asarray(took_s / n_steps, dtype=np.float64)


def _under_way(first_s: F64, last_s: F64, weight: F64) -> F64:
    """Integral, over each answer's time, of the weights of all answers that stream."""
    instants = np.concatenate([first_s, last_s])
    order = np.argsort(instants, kind="stable")
    level = np.cumsum(np.concatenate([weight, -weight])[order])
    total = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(instants[order]))])
    at = np.interp(instants, instants[order], total)
    return np.asarray(at[len(first_s) :] - at[: len(first_s)], dtype=np.float64)


def is_plan_of(plan: RequestPlan, table: RequestTable) -> bool:
    """Is this the plan of these requests?

    Prompts put into words may have other lengths than planned: then prefixes are not known.
    """
    rows = table.request_index
    if not len(rows) or rows.min() <= NONE or rows.max() >= plan.n_requests:
        return False
    return bool(np.array_equal(plan.prompt_tokens[rows], table.prompt_tokens))
