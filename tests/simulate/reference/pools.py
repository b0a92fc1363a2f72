"""Which KV blocks does which request own where the cache is divided into pools? In plain Python.

Each pool is a KV cache of its own, with blocks of its own size; ``SchedulerConfig`` says whose.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from inferometer.simulate.outcome import KvPoolUse
from inferometer.simulate.scheduler_config import KvPool, SchedulerConfig
from reference.blocks import KvCache
from reference.request import Request

_WHOLE = 1_000_000


@dataclass
class Use:
    """How full was a pool, over the time of steps?"""

    peak_blocks: int = 0
    block_ns: int = 0
    tail_token_ns: int = 0
    step_ns: int = 0


class PooledKvCache:
    """Gives each request blocks of its pool."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._caches = [
            KvCache(
                replace(
                    config,
                    kv_pools=(),
                    num_blocks=pool.n_blocks + 1,
                    block_size=pool.block_size,
                )
            )
            for pool in config.kv_pools
        ]
        self.uses = [Use() for _ in config.kv_pools]

    def number_of(self, request: Request) -> int:
        """The first pool whose rules let a request in."""
        return next(
            number
            for number, pool in enumerate(self._config.kv_pools)
            if (not pool.classes or request.class_index in pool.class_indices)
            and (
                pool.max_prompt_tokens is None
                or request.num_prompt_tokens <= pool.max_prompt_tokens
            )
        )

    def pool_of(self, request: Request) -> KvPool:
        """Its own."""
        return self._config.kv_pools[self.number_of(request)]

    def num_read(self, parts: Sequence[tuple[Request, int]]) -> int:
        """Tokens of the server's format that are as many bytes as these contexts."""
        n_read = sum(n_tokens * self.pool_of(one).token_millionths for one, n_tokens in parts)
        return (n_read + _WHOLE // 2) // _WHOLE

    @property
    def n_free(self) -> int:
        """How many blocks of the server's own size and format are not in use?"""
        n_held = sum(
            (pool.n_blocks - cache.n_free) * pool.block_millionths
            for pool, cache in zip(self._config.kv_pools, self._caches, strict=True)
        )
        return self._config.n_kv_blocks + -n_held // _WHOLE

    @property
    def n_evicted(self) -> int:
        """How many blocks of cached prefixes made room for others?"""
        return sum(cache.n_evicted for cache in self._caches)

    def computed_blocks(self, request: Request) -> list[int]:
        """Which blocks of its pool hold a prefix of this request?"""
        return self._caches[self.number_of(request)].computed_blocks(request)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Sequence[int] = (),
        *,
        is_admission: bool = False,
        has_running: bool = False,
    ) -> bool:
        """Find room in its pool for the next tokens of a request; False where there is none."""
        return self._caches[self.number_of(request)].allocate_slots(
            request, num_new_tokens, hits, is_admission=is_admission, has_running=has_running
        )

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Register the blocks that these first tokens fill."""
        self._caches[self.number_of(request)].cache_blocks(request, num_tokens)

    def free(self, request: Request) -> None:
        """Take all blocks from a request."""
        self._caches[self.number_of(request)].free(request)

    def note(self, running: Sequence[Request], duration_ns: int) -> None:
        """A step of this duration is logged."""
        for use, pool, cache in zip(self.uses, self._config.kv_pools, self._caches, strict=True):
            n_used = pool.n_blocks - cache.n_free
            use.peak_blocks = max(use.peak_blocks, n_used)
            use.block_ns += n_used * duration_ns
            use.step_ns += duration_ns
        for request in running:
            n_tokens = len(request.blocks) * self.pool_of(request).block_size
            use = self.uses[self.number_of(request)]
            use.tail_token_ns += (n_tokens - request.num_computed_tokens) * duration_ns


def use_of(caches: Sequence[object]) -> KvPoolUse | None:
    """What the KV caches of all replicas noted; None where they are whole."""
    noted = [cache.uses for cache in caches if isinstance(cache, PooledKvCache)]
    if not noted:
        return None
    return KvPoolUse(
        *(
            np.array([[getattr(use, name) for use in uses] for uses in noted])
            for name in KvPoolUse._fields
        )
    )
