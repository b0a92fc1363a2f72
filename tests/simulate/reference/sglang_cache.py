"""Which pages of KV cache does which request own, and which the tree?

SGLang's bookkeeping in plain Python.

Mirrors ``sglang/srt/mem_cache/{common,allocation,unified_radix_cache}.py`` of SGLang 0.5.23. Pages
are counted, not named.
"""

from inferometer.simulate.sglang_config import SglangConfig
from reference.request import Request
from reference.sglang_tree import Node, RadixTree


class Row:
    """What a request holds: the path to a node, locked, and pages beyond it."""

    __slots__ = ("n_pages", "n_protected", "node")

    def __init__(self, node: Node, n_protected: int) -> None:
        self.node = node
        self.n_protected = n_protected
        """Pages on the path: the tree's."""
        self.n_pages = n_protected
        """Pages in all."""


class PageCache:
    """Gives pages to requests and takes them back, into the tree where they can be found again."""

    def __init__(self, config: SglangConfig) -> None:
        self._size = config.page_size
        self._is_caching = not config.disable_radix_cache
        self.tree = RadixTree(is_evicting_oldest=config.radix_eviction_policy == "fifo")
        self.rows: dict[Request, Row] = {}
        self.n_free_pages = config.n_kv_blocks

    @property
    def n_available_tokens(self) -> int:
        """How many tokens fit, if everything that nobody uses went?"""
        return (self.n_free_pages + self.tree.n_evictable_pages) * self._size

    def match(self, request: Request, num_tokens: int) -> tuple[int, Node]:
        """How many of these first tokens are cached, in whole pages, and where?"""
        if not self._is_caching or num_tokens < self._size:
            return 0, self.tree.root
        n_pages, node = self.tree.match(request.contents, num_tokens // self._size)
        return n_pages * self._size, node

    def open(self, request: Request, node: Node, num_cached_tokens: int) -> None:
        """A request begins on top of what was matched."""
        self.tree.lock(node)
        self.rows[request] = Row(node, num_cached_tokens // self._size)

    def make_room(self, num_tokens: int) -> None:
        """Evict until so many tokens fit, or nothing is left to evict."""
        short = num_tokens - self.n_free_pages * self._size
        if short > 0:
            self.n_free_pages += self.tree.evict(-(-short // self._size))

    def extend(self, request: Request, num_tokens: int) -> None:
        """Give a request pages for its first tokens."""
        row = self.rows[request]
        n_pages = max(-(-num_tokens // self._size), row.n_pages)
        self.n_free_pages -= n_pages - row.n_pages
        row.n_pages = n_pages

    def n_missing_pages(self, request: Request, num_tokens: int) -> int:
        """How many more would it need for its first tokens?"""
        return max(-(-num_tokens // self._size) - self.rows[request].n_pages, 0)

    def checkpoint(self, request: Request, num_tokens: int) -> None:
        """Put the pages that these first tokens fill into the tree; what it has already is given back."""
        n_pages = num_tokens // self._size
        if not self._is_caching or num_tokens <= 0:
            return
        row = self.rows[request]
        n_known, node = self.tree.insert(request.contents, n_pages)
        self.n_free_pages += n_known - row.n_protected
        n_prompt = request.num_prompt_tokens // self._size
        if 0 < n_prompt < n_pages:
            self.tree.insert(
                request.contents, n_prompt
            )  # so that the answer may go and the prompt stay
        self.tree.lock(node)
        self.tree.unlock(row.node)
        row.node, row.n_protected = node, n_pages

    def release(self, request: Request, num_tokens: int | None) -> None:
        """Take everything from a request; these first tokens stay in the tree, None of them where it was thrown out."""
        if num_tokens is not None:
            self.checkpoint(request, num_tokens)
        row = self.rows.pop(request)
        self.n_free_pages += row.n_pages - row.n_protected
        self.tree.unlock(row.node)
