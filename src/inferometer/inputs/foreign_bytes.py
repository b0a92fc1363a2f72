"""All reading of files and texts that this program did not write.

Every reader uses a ``Door``. It limits the size of files, of the contents of .gz files, of lines
and of nesting, and converts all errors in the bytes (compression, encoding, syntax, numbers that
are not finite) to the error type that its caller expects.
``tests/house/test_foreign_bytes.py`` forbids decoders elsewhere.
"""

import csv
import gzip
import json
import math
import mmap
import re
import struct
import zlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import IO, Final, TypeVar, cast

import msgspec
import numpy as np

from inferometer.errors import InferometerError, RecordError, SpecError
from inferometer.units import MOST_COUNT, check_number, format_limit, ungrouped

MOST_DEPTH: Final = 64
MOST_VALUES: Final = 30_000_000
"""Limit of a JSON document: a few gigabytes in memory at worst."""
MOST_KEY_PARTS: Final = 32
MOST_KEYS: Final = 100_000

_SHOWN: Final = 160
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
_TOML_TOKEN: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[^\s"\'#.,=\[\]{}]+|[.,=\[\]{}]',
    re.DOTALL,
)
Decoded = TypeVar("Decoded")

MOST_DOCUMENT_BYTES: Final = 2**30
"""Limit of a file that is read whole."""
MOST_TABLE_BYTES: Final = 4 * 2**20
"""Limit of a TOML file: they are written by hand."""
MOST_LINE_BYTES: Final = 2**26
MOST_UNPACKED_BYTES: Final = 2**35
"""Limit of a .gz file's contents, read line by line."""
_BROKEN: Final = (msgspec.MsgspecError, zlib.error, EOFError, csv.Error, struct.error)
_PACKED: Final = {b"\x1f\x8b": "gzip", b"(\xb5/\xfd": "zstd", b"BZh": "bzip2", b"PK\3\4": "zip"}
"""First bytes of compressed files, for any file name."""
_WRONG: Final = (ValueError, RecursionError, ArithmeticError, LookupError, MemoryError)
"""Exceptions that decoders raise for unexpected bytes."""


def repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs twice in a header, ignoring blanks; None without one.

    Example
    -------
    >>> repeated(["a", "", "b", "", " a"]), repeated("ab")
    ('a', None)
    """
    known = set[str]()
    for name in map(str.strip, names):
        if name and name in known:
            return name
        known.add(name)
    return None


def shortened(value: object) -> str:
    """A foreign value shortened for a message: numbers and texts may be thousands long.

    Example
    -------
    >>> shortened(10**5000), shortened("a")
    ('a whole number of more than 16,000 bits', "'a'")
    """
    if isinstance(value, int) and abs(value) > 10**40:
        return f"a whole number of more than {value.bit_length() // 1000 * 1000:,} bits"
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."


def check_json(content: bytes | str, noun: str) -> None:
    """Refuse JSON that is empty, nested too deeply, or has too many values."""
    if not content or content.isspace():
        raise SpecError(f"the {noun} is empty")
    if len(content) < 2 * MOST_DEPTH:
        return
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    n_opened = data.count(b"[") + data.count(b"{")
    n_values = data.count(b",") + n_opened + 1
    if n_values > MOST_VALUES:
        raise SpecError(f"about {n_values:,} values", allowed=f"{MOST_VALUES:,} values")
    if n_opened > MOST_DEPTH and _json_depth(data) > MOST_DEPTH:
        raise too_deep()


def check_toml(text: str, most_characters: int) -> None:
    """Refuse TOML that is too long or too deep for its decoder, which is slow.

    Raises
    ------
    SpecError
        It is too long, nested too deeply, or has too many keys or a key of too many parts.
    """
    check_length(text, most_characters)
    depth = n_parts = n_keys = 0
    last = ""
    for match in _TOML_TOKEN.finditer(text):
        part = match.group()
        if part in "[{":
            depth += 1
        elif part in "]}":
            depth -= 1
        elif part == "=":
            n_keys += 1
        elif part not in ".," and part[0] != "#":
            n_parts = n_parts + 1 if last == "." else 1
        if depth > MOST_DEPTH:
            raise too_deep()
        if n_parts > MOST_KEY_PARTS:
            raise SpecError(
                f"a key of more than {MOST_KEY_PARTS} parts",
                allowed=f"{MOST_KEY_PARTS} parts with points between",
            )
        last = part
    if n_keys > MOST_KEYS:
        raise SpecError(f"{n_keys:,} keys", allowed=f"{MOST_KEYS:,} keys")


def check_values(value: object) -> None:
    """Refuse numbers that are not finite, or larger than their names allow."""
    level: list[tuple[str, object]] = [("", value)]
    while level:
        inner: list[tuple[str, object]] = []
        for path, one in level:
            if isinstance(one, dict):
                inner += [
                    (f"{path}.{key}" if path else str(key), item)
                    for key, item in cast("dict[object, object]", one).items()
                ]
            elif isinstance(one, list):
                inner += [
                    (f"{path}[{index}]", item)
                    for index, item in enumerate(cast("list[object]", one))
                ]
            elif isinstance(one, int | float):
                check_number(one, path, where=None)
        level = inner


def _json_depth(data: bytes) -> int:
    """The deepest nesting of a JSON text, of its brackets outside strings."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NOT_BRACKETS)
    brackets = np.frombuffer(b"".join(bare.split(b'"')[::2]), np.uint8)
    is_open = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(is_open, 1, -1)).max(initial=0))


def check_length(text: str, most_characters: int) -> None:
    """Refuse a text that is longer than this."""
    if len(text) > most_characters:
        raise SpecError(f"{len(text):,} characters", allowed=f"{most_characters:,} characters")


def too_deep() -> SpecError:
    """The error for nesting deeper than ``MOST_DEPTH``."""
    return SpecError(f"nested more than {MOST_DEPTH} deep", allowed=f"{MOST_DEPTH} levels")


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Validating reader of one kind of input that this program did not write.

    It has the input's name, its error type, the allowed values and the size limit.
    """

    noun: str
    """Name in messages: the trace, the price list."""
    allowed: str
    refusal: type[InferometerError] = SpecError
    try_: str | None = None
    max_bytes: int = MOST_DOCUMENT_BYTES

    def bytes_of(self, path: Path) -> bytes:
        """Content of a file, decompressed if .gz.

        Raises
        ------
        InferometerError
            Of the type ``refusal``: it cannot be read, is damaged, or is larger than ``max_bytes``.
            The other methods raise it too.
        """
        with self.refusing(str(path)), _opened(path) as file:
            content = file.read(self.max_bytes + 1)
            if len(content) > self.max_bytes:
                raise self._refused(
                    f"the {self.noun} has more than {self.max_bytes:,} bytes",
                    str(path),
                    f"{self.max_bytes:,} bytes",
                )
            return content

    def start_of(self, path: Path, n_bytes: int = 256) -> bytes:
        """The first bytes of a file, after blanks and a byte order mark."""
        with self.refusing(str(path)), _opened(path) as file:
            return file.read(n_bytes).removeprefix(b"\xef\xbb\xbf").lstrip()

    def text_of(self, path: Path) -> str:
        """The text of a file."""
        return self.text(self.bytes_of(path), where=str(path))

    def text(self, content: bytes, *, where: str) -> str:
        """The text of these bytes, which are UTF-8, with or without a byte order mark."""
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise self._refused(
                f"the {self.noun} is in UTF-16", where, "UTF-8", try_="save it as UTF-8"
            )
        with self.refusing(where):
            return content.decode("utf-8-sig")

    def lines_of(self, path: Path) -> Iterator[tuple[int, bytes]]:
        """Non-blank lines, stripped, numbered from 1, one in memory at a time.

        A .gz file is decompressed.
        """
        n_bytes, number = 0, 0
        with self.refusing(str(path)), _opened(path) as file:
            while line := file.readline(MOST_LINE_BYTES + 1):
                n_bytes, number = n_bytes + len(line), number + 1
                where = f"{path}, line {number}"
                if len(line) > MOST_LINE_BYTES:
                    raise self._refused(
                        f"line {number} has more than {MOST_LINE_BYTES:,} bytes",
                        where,
                        f"{MOST_LINE_BYTES:,} bytes",
                    )
                if n_bytes > MOST_UNPACKED_BYTES:
                    raise self._refused(
                        f"the {self.noun} has more than {n_bytes:,} bytes",
                        where,
                        f"{MOST_UNPACKED_BYTES:,} bytes",
                    )
                if stripped := line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").strip():
                    yield number, stripped

    def json(
        self, content: bytes | str, kind: type[Decoded], *, where: str, is_strict: bool = True
    ) -> Decoded:
        """Decode JSON into a type; if not strict, 4.0 and "4" are the number 4."""
        with self.refusing(where):
            check_json(content, self.noun)
            return msgspec.json.decode(content, type=kind, strict=is_strict)

    def msgpack(self, content: bytes, kind: type[Decoded], *, where: str) -> Decoded:
        """Decode MessagePack into a type."""
        with self.refusing(where):
            if len(content) > self.max_bytes:
                raise SpecError(f"{len(content):,} bytes", allowed=f"{self.max_bytes:,} bytes")
            return msgspec.msgpack.decode(content, type=kind)

    def loose_json(self, text: str, *, where: str) -> object:
        """Decode JSON that may contain NaN and Infinity, as Python's tools write them."""
        with self.refusing(where):
            check_json(text, self.noun)
            value: object = json.loads(text)
            if (
                "\\ud" in text or "\\uD" in text
            ):  # an escape of half a surrogate pair could not be printed
                json.dumps(value, ensure_ascii=False).encode()
            return value

    def toml(self, text: str, *, where: str) -> object:
        """Decode TOML; ``file_tables.table_from`` checks its numbers."""
        with self.refusing(where):
            check_toml(text, MOST_TABLE_BYTES)
            return cast("object", msgspec.toml.decode(text))

    def csv_rows(
        self, lines: Iterable[str], *, where: str, delimiter: str = ","
    ) -> Iterator[list[str]]:
        """The fields of each line."""
        with self.refusing(where):
            yield from csv.reader(lines, delimiter=delimiter)

    def csv_records(self, lines: Iterable[str], *, where: str) -> Iterator[dict[str, str]]:
        """The fields of each line under the names in the first.

        Lines with more or fewer fields are refused, and duplicate column names.
        """
        rows = self.csv_rows(lines, where=where)
        names = next(rows, [])
        if (twice := repeated(names)) is not None:
            raise self._refused(f"two columns are called {twice}", where, "a name for each column")
        for number, row in enumerate(rows, start=2):
            if row and len(row) != len(names):
                here = f"{where}, line {number}"
                raise self._refused(
                    f"line {number} has {len(row)} fields, the header has {len(names)}",
                    here,
                    f"{len(names)} fields",
                )
            if row:
                yield dict(zip(names, row, strict=True))

    def number(self, text: str, name: str, *, where: str, most: float = 1e15) -> float:
        """A finite number from text."""
        try:
            value = float(ungrouped(text))
        except ValueError:
            value = math.nan
        if not abs(value) <= most:
            raise self._refused(
                f"{name} = {text[:_SHOWN]!r}", where, f"a finite number up to {format_limit(most)}"
            )
        return value

    def convert(self, value: object, kind: type[Decoded], *, where: str) -> Decoded:
        """Convert a decoded value into a type."""
        with self.refusing(where):
            return msgspec.convert(value, kind)

    @contextmanager
    def mapped(self, path: Path) -> Generator[mmap.mmap]:
        """The bytes of a file of any size, mapped into memory."""
        with self.refusing(str(path)), path.open("rb") as file:
            if path.stat().st_size == 0:
                raise self._refused(f"the {self.noun} is empty", str(path), self.allowed)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content

    @contextmanager
    def refusing(self, where: str) -> Generator[None]:
        """Convert errors that the bytes cause within the context to this door's error type."""
        try:
            yield
        except InferometerError as error:
            if isinstance(error, self.refusal) and error.where:
                raise
            raise self._refused(
                error.what, error.where or where, error.allowed or self.allowed, try_=error.try_
            ) from error
        except (*_BROKEN, *_WRONG, gzip.BadGzipFile) as error:
            raise self._refused(
                f"the {self.noun} is damaged: {_short(error)}", where, self.allowed
            ) from error
        except OSError as error:
            raise self._refused(
                f"the {self.noun} cannot be read: {error.strerror or error}",
                where,
                self.allowed,
                try_=nearby(Path(where)) if isinstance(error, FileNotFoundError) else None,
            ) from error

    def _refused(
        self, what: str, where: str, allowed: str, *, try_: str | None = None
    ) -> InferometerError:
        return self.refusal(what, where=where, allowed=allowed, try_=try_ or self.try_)


_MOST_NAMES: Final = 1000


def own_files(noun: str, try_: str) -> Door:
    """The door for files of ours that somebody may have changed meanwhile."""
    return Door(noun=noun, allowed="the file as it was written", refusal=RecordError, try_=try_)


def nearby(path: Path) -> str | None:
    """Files with a name similar to a missing one; None without any, or without the folder.

    Example
    -------
    >>> nearby(Path("no such folder/plan.toml")) is None
    True
    """
    try:
        names = [one.name for one in islice(path.parent.iterdir(), _MOST_NAMES)]
    except OSError:
        return None
    alike = [str(path.with_name(name)) for name in get_close_matches(path.name, names)]
    return f"did you mean {' or '.join(alike)}?" if alike else None


def path_named(text: str, *, where: str) -> Path:
    """The path that a text names, ``~`` being the home.

    Raises
    ------
    SpecError
        The name is invalid: it is too long, has a zero byte, or refers to an unknown user.
    """
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SpecError(
            f"{shortened(text)} cannot be a path: {why}", where=where, allowed="a path, or a name"
        ) from error
    return path


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    with path.open("rb") as file:
        start = file.peek(8)
        packing = next((name for begin, name in _PACKED.items() if start.startswith(begin)), "")
        if packing not in {"", "gzip"}:
            raise SpecError(
                f"it is packed with {packing}", allowed="plain, or gzip", try_="unpack it"
            )
        yield cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if packing else file


def _short(error: BaseException) -> str:
    """A decoder's error message, shortened to one line."""
    match error:
        case RecursionError():
            return "it is nested too deeply"
        case MemoryError():
            return "it needs more memory than there is"
        case KeyError():
            return f"{error} is missing"
        case UnicodeDecodeError():
            return (
                f"byte {error.object[error.start]:#04x} at {error.start} is not"
                f" {error.encoding.upper()}"
            )
        case UnicodeEncodeError():
            return f"half a character at {error.start}"
        case _:
            text = " ".join(str(error).split()) or type(error).__name__
            return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


# Fields of a model's configuration file, with defaults for missing ones and errors for
# invalid ones.


_MOST_OF: Final = {
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
}
"""Largest number of items in a list that is read."""
_MOST_LETTERS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigFields:
    """The fields of one ``config.json``, under their usual (Llama) names.

    ``names`` maps a usual name to the family's own; ``filled`` holds values of missing fields, from
    the family's classes or other fields.
    """

    config: Mapping[str, object]
    where: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    filled: Mapping[str, object] = field(default_factory=dict[str, object])

    def value(self, name: str) -> object:
        """The file's value (the family's name first), else the family's default, else None."""
        own = self.own_name(name)
        found = self.filled.get(own) if own != name and own in self.filled else self.config.get(own)
        return self.filled.get(name) if found is None else found

    def own_name(self, name: str) -> str:
        """The name in this family's files."""
        return self.names.get(name, name)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of 1 or more.

        Raises
        ------
        SpecError
            It is missing without a default, or has another value.
        """
        found = self.optional_count(name)
        if found is not None:
            return found
        if default is None:
            stated = self.config.get("model_type")
            family = "" if stated is None else f" for model_type = {shortened(stated)}"
            raise SpecError(
                f"field {self.own_name(name)!r} is missing{family}",
                where=self.where,
                allowed="a whole number, 1 or more",
                try_="add it to a copy of the file, if this is a decoder-only language model",
            )
        return default

    def optional_count(self, name: str, *, minimum: int = 1) -> int | None:
        """A whole number of ``minimum`` or more; None where it is missing or null.

        A list that holds one number repeatedly, once for each layer, counts as that number.

        Raises
        ------
        SpecError
            The value is of another type, or out of range.
        """
        found = self.value(name)
        if isinstance(found, list) and found and found.count(found[0]) == len(found):
            found = found[0]  # for each layer the same
        if found is None:
            return None
        most = _MOST_OF.get(name, MOST_COUNT)
        if isinstance(found, bool) or not isinstance(found, int) or not minimum <= found <= most:
            allowed = f"a whole number, {minimum} or more" + (
                f", up to {most}" if isinstance(found, int) and found > most else ""
            )
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}", where=self.where, allowed=allowed
            )
        return found

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false.

        Raises
        ------
        SpecError
            The value is of another type.
        """
        found = self.value(name)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}",
                where=self.where,
                allowed="true or false",
            )
        return found

    def text(self, name: str) -> str | None:
        """A text; None where it is missing.

        Raises
        ------
        SpecError
            The value is of another type.
        """
        found = self.value(name)
        if found is not None and (not isinstance(found, str) or len(found) > _MOST_LETTERS):
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}",
                where=self.where,
                allowed=f"a text of up to {_MOST_LETTERS} letters",
            )
        return found

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list of texts; None where it is missing.

        Raises
        ------
        SpecError
            The value is of another type.
        """
        found = self.value(name)
        if found is None:
            return None
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise SpecError(
                f"{self.own_name(name)} = {shortened(found)}",
                where=self.where,
                allowed="a list of texts",
            )
        return tuple(str(item) for item in found)


def format_notes(config: object, *, is_known: bool) -> tuple[str, ...]:
    """Notes on a quantised checkpoint: weights of an unknown format, an 8-bit KV cache."""
    if not isinstance(config, dict):
        return ()
    method, bits = config.get("quant_method"), config.get("bits")
    of_bits = "" if bits is None else f" of {bits!r} bits"
    unknown = (
        f"quantization_config of method {method!r}{of_bits} is not known here: weights are taken as"
        " of 16 bits (--quantization states theirs)"
    )
    cache = str(config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")).lower()
    of_8_bits = (
        "the checkpoint's KV cache is of 8 bits, which vLLM takes by default; here --kv-dtype float8"
        " counts it so"
    )
    is_of_8 = "fp8" in cache or ("'num_bits': 8" in cache and "float" in cache)
    return (() if is_known else (unknown,)) + ((of_8_bits,) if is_of_8 else ())
