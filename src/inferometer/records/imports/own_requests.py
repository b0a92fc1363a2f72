"""Reader of the table of requests that ``inferometer export --format csv`` writes.

All of a request is restored except its priority, which the table lacks, and the arrival of each
chunk. Latencies in the table follow from its times and are not read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.records.columns import I8, I32, I64
from inferometer.records.imports.imported import Imported, file_source
from inferometer.records.imports.json_fields import DOOR
from inferometer.records.types import (
    ABSENT,
    UNKNOWN_COUNT,
    RequestStatus,
    RequestTable,
    Run,
    RunManifest,
)
from inferometer.units import MOST_COUNT, MOST_S, ns_from_s

_STATUSES: Final = {status.name.lower(): status for status in RequestStatus}
_NEEDED: Final = frozenset({"request_index", "status", "intended_send_s", "sent_s", "finished_s"})


def is_own_requests(header: list[str]) -> bool:
    """Does it look like such a table?"""
    return set(header) >= _NEEDED


def read_own_requests(path: Path) -> Imported:
    """The run of these requests.

    Raises
    ------
    RecordError
        There are no requests, or a field is missing or of another kind; the message has its line.
    """
    rows = list(DOOR.csv_records(DOOR.text_of(path).splitlines(), where=str(path)))
    if not rows:
        raise RecordError(
            "the file has no request",
            where=str(path),
            allowed="at least one",
            try_=suggestions.command("export", "RUN", "--out", "requests.csv"),
        )
    source = file_source(path, "inferometer")
    manifest = RunManifest(
        run_id=f"inferometer-{source.where.rpartition(' ')[2]}",
        origin="published",
        created_utc="unknown",
        tool_version="unknown",
        source=source,
        is_complete=True,
    )
    run = Run(
        manifest=manifest, sweep=None, steps=None, ceilings=None, requests=_requests(rows, path)
    )
    return Imported(tool="inferometer", runs=(run,))


def _requests(rows: list[dict[str, str]], path: Path) -> RequestTable:
    def column(name: str, parsed: Callable[[str, str], int]) -> list[int]:
        return [
            parsed(row.get(name, ""), f"{path}, line {number}, {name}")
            for number, row in enumerate(rows, start=2)
        ]

    def instants(name: str) -> I64:
        return np.array(column(name, _instant_ns), np.int64)

    def counts(name: str) -> I32:
        return np.array(column(name, _count), np.int32)

    statuses: I8 = np.array(column("status", _status), np.int8)
    return RequestTable(
        intended_send_ns=np.array(column("intended_send_s", _present_ns), np.int64),
        sent_ns=instants("sent_s"),
        admitted_ns=instants("admitted_s"),
        first_token_ns=instants("first_token_s"),
        finished_ns=instants("finished_s"),
        prompt_tokens=counts("prompt_tokens"),
        cached_tokens=counts("cached_tokens"),
        output_tokens=counts("output_tokens"),
        n_preemptions=counts("n_preemptions"),
        status=statuses,
        priority=np.zeros(len(rows), np.int32),
        class_index=counts("class_index"),
        request_index=counts("request_index"),
    )


def _instant_ns(text: str, where: str) -> int:
    return ABSENT if not text else ns_from_s(DOOR.number(text, "instant", where=where, most=MOST_S))


def _present_ns(text: str, where: str) -> int:
    """The intended send time, which every request must have."""
    return ns_from_s(DOOR.number(text, "instant", where=where, most=MOST_S))


def _count(text: str, where: str) -> int:
    if not text:
        return UNKNOWN_COUNT
    count = DOOR.number(text, "count", where=where, most=MOST_COUNT)
    if count < 0 or not count.is_integer():
        raise RecordError(
            f"count {text!r}",
            where=where,
            allowed="a whole number, or nothing",
            try_="leave the field empty where the number is unknown",
        )
    return int(count)


def _status(text: str, where: str) -> int:
    if text not in _STATUSES:
        raise RecordError(
            f"status {text!r}",
            where=where,
            allowed=", ".join(_STATUSES),
            try_=f"{next(iter(_STATUSES))!r} where the request was answered whole",
        )
    return _STATUSES[text]
