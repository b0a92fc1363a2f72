"""How is a simulation given up that takes too long? By a cancel scope around it.

Within ``polled(poll)`` every simulation calls ``poll`` each fraction of a second, between pieces of
the compiled loop, and ends with what it raises. The scope is that of the thread.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TypeAlias

Poll: TypeAlias = Callable[[], None]


def _go_on() -> None:
    """The default: never give it up."""


_POLL: Final[ContextVar[Poll]] = ContextVar("poll", default=_go_on)


@contextmanager
def polled(poll: Poll) -> Generator[None]:
    """Let the simulations inside call this between their pieces."""
    token = _POLL.set(poll)
    try:
        yield
    finally:
        _POLL.reset(token)


def check_poll() -> None:
    """Raise what the scope raises, if it gives the simulation up."""
    _POLL.get()()
