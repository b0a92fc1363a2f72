"""Occupancy of the pools of a divided KV cache, and the latencies of each pool's requests."""

from dataclasses import dataclass

import numpy as np

from inferometer.records.columns import I32
from inferometer.records.request_summaries import RequestSummary, summarise_groups
from inferometer.records.types import KvPoolFacts, RequestTable, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class KvPoolView:
    """One KV pool, and its requests in the likely run."""

    rule: str
    """Which requests use the pool, in words."""
    kv_dtype: str | None
    block_size: int
    n_blocks: int
    """Number of blocks per replica."""
    capacity_tokens: int
    mean_used_fraction: float | None
    """Time-weighted mean share of used blocks over steps; None without steps."""
    peak_used_fraction: float
    """Peak of the fullest replica."""
    tail_waste_fraction: float | None
    """Share of token slots in used blocks beyond the last token; None without used blocks."""
    n_preemptions: int
    cached_fraction: float | None
    """Share of prompt tokens found in the pool's prefix cache; None without requests."""
    summary: RequestSummary | None
    """None where no request used the pool."""


def kv_pool_views(run: Run) -> tuple[KvPoolView, ...]:
    """All KV pools in order; empty where the cache is undivided or the pools are not recorded."""
    pools, requests = run.manifest.kv_pools, run.requests
    if not pools or requests is None:
        return ()
    number_of = _pool_of(pools, requests)
    names = [str(number) for number in range(len(pools))]
    summaries = {one.name: one for one in summarise_groups(run, number_of, names)}
    views = list[KvPoolView]()
    for number, pool in enumerate(pools):
        is_own = number_of == number
        prompt_tokens = int(requests.prompt_tokens[is_own].sum())
        n_cached = float(requests.cached_tokens[is_own].sum())
        views.append(
            KvPoolView(
                rule=pool.rule,
                kv_dtype=pool.kv_dtype,
                block_size=pool.block_size,
                n_blocks=pool.n_blocks,
                capacity_tokens=pool.n_blocks * pool.block_size,
                mean_used_fraction=pool.mean_used_fraction,
                peak_used_fraction=pool.peak_used_fraction,
                tail_waste_fraction=pool.tail_waste_fraction,
                n_preemptions=int(requests.n_preemptions[is_own].sum()),
                cached_fraction=n_cached / prompt_tokens if prompt_tokens else None,
                summary=summaries.get(str(number)),
            )
        )
    return tuple(views)


def _pool_of(pools: tuple[KvPoolFacts, ...], requests: RequestTable) -> I32:
    """(N) The first pool that takes each request."""
    chosen = np.full(len(requests.status), len(pools), np.int32)
    for number in reversed(range(len(pools))):
        pool = pools[number]
        takes = np.ones(len(chosen), np.bool_)
        if pool.class_indices:
            takes &= np.isin(requests.class_index, pool.class_indices)
        if pool.max_prompt_tokens is not None:
            takes &= requests.prompt_tokens <= pool.max_prompt_tokens
        chosen[takes] = number
    return chosen
