"""Which workload does a file, a preset or a set of changes describe?"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import msgspec.inspect as shapes

from inferometer.errors import SpecError
from inferometer.spec.workload.presets import preset_names, preset_text
from inferometer.spec.workload.trace_lines import known_format
from inferometer.spec.workload.types import TraceSource, WorkloadSpec

_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def resolve_workload(text: str) -> WorkloadSpec:
    """Which workload is meant: a preset's name, a workload file (.toml, .json), or a trace to replay (any other file)?

    Raises
    ------
    SpecError
        Neither a preset nor a file, or a file that says what cannot be.

    Example
    -------
    >>> resolve_workload("chat").classes[0].name
    'chat'
    """
    if text in preset_names():
        return workload_from_text(preset_text(text), where=f"preset {text}")
    path = Path(text).expanduser()
    if not path.is_file():
        raise SpecError(
            f"no workload {text!r}",
            where="--workload",
            allowed=f"a preset ({', '.join(preset_names())}), a workload file (.toml, .json), or a trace file",
        )
    return read_workload(path) if _is_workload_file(path) else WorkloadSpec(name=path.stem, replay=TraceSource(path=str(path)))


def read_workload(path: Path) -> WorkloadSpec:
    """The workload that a TOML or JSON file describes; the paths in it are relative to its folder.

    Raises
    ------
    SpecError
        The file cannot be read, or a key or value of it cannot be: the message names file, key, value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"the workload cannot be read: {error}", where=str(path), try_="a .toml or .json file") from error
    spec = workload_from_text(text, where=str(path), is_json=path.suffix.lower() == ".json")
    rooted = _rooted(msgspec.to_builtins(spec), path.parent)
    return msgspec.convert(rooted, WorkloadSpec)


def workload_from_text(text: str, *, where: str, is_json: bool = False) -> WorkloadSpec:
    """The workload that this TOML (or JSON) describes.

    Raises
    ------
    SpecError
        A key or value that cannot be; ``where`` names the text.
    """
    try:
        raw = msgspec.json.decode(text) if is_json else msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise SpecError(f"this is no {'JSON' if is_json else 'TOML'}: {error}", where=where) from error
    return _converted(raw, where)


def with_changes(spec: WorkloadSpec, changes: Mapping[str, object], *, where: str) -> WorkloadSpec:
    """The same workload with some keys changed, tables within tables; a table of another ``kind`` takes the old one's place.

    Raises
    ------
    SpecError
        A key or value that cannot be; ``where`` names who asks for the change.

    Example
    -------
    >>> with_changes(resolve_workload("chat"), {"arrivals": {"rate_per_s": 5}}, where="--rate").arrivals.rate_per_s
    5.0
    """
    return _converted(_merged(msgspec.to_builtins(spec), changes), where)


def checked_workload(spec: WorkloadSpec) -> WorkloadSpec:
    """The same workload, its ranges checked, which a specification built in code has not been.

    Raises
    ------
    SpecError
        A value that cannot be.
    """
    return with_changes(spec, {}, where="the workload")


def _is_workload_file(path: Path) -> bool:
    """A .toml file is one; a .json file is, unless it is a trace."""
    suffix = path.suffix.lower()
    return suffix == ".toml" or (suffix == ".json" and known_format(path) is None)


def _merged(old: object, new: Mapping[str, object]) -> dict[str, object]:
    base: dict[str, object] = {str(key): value for key, value in old.items()} if isinstance(old, dict) else {}
    if "kind" in new and base.get("kind") != new["kind"]:
        base = {}
    return base | {key: _merged(base.get(key), value) if isinstance(value, Mapping) else value for key, value in new.items()}


def _rooted(value: object, folder: Path) -> object:
    if isinstance(value, list | tuple):
        return [_rooted(item, folder) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: str(folder / item) if (key == "path" or key.endswith("_path")) and isinstance(item, str) else _rooted(item, folder)
        for key, item in value.items()
    }


def _converted(raw: object, where: str) -> WorkloadSpec:
    try:
        return msgspec.convert(raw, WorkloadSpec)
    except msgspec.ValidationError as error:
        raise _named(str(error), raw, where) from error


def _named(message: str, raw: object, where: str) -> SpecError:
    """The error of msgspec with the key, its value, and what the types allow there."""
    match = _AT.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    key = path.removeprefix(".")
    value, shape = _walked(path, raw)
    said = f": {value!r}" if key and not isinstance(value, dict | list | None) else ""
    return SpecError(
        f"{key}{said}: {what}" if key else what,
        where=f"{where}, key {key}" if key else where,
        allowed=None if shape is None else _allowed(shape, value),
    )


def _walked(path: str, raw: object) -> tuple[object, shapes.Type | None]:
    """The value at a path, and the type that is expected there."""
    value: object = raw
    shape: shapes.Type | None = shapes.type_info(WorkloadSpec)
    for name, index in _STEP.findall(path):
        if index:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else None
            shape = next((one.item_type for one in _options(shape) if isinstance(one, shapes.VarTupleType)), None)
            continue
        structs = _structs(shape, value)
        value = value.get(name) if isinstance(value, dict) else None
        if name == "kind":  # a tag is no field: what is allowed is said by the union that it picks from
            continue
        shape = next((field.type for one in structs for field in one.fields if field.encode_name == name), None)
    return value, shape


def _options(shape: shapes.Type | None) -> Iterator[shapes.Type]:
    for one in shape.types if isinstance(shape, shapes.UnionType) else (shape,):
        if one is not None and not isinstance(one, shapes.NoneType):
            yield one.type if isinstance(one, shapes.Metadata) else one


def _structs(shape: shapes.Type | None, value: object) -> list[shapes.StructType]:
    """The tables that are possible here, that of the value's kind alone where it says one."""
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
            bounds = (("above", shape.gt), ("from", shape.ge), ("below", shape.lt), ("to", shape.le))
            return " ".join([name, *(f"{word} {bound:g}" for word, bound in bounds if bound is not None)])
        case shapes.StrType():
            return "text"
        case shapes.BoolType():
            return "true or false"
        case _:
            return None


__all__ = ["checked_workload", "read_workload", "resolve_workload", "with_changes", "workload_from_text"]
