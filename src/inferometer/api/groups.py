"""Which replicas of different kinds are there, and which requests go to which of them?

A file for ``--groups`` names groups of replicas. Each is the server of the command line but
for its own ``[groups.server]``; the first group whose rules let a request in gets it.
"""

import math
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from inferometer.api.cluster import Group, Groups, Servers
from inferometer.api.question import Option, fields_of, question_of, refuse_unused, word_of
from inferometer.api.server import Server, Settings, deployment_of
from inferometer.errors import COMMAND, InferometerError, SpecError
from inferometer.inputs.file_tables import table_from_text, text_of
from inferometer.inputs.workload.distributions import Natural

GROUPS_OPTION: Final = Option(
    "Replicas of different kinds, and which requests go to which: a .toml file, see docs/simulate.md.",
    heading="Cluster",
    metavar="FILE",
)
_WEIGHT_ERROR: Final = 1e-6
_Setting: TypeAlias = bool | int | float | str
_OF_STEPS: Final = frozenset({"model", "hardware", "tp", "dtype", "quantization"})
"""Options that change step times, so that the command line's fit does not hold for the group."""


class GroupTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group in a file: number and kind of its replicas, and its requests.

    ``server`` has the names of the flags of ``inferometer simulate`` for one server; ``own`` in it
    are the engine's other settings, as with ``--set``.
    """

    name: Annotated[str, msgspec.Meta(min_length=1)]
    replicas: Natural = 1
    server: dict[str, _Setting | dict[str, _Setting]] = msgspec.field(default_factory=dict)
    classes: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    weights: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]] = msgspec.field(
        default_factory=dict
    )
    """Share of each class's requests that this group gets."""
    min_prompt_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    max_prompt_tokens: Natural | None = None


class GroupsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file for ``--groups``. ``keep_sessions``: a session stays in the group of its first turn."""

    groups: Annotated[tuple[GroupTable, ...], msgspec.Meta(min_length=1)]
    keep_sessions: bool = False

    def __post_init__(self) -> None:
        names = [one.name for one in self.groups]
        if len(set(names)) < len(names):
            raise ValueError(f"two groups have one name: {', '.join(names)}")
        for name in dict.fromkeys(name for one in self.groups for name in one.weights):
            total = math.fsum(one.weights.get(name, 0.0) for one in self.groups)
            if abs(total - 1) > _WEIGHT_ERROR:
                raise ValueError(
                    f"the weights of class {name} are {total:g} together: all groups share 1"
                )


def servers_of_groups(path: Path, server: Server) -> Servers:
    """The servers of this file; settings that it lacks are as in ``server``.

    Raises
    ------
    SpecError, ModelError
        The file cannot be read, or a group's server cannot be.
    """
    table = read_groups(path)
    _refuse_without_effect(table, server, path)
    groups = Groups(
        groups=tuple(_group(one, server, path) for one in table.groups),
        keeps_sessions=table.keep_sessions,
    )
    cluster = groups.placement.cluster  # refuses what does not go together
    return Servers(groups.groups[0].deployment, cluster, groups=groups)


def read_groups(path: Path) -> GroupsTable:
    """The groups of a file.

    Raises
    ------
    SpecError
        It cannot be read, or a key or value of it cannot be.
    """
    text = text_of(path, noun="groups", endings=".toml")
    return table_from_text(text, GroupsTable, where=str(path))


def _refuse_without_effect(table: GroupsTable, server: Server, path: Path) -> None:
    """Refuse options for which every group of the file has another value of its own."""
    for owner in (server, server.settings):
        names = tuple(
            one.name
            for one in fields(owner)
            if all(one.name in group.server for group in table.groups)
            and any(group.server[one.name] != getattr(owner, one.name) for group in table.groups)
        )
        refuse_unused(
            owner,
            names,
            f"every group of {path} has its own {', '.join(names)}",
            allowed="for groups that have none of their own",
            try_="the same command without it",
        )
    if server.fit is not None and not any(_takes_fit(one) for one in table.groups):
        raise SpecError(
            f"every group of {path} has another model, device or format than this fit, or its own",
            where="--fit",
            allowed="a group on what was measured, or fit = FILE in a group's [groups.server]",
            try_="the same command without --fit",
        )


def _takes_fit(group: GroupTable) -> bool:
    """Do the command line's step times hold for this group?"""
    return not (_OF_STEPS | {"fit"}) & group.server.keys()


def rules_of(table: GroupsTable) -> dict[str, Any]:
    """Content of the file to hash, in a form that is stable for files without weights."""
    rules: dict[str, Any] = msgspec.to_builtins(table)
    for one in rules["groups"]:
        if not one["weights"]:
            del one["weights"]
    return rules


def server_of_group(table: GroupTable, server: Server, path: Path) -> Server:
    """The server of one group of this file.

    Raises
    ------
    SpecError
        A setting of the group is invalid.
    """
    return _server(table.server, server, f"{path}, group {table.name}")


def _group(table: GroupTable, server: Server, path: Path) -> Group:
    with asked_in(f"{path}, group {table.name}", _AsServer):
        deployment = deployment_of(server_of_group(table, server, path))
    return Group(
        name=table.name,
        deployment=deployment,
        n_replicas=table.replicas,
        classes=table.classes,
        tenants=table.tenants,
        weights=tuple(table.weights.items()),
        min_prompt_tokens=table.min_prompt_tokens,
        max_prompt_tokens=table.max_prompt_tokens,
    )


def _server(
    own: Mapping[str, _Setting | dict[str, _Setting]], server: Server, where: str
) -> Server:
    """The server of the command line with these settings."""
    changes = dict[str, object](own)
    engine: object = changes.pop("own", {})
    if not isinstance(engine, dict) or any(isinstance(one, dict) for one in changes.values()):
        raise SpecError("a table that is not own", where=where, allowed="own.NAME = VALUE")
    base = _values(server, ("settings", "set")) | _values(server.settings, ())
    if _OF_STEPS & changes.keys() and "fit" not in changes:
        base.pop("fit", None)
    base |= changes
    settings = [*server.set, *(f"{name}={word_of(value)}" for name, value in engine.items())]
    with asked_in(where, _AsServer):
        return question_of(_AsServer, base | {"set": tuple(settings)}).server


@dataclass(frozen=True, slots=True, kw_only=True)
class _AsServer:
    """Settings of one server in the form that ``question_of`` needs."""

    server: Server
    given: frozenset[str] = field(default_factory=frozenset[str])


def _values(table: Server | Settings, left_out: Sequence[str]) -> dict[str, object]:
    """Values given for these options."""
    found = {one.name: getattr(table, one.name) for one in fields(table)}
    return {
        name: value for name, value in found.items() if name not in left_out and value is not None
    }


# How do errors about options name the keys of a file?


_FLAG: Final = re.compile(r"(--[a-z][a-z0-9-]*)(?: .*)?|(MODEL)")
_CLASS_NAME: Final = re.compile(r"_?[A-Z][a-z]\w*")
_FLAG_AND_VALUE: Final = re.compile(r"(--[a-z][a-z0-9-]*) ([^\s,;]+)")


@contextmanager
def asked_in(place: str, question: type[Any]) -> Generator[None]:
    """Errors within name the keys of a file, ``place``, where they would name flags.

    The file has the fields of ``question`` as keys. Other errors, such as those of another file,
    stay as they are.
    """
    try:
        yield
    except InferometerError as error:
        keys = {flag: field.name for field in fields_of(question) for flag in field.flags}
        where = _keys_of(error.where, place, keys)
        if where is None:
            raise
        allowed, try_ = (_settings_of(text, keys) for text in (error.allowed, error.try_))
        raise type(error)(error.what, where=where, allowed=allowed, try_=try_) from None


def _key_of(flag: str, keys: Mapping[str, str]) -> str:
    return "own" if flag == "--set" else keys.get(flag, flag.strip("-").replace("-", "_"))


def _keys_of(where: str | None, place: str, keys: Mapping[str, str]) -> str | None:
    """``--hardware, --gpus`` is the key ``hardware``; None where no flag is named."""
    if where is None or _CLASS_NAME.fullmatch(where):
        return place
    flags = [_FLAG.fullmatch(word.strip()) for word in where.split(",")]
    names = dict.fromkeys(
        _key_of(flag[1] or flag[2].lower(), keys) for flag in flags if flag is not None
    )
    if None in flags:
        return None
    if "hardware" in names:
        names.pop("gpus", None)  # size calls it so, and a file never does
    return f"{place}: {', '.join(names)}"


def _settings_of(text: str | None, keys: Mapping[str, str]) -> str | None:
    """``--tp 2`` is ``tp = 2`` in a file; whole commands stay."""
    if text is None or COMMAND in text:
        return text

    def setting(found: re.Match[str]) -> str:
        name, value = _key_of(found[1], keys), found[2]
        is_number = value.replace(".", "", 1).isdigit()
        return f"{name} = {value}" if is_number else f'{name} = "{value}"'

    is_flags = text.startswith("--")
    return _FLAG_AND_VALUE.sub(setting, text.replace(" --", ", --") if is_flags else text)
