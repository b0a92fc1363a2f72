"""How is a field of another tool's JSON or YAML read, and how is a wrong one reported?

Absent, null and NaN are all None: not reported. A value of another kind is an error with
the field's path.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeAlias, cast

from inferometer.errors import RecordError
from inferometer.inputs.file_tables import yaml_value
from inferometer.inputs.foreign_bytes import Door
from inferometer.units import MOST_COUNT, ungrouped

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_LARGEST: Final = 2**62
"""Largest number: a Unix time of the year 2116 in nanoseconds."""
_YAML: Final = re.compile(r"(?:---)?\s*(?:#[^\n]*\s+)*[A-Za-z_]\w*:(?:[ \t][^\n]*)?\n")
"""The start of a YAML mapping, which no JSON matches."""
DOOR: Final = Door(
    noun="file",
    allowed="a text file in UTF-8",
    refusal=RecordError,
    try_="the whole file, as the tool wrote it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFields:
    """One JSON object of a file."""

    content: dict[str, Json]
    where: str
    """Path of the file."""
    path: str = ""
    """Path of this object within the file."""

    def has(self, name: str) -> bool:
        """Is there anything under this name?"""
        return self.content.get(name) is not None

    def number(self, name: str) -> float | None:
        """The number of this name; text such as ``inf`` counts."""
        value = self.content.get(name)
        if isinstance(value, str):
            value = _parsed(value, value)
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or _LARGEST < abs(value) < math.inf
        ):
            raise self.refuse(name, "a number")
        return float(value)

    def whole(self, name: str) -> int | None:
        """The whole number of this name."""
        value = self.number(name)
        most = _LARGEST if name.endswith("_ns") else MOST_COUNT
        if value is not None and (not abs(value) <= most or value != int(value)):
            raise self.refuse(name, f"a whole number up to {most}")
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        """The text of this name; a number or a boolean is written out."""
        value = self.content.get(name)
        if isinstance(value, list | dict):
            raise self.refuse(name, "text")
        return None if value is None else str(value)

    def child(self, *names: str) -> "JsonFields":
        """The object of this name (names: nested objects); empty if there is none."""
        found = self
        for name in names:
            value = found.content.get(name)
            if not isinstance(value, dict | None):
                raise found.refuse(name, "an object")
            found = JsonFields(content=value or {}, where=self.where, path=found._path(name))
        return found

    def pairs(self, names: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """The texts of these names that are there, each with its name."""
        found = ((name, self.text(name)) for name in names)
        return tuple((name, text) for name, text in found if text is not None)

    def children(self, name: str) -> "tuple[JsonFields, ...]":
        """The objects in the list of this name; empty if there is none."""
        value = self.content.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            raise self.refuse(name, "a list of objects")
        return tuple(
            _object(item, self.where, f"{self._path(name)}[{i}]") for i, item in enumerate(value)
        )

    def numbers(self, name: str) -> list[float] | None:
        """The list of numbers of this name; null and NaN in it are NaN."""
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            item is None or _is_number(item) for item in value
        ):
            raise self.refuse(name, "a list of numbers")
        return [math.nan if item is None else float(cast("float", item)) for item in value]

    def lists(self, name: str) -> list[list[float]] | None:
        """The list of lists of numbers of this name."""
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            isinstance(item, list) and all(map(_is_number, item)) for item in value
        ):
            raise self.refuse(name, "a list of lists of numbers")
        return [
            [float(cast("float", number)) for number in cast("list[Json]", item)] for item in value
        ]

    def texts(self, name: str) -> list[str] | None:
        """The list of texts of this name; null in it is ''."""
        value = self.content.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(
            item is None or isinstance(item, str) for item in value
        ):
            raise self.refuse(name, "a list of texts")
        return ["" if item is None else str(item) for item in value]

    def required(self, name: str) -> Self:
        """The object itself, after a check that it has a field of that name.

        Raises
        ------
        RecordError
            It has no such field.
        """
        if not self.has(name):
            raise RecordError(
                f"{self._path(name)} is missing",
                where=self.where,
                try_="the whole file, as the tool wrote it",
            )
        return self

    def refuse(self, name: str, allowed: str) -> RecordError:
        """The error for this field, with its value and the allowed ones."""
        shown = repr(self.content.get(name))
        return RecordError(
            f"{self._path(name)} is {shown[:60]}{'...' if len(shown) > 60 else ''}",
            where=self.where,
            allowed=allowed,
            try_="the file as the tool wrote it; a number in it may have been edited or lost",
        )

    def _path(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def read_object(path: Path) -> JsonFields:
    """The JSON object that is this file.

    Raises
    ------
    RecordError
        It cannot be read, is not JSON, or is not an object.
    """
    return _object(parse_json(DOOR.text_of(path), str(path)), str(path), "")


def read_objects(path: Path) -> tuple[JsonFields, ...]:
    """The JSON objects of a file that holds a list."""
    where = str(path)
    content = parse_json(DOOR.text_of(path), where)
    if not isinstance(content, list):
        raise RecordError(
            "the file is no list",
            where=where,
            allowed="a JSON list of objects",
            try_="the file as the tool wrote it",
        )
    return tuple(_object(item, where, f"[{i}]") for i, item in enumerate(content))


def read_lines(path: Path) -> Iterator[JsonFields]:
    """The JSON objects of the lines of this file."""
    for number, line in enumerate(DOOR.text_of(path).splitlines(), start=1):
        if line.strip():
            yield _object(parse_json(line, f"{path}, line {number}"), f"{path}, line {number}", "")


def parse_json(text: str, where: str) -> Json:
    """The parsed JSON or YAML; NaN and Infinity are accepted, because Python's tools write them.

    Raises
    ------
    RecordError
        It is neither, or nested too deeply.
    """
    is_yaml = _YAML.match(text) is not None
    found = yaml_value(text, DOOR, where=where) if is_yaml else DOOR.loose_json(text, where=where)
    return cast("Json", found)


def _object(value: Json, where: str, path: str) -> JsonFields:
    if not isinstance(value, dict):
        raise RecordError(
            f"{path or 'the file'} is no object",
            where=where,
            allowed="a JSON object",
            try_="the file as the tool wrote it",
        )
    return JsonFields(content=value, where=where, path=path)


def _is_number(value: Json) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and not _LARGEST < abs(value) < math.inf
    )


def _parsed(text: str, otherwise: Json) -> Json:
    try:
        return float(ungrouped(text))
    except ValueError:
        return otherwise
