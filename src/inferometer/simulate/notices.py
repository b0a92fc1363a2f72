"""Who is told that the simulator has to be compiled first, which takes a while? Nobody who does not ask."""

from collections.abc import Callable
from typing import Any, Final

_listeners: Final[list[Callable[[str], None]]] = []


def listen(listener: Callable[[str], None]) -> None:
    """The listener gets a line of text before a wait that nobody expects."""
    _listeners.append(listener)


def tell_of_compiling(loop: Any) -> None:
    """Tell those who listen if this function (numba's dispatcher) is neither loaded nor in the cache on disk."""
    # numba has no public way to ask what its cache holds
    index = loop._cache._cache_file
    if _listeners and not loop.signatures and not index._load_index():
        kind = loop.py_func.__qualname__.removeprefix("run_")
        for listener in _listeners:
            listener(f"compiling the simulator ({kind}), once: later runs load what is compiled")
