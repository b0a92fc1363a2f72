"""All output to the terminal.

The one place that writes to stdout and stderr; imports nothing heavy, for ``--help`` is fast.

stdout carries the answer. stderr carries the talk, which nobody has to read: a reader that goes
away early (``2> >(head -1)``), or a terminal that hangs up, ends the talk and not the measurement.

Servers, files and their names may carry escape sequences, control characters and marks that turn
the direction of text. Each becomes one visible sign here; what rich draws goes through
``SafeConsole`` of ``api/answer.py``, which does the same.
"""

import contextlib
import sys
import traceback
from types import TracebackType
from typing import Final, TextIO

import click

from inferometer.api.progress import printable

REPORT: Final = "inferometer.report"
"""Key in click's context: the file for the answer's page."""
AS_CSV: Final = "inferometer.as_csv"
"""Key in click's context: was ``--csv`` given?"""
VERBOSE: Final = "inferometer.verbose"
"""Key in click's context: show the whole answer?"""


def write_answer(text: str) -> None:
    """Write a text to stdout, and a newline."""
    click.echo(printable(text))


def write_drawn(text: str) -> None:
    """Write the output of a ``SafeConsole`` to stdout, with a newline."""
    click.echo(text)


def talk(text: str) -> None:
    """Write a text about the work to stderr, and a newline."""
    STDERR.write(printable(text) + "\n")


def show_crash(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Write the traceback of an unexpected error; it may contain user data."""
    talk("".join(traceback.format_exception(kind, error, trace)).rstrip())


class PatientStderr:
    """Stderr as a file that drops output which its reader no longer takes."""

    @property
    def encoding(self) -> str:
        """The encoding, which rich looks up to choose its characters."""
        return getattr(sys.stderr, "encoding", None) or "utf-8"

    def write(self, text: str) -> int:
        """Write and flush."""
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or the file is closed
            click.echo(text, err=True, nl=False)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: each write was flushed."""

    def isatty(self) -> bool:
        """Is it a terminal?"""
        try:
            return sys.stderr is not None and sys.stderr.isatty()
        except ValueError:
            return False

    def fileno(self) -> int:
        """The descriptor, from which rich reads the terminal's size."""
        return sys.stderr.fileno()


STDERR: Final[TextIO] = PatientStderr()  # type: ignore[assignment]  # the part of TextIO that rich and we use
