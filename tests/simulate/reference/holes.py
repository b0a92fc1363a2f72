"""Where does each request's KV cache lie, if it has to lie in one piece? In plain Python.

A request reserves room for its prompt and all tokens that it may generate, as engines did before
paging: it is never thrown out, and what it does not use is lost to others. The first hole that is
large enough, from low addresses, is taken; a request that has ended leaves a hole.
``kernel/holes.py`` does the same on arrays.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferometer.simulate.scheduler_config import SchedulerConfig
from reference.request import Request


class Holes(NamedTuple):
    """How much is free, and in how large pieces?"""

    n_free: int
    largest: int
    debt: int
    """Blocks to move so that the largest request that waits fits: neighbours slide together. 0:
    nobody waits, or it fits; -1: too little is free, moving does not help."""


class _Piece(NamedTuple):
    start: int
    n_blocks: int
    owner: int

    @property
    def end(self) -> int:
        return self.start + self.n_blocks


class ContiguousKvCache:
    """Gives each request one piece of the memory, with the methods of ``reference.blocks.KvCache``."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._pieces: list[_Piece] = []
        self.n_free = config.n_kv_blocks
        self.n_evicted = 0

    def computed_blocks(self, request: Request) -> list[int]:
        """Nothing can be shared."""
        del request
        return []

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: Sequence[int] = (),
        *,
        is_admission: bool = False,
        has_running: bool = False,
    ) -> bool:
        """Room for all tokens at the admission, where there is a hole; later on there is room."""
        del num_new_tokens, hits
        if not is_admission:
            return True
        n_blocks = self._n_needed(request)
        n_kept_free = self._config.watermark_blocks if has_running else 0
        start = self._first_fit(n_blocks)
        if start is None or n_blocks > self.n_free - n_kept_free:
            return False
        insort(self._pieces, _Piece(start, n_blocks, request.index))
        self.n_free -= n_blocks
        return True

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Nothing can be shared."""

    def free(self, request: Request) -> None:
        """A request leaves a hole."""
        self.n_free += sum(piece.n_blocks for piece in self._pieces if piece.owner == request.index)
        self._pieces = [piece for piece in self._pieces if piece.owner != request.index]

    def holes(self, waiting: Iterable[Request]) -> Holes:
        """What is free, and what would the largest of those that wait need?"""
        gaps = self._gaps()
        wanted = max((self._n_needed(request) for request in waiting), default=0)
        return Holes(self.n_free, max(gaps), self._debt(gaps, wanted))

    def _debt(self, gaps: list[int], wanted: int) -> int:
        """The fewest blocks between the first and the last of some neighbouring gaps that are enough together."""
        if wanted > self.n_free:
            return -1
        sizes = [piece.n_blocks for piece in self._pieces]
        spans = [
            (i, j)
            for i in range(len(gaps))
            for j in range(i, len(gaps))
            if sum(gaps[i : j + 1]) >= wanted
        ]
        return min(sum(sizes[i:j]) for i, j in spans)

    def _gaps(self) -> list[int]:
        """The free blocks before each piece, and behind the last."""
        ends = [0, *(piece.end for piece in self._pieces)]
        starts = [*(piece.start for piece in self._pieces), self._config.n_kv_blocks]
        return [start - end for start, end in zip(starts, ends, strict=True)]

    def _first_fit(self, n_blocks: int) -> int | None:
        ends = [0, *(piece.end for piece in self._pieces)]
        return next(
            (end for end, gap in zip(ends, self._gaps(), strict=True) if gap >= n_blocks), None
        )

    def _n_needed(self, request: Request) -> int:
        n_tokens = self._config.max_model_len
        if self._config.rules != "orca":
            n_tokens = min(request.num_prompt_tokens + request.max_tokens, n_tokens)
        return -(-n_tokens // self._config.block_size)
