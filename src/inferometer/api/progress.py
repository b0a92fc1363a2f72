"""Who hears what is going on while a question is answered?

A caller who wants to know gives a callback, which gets sentences and counts; without one the work
is done in silence. The listener is a context variable, so that code deep inside need not pass it
on.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, NamedTuple


class PartsDone(NamedTuple):
    """How many parts of the work are done."""

    what: str
    n_done: int
    n_parts: int


Listener = Callable[[object], None]
"""Gets sentences (``str``), ``PartsDone``, and of measurements ``measure.time_left.Progress`` (a
sweep) or ``measure.load.watch.LoadProgress`` (a load test)."""

_LISTENER: Final = ContextVar[Listener | None]("listener", default=None)


def talk(event: object) -> None:
    """Tell the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(event)


@contextmanager
def heard_by(listener: Listener | None) -> Generator[None]:
    """Until the end of the block ``listener`` hears what is going on; None keeps the present one."""
    if listener is None:
        yield
        return
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
