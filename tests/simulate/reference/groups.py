"""Which KV blocks does a request own where some layers attend to a window only? In plain Python.

Mirrors ``HybridKVCacheCoordinator``, ``SlidingWindowManager`` and ``FullAttentionManager`` of
vLLM 0.32.0 (``vllm/v1/core``), with its default ``prefix_cache_retention_interval`` of 0. Every
group of layers has its own table of blocks; all take their blocks from one pool. Block 0 in a table
stands for tokens that have left the window.
"""

from collections.abc import Sequence

from inferometer.simulate.scheduler_config import SchedulerConfig
from reference.blocks import KvCache
from reference.request import Request

_NULL = 0


class GroupedKvCache(KvCache):
    """Gives each group of layers its blocks; ``request.blocks`` has a table for each group."""

    def __init__(self, config: SchedulerConfig) -> None:
        super().__init__(config)
        self._size, self._window = config.block_size, config.sliding_window
        self._sliding = range(config.num_sliding_groups)
        self._full = range(
            config.num_sliding_groups, config.num_sliding_groups + config.num_full_groups
        )
        self._n_hit_blocks = -(-(self._window - 1) // self._size)
        """Blocks in a row that a window needs to go on behind them."""

    def computed_blocks(self, request: Request) -> list[tuple[int, ...]]:  # type: ignore[override]
        """Of each block of the longest prefix that all groups hold: where it is in each group."""
        if not self._config.enable_prefix_caching:
            return []
        n_most = (request.num_tokens - 1) // self._size
        n_in_full = n_most
        if self._full:
            n_in_full = next(
                (i for i in range(n_most) if not self._are_held(request, i, self._full)), n_most
            )
        n_hits = self._n_in_windows(request, n_in_full)
        request.shared_prefix_boundary = (
            n_in_full * self._size if self._full and n_in_full > n_hits else 0
        )
        return [
            tuple(
                _NULL
                if group in self._sliding and i_block < n_hits - self._n_hit_blocks
                else self.pool.find((request.contents[i_block], group))
                for group in (*self._sliding, *self._full)
            )
            for i_block in range(n_hits)
        ]

    def _n_in_windows(self, request: Request, n_most: int) -> int:
        """Blocks of the longest prefix, of this number at most, that windows can go on from."""
        n_in_row = 0
        for i_block in reversed(range(n_most)):
            if not self._are_held(request, i_block, self._sliding):
                n_in_row = 0
                continue
            n_in_row += 1
            if n_in_row >= self._n_hit_blocks:
                return i_block + n_in_row
        return n_in_row

    def _are_held(self, request: Request, i_block: int, groups: Sequence[int]) -> bool:
        content = request.contents[i_block]
        return all(self.pool.find((content, group)) is not None for group in groups)

    def _n_skipped(self, num_computed_tokens: int) -> int:
        """Blocks at the start that no window reaches any more."""
        return max(num_computed_tokens - self._window + 1, 0) // self._size

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Sequence[Sequence[int]] = (),
        *,
        is_admission: bool = False,
        has_running: bool = False,
    ) -> bool:
        """Find room for the next tokens of a request in all groups; False where there is none."""
        config, max_len = self._config, self._config.max_model_len
        num_done = request.num_computed_tokens + len(hits) * self._size
        tables = request.blocks or [[] for _ in (*self._sliding, *self._full)]
        n_owned = len(tables[0]) + len(hits)
        hit_blocks = [block for row in hits for block in row if block != _NULL]
        n_spare = self.pool.n_free - sum(self.pool.ref_count[block] == 0 for block in hit_blocks)
        if is_admission and has_running:
            n_spare -= config.watermark_blocks
        if is_admission and config.scheduler_reserve_full_isl:
            n_whole = -(-min(request.num_tokens, max_len) // self._size)
            n_in_windows = min(n_whole, config.most_sliding_blocks)
            n_reserved = len(self._sliding) * max(n_in_windows - n_owned, 0)
            if n_reserved + len(self._full) * max(n_whole - n_owned, 0) > n_spare:
                return False
        n_spare += self._leave_windows(request, tables, min(num_done, max_len))
        n_slots = min(num_done + num_new_tokens + config.num_lookahead_tokens, max_len)
        n_new_blocks = max(-(-n_slots // self._size) - n_owned, 0)
        if n_new_blocks * len(tables) > n_spare:
            return False
        if is_admission:
            self.pool.touch(hit_blocks)
            tables = [[row[group] for row in hits] for group in range(len(tables))]
            request.num_cached_blocks = len(hits)
        request.blocks = [table + self.pool.take(n_new_blocks) for table in tables]
        self.cache_blocks(request, min(num_done + num_new_tokens, request.num_tokens))
        return True

    def _leave_windows(self, request: Request, tables: list[list[int]], num_tokens: int) -> int:
        """Give back the blocks that no window reaches, nor a step in flight; returns how many."""
        n_freed = 0
        n_skipped = self._n_skipped(max(num_tokens - request.num_in_flight_tokens, 0))
        for group in self._sliding:
            table, left = tables[group], list[int]()
            for i_block in reversed(range(min(n_skipped, len(table)))):
                if table[i_block] == _NULL:
                    break
                left.insert(0, table[i_block])
                table[i_block] = _NULL
            n_before = self.pool.n_free
            self.pool.free(left)
            n_freed += self.pool.n_free - n_before
        return n_freed

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Register the blocks that these first tokens fill; of windows those that a prompt can go on from."""
        if not self._config.enable_prefix_caching:
            return
        n_full = num_tokens // self._size
        ends = [(request.num_prompt_tokens - 1) // self._size]
        if request.shared_prefix_boundary:
            ends.append(request.shared_prefix_boundary // self._size)
        for i_block in range(request.num_cached_blocks, n_full):
            is_wanted = any(end - self._n_hit_blocks <= i_block < end for end in ends)
            for group, table in enumerate(request.blocks):
                if table[i_block] != _NULL and (group in self._full or is_wanted):
                    self.pool.register(table[i_block], (request.contents[i_block], group))
        request.num_cached_blocks = max(n_full, request.num_cached_blocks)

    def free(self, request: Request) -> None:
        """Take all blocks from a request, group by group."""
        for table in request.blocks:
            self.pool.free([block for block in table if block != _NULL])
        request.blocks = []
        request.num_cached_blocks = 0
