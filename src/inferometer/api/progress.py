"""What code deep inside knows of the caller: who gets progress messages, and which command it is.

A caller who wants to know gives a callback, which gets sentences and counts; without one the work
is done in silence. Listener and command are context variables, so that nothing need pass them on.
"""

import re
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from inferometer.errors import SpecError

if TYPE_CHECKING:
    from rich.console import RenderableType


class PartsDone(NamedTuple):
    """The number of parts of the work that are done."""

    what: str
    n_done: int
    n_parts: int


@runtime_checkable
class AnswerLine(Protocol):
    """A part of the answer, printed as soon as it is known."""

    @property
    def text(self) -> str:
        """The line in words."""
        ...


class Screen(NamedTuple):
    """The current answer, redrawn on a terminal."""

    drawn: "Callable[[], RenderableType]"


Listener = Callable[[object], None]
"""Gets sentences (``str``) and ``PartsDone``; of a sweep ``measure.time_left.Progress``, of a load
test ``measure.load.watch.LoadProgress``, of watched servers ``RegimeChange`` and ``Screen``."""

_LISTENER: Final = ContextVar[Listener | None]("listener", default=None)


def talk(event: object) -> None:
    """Send a progress message to the listener, if there is one."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(event)


@contextmanager
def heard_by(listener: Listener | None) -> Generator[None]:
    """Send progress to ``listener`` inside the context; None: to the present one."""
    if listener is None:
        yield
        return
    if not callable(listener):
        raise SpecError(f"{listener!r} is no function", where="progress", try_="progress=print")
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


# Which command makes the runs of this process? A run's record holds it. The arguments of the process
# are that command only where the process is ``inferometer``: a notebook's are its kernel's.


_PROGRAM: Final = "inferometer"
_COMMAND: Final = ContextVar[tuple[str, ...] | None]("command", default=None)


@contextmanager
def called_as(words: tuple[str, ...]) -> Generator[None]:
    """Runs that are made inside are those of the command of these words."""
    token = _COMMAND.set((_PROGRAM, *words))
    try:
        yield
    finally:
        _COMMAND.reset(token)


def command_line() -> tuple[str, ...]:
    """The command, word by word; empty where another program makes the run and no call is known."""
    called = _COMMAND.get()
    if called is not None:
        return called
    program = Path(sys.argv[0])
    is_ours = _PROGRAM in {program.stem, program.parent.name}
    return (_PROGRAM, *sys.argv[1:]) if is_ours else ()


# How does text become visible, whatever characters it holds?


_C0_PICTURES: Final = 0x2400
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029\u200b\ufeff\ud800-\udfff]"  # line ends and blanks that nobody sees, halves of characters
)


def _sign(found: re.Match[str]) -> str:
    code = ord(found.group())
    return (
        chr(_C0_PICTURES + code)
        if code < 0x20
        else "\N{SYMBOL FOR DELETE}"
        if code == 0x7F
        else "\N{REPLACEMENT CHARACTER}"
    )


def printable(text: str) -> str:
    """The text with a visible sign for each character that would act on a terminal; tabs and line ends stay.

    >>> printable(chr(27) + "[2J" + chr(0x202E))
    '␛[2J�'
    """
    return _UNPRINTABLE.sub(_sign, text)


def printable_json(text: str) -> str:
    """The same JSON with unprintable characters escaped; it parses to the same text."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)
