"""Hooks for callers of long simulations: cancelling, and notices of compilations.

Within ``polled(poll)`` every simulation of this thread calls ``poll`` several times a second,
between pieces of the compiled loop. An exception that ``poll`` raises ends the simulation.

``listen`` registers a listener for a line of text before a compilation. ``around_compiling``
registers functions for its begin and end, so that time limits of searches can exclude it.
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
    """The default of ``poll``: never stop the simulation."""


_POLL: Final[ContextVar[Poll]] = ContextVar("poll", default=_go_on)


@contextmanager
def polled(poll: Poll) -> Generator[None]:
    """Within this context, call ``poll`` between the pieces of every simulation."""
    token = _POLL.set(poll)
    try:
        yield
    finally:
        _POLL.reset(token)


def check_poll() -> None:
    """Call the ``poll`` of the present context; it raises an exception to stop the simulation."""
    _POLL.get()()


def around_compiling(begins: Callable[[], None], ends: Callable[[], None]) -> None:
    """Register a function to call when a compilation begins, and one for when it ends."""
    _before_compiling.append(begins)
    _after_compiling.append(ends)


def compiling_begins() -> None:
    """Call the functions registered for the begin of a compilation."""
    for begins in _before_compiling:
        begins()


def compiling_ends() -> None:
    """Call the functions registered for the end of a compilation."""
    for ends in _after_compiling:
        ends()


def listen(listener: Callable[[str], None]) -> None:
    """Register a function that gets a line of text before the first compilation."""
    _listeners.append(listener)


def tell_of_compiling(loop: Any) -> None:
    """Call each listener once if this function (a dispatcher of numba's) must be compiled.

    A search compiles one function for each engine and pool in it; one line of text about that is
    enough.
    """
    # numba has no public function that tells whether its cache holds the compiled function
    index = loop._cache._cache_file
    if _listeners and not loop.signatures and not index._load_index():
        while _listeners:
            _listeners.pop()(
                "compiling the parts of the simulator that are needed, once: later runs load them"
            )
