"""Lossless files of a plan's requests: JSON lines, CSV or Parquet.

One row per request with the columns of ``RequestPlan``; inapplicable values are null (CSV: empty).
The names of classes and tenants are in a header: the first line (CSV: after ``#``), or Parquet's
metadata. Without classes and tenants none is needed. Tables of other tools are read too, if they
have columns of prompt and output tokens, under any known names.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SpecError
from inferometer.inputs.foreign_bytes import Door, repeated, shortened
from inferometer.inputs.foreign_parquet import parquet_columns, parquet_metadata
from inferometer.inputs.types import Caution
from inferometer.inputs.workload.plan import (
    NONE,
    NULLABLE_COLUMNS,
    DrawnWorkload,
    column_types,
    request_plan,
)
from inferometer.inputs.workload.trace_formats import (
    DOOR,
    OWN_FORMAT,
    TraceRow,
    broken,
    decoded,
    items,
    ns_from_trace,
    unit_since_1970_ns,
)
from inferometer.units import NS_PER_S, ungrouped

_PARQUET: Final = Door(noun="file of requests", allowed="a whole Parquet file")
VERSION: Final = 1
COLUMNS: Final = tuple(column_types())
NULLABLE: Final = ("arrival_ns", *NULLABLE_COLUMNS)
_NEEDED: Final = ("prompt_tokens", "output_tokens")
METADATA_KEY: Final = "inferometer"
_PROMPT: Final = re.compile(
    r"(num|n)?_?(prompt|input|in|context|request|prefill|query)_?(token|tok|len|length|size)s?(len|count)?|isl"
)
_OUTPUT: Final = re.compile(
    r"(num|n)?_?(output|out|completion|generated|generation|gen|new|response|decode|answer|token)_?"
    r"(token|tok|len|length|size)s?(len|count)?|osl"
)
_UNIT: Final = (
    r"(?P<unit>ns|nanos|nanoseconds|us|usec|micros|microseconds|ms|msec|millis|milliseconds"
    r"|s|sec|secs|seconds)?"
)
_AT: Final = re.compile(
    r"(request_?)?(timestamp|arrival(_?time(_?stamp)?)?s?|arrived(_?at)?|(start|send|sent)?_?time"
    rf"|ts|created(_?at)?|sent_?at|date(_?time)?)_?{_UNIT}"
)
_START: Final = re.compile(
    r"(request_?)?(start(ed)?|begin|submit(ted)?|issued?|send|sent)(?!s?$)"
    rf"_?(time(_?stamp)?|at|ts)?_?{_UNIT}"
)
"""Less common names: a column named by ``_AT`` comes first; ``start`` or ``starts`` may be anything."""
_MOST_DIGITS: Final = 20
_UNITS_NS: Final = {"n": 1, "u": 1000, "mic": 1000, "m": 1_000_000, "s": NS_PER_S}
"""By the first letters of a unit's name."""
_LOGGED: Final = re.compile(
    r"\[?(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<time>[\d:]{8})"
    r"(?P<rest>(?:[.,]\d{1,9})?(?: ?[+-]\d{4})?)\]?"
)
"""Dates of access logs (Apache, nginx): ``[10/Oct/2025:13:55:36 +0000]``."""
_MONTHS: Final = (
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
)
_INSTANT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(?: ?(UTC|Z|[+-]\d\d:?\d\d))?"
)


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a file besides its rows."""

    format: str
    version: int
    name: str
    class_names: tuple[str, ...]
    class_slos: tuple[str | None, ...]
    tenant_names: tuple[str, ...]
    cautions: tuple[Caution, ...] = ()


def read_own_trace(path: Path, *, is_sorted: bool = True) -> DrawnWorkload:
    """Read requests in this format.

    Raises
    ------
    SpecError
        A malformed header or row; the message has its number.
    """
    numbers: list[int] | None = None
    if DOOR.start_of(path).startswith(b"PAR1"):
        head, columns = _read_parquet(path)
    else:
        head, columns, numbers = _read_lines(path)
    if head.format != OWN_FORMAT or head.version != VERSION:
        raise SpecError(
            f"this is {head.format} version {head.version}",
            where=str(path),
            allowed=f"{OWN_FORMAT} version {VERSION}",
            try_="the version of inferometer that wrote it",
        )
    if not is_sorted:
        order = np.argsort(_root_arrival(columns), kind="stable")
        columns = _reordered(columns, order)
        numbers = None if numbers is None else [numbers[row] for row in order.tolist()]

    def row_name(row: int) -> str:
        return f"request {row}" if numbers is None else f"the request of line {numbers[row]}"

    plan = request_plan(str(path), row_name, **columns)
    for name, names in (("class_index", head.class_names), ("tenant_index", head.tenant_names)):
        if int(getattr(plan, name).max()) >= len(names):
            raise SpecError(
                f"{name} has indices up to {getattr(plan, name).max()}",
                where=str(path),
                allowed=f"below {len(names)}, the names in the header",
                try_="add the missing names to the header",
            )
    return DrawnWorkload(
        name=head.name,
        plan=plan,
        class_names=head.class_names,
        class_slos=head.class_slos,
        tenant_names=head.tenant_names,
        cautions=head.cautions,
    )


def _read_lines(path: Path) -> tuple[Head, dict[str, NDArray[Any]], list[int]]:
    found = DOOR.lines_of(path)
    number, first = next(found, (0, b""))
    has_head = OWN_FORMAT.encode() in first
    is_csv = not first.startswith(b"{")
    head = decoded(first.removeprefix(b"#"), Head, path, number) if has_head else _headless(path)
    if not has_head:
        found = itertools.chain([(number, first)], found)
    numbers: list[int] = []
    values: dict[str, list[int]] = {}
    for number, row in _csv_rows(found, path) if is_csv else _json_rows(found, path):
        numbers.append(number)
        if not values:
            values = {name: [] for name in row}
        if row.keys() != values.keys():
            broken(path, number, f"its columns {', '.join(row)} are not those of the first row")
        for name, value in row.items():
            if value is None and name not in NULLABLE:
                broken(path, number, f"{name} is absent")
            values[name].append(NONE if value is None else value)
    _check_names(values, path)
    with DOOR.refusing(str(path)):  # a number beyond 64 bits
        return head, {name: np.array(column, np.int64) for name, column in values.items()}, numbers


def _headless(path: Path) -> Head:
    return Head(
        format=OWN_FORMAT,
        version=VERSION,
        name=path.stem,
        class_names=("requests",),
        class_slos=(None,),
        tenant_names=("all",),
    )


def _json_rows(
    found: Iterator[tuple[int, bytes]], path: Path
) -> Iterator[tuple[int, dict[str, int | None]]]:
    for number, line in found:
        yield number, decoded(line, dict[str, int | None], path, number)


def _csv_rows(
    found: Iterator[tuple[int, bytes]], path: Path
) -> Iterator[tuple[int, dict[str, int | None]]]:
    number, header = next(found, (0, b""))
    names = header.decode("utf-8", errors="replace").split(",")
    _refuse_repeated(names, path, number)
    for number, line in found:
        fields = line.decode("utf-8", errors="replace").split(",")
        if len(fields) != len(names):
            broken(path, number, f"{len(fields)} fields for {len(names)} columns")
        try:
            yield (
                number,
                {
                    name: int(field) if field else None
                    for name, field in zip(names, fields, strict=True)
                },
            )
        except ValueError as error:
            broken(path, number, str(error))


def _refuse_repeated(names: Iterable[str], path: Path, number: int) -> None:
    if (twice := repeated(names)) is not None:
        broken(path, number, f"two columns are called {twice}", try_="another name for one of them")


def _read_parquet(path: Path) -> tuple[Head, dict[str, NDArray[Any]]]:
    found = parquet_metadata(path, METADATA_KEY, _PARQUET)
    columns = parquet_columns(path, _PARQUET)
    if found is None:
        raise SpecError(
            "a Parquet file without a head",
            where=str(path),
            allowed=f"metadata {METADATA_KEY!r}, with the names of classes and tenants",
            try_="the rows of another Parquet file as CSV or JSON lines",
        )
    _check_names(columns, path)
    filled: dict[str, NDArray[Any]] = {}
    for name, column in columns.items():
        is_null = np.ma.getmaskarray(column)
        if name not in NULLABLE and bool(is_null.any()):
            raise SpecError(
                f"{name} of request {int(is_null.argmax())} is absent",
                where=str(path),
                allowed="a value in each row",
                try_="fill it in, or leave these rows out",
            )
        filled[name] = np.where(is_null, NONE, np.ma.getdata(column))
    return decoded(found, Head, path, 0), filled


def _check_names(columns: Iterable[str], path: Path) -> None:
    names = set(columns)
    unknown, missing = names - set(COLUMNS), {"arrival_ns", *_NEEDED} - names
    if unknown or missing:
        problem = f"missing columns: {sorted(missing)}, unknown: {sorted(unknown)}"
        raise SpecError(
            problem,
            where=str(path),
            allowed=", ".join(COLUMNS),
            try_="the trace as it was written, or one of another tool: --trace-format table",
        )


def _root_arrival(columns: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Arrival of the first request of each row's chain; the latest if several chains join."""
    arrival: list[int] = columns["arrival_ns"].tolist()
    leaders: list[int] = columns["follows"].tolist() if "follows" in columns else []
    none = [NONE] * len(leaders)
    joins, leads = (
        columns[name].tolist() if name in columns else none for name in ("joins", "accompanies")
    )
    for row, (leader, later, lead) in enumerate(zip(leaders, joins, leads, strict=True)):
        for other in (leader, lead):
            if other != NONE:
                arrival[row] = max(arrival[row], arrival[other])
        if row < later < len(leaders):
            arrival[later] = max(arrival[later], arrival[row])
    return np.array(arrival, np.int64)


def _reordered(
    columns: dict[str, NDArray[Any]], order: NDArray[np.intp]
) -> dict[str, NDArray[Any]]:
    """The rows in another order, with links adjusted."""
    place = np.empty(len(order) + 1, np.int64)
    place[order] = np.arange(len(order))
    place[-1] = NONE
    moved = {name: column[order] for name, column in columns.items()}
    return moved | {
        name: place[moved[name]]
        for name in ("follows", "joins", "accompanies", "prefix_request")
        if name in moved
    }


class TableHeading(NamedTuple):
    """Columns of arrival (None: none), prompt and output in a table of requests."""

    at: str | None
    prompt: str
    output: str
    names: tuple[str, ...]
    delimiter: str
    """Delimiter of columns; empty if each line is a JSON object."""

    @property
    def cached(self) -> str:
        """Column of the tokens that the recording server found in its prefix cache; '' for none."""
        return next((name for name in self.names if "cached" in _plain(name).split("_")), "")

    @property
    def unit_ns(self) -> int | None:
        """Unit of the times in nanoseconds, if the column's name ends in one."""
        name = "" if self.at is None else _plain(self.at)
        match = _AT.fullmatch(name) or _START.fullmatch(name)
        unit = None if match is None else match["unit"]
        return next(
            (ns for begin, ns in _UNITS_NS.items() if unit and unit.startswith(begin)), None
        )


def table_heading(first: bytes) -> TableHeading | None:
    """Columns by the first line of a table, by the names that tools use.

    None without a column of prompt tokens, or of output tokens.

    Example
    -------
    >>> table_heading(b"Timestamp,Model,Request tokens,Response tokens").output
    'Response tokens'
    """
    text = first.decode("utf-8", errors="replace")
    delimiter = "" if text.startswith("{") else max(",;\t|", key=text.count)
    try:
        names = (
            _fields(text, delimiter)
            if delimiter
            else tuple(_flat(DOOR.json(first, dict[str, object], where="the first line")))
        )
    except SpecError:
        return None
    at, start, prompt, output = (
        next(iter(_named_so(names, pattern)), None) for pattern in (_AT, _START, _PROMPT, _OUTPUT)
    )
    if prompt is None or output is None:
        return None
    return TableHeading(at or start, prompt, output, names, delimiter)


def _named_so(names: Iterable[str], pattern: re.Pattern[str]) -> list[str]:
    """Matching columns: those named as tokens, else those named as lengths."""
    found = [name for name in names if pattern.fullmatch(_plain(name))]
    return sorted(found, key=lambda name: "tok" not in name.lower())


def _refuse_unclear(heading: TableHeading, path: Path, number: int) -> None:
    """Refuse duplicate names, and several columns of prompt tokens or of output tokens."""
    if heading.delimiter:
        _refuse_repeated(heading.names, path, number)
    for what, pattern in (("prompts", _PROMPT), ("answers", _OUTPUT)):
        chosen, *others = _named_so(heading.names, pattern)
        also = [name for name in others if ("tok" in name.lower()) == ("tok" in chosen.lower())]
        if also:
            broken(
                path,
                number,
                f"both {chosen} and {also[0]} may count the tokens of {what}",
                try_="remove or rename one of them",
            )


def _flat(record: dict[str, object]) -> dict[str, object]:
    """Plain values of a JSON object, and those of its ``usage``, or of its response's."""
    parts: list[object] = [record]
    for name in ("response", "body"):  # {"response": {"usage": …}}, {"response": {"body": …}}
        parts += [part[name] for part in parts if isinstance(part, dict) and name in part]
    usage = next(
        (part["usage"] for part in parts if isinstance(part, dict) and "usage" in part), None
    )
    all_of_it = record | (usage if isinstance(usage, dict) else {})
    return {str(name): one for name, one in all_of_it.items() if not isinstance(one, dict | list)}


def _fields(text: str, delimiter: str) -> tuple[str, ...]:
    return tuple(next(DOOR.csv_rows([text], where="a line of the trace", delimiter=delimiter), ()))


_EMPTY: Final = "remove the line, or skip_empty = true under [replay] of a workload file"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z]+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()).strip("_")


def wall_ns(text: str) -> int | None:
    """Instant of a date, in nanoseconds since 1970; UTC without a zone.

    None if it is not a date.

    Example
    -------
    >>> wall_ns("1970-01-01 01:00:02.5+01:00")
    2500000000
    """
    match = _date(text)
    if match is None:
        return None
    zone = "+00:00" if match[3] in {None, "Z", "UTC"} else match[3]
    try:
        whole = datetime.fromisoformat(match[1] + zone)
    except ValueError:
        return None
    return round(whole.timestamp()) * NS_PER_S + int((match[2] or "").ljust(9, "0"))


def _date(text: str) -> re.Match[str] | None:
    """Day, fraction and zone of a date; None if it is none."""
    logged = _LOGGED.fullmatch(text)
    if logged is not None and logged["month"] in _MONTHS:
        month = _MONTHS.index(logged["month"]) + 1
        text = f"{logged['year']}-{month:02}-{logged['day']} {logged['time']}{logged['rest']}"
    return _INSTANT.fullmatch(text)


def table_rows(
    path: Path, *, is_csv: bool = False, skips_empty: bool = False
) -> Iterator[TraceRow]:
    """Requests of a table with columns of prompt and output tokens.

    An empty count is refused; with ``skips_empty`` it is 0, so that the request is left out. Times
    are dates, or numbers in the unit of their column's name. Without a unit in the name, Unix
    times have the unit that fits their size; other times are seconds, noted as an assumption.
    """
    found = items(path)
    number, line = next(found, (0, b""))
    heading = table_heading(line)
    if heading is None or (is_csv and not heading.delimiter):
        broken(path, number, "no columns of prompt and output tokens")
    _refuse_unclear(heading, path, number)
    unit_ns, assumed_ns, zones = heading.unit_ns, 0, set[bool]()
    rows = found if heading.delimiter else itertools.chain([(number, line)], found)
    for number, line in rows:
        record = _record(heading, line, path, number)
        at = None if heading.at is None else record.get(heading.at)
        at_ns = wall_ns(at) if isinstance(at, str) else None
        if isinstance(at, str) and at_ns is not None:
            _refuse_mixed_zones(zones, at, path, number)
        if heading.at is not None and at_ns is None:
            value = _time(at, heading, path, number)
            if unit_ns is None:
                unit_ns = unit_since_1970_ns(value)
                assumed_ns = 0 if unit_ns else NS_PER_S
                unit_ns = unit_ns or NS_PER_S
            at_ns = ns_from_trace(value, unit_ns, path, number)
        counts = [
            _count_of(record.get(name), name, path, number, skips_empty=skips_empty)
            for name in (heading.prompt, heading.output)
        ]
        if not all(0 <= count < 2**31 and count == int(count) for count in counts):
            broken(path, number, f"{counts[0]!r}, {counts[1]!r} are no counts of tokens")
        yield TraceRow(
            number,
            at_ns,
            int(counts[0]),
            int(counts[1]),
            assumed_unit_ns=assumed_ns,
            cached_column=heading.cached,
        )


def _refuse_mixed_zones(zones: set[bool], at: str, path: Path, number: int) -> None:
    """Refuse dates where only some have a zone: the others' may be any."""
    match = _date(at)
    has_zone = match is not None and match[3] is not None
    zones.add(has_zone)
    if len(zones) > 1:
        have = "a zone, and dates before it have none" if has_zone else "no zone, as others have"
        broken(path, number, f"{at} has {have}", try_="a zone in each date, or in none")


def _record(heading: TableHeading, line: bytes, path: Path, number: int) -> dict[str, object]:
    if not heading.delimiter:
        return _flat(decoded(line, dict[str, object], path, number))
    fields = _fields(line.decode("utf-8", errors="replace"), heading.delimiter)
    if len(fields) != len(heading.names):
        broken(path, number, f"{len(fields)} fields for {len(heading.names)} columns")
    return dict(zip(heading.names, fields, strict=True))


def _count_of(value: object, name: str, path: Path, number: int, *, skips_empty: bool) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        if not skips_empty:
            broken(path, number, f"{name} is empty", try_=_EMPTY)
        return 0
    return _number(value, name, path, number)


def _time(at: object, heading: TableHeading, path: Path, number: int) -> float:
    """A time; outside of CSV ``1,234`` may be 1.234 with a decimal comma."""
    is_unclear = isinstance(at, str) and at.count(",") == 1 and "." not in at
    if is_unclear and heading.delimiter not in {",", ""}:
        what = f"{heading.at} = {shortened(at)} may be thousands, or have a decimal comma"
        broken(path, number, what, try_="numbers as 1234.5")
    return _number(at, heading.at or "", path, number)


def _number(value: object, name: str, path: Path, number: int) -> float:
    if isinstance(value, str):
        text = ungrouped(value.strip())
        if text.isdecimal() and len(text) < _MOST_DIGITS:
            return int(text)
        try:
            value = float(text)
        except ValueError:
            what = f"{name} = {shortened(text)} is no number and no date"
            broken(path, number, what, try_="numbers as 1234.5, dates as 2026-11-16 18:15:46")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        broken(path, number, f"{name} = {shortened(value)} is no number")
    return value
