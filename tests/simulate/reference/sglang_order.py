"""In which order do SGLang's requests wait? In plain Python.

Mirrors ``SchedulePolicy.calc_priority`` (``sglang/srt/managers/schedule_policy.py``) and
``_dfs_weight_order`` (``sglang/srt/mem_cache/base_prefix_cache.py``) of SGLang 0.5.23. Sorts are
stable: of equals the one that was ahead stays ahead.
"""

from operator import itemgetter

from inferometer.simulate.sglang_config import (
    CACHE_AWARE,
    MATCHED_QUEUE,
    N_DRAWS,
    REFRESH_INTERVAL,
    SHARED_TOKENS,
    SglangConfig,
)
from reference.request import Request
from reference.sglang_admission import max_new_tokens
from reference.sglang_cache import PageCache
from reference.sglang_tree import Node


class QueueOrder:
    """Puts the queue into order before each batch of prompts."""

    def __init__(self, config: SglangConfig, cache: PageCache) -> None:
        self._config = config
        self._cache = cache
        self._n_looks = 0
        self._draws = config.shuffle_draws
        self._n_drawn = 0

    def of(self, waiting: list[Request]) -> list[Request]:
        """The same requests in the order in which they are to be tried."""
        policy = self._config.order
        if policy == "lpm" and len(waiting) > MATCHED_QUEUE:
            policy = "fcfs"
        ordered = {
            "fcfs": self._by_arrival,
            "lof": self._by_longest_output,
            "random": self._shuffled,
            "lpm": self._by_longest_prefix,
            "dfs-weight": self._by_weight,
        }[policy](waiting)
        if policy not in CACHE_AWARE and not self._config.disable_radix_cache and ordered:
            self._refresh_prefixes(ordered)
        return ordered

    @property
    def _priority_sign(self) -> int:
        """0 where priorities do not count."""
        if not self._config.enable_priority_scheduling:
            return 0
        return 1 if self._config.schedule_low_priority_values_first else -1

    def _by_arrival(self, waiting: list[Request]) -> list[Request]:
        sign = self._priority_sign
        return (
            waiting
            if sign == 0
            else sorted(waiting, key=lambda request: (sign * request.priority, request.turn))
        )

    def _by_longest_output(self, waiting: list[Request]) -> list[Request]:
        """By what is allowed, not by what is left of it."""
        sign = self._priority_sign
        return sorted(
            waiting,
            key=lambda request: (sign * request.priority, -max_new_tokens(self._config, request)),
        )

    def _shuffled(self, waiting: list[Request]) -> list[Request]:
        """Fisher and Yates' shuffle, as Python's ``random.shuffle``, by draws that are given."""
        shuffled = list(waiting)
        for place in range(len(shuffled) - 1, 0, -1):
            other = self._draws[self._n_drawn % len(self._draws)] * (place + 1) // N_DRAWS
            self._n_drawn += 1
            shuffled[place], shuffled[other] = shuffled[other], shuffled[place]
        return shuffled

    def _by_longest_prefix(self, waiting: list[Request]) -> list[Request]:
        """Those first of whose prompts most is cached, but only one of those who share what is not."""
        n_shared = -(-SHARED_TOKENS // self._config.page_size)
        keys, seen = list[int](), set[int]()
        for request in waiting:
            num_cached, _ = self._cache.match(request, request.num_tokens)
            key = -min(num_cached, request.num_tokens - 1)
            if (
                num_cached <= SHARED_TOKENS
                and request.num_tokens // self._config.page_size >= n_shared
            ):
                content = request.contents[n_shared - 1]
                if content in seen:
                    key = 1  # behind all others
                seen.add(content)
            keys.append(key)
        return [
            request for _, request in sorted(zip(keys, waiting, strict=True), key=itemgetter(0))
        ]

    def _by_weight(self, waiting: list[Request]) -> list[Request]:
        """Depth first through the tree, of a node's children that one first for which most requests wait, at last its own requests."""
        ends = [self._cache.match(request, request.num_tokens)[1] for request in waiting]
        at: dict[Node, list[Request]] = {}
        weight: dict[Node, int] = {}
        children: dict[Node, list[Node]] = {}
        for request, end in zip(waiting, ends, strict=True):
            at.setdefault(end, []).append(request)
            node: Node | None = end
            while node is not None:
                if node not in weight and node.parent is not None:
                    children.setdefault(node.parent, []).append(node)
                weight[node] = weight.get(node, 0) + 1
                node = node.parent
        ordered, stack = list[Request](), [(self._cache.tree.root, False)]
        while stack:
            node, is_done = stack.pop()
            if is_done:
                ordered += at.get(node, [])
                continue
            stack.append((node, True))
            heaviest_last = sorted(
                children.get(node, []), key=lambda child: (weight[child], -child.born)
            )
            stack += [(child, False) for child in heaviest_last]
        return ordered

    def _refresh_prefixes(self, waiting: list[Request]) -> None:
        """What those wait for who are first counts as used, so that it is not thrown out before they come."""
        if self._n_looks % REFRESH_INTERVAL == 0:
            for request in reversed(waiting[:MATCHED_QUEUE]):
                self._cache.match(request, request.num_tokens)
        self._n_looks += 1
