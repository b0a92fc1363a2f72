"""Which prefixes are in the cache, and which of them may go? SGLang's radix tree in plain Python.

Mirrors ``UnifiedTreeCore`` of SGLang 0.5.23 (``sglang/srt/mem_cache/unified_cache``) with its full
component alone and the eviction policy ``lru``. A page's *content* is an integer: equal contents
mean equal tokens from the start of the sequence, so that a content is in the tree at most once and
its place tells the whole path.
"""

from collections.abc import Sequence


class Node:
    """A run of pages; its children go on where it ends."""

    __slots__ = ("born", "contents", "last_access", "lock_ref", "n_children", "parent")

    def __init__(self, parent: "Node | None", contents: list[int], lock_ref: int = 0) -> None:
        self.parent = parent
        self.contents = contents
        self.lock_ref = lock_ref
        """How many requests use it, or pages below it."""
        self.n_children = 0
        self.last_access = 0
        self.born = 0
        """Its place among its parent's children: the older first."""


class RadixTree:
    """All cached prefixes. Times are ticks: each access is later than all before."""

    def __init__(self, *, is_evicting_oldest: bool = False) -> None:
        self.root = Node(None, [], lock_ref=1)
        self.n_evictable_pages = 0
        self.n_evicted = 0
        self._is_evicting_oldest = is_evicting_oldest
        self._node_of: dict[int, Node] = {}
        """The node that begins with each content: nodes are met at their beginnings only."""
        self._tick = 0
        self._n_born = 0

    def match(self, contents: Sequence[int], n_pages: int) -> tuple[int, Node]:
        """How many of these pages are there, and where do they end?

        The node is split there, and its path counts as used.
        """
        node, n_matched = self.root, 0
        while n_matched < n_pages:
            child = self._node_of.get(contents[n_matched])
            if child is None:
                break
            n_same = _n_same(child.contents, contents, n_matched, n_pages)
            n_matched += n_same
            if n_same < len(child.contents):
                node = self._split(child, n_same)
                break
            node = child
        self._tick += 1
        at: Node | None = node
        while at is not None:
            at.last_access = self._tick
            at = at.parent
        return n_matched, node

    def insert(self, contents: Sequence[int], n_pages: int) -> tuple[int, Node]:
        """Add these pages; returns how many were there before, and where they end."""
        node, n_matched = self.root, 0
        while n_matched < n_pages:
            child = self._node_of.get(contents[n_matched])
            if child is None:
                break
            self._touch(child)
            n_same = _n_same(child.contents, contents, n_matched, n_pages)
            n_matched += n_same
            node = child if n_same == len(child.contents) else self._split(child, n_same)
        if n_matched < n_pages:
            leaf = Node(node, list(contents[n_matched:n_pages]))
            self._n_born += 1
            leaf.born = self._n_born
            node.n_children += 1
            self.n_evictable_pages += len(leaf.contents)
            self._touch(leaf)
            self._node_of[leaf.contents[0]] = leaf
            node = leaf
        return n_matched, node

    def lock(self, node: Node) -> None:
        """A request uses the path to this node: nothing of it may go."""
        while node.parent is not None:
            if node.lock_ref == 0:
                self.n_evictable_pages -= len(node.contents)
            node.lock_ref += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """A request uses it no more."""
        while node.parent is not None:
            node.lock_ref -= 1
            if node.lock_ref == 0:
                self.n_evictable_pages += len(node.contents)
            node = node.parent

    def evict(self, n_pages: int) -> int:
        """Throw out whole leaves that nobody uses until so many pages are free; returns how many are.

        The longest unused first, or the oldest.
        """
        n_evicted = 0
        while n_evicted < n_pages:
            leaves = [
                node
                for node in self._node_of.values()
                if node.lock_ref == 0 and node.n_children == 0
            ]
            if not leaves:
                break
            leaf = min(
                leaves,
                key=lambda node: node.born if self._is_evicting_oldest else node.last_access,
            )
            self.n_evicted += len(leaf.contents)
            n_evicted += len(leaf.contents)
            self.n_evictable_pages -= len(leaf.contents)
            del self._node_of[leaf.contents[0]]
            if leaf.parent is not None:
                leaf.parent.n_children -= 1
        return n_evicted

    def _split(self, node: Node, n_pages: int) -> Node:
        """Cut a node in two; returns the upper part, which is new. The lower one counts as used."""
        upper = Node(node.parent, node.contents[:n_pages], lock_ref=node.lock_ref)
        upper.n_children = 1
        upper.born = node.born
        node.parent, node.contents = upper, node.contents[n_pages:]
        self._touch(upper)
        self._touch(node)
        for part in (upper, node):
            self._node_of[part.contents[0]] = part
        return upper

    def _touch(self, node: Node) -> None:
        self._tick += 1
        node.last_access = self._tick


def _n_same(own: Sequence[int], contents: Sequence[int], start: int, end: int) -> int:
    n_same = 0
    while n_same < len(own) and start + n_same < end and own[n_same] == contents[start + n_same]:
        n_same += 1
    return n_same
