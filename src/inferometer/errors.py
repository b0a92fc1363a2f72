"""Errors, with their exit codes.

The tree (exit code behind each class)::

    InferometerError                1
    ├── SpecError                   2   the question was bad: a value, a file, a flag
    │   ├── MissingEngineError      2   the engine is not installed here
    │   └── TooLargeError           6   devices of more memory, or more of them, would do
    ├── MeasureError                3   the measurement failed or is INVALID
    │   ├── EngineError             3   the engine under test failed or died
    │   └── StoppedError          130   Ctrl-C; 143 after SIGTERM, 129 after SIGHUP
    ├── RecordError                 4   a record cannot be read or written
    ├── ModelError                  5   the step-time model cannot answer
    │   └── OutOfRangeError         5   the question lies outside the model's valid box
    └── SizingError                 6   no decision is possible

Verdicts are not errors: an objective that is missed exits 10, one that is undecided exits 11. A
message has four parts: what is wrong with the value, where it came from, what is allowed, what to
try.
"""

import shlex
from collections.abc import Sequence
from typing import ClassVar, Final

EXIT_ANSWERED = 0
EXIT_SLO_MISSED = 10
EXIT_UNDECIDED = 11
EXIT_OF_SLO: Final[dict[str | None, int]] = {
    None: EXIT_ANSWERED,
    "met": EXIT_ANSWERED,
    "missed": EXIT_SLO_MISSED,
    "undecided": EXIT_UNDECIDED,
}
"""None: there is no SLO."""

COMMAND = "inferometer "
"""Every command that an answer or an error suggests begins so."""


class InferometerError(Exception):
    """An error that the user can act on; its text tells how."""

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        allowed: str | None = None,
        try_: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.allowed = allowed
        self.try_ = try_

    def __str__(self) -> str:
        parts = [self.what]
        parts += [f"  from: {self.where}"] if self.where else []
        parts += [f"  allowed: {self.allowed}"] if self.allowed else []
        parts += [f"  try: {self.try_}"] if self.try_ else []
        return "\n".join(
            part.replace("\n", "\n    ") for part in parts
        )  # no server's text can pass for a part of ours


class SpecError(InferometerError):
    """The question was bad: an unknown name, an impossible value, a broken file."""

    exit_code: ClassVar[int] = 2


class MissingEngineError(SpecError):
    """The engine is not installed here; the message says how to install it."""


class TooLargeError(SpecError):
    """The model does not fit into the memory of these devices: an answer, not a bad question."""

    exit_code: ClassVar[int] = 6


class MeasureError(InferometerError):
    """The measurement failed, or is INVALID."""

    exit_code: ClassVar[int] = 3


class EngineError(MeasureError):
    """The engine under test refused, failed or died."""


class StoppedError(MeasureError):
    """Somebody stopped the measurement; what was measured is stored, and the same command goes on.

    ``command``: its words, as they were typed; empty where another program calls.
    """

    exit_code: ClassVar[int] = 130

    def __init__(self, what: str, *, where: str, command: Sequence[str]) -> None:
        again = f": {shlex.join(command)}" if command else ""
        super().__init__(what, where=where, try_=f"the same command goes on{again}")


class RecordError(InferometerError):
    """A record cannot be read, written or trusted."""

    exit_code: ClassVar[int] = 4


class ModelError(InferometerError):
    """The step-time model cannot be fitted or cannot answer."""

    exit_code: ClassVar[int] = 5


class OutOfRangeError(ModelError):
    """The question is outside the model's valid box."""


class SizingError(InferometerError):
    """No decision is possible from what was given."""

    exit_code: ClassVar[int] = 6
