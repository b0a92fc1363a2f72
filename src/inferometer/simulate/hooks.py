"""Hooks for callers of long simulations: a notice before compiling, and cancelling.

And when compiling begins and ends: a limit of a search is one of searching.

Within ``polled(poll)`` every simulation calls ``poll`` each fraction of a second, between pieces of
the compiled loop, and ends with what it raises. The scope is that of the thread.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

Poll: TypeAlias = Callable[[], None]
_listeners: Final[list[Callable[[str], None]]] = []
_before_compiling: Final[list[Callable[[], None]]] = []
_after_compiling: Final[list[Callable[[], None]]] = []


def _go_on() -> None:
    """The default: never give it up."""


_POLL: Final[ContextVar[Poll]] = ContextVar("poll", default=_go_on)


@contextmanager
def polled(poll: Poll) -> Generator[None]:
    """Call this function between pieces of the simulations inside the context."""
    token = _POLL.set(poll)
    try:
        yield
    finally:
        _POLL.reset(token)


def check_poll() -> None:
    """Call the scope's function, which raises to stop the simulation."""
    _POLL.get()()


def around_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Have these called where compiling begins and where it ends."""
    _before_compiling.append(begins)
    _after_compiling.append(ends)


def compiling_begins() -> None:
    """Notify listeners that a compilation begins."""
    for begins in _before_compiling:
        begins()


def compiling_ends() -> None:
    """Notify listeners that a compilation ended."""
    for ends in _after_compiling:
        ends()


def listen(listener: Callable[[str], None]) -> None:
    """Register a listener for a line of text before each long wait."""
    _listeners.append(listener)


def tell_of_compiling(loop: Any) -> None:
    """Notify listeners if this function (numba's dispatcher) must be compiled.

    Each listener hears of it once: a search compiles one function for each engine and pool it
    meets, and the line that the next wait is a compiler's helps once.
    """
    # numba has no public way to ask what its cache holds
    index = loop._cache._cache_file
    if _listeners and not loop.signatures and not index._load_index():
        while _listeners:
            _listeners.pop()(
                "compiling the parts of the simulator that are needed, once: later runs load them"
            )
