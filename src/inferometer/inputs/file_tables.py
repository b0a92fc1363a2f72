"""Validated tables from TOML or JSON files, and the reader of YAML.

Errors name the wrong key, its value and the allowed ones.

The tables are ``msgspec`` structs, key for key: their types define a file's format.
"""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar, cast

import msgspec
import msgspec.inspect as shapes

from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import MOST_DEPTH, Door, check_length, check_values, too_deep

MOST_YAML_CHARACTERS: Final = 2**22


def yaml_value(text: str, door: Door, *, where: str) -> object:
    """The value of this YAML, without aliases; ``file_tables.table_from`` checks its numbers.

    Raises
    ------
    InferometerError
        Of ``door``'s error type: it is malformed, too long, nested too deeply, or has an alias.
    """
    with door.refusing(where):
        check_length(text, MOST_YAML_CHARACTERS)
        return _loaded(text)


def _loaded(text: str) -> object:
    """The value of the YAML; refuses aliases (unlimited repetition) and deep nesting (stack)."""
    # Imported here: most files are JSON, and the import takes as long as a fast command.
    import yaml  # noqa: PLC0415

    loader, depth = getattr(yaml, "CSafeLoader", yaml.SafeLoader), 0
    try:
        for event in yaml.parse(text, Loader=loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
                event, yaml.CollectionEndEvent
            )
            if isinstance(event, yaml.AliasEvent):
                raise SpecError(f"an alias, *{event.anchor}", allowed="values written out")
            if depth > MOST_DEPTH:
                raise too_deep()
        return cast("object", yaml.load(text, Loader=loader))  # noqa: S506
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


Table = TypeVar("Table", bound=msgspec.Struct)

_TOML: Final = Door(noun="TOML", allowed="TOML, or JSON in a .json file")
_JSON: Final = Door(noun="JSON", allowed="TOML, or JSON in a .json file")
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_UNKNOWN: Final = re.compile(r"unknown field `(.+)`")
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def text_of(path: Path, *, noun: str, endings: str, try_: str | None = None) -> str:
    """Content of the file of ``noun``; ``try_``: how to make such a file.

    Raises
    ------
    SpecError
        The file cannot be read.
    """
    return Door(noun=noun, allowed=f"a {endings} file", try_=try_).text_of(path)


def table_from_text(text: str, table: type[Table], *, where: str, is_json: bool = False) -> Table:
    """The table in this TOML (or JSON).

    Raises
    ------
    SpecError
        An invalid key or value; the message has ``where``, the name of the text.
    """
    raw = _JSON.json(text, object, where=where) if is_json else _TOML.toml(text, where=where)
    return table_from(raw, table, where=where)


def table_from(raw: object, table: type[Table], *, where: str, example: str | None = None) -> Table:
    """The table in decoded values; ``example``: a remedy in errors.

    Raises
    ------
    SpecError
        An invalid key or value; the message has ``where``, the source of the values.
    """
    with _JSON.refusing(where):
        try:
            converted = msgspec.convert(raw, table)
        except msgspec.ValidationError as error:
            found = _named(str(error), raw, table, where)
            if found.try_ is None and example is not None:
                found = SpecError(
                    found.what, where=found.where, allowed=found.allowed, try_=example
                )
            raise found from error
        check_values(raw)
        return converted


def _named(message: str, raw: object, table: type[msgspec.Struct], where: str) -> SpecError:
    """The error of msgspec with key, value and allowed values."""
    match = _AT.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    key = path.removeprefix(".")
    value, shape = _walked(path, raw, table)
    shown = f": {value!r}" if key and not isinstance(value, dict | list | None) else ""
    return SpecError(
        f"{key}{shown}: {what}" if key else what,
        where=f"{where}, key {key}" if key else where,
        allowed=None if shape is None else _allowed(shape, value),
        try_=None
        if (unknown := _UNKNOWN.search(what)) is None
        else _meant(unknown[1], shape, table),
    )


def _meant(key: str, shape: shapes.Type | None, table: type[msgspec.Struct]) -> str | None:
    """A similar key of this table, or of another one of the file; None without one."""
    whole = shapes.type_info(table)
    here = [name for name in _keys(shape) if name != key]  # another kind of this table may have it
    elsewhere = {
        name: one.encode_name
        for struct in _structs(whole, None)
        for one in struct.fields
        for name in _keys(one.type)
    }
    near = _nearest(key, here)
    if near is not None:
        return near
    near = _nearest(key, list(elsewhere))
    return None if near is None else f"[{elsewhere[near]}] {near}"


def _keys(shape: shapes.Type | None) -> list[str]:
    return [one.encode_name for struct in _structs(shape, None) for one in struct.fields]


def _nearest(key: str, names: list[str]) -> str | None:
    """The most similar name: in another case, containing the key, or nearly equal."""
    plain = {name: name.lower().replace("-", "_") for name in names}
    wanted = key.lower().replace("-", "_")
    parts = [name for name, one in plain.items() if len(wanted) > 2 and wanted in one]
    close = get_close_matches(wanted, plain.values(), n=1)
    alike = [name for name, one in plain.items() if one in close]
    return next(iter([*parts, *alike]), None)


def _walked(
    path: str, raw: object, table: type[msgspec.Struct]
) -> tuple[object, shapes.Type | None]:
    """The value at a path, and its expected type."""
    value: object = raw
    shape: shapes.Type | None = shapes.type_info(table)
    for name, index in _STEP.findall(path):
        if index:
            value = (
                value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
            )
            shape = next(
                (one.item_type for one in _options(shape) if isinstance(one, shapes.VarTupleType)),
                None,
            )
            continue
        structs = _structs(shape, value)
        value = value.get(name) if isinstance(value, dict) else None
        if name == "kind":  # a tag is not a field: its allowed values are those of the union
            continue
        shape = next(
            (field.type for one in structs for field in one.fields if field.encode_name == name),
            None,
        )
    return value, shape


def _options(shape: shapes.Type | None) -> Iterator[shapes.Type]:
    for one in shape.types if isinstance(shape, shapes.UnionType) else (shape,):
        if one is not None and not isinstance(one, shapes.NoneType):
            yield one.type if isinstance(one, shapes.Metadata) else one


def _structs(shape: shapes.Type | None, value: object) -> list[shapes.StructType]:
    """Possible tables here; only that of the value's ``kind`` if it has one."""
    structs = [one for one in _options(shape) if isinstance(one, shapes.StructType)]
    kind = value.get("kind") if isinstance(value, dict) else None
    return [one for one in structs if one.tag == kind] or structs


def _allowed(shape: shapes.Type, value: object) -> str | None:
    structs = _structs(shape, value)
    if len(structs) > 1:
        return "kind = " + ", ".join(str(one.tag) for one in structs)
    if structs:
        kind = ("kind",) if structs[0].tag is not None else ()
        return "keys " + ", ".join([*kind, *(field.encode_name for field in structs[0].fields)])
    return "; ".join(filter(None, map(_leaf, _options(shape)))) or None


def _leaf(shape: shapes.Type) -> str | None:
    match shape:
        case shapes.LiteralType(values=values):
            return " or ".join(map(str, values))
        case shapes.IntType() | shapes.FloatType():
            name = "a whole number" if isinstance(shape, shapes.IntType) else "a number"
            bounds = (
                ("above", shape.gt),
                ("from", shape.ge),
                ("below", shape.lt),
                ("to", shape.le),
            )
            return " ".join(
                [name, *(f"{word} {bound:g}" for word, bound in bounds if bound is not None)]
            )
        case shapes.StrType():
            return "text"
        case shapes.BoolType():
            return "true or false"
        case _:
            return None
