"""Where does each request's KV cache lie, if it has to lie in one piece? In plain Python.

A request reserves room for its prompt and all tokens that it may generate, as engines did before
paging: it is never thrown out, and what it does not use is lost to others. The first hole that is
large enough, from low addresses, is taken; a request that has ended leaves a hole.
``kernel/blocks.py`` does the same on arrays.

With compaction pieces slide towards address 0 in the background, one after the other, by a plan
that is made anew with each step. Until all of a piece has moved it takes the room from where it
will begin to where it ends now.
"""

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from inferometer.records.types import ABSENT
from inferometer.simulate.scheduler_config import SchedulerConfig
from reference.request import Request


class Holes(NamedTuple):
    """How much is free, and in how large pieces?"""

    n_free: int
    largest: int
    debt: int
    """Blocks to move so that the largest request that waits fits: neighbours slide together. 0:
    nobody waits, or it fits; -1: too little is free, moving does not help. A piece that is under
    way counts whole."""
    n_moved: int
    """Blocks, since the last that were logged; -1 where nothing is moved."""


class _Piece(NamedTuple):
    start: int
    n_blocks: int
    owner: int

    @property
    def end(self) -> int:
        return self.start + self.n_blocks


class _Move(NamedTuple):
    owner: int
    start: int
    n_blocks: int
    begin_ns: int
    end_ns: int


class ContiguousKvCache:
    """Gives each request one piece of the memory, with the methods of ``reference.blocks.KvCache``."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._pieces: list[_Piece] = []
        self.n_free = config.n_kv_blocks
        self.n_evicted = 0
        self._plan: list[_Move] = []
        self._moving: _Move | None = None
        """Who was under way at the last decision."""
        self._n_moved = 0

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

    def take_moved(self, now_ns: int) -> None:
        """What is moved by now lies where it was to go, and what is under way goes on."""
        start_of = {move.owner: move.start for move in self._plan if move.end_ns <= now_ns}
        self._n_moved += sum(move.n_blocks for move in self._plan if move.end_ns <= now_ns)
        self._pieces = [
            piece._replace(start=start_of.get(piece.owner, piece.start)) for piece in self._pieces
        ]
        owners = {piece.owner for piece in self._pieces}
        under_way = [move for move in self._plan if move.begin_ns < now_ns < move.end_ns]
        self._moving = next((move for move in under_way if move.owner in owners), None)

    def plan_moves(self, now_ns: int, waiting: Iterable[Request]) -> None:
        """Who slides, one after the other, until the largest of those for whom enough is free fits?"""
        if not self._config.is_compacting:
            return
        self._plan = [] if self._moving is None else [self._moving]
        needed = [self._n_needed(request) for request in waiting]
        wanted = max((n_blocks for n_blocks in needed if n_blocks <= self.n_free), default=0)
        first, last = self._cheapest_span(wanted)
        start = [0, *(end for _, end in self._taken(is_settled=True))][first]
        begin_ns = now_ns if self._moving is None else self._moving.end_ns
        for piece in self._pieces[first:last]:
            end_ns = begin_ns + (piece.n_blocks * self._config.move_block_ps + 500) // 1000
            self._plan.append(_Move(piece.owner, start, piece.n_blocks, begin_ns, end_ns))
            start, begin_ns = start + piece.n_blocks, end_ns

    def holes(self, waiting: Iterable[Request], *, is_logged: bool) -> Holes:
        """What is free, and what would the largest of those that wait need?"""
        largest = max(self._gaps())
        wanted = max((self._n_needed(request) for request in waiting), default=0)
        n_moved = self._n_moved if self._config.is_compacting else ABSENT
        self._n_moved *= not is_logged
        return Holes(self.n_free, largest, 0 if wanted <= largest else self._debt(wanted), n_moved)

    def _debt(self, wanted: int) -> int:
        """What is between the gaps that are enough together, and what is under way."""
        if wanted > self.n_free:
            return -1
        first, last = self._cheapest_span(wanted)
        n_under_way = 0 if self._moving is None else self._moving.n_blocks
        return n_under_way + sum(piece.n_blocks for piece in self._pieces[first:last])

    def _cheapest_span(self, wanted: int) -> tuple[int, int]:
        """The first and the last of neighbouring gaps that are enough together.

        With the fewest blocks between them; of equal ones those at the lowest addresses.
        """
        gaps, sizes = self._gaps(is_settled=True), [piece.n_blocks for piece in self._pieces]
        spans = [
            (sum(sizes[i:j]), j, i)
            for i in range(len(gaps))
            for j in range(i, len(gaps))
            if sum(gaps[i : j + 1]) >= wanted
        ]
        _, last, first = min(spans)
        return first, last

    def _taken(self, *, is_settled: bool) -> list[tuple[int, int]]:
        """From where to where does each piece take room, now or once what is under way is there?"""
        taken = list[tuple[int, int]]()
        for piece in self._pieces:
            start, end = piece.start, piece.end
            if self._moving is not None and piece.owner == self._moving.owner:
                start = self._moving.start
                end = start + piece.n_blocks if is_settled else end
            taken.append((start, end))
        return taken

    def _gaps(self, *, is_settled: bool = False) -> list[int]:
        """The free blocks before each piece, and behind the last."""
        taken = self._taken(is_settled=is_settled)
        ends = [0, *(end for _, end in taken)]
        starts = [*(start for start, _ in taken), self._config.n_kv_blocks]
        return [start - end for start, end in zip(starts, ends, strict=True)]

    def _first_fit(self, n_blocks: int) -> int | None:
        ends = [0, *(end for _, end in self._taken(is_settled=False))]
        return next(
            (end for end, gap in zip(ends, self._gaps(), strict=True) if gap >= n_blocks), None
        )

    def _n_needed(self, request: Request) -> int:
        n_tokens = self._config.max_model_len
        if self._config.rules != "orca":
            n_tokens = min(request.num_prompt_tokens + request.max_tokens, n_tokens)
        return -(-n_tokens // self._config.block_size)
