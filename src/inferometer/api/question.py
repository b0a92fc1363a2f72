"""What is a question: a frozen record whose fields know their help text, their bounds and their flag?

Each verb has one question class, and groups of fields that verbs share (the server, the workload,
the limits) are fields of it. From that one definition come the keyword arguments of the Python
function and the flags of the command line. ``question_of`` builds a question from either, or from
the server of a plan file, and checks every value. Several values of one field are written
``1,2,4``, ``1..256`` or ``100..1000:100``.
"""

import dataclasses
import json
import math
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Concatenate,
    Final,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.option_names import in_our_names, nearest_option
from inferometer.inputs.synonyms import number_format, plain_number
from inferometer.units import check_number, parse_duration_s

P = ParamSpec("P")
Q = TypeVar("Q")
T = TypeVar("T")
_MOST_LISTED: Final = 10_000
"""Values of one range: what is more is a mistyped step."""
_LENGTHS: Final = re.compile(r"=|\dk?[x×]\d")
"""Marks a pair of lengths, whose ``A..B`` is a range of requests, not an axis."""
Heading = Literal["Model", "Hardware", "Engine", "Workload", "Cluster", "Limits", "Output", "Runs"]


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of an option besides its type and default."""

    help: str
    heading: Heading = "Output"
    """Under which heading ``--help`` lists it."""
    is_common: bool = False
    """Listed by ``--help``; the others by ``--help-all``."""
    flags: tuple[str, ...] = ()
    """On the command line; else ``--`` and the name with hyphens."""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    is_open: bool = False
    """``least`` itself is not allowed."""
    formats: tuple[str, ...] = ()
    """Number formats that are allowed, under any spelling."""
    choices: tuple[str, ...] = ()
    """Words that are allowed, where the type does not list them."""
    is_argument: bool = False
    """Stands on the command line by itself, without a flag."""
    shows_default: bool = True
    envvar: str | None = None
    parse: Callable[[str, str], Any] | None = None
    """Parser from text and the flag's name to the field's value, for text such as ``60s``."""
    is_axis: bool = False
    """Text that may hold several values of a grid (numbers, formats and choices always may)."""


def _with_default(make: Callable[P, Option]) -> Callable[Concatenate[T, P], T]:
    def field(default: T, /, *words: P.args, **more: P.kwargs) -> T:
        return dataclasses.field(default=default, metadata={"option": make(*words, **more)})

    return field


option = _with_default(Option)
"""A field of a question: its default, and what an `Option` of its own knows.

One that must be given, or shares its `Option` with other questions, is ``Annotated`` with it.
"""


class Field(NamedTuple):
    """A field of a question or of one of its groups."""

    name: str
    kind: Any
    """Type without None."""
    is_optional: bool
    """May it be None?"""
    is_many: bool
    default: Any
    """``dataclasses.MISSING`` where it must be given."""
    option: Option
    group: str | None
    """The group's name in the question, ``fleet.cluster`` for a group in a group; None where the
    field is the question's own."""

    @property
    def flag(self) -> str:
        """Name in errors: the longest flag, or the argument in capitals."""
        if self.option.is_argument:
            return self.name.upper()
        return max(self.flags, key=len).partition("/")[0]

    @property
    def flags(self) -> tuple[str, ...]:
        """All flags on the command line."""
        return self.option.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def is_axis(self) -> bool:
        """May it have several values, which make a grid of questions?"""
        kinds = self.kind in {int, float} or bool(self.option.formats) or bool(self.choices)
        is_of_server_or_load = self.option.heading not in {"Limits", "Output", "Runs"}
        return not self.is_many and (self.option.is_axis or (kinds and is_of_server_or_load))

    @property
    def least(self) -> float | None:
        """The lower bound; what is written as text (durations, sizes, speeds) is never negative."""
        is_parsed_number = self.option.parse is not None and self.kind in {int, float}
        return 0.0 if self.option.least is None and is_parsed_number else self.option.least

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed words; empty: any."""
        if self.option.choices:
            return self.option.choices
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()


_NO_SCHEME: Final = re.compile(r"(localhost|[\w-]+(\.[\w-]+)*|\[[0-9a-fA-F:]+\]):\d{1,5}(/.*)?")
"""A host and a port; a name without a port may be anything."""
_FIELDS: Final = dict[type[Any], tuple[Field, ...]]()


def fields_of(question: type[Any]) -> tuple[Field, ...]:
    """Fields of a question class, with those of its groups in their place."""
    if question not in _FIELDS:
        _FIELDS[question] = tuple(_fields(question, None))
    return _FIELDS[question]


def _fields(owner: type[Any], group: str | None) -> Iterator[Field]:
    hints = get_type_hints(owner, include_extras=True)
    for one in dataclasses.fields(owner):
        hint = hints[one.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _fields(hint, one.name if group is None else f"{group}.{one.name}")
            continue
        kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        notes += one.metadata.values()
        known = next((note for note in notes if isinstance(note, Option)), None)
        if known is not None:
            bare, is_optional = _without_none(kind)
            is_many = get_origin(bare) is tuple
            kind = get_args(bare)[0] if is_many else bare
            yield Field(one.name, kind, is_optional, is_many, one.default, known, group)


def _without_none(kind: Any) -> tuple[Any, bool]:  # noqa: ANN401 -- any annotation
    if get_origin(kind) not in {Union, types.UnionType}:
        return kind, False
    others = [one for one in get_args(kind) if one is not type(None)]
    bare = others[0] if len(others) == 1 else kind
    return bare, len(others) < len(get_args(kind))


_METHODS: Final = {
    "report": "answer.report('report.html'), of the answer that the call returns",
    "verbose": "print(answer)",
}
"""Python's replacement of a flag that only the command line has."""


def question_of(question: type[Q], values: Mapping[str, object]) -> Q:
    """The question of these values; names are of fields, of fields in groups, or of flags.

    Raises
    ------
    SpecError
        A name is unknown, missing or given twice, or a value is not of its type or out of its
        bounds.
    """
    values = by_field(question, values)
    known = {field.name: field for field in fields_of(question)}
    for name in values:
        if name not in known:
            raise SpecError(
                f"there is no option {name!r}",
                where=question.__name__,
                allowed=", ".join(sorted(known)),
                try_=_METHODS.get(name) or nearest_option(name, names_of(question)),
            )
    missing = [
        field.flag
        for field in known.values()
        if field.default is dataclasses.MISSING and values.get(field.name) in (None, (), [])
    ]
    if missing:
        raise SpecError(f"{' and '.join(missing)} missing", where=question.__name__)
    checked = {name: value_of(known[name], value) for name, value in values.items()}
    return _built(question, checked, frozenset(values))


def names_of(question: type[Any]) -> dict[str, str]:
    """Field of each flag, in Python's spelling and by its own name."""
    flags = {flag.partition("/")[0]: one.name for one in fields_of(question) for flag in one.flags}
    names = {flag.strip("-").replace("-", "_"): name for flag, name in flags.items()}
    return names | {one.name: one.name for one in fields_of(question)}


def by_field(question: type[Any], values: Mapping[str, object]) -> dict[str, object]:
    """The values by the names of fields: ``tensor_parallel_size`` is a flag of ``tp``.

    Raises
    ------
    SpecError
        An option is given under two names.
    """
    names = names_of(question)
    found = dict[str, object]()
    for name, value in in_our_names(values, names).items():
        ours = names.get(name, name)
        if ours != name and ours in values:
            raise SpecError(f"{name} and {ours} are one option", where=ours, allowed="one of them")
        found[ours] = value
    return found


def _built(owner: type[Q], values: Mapping[str, object], given: frozenset[str]) -> Q:
    hints = get_type_hints(owner, include_extras=True)
    own = dict[str, Any]()
    for one in dataclasses.fields(owner):  # type: ignore[arg-type]
        hint = hints[one.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            own[one.name] = _built(hint, values, given)
        elif one.name == "given":
            own["given"] = given
        elif one.name in values:
            own[one.name] = values[one.name]
    return owner(**own)


def value_of(field: Field, value: object) -> object:
    """The value as the field's type has it.

    Raises
    ------
    SpecError
        The value is not of that type, or out of its bounds.
    """
    if value is None:
        return None if field.is_optional else field.default
    if not field.is_many:
        return _one(field, value)
    if isinstance(value, Mapping):
        value = named_parts(field, value)
    values = (value,) if isinstance(value, str | Path) else value
    if not isinstance(values, list | tuple):
        raise _refused(field, value, "a list")
    return tuple(_one(field, one) for one in values)


def named_parts(field: Field, values: Mapping[Any, object]) -> list[str]:
    """A dictionary as the texts of an option that takes names with values."""
    metavar = field.option.metavar or ""
    if ":" in metavar:  # headers
        return [f"{name}: {value}" for name, value in values.items()]
    if "JSON" in metavar:
        return [f"{name}={json.dumps(value)}" for name, value in values.items()]
    return [f"{name}={','.join(map(word_of, _several(value)))}" for name, value in values.items()]


def _several(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else (value,)


def word_of(value: object) -> str:
    """The value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _one(field: Field, value: object) -> object:  # noqa: PLR0911 -- one kind after the other
    parse, formats = field.option.parse, field.option.formats
    if isinstance(value, str) and parse is not None:
        value = parse(value, field.flag)
        return _number(field, value) if field.kind in {int, float} else value
    if formats:
        return number_format(str(value), allowed=formats, where=field.flag)
    if field.choices and not isinstance(value, bool):
        if value not in field.choices:
            raise _refused(field, value, ", ".join(field.choices))
        return value
    if field.kind is Path:
        return Path(str(value))
    if field.kind in {int, float}:
        return _number(field, value)
    if field.kind is bool and not isinstance(value, bool):
        raise _refused(field, value, "true or false")
    if field.kind is str and isinstance(value, Mapping):  # vLLM's speculative_config
        return json.dumps(value)
    if field.kind is str and not isinstance(value, str):
        # numbers where text is read later: lengths, sizes to try; several of them; limits of an SLO
        several = value if isinstance(value, list | tuple | range) else (value,)
        return ",".join(map(str, several))
    return value


def _number(field: Field, value: object) -> int | float:
    is_whole = field.kind is int
    allowed = bounds_in_words(
        is_whole=is_whole, least=field.least, most=field.option.most, is_open=field.option.is_open
    )
    if isinstance(value, bool) or not isinstance(value, int | float):
        digits = plain_number(str(value), field.name)
        try:
            value = int(digits) if is_whole else float(digits)
        except ValueError:
            raise _refused(field, value, allowed) from None
    check_number(value, field.name, where=field.flag)  # NaN and infinity end here
    low, high = field.least, field.option.most
    is_low = low is not None and (value <= low if field.option.is_open else value < low)
    is_high = high is not None and value > high
    if is_low or is_high or (is_whole and value != math.floor(value)):
        raise _refused(field, value, allowed)
    return int(value) if is_whole else float(value)


def bounds_in_words(
    *, is_whole: bool, least: float | None, most: float | None, is_open: bool = False
) -> str:
    """Allowed numbers in words; ``is_open``: ``least`` itself is not allowed.

    Example
    -------
    >>> bounds_in_words(is_whole=True, least=1, most=None)
    'a whole number of at least 1'
    """
    low = "" if least is None else f" {'above' if is_open else 'of at least'} {least:g}"
    high = "" if most is None else f" up to {most:g}"
    kind = "a whole number" if is_whole else "a number"
    return f"{kind}{low}{' and' if low and high else ''}{high}"


def _refused(field: Field, value: object, allowed: str) -> SpecError:
    return SpecError(
        f"{value!r} is not {allowed}",
        where=field.flag,
        allowed=allowed,
        try_=suggestions.nearest(field.flag, str(value), field.choices),
    )


def refuse_unused(
    group: object, names: tuple[str, ...], what: str, *, allowed: str, try_: str
) -> None:
    """Refuse options of a group that have no effect here and differ from the default."""
    for field in fields_of(type(group)):
        own = (field.default, os.environ.get(field.option.envvar or ""))
        if field.name in names and getattr(group, field.name) not in own:
            raise SpecError(what, where=field.flag, allowed=allowed, try_=try_)


def words_of(question: object, names: tuple[str, ...]) -> list[object]:
    """Flags and values of the given ones of ``names``, to suggest a command."""
    words = list[object]()
    for field in fields_of(type(question)):
        owner = question if field.group is None else attrgetter(field.group)(question)
        given: frozenset[str] = getattr(question, "given", frozenset())
        value = getattr(owner, field.name)
        if field.name in names and field.name in given and value is not None:
            yes, _, no = field.flags[0].partition("/")
            for one in value if field.is_many else (value,):
                if one is False and not no:  # a flag that is off has no word of its own
                    continue
                words += [yes if one else no] if isinstance(one, bool) else [yes, one]
    return words


def SERVER(text: str, where: str) -> str:  # noqa: N802 -- reads as a type in options
    """A server's URL, also without its scheme: ``localhost:8000``.

    Example
    -------
    >>> SERVER("localhost:8000/v1", "URL"), SERVER("https://host", "URL")
    ('http://localhost:8000/v1', 'https://host')
    """
    del where
    return f"http://{text}" if _NO_SCHEME.fullmatch(text) else text


def DURATION(text: str, where: str) -> float:  # noqa: N802 -- reads as a type in options
    """Seconds, of ``60s`` or ``10min``."""
    return parse_duration_s(text, where=where)


def s_from_us(duration_us: float | None) -> float | None:
    """Seconds of an option in microseconds; None where it is not given."""
    return None if duration_us is None else duration_us * 1e-6


def duration_flag(
    words: str,
    heading: Heading = "Limits",
    *,
    is_common: bool = False,
    flags: tuple[str, ...] = (),
) -> Option:
    """An option that is a duration, whose help names its default with a unit."""
    metavar = "DURATION"
    return Option(words, heading, is_common, flags, metavar, shows_default=False, parse=DURATION)


duration_option = _with_default(duration_flag)


def is_listed(text: str) -> bool:
    """Does the text hold more than one value?

    ``prompt=64..128,output=32`` and ``1024x64..256`` are one pair of lengths each.

    Example
    -------
    >>> [is_listed(text) for text in ("1..8", "1024x64..256", "prompt=64,output=32", "chat,8k1k")]
    [True, False, False, True]
    """
    return len(_items(text)) > 1 or _is_range(text)


def _is_range(word: str) -> bool:
    is_path = "/" in word or word.startswith("..")
    return ".." in word and not is_path and _LENGTHS.search(word) is None


def _items(text: str) -> list[str]:
    """The parts between commas; ``name=value`` parts belong together until a name returns."""
    items: list[list[str]] = []
    names = set[str]()
    for part in text.split(","):
        name, has_name, _ = part.partition("=")
        if has_name and names and name.strip() not in names:
            items[-1].append(part)
        else:
            items.append([part])
            names.clear()
        names |= {name.strip()} if has_name else set()
    return [",".join(parts).strip() for parts in items]


_WITH_ZERO: Final = re.compile(r"0[0-9]+")


def listed(text: str, *, where: str) -> tuple[str, ...]:
    """The values of a list in order, each once.

    ``A..B`` doubles from A, and ends with B; ``A..B:STEP`` goes in steps.

    Raises
    ------
    SpecError
        An item is empty, or a range is not one of positive numbers that grows.

    Example
    -------
    >>> listed("1..6,32", where="--batch")
    ('1', '2', '4', '6', '32')
    >>> listed("100..300:100", where="--prompt")
    ('100', '200', '300')
    >>> listed("chat,prompt=1024,output=64..256", where="--workload")
    ('chat', 'prompt=1024,output=64..256')
    """
    values = dict[str, None]()
    for word in _items(text):
        if not word:
            raise SpecError(
                f"{text!r} has an empty item",
                where=where,
                allowed="values with commas between, or a range",
                try_="1,2,4 or 1..256",
            )
        if _WITH_ZERO.fullmatch(word):
            raise SpecError(
                f"{word!r} in {text!r} begins with 0",
                where=where,
                allowed="values with commas between; no commas inside a number",
                try_=f"{where} {text.replace(',', '')}",
            )
        values |= dict.fromkeys(_of_range(word, where) if _is_range(word) else (word,))
    return tuple(values)


def _of_range(word: str, where: str) -> tuple[str, ...]:
    first, _, rest = word.partition("..")
    last, colon, step = rest.partition(":")
    try:
        name = where.strip("-").replace("-", "_")
        low, high = (float(plain_number(one, name)) for one in (first, last))
        by = float(plain_number(step, name)) if colon else None
    except ValueError:
        raise _no_range(word, where) from None
    is_sound = 0 < low <= high < math.inf and (by is None or 0 < by < math.inf)
    if not is_sound or (by is not None and (high - low) / by >= _MOST_LISTED):
        raise _no_range(word, where)
    if by is not None:
        # a little more than the last: 0.1 + 0.1 + 0.1 is above 0.3
        numbers = [low + i * by for i in range(int((high - low) / by * (1 + 1e-9)) + 1)]
    else:
        numbers = [low * 2**i for i in range(int(math.log2(high / low)) + 1)]
        numbers += [high] if numbers[-1] < high else []
    return tuple(f"{number:.12g}" for number in numbers)


def _no_range(word: str, where: str) -> SpecError:
    return SpecError(
        f"{word!r} is no range",
        where=where,
        allowed="FIRST..LAST, which doubles, or FIRST..LAST:STEP, of numbers above 0",
        try_="1..256 or 100..1000:100",
    )


def parse_counts(text: str, *, where: str) -> tuple[int, ...]:
    """Whole numbers (1 or more) of a list such as ``128,256,512`` or ``1..64``, in order.

    Raises
    ------
    SpecError
        Not such a list; the message names the item.

    Example
    -------
    >>> parse_counts("4,1,2", where="--batch-sizes")
    (1, 2, 4)
    >>> parse_counts("1..8", where="--batch-sizes")
    (1, 2, 4, 8)
    """
    counts: set[int] = set()
    for item in listed(text, where=where):
        try:
            name = where.strip("-").replace("-", "_")
            count = int(item if item.isdecimal() else plain_number(item, name))
        except ValueError:
            raise SpecError(
                f"{item!r} is no whole number",
                where=where,
                allowed="numbers with commas between, or a range",
                try_="1,2,4 or 1..64",
            ) from None
        if count < 1:
            raise SpecError(f"{count} is too small", where=where, allowed="1 or more", try_="1,2,4")
        counts.add(count)
    return tuple(sorted(counts))
