"""Who may join a prefill batch, and with how many tokens? SGLang's budgets in plain Python.

Mirrors ``PrefillAdder`` (``managers/schedule_policy.py``) and ``PrefillBudget``
(``mem_cache/prefill_budget.py``) of SGLang 0.5.23.
"""

from collections.abc import Sequence

from inferometer.simulate.kernel.sglang_admission import Verdict
from inferometer.simulate.sglang_config import CLIP_MAX_NEW_TOKENS, SglangConfig
from reference.request import Request
from reference.sglang_cache import PageCache
from reference.sglang_tree import Node


class PrefillAdder:
    """The budgets of one prefill batch: tokens to compute, and memory now and to the expected end of all who run."""

    def __init__(
        self,
        config: SglangConfig,
        cache: PageCache,
        running: Sequence[Request],
        new_token_ratio: float,
    ) -> None:
        self._config = config
        self._cache = cache
        n_mixed = len(running) if config.enable_mixed_chunk else 0
        self._n_input_left = config.max_prefill_tokens - n_mixed
        self._n_chunk_left = config.chunked_prefill_size - n_mixed
        self._ratio = 1.0 if config.ignore_eos else new_token_ratio
        self._total_offset = float(n_mixed)
        for request in running:
            self._total_offset += self._n_expected(request)
        self._current_offset = n_mixed
        self.chosen: list[tuple[Request, int]] = []
        self.cut: Request | None = None
        """The one whose prompt was cut."""

    @property
    def verdict(self) -> Verdict:
        """May one more come?"""
        if self._total_left <= 0 or self._current_left <= 0:
            return Verdict.NO_TOKEN
        is_full = self._n_input_left <= 0 or (self._is_chunked and self._n_chunk_left <= 0)
        return Verdict.OTHER if is_full else Verdict.CONTINUE

    def go_on(self, request: Request) -> None:
        """The one whose prompt was cut before computes more of it; it must, or its memory is never free."""
        n_left = min(self._n_chunk_left, int(self._total_left))
        if n_left <= 0:
            n_left = self._n_chunk_left
        n_remaining = request.num_tokens - request.num_computed_tokens
        n_tokens = min(n_remaining, n_left)
        if (
            self._cache.n_missing_pages(request, request.num_computed_tokens + n_tokens)
            * self._size
            > self._cache.n_available_tokens
        ):
            return  # SGLang would end here, out of memory
        self.chosen.append((request, n_tokens))
        if n_tokens < n_remaining:
            self.cut = request
        self._reserve(
            n_tokens,
            (
                0
                if n_tokens < n_remaining
                else min(max_new_tokens(self._config, request), CLIP_MAX_NEW_TOKENS)
            ),
        )

    def try_to_add(self, request: Request, node: Node, num_cached_tokens: int) -> Verdict:
        """Add one that waits, with its whole prompt or with what the budget leaves of it, or say why not."""
        n_tokens = request.num_tokens - num_cached_tokens
        max_new = max_new_tokens(self._config, request)
        n_planned = min(max(max_new - request.num_output_tokens, 0), CLIP_MAX_NEW_TOKENS)
        self._cache.tree.lock(node)
        verdict, n_fitting = self._fitting(n_tokens, n_planned)
        self._cache.tree.unlock(node)
        if verdict is not Verdict.CONTINUE:
            return verdict
        self._cache.open(request, node, num_cached_tokens)
        request.num_computed_tokens = num_cached_tokens
        self.chosen.append((request, n_fitting))
        if n_fitting < n_tokens:
            self.cut = request
        self._reserve(n_fitting, 0 if n_fitting < n_tokens else min(max_new, CLIP_MAX_NEW_TOKENS))
        return self.verdict

    def victims_of(self, request: Request, running: Sequence[Request]) -> list[Request]:
        """Who has to go for one that waits?

        The least urgent first, of equals the last to come; nobody, if all of them are not enough.
        """
        config, victims = self._config, list[Request]()
        sign = 1 if config.schedule_low_priority_values_first else -1
        n_wanted = (
            request.num_known_tokens
            + min(max_new_tokens(config, request), CLIP_MAX_NEW_TOKENS)
            - self._total_left
        )
        for other in sorted(running, key=lambda other: (-sign * other.priority, -other.turn)):
            if (
                sign * (other.priority - request.priority)
                <= config.priority_scheduling_preemption_threshold
            ):
                break
            victims.append(other)
            n_wanted -= self._n_expected(other)
            if n_wanted <= 0:
                return victims
        return []

    def forget(self, request: Request) -> None:
        """One that generates has to go: nothing more is expected of it."""
        self._total_offset -= self._n_expected(request)

    def _n_expected(self, request: Request) -> float:
        """How much more will one say that generates?"""
        return (
            min(
                max_new_tokens(self._config, request) - request.num_output_tokens,
                CLIP_MAX_NEW_TOKENS,
            )
            * self._ratio
        )

    def _fitting(self, n_tokens: int, n_planned: int) -> tuple[Verdict, int]:
        """How many of these tokens fit?"""
        if n_tokens + n_planned + self._size >= self._total_left:
            return Verdict.NO_TOKEN, 0
        if not self._is_chunked:
            is_too_much = bool(self.chosen) and self._paged(n_tokens) >= self._n_input_left
            return (Verdict.OTHER, 0) if is_too_much else (Verdict.CONTINUE, n_tokens)
        if self._paged(n_tokens) > self._n_chunk_left:
            n_tokens = self._n_chunk_left // self._size * self._size
        return (Verdict.CONTINUE, n_tokens) if n_tokens > 0 else (Verdict.OTHER, 0)

    def _reserve(self, n_tokens: int, n_planned: int) -> None:
        paged = self._paged(n_tokens)
        self._total_offset += paged + self._size + n_planned
        self._current_offset += paged + self._size
        self._n_input_left -= paged
        self._n_chunk_left -= paged

    @property
    def _size(self) -> int:
        return self._config.page_size

    @property
    def _is_chunked(self) -> bool:
        return self._config.chunked_prefill_size != -1

    @property
    def _total_left(self) -> float:
        return self._cache.n_available_tokens - self._total_offset

    @property
    def _current_left(self) -> int:
        return self._cache.n_available_tokens - self._current_offset

    def _paged(self, n_tokens: int) -> int:
        return -(-n_tokens // self._size) * self._size


def max_new_tokens(config: SglangConfig, request: Request) -> int:
    """How much may this request say?"""
    return config.max_new_tokens(request.num_prompt_tokens, request.max_tokens)
