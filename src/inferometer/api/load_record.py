"""What does a load test's folder hold while it is not over?

``load.json`` says what is asked, ``raw/`` what came over the wire; a complete run has its tables
and manifest too.
"""

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.load_plan import LoadPlan, body_value_without_secrets, without_secrets
from inferometer.measure.load import target
from inferometer.measure.run_names import new_run_id, now_utc
from inferometer.records import durability, layout

_DOOR: Final = Door(
    noun="description of the load",
    allowed="the file as it was written",
    refusal=RecordError,
    try_="another folder with --out",
)

OPEN_NAME: Final = layout.OPEN_LOAD_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """A load test that is not over: what is asked, and since when.

    Later sessions keep the first one's name and command.
    """

    load: LoadPlan
    run_id: str
    created_utc: str
    command: tuple[str, ...]


@contextmanager
def opened(folder: Path, load: LoadPlan) -> Generator[OpenLoad]:
    """The load test of this folder, begun or gone on with; nobody else can write to it meanwhile.

    Raises
    ------
    RecordError
        The folder cannot be written, is being written, or holds another question's test.
    """
    durability.make_folder(folder)
    lock = durability.WriterLock.acquire(folder / layout.LOCK_NAME)
    try:
        yield _opened(folder, load)
    finally:
        lock.release()


def is_complete(folder: Path, load: LoadPlan) -> bool:
    """Was this very test made here before, to its end?

    Raises
    ------
    RecordError
        Another run was.
    """
    if not (folder / layout.MANIFEST_NAME).exists():
        return False
    if not (folder / OPEN_NAME).exists() or _read(folder / OPEN_NAME).load != without_secrets(load):
        raise _another(folder)
    return True


def is_open(folder: Path) -> bool:
    """Is there a load test in the folder that is not over?"""
    return (folder / OPEN_NAME).is_file() and not (folder / layout.MANIFEST_NAME).exists()


def open_load(folder: Path) -> OpenLoad:
    """What is asked in this folder.

    Raises
    ------
    RecordError
        It cannot be read.
    """
    return _read(folder / OPEN_NAME)


def _opened(folder: Path, asked: LoadPlan) -> OpenLoad:
    path, load = folder / OPEN_NAME, without_secrets(asked)
    if path.exists():
        stored = _read(path)
        if stored.load != load:
            raise _another(folder)
        return stored
    created_utc = now_utc()
    new = OpenLoad(
        load=load,
        run_id=new_run_id(created_utc),
        created_utc=created_utc,
        command=("inferometer", *redacted(sys.argv[1:])),
    )
    durability.replace_file(path, msgspec.json.format(msgspec.json.encode(new), indent=2) + b"\n")
    return new


def _read(path: Path) -> OpenLoad:
    return _DOOR.json(_DOOR.bytes_of(path), OpenLoad, where=str(path))


def _another(folder: Path) -> RecordError:
    return RecordError(
        "the folder holds another run",
        where=str(folder),
        allowed="the same command, which goes on",
        try_="another folder with --out",
    )


# How is a command line stored: without the values of headers, bodies and proxies?


def redacted(arguments: Sequence[str]) -> tuple[str, ...]:
    """The command line as it may be stored: without the values of headers and the credentials of proxies."""
    before = ("", *arguments)
    return tuple(
        _redacted(flag, argument) for flag, argument in zip(before, arguments, strict=False)
    )


def _redacted(before: str, argument: str) -> str:
    """An argument without its secret, if it has one; ``before`` stands in front of it."""
    flag, is_joined, value = argument.partition("=")
    if is_joined and flag in _SECRET:
        return f"{flag}={_SECRET[flag](value)}"
    return _SECRET[before](argument) if before in _SECRET else argument


def _valueless(header: str) -> str:
    name, _, value = header.partition(":")
    return header if value.strip().startswith("$") else f"{name}: …"


def _textless(key: str) -> str:
    """``--body`` without texts; of what is no JSON only the name."""
    name, _, value = key.partition("=")
    try:
        return f"{name}={body_value_without_secrets(value)}"
    except msgspec.DecodeError:
        return f"{name}=…"


_SECRET: Final[dict[str, Callable[[str], str]]] = {
    **dict.fromkeys(("--header", "--b-header"), _valueless),
    **dict.fromkeys(("--body", "--b-body"), _textless),
    **dict.fromkeys(("--proxy", "--metrics-url"), target.shown_url),
}
