"""Which KV blocks does which request of TensorRT-LLM own, which are free, and which hold a prefix that can be reused? In plain Python.

Mirrors ``WindowBlockManager`` (``cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp``) and
``LRUEvictionPolicy`` (``evictionPolicy.cpp``) of TensorRT-LLM 1.3 with one window and one priority,
whole blocks (``enable_partial_reuse: false``) and no host memory. A *content* is an integer: equal
contents mean equal tokens from the start of the sequence, so that a content is in the tree at most
once.
"""

from collections import deque
from typing import Final

from inferometer.simulate.trtllm_config import TrtllmConfig
from reference.request import Request

_ROOT: Final = 0
_NO_CONTENT: Final = -1


class ReuseTree:
    """All blocks: how often each is referenced, the queue of the free ones, and the tree in which contents are found."""

    def __init__(self, config: TrtllmConfig) -> None:
        self._size = config.tokens_per_block
        self._is_caching = config.enable_block_reuse
        self._free_queue: deque[int] = deque(range(1, config.num_blocks + 1))
        self._ref_count = [0] * (config.num_blocks + 1)
        self._content = [_NO_CONTENT] * (config.num_blocks + 1)
        self._parent = [_ROOT] * (config.num_blocks + 1)
        self._block_with: dict[int, int] = {}
        self.n_evicted = 0

    @property
    def n_free(self) -> int:
        """How many blocks does no request hold?

        Those that can be reused are among them, as in TensorRT-LLM's count.
        """
        return len(self._free_queue)

    def hits(self, request: Request) -> list[int]:
        """The blocks that hold a prefix of this request; its last token stays to be computed."""
        n_most = (request.num_tokens - 1) // self._size if self._is_caching else 0
        return self._path(request, n_most)

    def n_hits_in_use(self, request: Request) -> int:
        """How many of these does somebody hold? They cost no free block."""
        return sum(self._ref_count[block] > 0 for block in self.hits(request))

    def first_new_content(self, request: Request) -> int | None:
        """The content of its first full block that is in no block yet."""
        n_full = request.num_tokens // self._size if self._is_caching else 0
        n_known = len(self._path(request, n_full))
        return request.contents[n_known] if n_known < n_full else None

    def claim(self, request: Request) -> None:
        """A request begins on top of its hits."""
        request.blocks = self.hits(request)
        for block in request.blocks:
            if self._ref_count[block] == 0:
                self._free_queue.remove(block)
            self._ref_count[block] += 1

    def extend(self, request: Request, num_tokens: int) -> None:
        """Give a request blocks for its first tokens, from the front of the queue; what they held is forgotten."""
        for _ in range(-(-num_tokens // self._size) - len(request.blocks)):
            block = self._free_queue.popleft()
            if self._block_with.get(self._content[block]) == block:
                del self._block_with[self._content[block]]
            self.n_evicted += self._content[block] != _NO_CONTENT
            self._content[block] = _NO_CONTENT
            self._ref_count[block] = 1
            request.blocks.append(block)

    def store(self, request: Request, num_tokens: int) -> None:
        """Put the blocks that these first tokens fill into the tree.

        What is there already stays, and the request keeps its own.
        """
        parent = _ROOT
        for i_block in range(num_tokens // self._size if self._is_caching else 0):
            content = request.contents[i_block]
            found = self._child(parent, content)
            if found is None:
                found = request.blocks[i_block]
                self._content[found] = content
                self._parent[found] = parent
                self._block_with[content] = found
            parent = found

    def release(self, request: Request, num_tokens: int) -> None:
        """Take all blocks from a request, after storing these first tokens: the last block goes first."""
        self.store(request, num_tokens)
        for block in reversed(request.blocks):
            self._ref_count[block] -= 1
            if self._ref_count[block] == 0:
                self._free_queue.append(block)
        request.blocks = []

    def _path(self, request: Request, n_most: int) -> list[int]:
        path, parent = list[int](), _ROOT
        for i_block in range(n_most):
            found = self._child(parent, request.contents[i_block])
            if found is None:
                break
            path.append(found)
            parent = found
        return path

    def _child(self, parent: int, content: int) -> int | None:
        """Which block holds this content behind its parent?

        What was stored behind a block that has been taken is lost with it.
        """
        block = self._block_with.get(content)
        return block if block is not None and self._parent[block] == parent else None
