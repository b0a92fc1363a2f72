"""The memory of a replica whose requests are not known beforehand: it grows, and is used again.

The simulator's arrays (``kernel/state.py``) are made for requests that are all known. Here each new
request gets the next slot, and each different content of a KV block a number. Full arrays are
doubled. When no request is left, slots begin at 0 again (not with drafts, which are drawn by slot);
when the numbers run out, those that no KV block and no request needs any more are given again.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from inferometer.records.columns import I32, Bools
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.kernel.state import NOTHING, Record, Records, State, Whole, new_state
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.pointers import pointed
from inferometer.simulate.status import Status

_N_SLOTS: Final = 1024
_N_CONTENTS: Final = 1 << 14


class LiveMemory:
    """The state of one replica, and its handle for compiled code."""

    def __init__(self, config: EngineConfig) -> None:
        longest = demand([0], [max(config.max_model_len - 1, 1)], [1])
        alone = new_state(longest, config)
        self._blank: Records = alone.requests.copy()
        self._blank["sent_ns"] = self._blank["arrival_ns"] = FAR_NS
        self._n_slots = 0
        self._n_positions = 0
        """Of ``State.contents``."""
        self._numbers: dict[int, int] = {}
        """Of contents."""
        self._free_numbers: list[int] = []
        # Whether a draft is accepted is drawn by slot: the n-th request keeps the n-th.
        self._has_drafts = bool(alone.config["num_spec_tokens"][0])
        self._is_priority = bool(alone.config["is_priority"][0])
        self._is_admitted: Bools = np.zeros(0, np.bool_)
        self.state: State = alone._replace(
            arrival_order=np.empty(0, np.int32), requests=self._blank[:0]
        )
        self.counters: Record = alone.counters[0]
        self._give_slots(_N_SLOTS)

    def add(self, contents: Sequence[int]) -> int:
        """The slot of one more request, whose KV blocks will have these contents."""
        self._make_room(len(contents))
        slot, start = self._n_slots, self._n_positions
        self._n_slots, self._n_positions = slot + 1, start + len(contents)
        for position, content in enumerate(contents, start):
            number = self._numbers.get(content)
            if number is None:
                number = self._numbers[content] = self._free_numbers.pop()
            self.state.contents[position] = number
        self.state.requests[slot]["content_start"] = start
        return slot

    def note_abort(self, slot: int, when_ns: int) -> None:
        """The client of the request in this slot goes away then."""
        state, world = self.state, self.state.world[0]
        state.abort_ns[slot] = when_ns
        n_leaving = int(world["n_leaving"])
        slots = [*state.leaving[:n_leaving].tolist(), slot]
        slots.sort(key=lambda one: (int(state.abort_ns[one]), one))  # what is sorted is a heap
        state.leaving[: n_leaving + 1] = slots
        world["n_leaving"] = n_leaving + 1

    def next_arrival_ns(self) -> int:
        """When does the next request come? ``FAR_NS`` where none is known to."""
        place = int(self.state.world["next_arrival"][0])
        return int(self.state.requests["arrival_ns"][place]) if place < self._n_slots else FAR_NS

    def next_abort_ns(self) -> int:
        """When does the next client go away? ``FAR_NS`` where none is known to."""
        has_any = self.state.world["n_leaving"][0] > 0
        return int(self.state.abort_ns[self.state.leaving[0]]) if has_any else FAR_NS

    def take_ended(self) -> list[int]:
        """The slots of requests that have ended since the last call, in order of that."""
        world = self.state.world[0]
        ended: list[int] = self.state.ended[: world["n_ended"]].tolist()
        world["n_ended"] = 0
        return ended

    def newly_admitted(self, computed: I32) -> list[int]:
        """The slots of requests with a first part in a step in flight, or in what has been ``computed``."""
        batches, requests = self.state.batches, self.state.parts["request"]
        in_flight = np.flatnonzero(batches["is_in_flight"]).tolist()
        found = np.concatenate(
            [computed, *(requests[batch, : batches["n_parts"][batch]] for batch in in_flight)]
        )
        new: list[int] = np.unique(found[~self._is_admitted[found]]).tolist()
        self._is_admitted[new] = True
        return new

    def _make_room(self, n_contents: int) -> None:
        """For one more request."""
        state = self.state
        is_full = self._n_slots == len(state.requests)
        if (is_full or self._n_positions + n_contents > len(state.contents)) and self._is_idle():
            self._begin_again()
        if self._n_slots == len(state.requests):
            self._give_slots(2 * len(state.requests))
        if self._n_positions + n_contents > len(state.contents):
            n_positions = max(2 * len(state.contents), self._n_positions + n_contents, _N_CONTENTS)
            self._set(contents=_longer(state.contents, n_positions, 0))
        if len(self._free_numbers) < n_contents:
            self._collect_numbers(n_contents)

    def _set(self, **arrays: Whole) -> None:
        self.state = self.state._replace(**arrays)
        self.handle = pointed(self.state)

    def _give_slots(self, n_slots: int) -> None:
        """Room for this number of requests; those that are there keep their slots."""
        state, n_old, counters = self.state, len(self.state.requests), self.counters
        waiting = state.waiting[:n_old]
        if not self._is_priority:  # the ring begins at 0, before it gets longer
            waiting = np.roll(waiting, -int(counters["waiting_head"]))
            counters["waiting_head"] = 0
        self._is_admitted = np.concatenate([self._is_admitted, np.zeros(n_slots - n_old, np.bool_)])
        self._set(
            requests=np.concatenate([state.requests, np.repeat(self._blank, n_slots - n_old)]),
            waiting=_longer(waiting, n_slots, 0),
            skipped=np.empty(n_slots, np.int32),
            abort_ns=_longer(state.abort_ns[:n_old], n_slots, ABSENT),
            leaving=_longer(state.leaving[:n_old], n_slots, 0),
            arrival_order=np.arange(n_slots, dtype=np.int32),
            ended=_longer(state.ended[:n_old], n_slots, 0),
        )

    def _is_idle(self) -> bool:
        """May slots begin at 0 again: has every request ended, with nothing in flight, and does nothing name one?"""
        status, world = self.state.requests["status"][: self._n_slots], self.state.world[0]
        return (
            bool(np.all(status >= int(Status.STOPPED)))
            and not self._has_drafts
            and not self.counters["n_in_flight"]
            and not self.counters["first_unanswered"]
            and not world["n_leaving"]
            and not world["n_ended"]
            and bool(np.all(self.state.sglang["cut"] == NOTHING))
        )

    def _begin_again(self) -> None:
        """Nobody is there: the next request gets slot 0. What is cached stays."""
        state = self.state
        state.requests[:] = self._blank[0]
        state.abort_ns[:] = ABSENT
        state.world["next_arrival"] = 0
        self.counters["waiting_head"] = self.counters["waiting_size"] = 0
        # SGLang drops who has ended when it decides the next step; they are dropped here.
        state.sglang["n_generating"] = state.sglang["n_joining"] = 0
        self._is_admitted[:] = False
        self._n_slots = self._n_positions = 0
        # SGLang's tree refers to contents where they stand.
        kept = [state.contents[start:end].copy() for _, start, end in self._runs()]
        for (node, _, _), run in zip(self._runs(), kept, strict=True):
            state.nodes["start"][node] = self._n_positions
            state.contents[self._n_positions : self._n_positions + len(run)] = run
            self._n_positions += len(run)

    def _runs(self) -> list[tuple[int, int, int]]:
        """The nodes of SGLang's tree, and where the contents of each begin and end."""
        nodes, runs = self.state.nodes, list[tuple[int, int, int]]()
        node = int(nodes["next"][0]) if len(nodes) else 0
        while node != 0:
            start = int(nodes["start"][node])
            runs.append((node, start, start + int(nodes["n_pages"][node])))
            node = int(nodes["next"][node])
        return runs

    def _collect_numbers(self, n_wanted: int) -> None:
        """Take back the numbers of contents that neither a block nor a request needs; add more where too few are left."""
        state, n_old = self.state, len(self.state.first_equal)
        is_needed = state.first_equal != NOTHING
        registered = state.blocks["content"]
        is_needed[registered[registered >= 0]] = True
        status = state.requests["status"][: self._n_slots]
        unfinished = np.flatnonzero(status < int(Status.STOPPED))
        first = int(state.requests["content_start"][unfinished[0]]) if len(unfinished) else None
        spans = [(start, end) for _, start, end in self._runs()]
        spans += [] if first is None else [(first, self._n_positions)]
        for start, end in spans:
            is_needed[state.contents[start:end]] = True
        self._numbers = {one: number for one, number in self._numbers.items() if is_needed[number]}
        n_new = n_old
        while n_new - len(self._numbers) < max(n_wanted, n_new // 2, _N_CONTENTS // 2):
            n_new = max(2 * n_new, _N_CONTENTS)
        last_equal = state.last_equal.copy()
        last_equal[~is_needed] = NOTHING
        self._set(
            first_equal=_longer(state.first_equal, n_new, NOTHING),
            last_equal=_longer(last_equal, n_new, NOTHING),
        )
        taken = set(self._numbers.values())
        self._free_numbers = [number for number in range(n_new) if number not in taken]


def _longer(array: Whole, length: int, fill: int) -> Whole:
    """The same with this length, filled up at its end."""
    filled = np.full(length, fill, array.dtype)
    filled[: len(array)] = array
    return filled
