"""Which command makes the runs of this process: its own, or the one that a call from Python is?

A run's record holds the command that makes it again. The arguments of the process are that command
only where the process is ``inferometer``: those of a notebook are its kernel's.
"""

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, NamedTuple

from inferometer.api.question import Field, by_field, fields_of

_PROGRAM: Final = "inferometer"


class _Call(NamedTuple):
    """A call of a function of the front door."""

    verb: str
    question: type[Any]
    values: Mapping[str, object]


_CALL: Final = ContextVar[_Call | None]("call", default=None)


@contextmanager
def called_as(verb: str, question: type[Any], values: Mapping[str, object]) -> Generator[None]:
    """Runs that are made inside are those of this verb with these options."""
    token = _CALL.set(_Call(verb, question, values))
    try:
        yield
    finally:
        _CALL.reset(token)


def command_line() -> tuple[str, ...]:
    """The command, word by word; empty where another program makes the run and no call is known."""
    call = _CALL.get()
    if call is not None:
        return _words(call)
    program = Path(sys.argv[0])
    is_ours = _PROGRAM in {program.stem, program.parent.name}
    return (_PROGRAM, *sys.argv[1:]) if is_ours else ()


def _words(call: _Call) -> tuple[str, ...]:
    values = by_field(call.question, call.values)
    words = [_PROGRAM, call.verb]
    for field in sorted(fields_of(call.question), key=lambda one: not one.option.is_argument):
        value = values.get(field.name)
        if value is not None:
            words += _option(field, value)
    return tuple(words)


def _option(field: Field, value: object) -> list[str]:
    yes, _, no = max(field.flags, key=len).partition("/")
    if isinstance(value, bool):
        return [yes] if value else [no] if no else []
    if isinstance(value, Mapping):
        value = [f"{name}={one}" for name, one in value.items()]
    several = list(value) if isinstance(value, list | tuple | range) else [value]
    if not field.is_many:
        several = [",".join(map(str, several))]
    flag = [] if field.option.is_argument else [yes]
    return [word for one in several for word in (*flag, str(one))]
