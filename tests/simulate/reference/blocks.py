"""Which KV blocks does which request own, which are free, and which hold a prefix that can be reused? In plain Python.

Mirrors ``BlockPool``, ``FreeKVCacheBlockQueue`` and ``KVCacheManager`` of vLLM 0.32.0
(``vllm/v1/core``) for one group of full-attention layers. A block's *content* is an integer: equal
contents mean equal tokens from the start of the sequence.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final

from inferometer.simulate.scheduler_config import SchedulerConfig
from reference.request import Request

_NO_CONTENT: Final = -1


class BlockPool:
    """All blocks: how often each is referenced, the queue of the free ones, and where each content can be found."""

    def __init__(self, num_blocks: int, *, is_caching: bool) -> None:
        self.free_queue: deque[int] = deque(range(1, num_blocks))  # block 0 is the null block
        self.ref_count = [0] * num_blocks
        self._content = [_NO_CONTENT] * num_blocks
        self._blocks_with: dict[int, OrderedDict[int, None]] = {}
        self._is_caching = is_caching
        self.n_evicted = 0

    @property
    def n_free(self) -> int:
        """How many blocks can be taken?"""
        return len(self.free_queue)

    def find(self, content: int) -> int | None:
        """Which block holds this content?

        Of several equal ones, that which was registered first.
        """
        blocks = self._blocks_with.get(content)
        return next(iter(blocks)) if blocks else None

    def take(self, n_blocks: int) -> list[int]:
        """Take blocks from the front of the free queue; what they held is forgotten."""
        taken = [self.free_queue.popleft() for _ in range(n_blocks)]
        for block in taken:
            self._forget(block)
            self.ref_count[block] = 1
        return taken

    def touch(self, blocks: Sequence[int]) -> None:
        """Reference blocks that hold a wanted prefix; a free one leaves the queue."""
        for block in blocks:
            if self.ref_count[block] == 0:
                self.free_queue.remove(block)
            self.ref_count[block] += 1

    def register(self, block: int, content: int) -> None:
        """From now on this block can be found by its content."""
        self._content[block] = content
        self._blocks_with.setdefault(content, OrderedDict())[block] = None

    def free(self, blocks: Sequence[int]) -> None:
        """Give up a request's blocks, last one first: those without content are reused first, those with content last."""
        without, with_content = list[int](), list[int]()
        for block in reversed(blocks):
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                (
                    with_content
                    if self._is_caching and self._content[block] != _NO_CONTENT
                    else without
                ).append(block)
        self.free_queue.extendleft(reversed(without))
        self.free_queue.extend(with_content)

    def _forget(self, block: int) -> None:
        content = self._content[block]
        if content != _NO_CONTENT:
            blocks = self._blocks_with[content]
            del blocks[block]
            if not blocks:
                del self._blocks_with[content]
            self._content[block] = _NO_CONTENT
            self.n_evicted += 1


class KvCache:
    """Gives blocks to requests, or says that there are not enough."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.pool = BlockPool(config.num_blocks, is_caching=config.enable_prefix_caching)

    @property
    def n_free(self) -> int:
        """How many blocks can be taken?"""
        return self.pool.n_free

    @property
    def n_evicted(self) -> int:
        """How many blocks of cached prefixes made room for others?"""
        return self.pool.n_evicted

    def computed_blocks(self, request: Request) -> list[int]:
        """Which blocks hold a prefix of this request?

        At least its last token stays to be computed.
        """
        hits = list[int]()
        if not self._config.enable_prefix_caching:
            return hits
        for i_block in range((request.num_tokens - 1) // self._config.block_size):
            block = self.pool.find(request.contents[i_block])
            if block is None:
                break
            hits.append(block)
        return hits[:-1] if self._config.is_recomputing_last_block else hits

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Sequence[int] = (),
        *,
        is_admission: bool = False,
        has_running: bool = False,
    ) -> bool:
        """Find room for the next tokens of a request, on top of what it has and hits; False where there is none."""
        size, max_len = self._config.block_size, self._config.max_model_len
        num_done = request.num_computed_tokens + len(hits) * size
        n_owned = len(request.blocks) + len(hits)
        n_evictable = sum(self.pool.ref_count[block] == 0 for block in hits)
        n_spare = self.pool.n_free - n_evictable
        if is_admission and has_running:
            n_spare -= self._config.watermark_blocks
        n_reserved = (
            _n_blocks(min(request.num_tokens, max_len), size) + self._config.num_state_blocks
            if is_admission and self._config.scheduler_reserve_full_isl
            else 0
        )
        if n_reserved and max(n_reserved - n_owned, 0) > n_spare:
            return False
        n_slots = min(num_done + num_new_tokens + self._config.num_lookahead_tokens, max_len)
        if is_admission and self._config.rules == "sarathi":
            n_slots = max(n_slots, request.num_tokens)
        n_needed = _n_blocks(n_slots, size) + self._config.num_state_blocks
        n_new_blocks = max(n_needed - n_owned, 0)
        if n_new_blocks > n_spare:
            return False
        if is_admission:
            self.pool.touch(hits)
            request.blocks = list(hits)
            request.num_cached_blocks = len(hits)
        request.blocks += self.pool.take(n_new_blocks)
        self.cache_blocks(request, min(num_done + num_new_tokens, request.num_tokens))
        return True

    def reserve(self, request: Request, hits: Sequence[int], *, has_running: bool) -> bool:
        """Find room for all tokens of a request, on top of hits, whose contents are still to come.

        False where there is none.
        """
        n_needed = _n_blocks(request.num_tokens, self._config.block_size)
        n_new_blocks = n_needed + self._config.num_state_blocks - len(hits)
        n_spare = self.pool.n_free - sum(self.pool.ref_count[block] == 0 for block in hits)
        if n_new_blocks > n_spare - (self._config.watermark_blocks if has_running else 0):
            return False
        self.pool.touch(hits)
        request.blocks = [*hits, *self.pool.take(n_new_blocks)]
        request.num_cached_blocks = len(hits)
        return True

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Register the blocks that these first tokens fill."""
        if not self._config.enable_prefix_caching:
            return
        n_full = num_tokens // self._config.block_size
        for i_block in range(request.num_cached_blocks, n_full):
            self.pool.register(request.blocks[i_block], request.contents[i_block])
        request.num_cached_blocks = max(n_full, request.num_cached_blocks)

    def free(self, request: Request) -> None:
        """Take all blocks from a request."""
        self.give_back(request.blocks)
        request.blocks = []
        request.num_cached_blocks = 0

    def give_back(self, blocks: Sequence[int]) -> None:
        """Give up blocks that a request had."""
        self.pool.free(blocks)


def _n_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)
