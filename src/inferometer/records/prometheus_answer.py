"""Which samples of a model server does Prometheus have?

Its answer to a range selector (``{instance="host:port"}[10m]``) holds every sample as it was
scraped. All samples of one scrape have the same timestamp, and ``up`` has one of every try: the
scrapes come out as if they had been read from the server itself.
"""

from collections import defaultdict
from typing import Final

import msgspec

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.exposition import SeriesName, labels_text
from inferometer.records.server_names import SERVERS, START_TIME, kept_series
from inferometer.records.server_series import UP, table_of
from inferometer.records.types import ServerSampleTable

_DOOR: Final = Door(
    noun="answer of Prometheus",
    allowed="an answer of Prometheus' HTTP interface, version 1",
    refusal=RecordError,
)
_NS_PER_MS: Final = 1_000_000


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: tuple[tuple[float, str], ...] = ()


class _Data(msgspec.Struct, frozen=True):
    result: tuple[_Series, ...]


class _Answer(msgspec.Struct, frozen=True):
    data: _Data


def selector(instance: str, for_s: float) -> str:
    """The query for all that Prometheus scraped of an instance in the last seconds.

    Example
    -------
    >>> selector("10.0.0.1:8000", 600).partition(",")[2]
    'instance="10.0.0.1:8000"}[600000ms]'
    """
    prefixes = "|".join(one.prefix.removesuffix("_") for one in SERVERS)
    names = f"({prefixes})[:_].+|{UP}|{START_TIME}"
    quoted = instance.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{__name__=~"{names}",instance="{quoted}"}}[{round(for_s * 1000)}ms]'


def samples_of(answer: bytes, *, where: str) -> ServerSampleTable:
    """The samples of one instance; instants since the first scrape.

    Where several jobs scrape the instance, those of the one with most scrapes.

    Raises
    ------
    RecordError
        It is no such answer, or has no scrape.
    """
    series = _DOOR.json(answer, _Answer, where=where).data.result
    tries = max(
        (one for one in series if one.metric.get("__name__") == UP),
        key=lambda one: len(one.values),
        default=None,
    )
    if tries is None or not tries.values:
        raise RecordError("Prometheus has no scrape of it", where=where)
    target = {name: value for name, value in tries.metric.items() if name != "__name__"}
    scrapes: dict[int, dict[SeriesName, float]] = defaultdict(dict)
    for one in series:
        kept = _kept(one.metric, target)
        if kept is not None:
            for at_s, text in one.values:
                scrapes[_ms(at_s, where)][kept] = _number(text, where)
    answered = {_ms(at_s, where): _number(text, where) == 1.0 for at_s, text in tries.values}
    first_ms = min(answered)
    return table_of(
        (
            (at_ms - first_ms) * _NS_PER_MS,
            tuple(scrapes[at_ms].items()) if answered[at_ms] else None,
        )
        for at_ms in sorted(answered)
    )


def instances_of(answer: bytes, *, where: str) -> tuple[str, ...]:
    """The instances in an answer to ``up``, in order.

    Raises
    ------
    RecordError
        It is no such answer.
    """
    series = _DOOR.json(answer, _Answer, where=where).data.result
    return tuple(sorted({one.metric.get("instance", "?") for one in series}))


def _kept(metric: dict[str, str], target: dict[str, str]) -> SeriesName | None:
    """The series with the server's own labels; None where nothing reads it, or it is another job's."""
    name = metric.get("__name__", "")
    if name == UP or any(metric.get(label) != value for label, value in target.items()):
        return None
    own = {
        label: value for label, value in metric.items() if label not in target | {"__name__": ""}
    }
    return kept_series(SeriesName(name, labels_text(own)))


def _ms(at_s: float, where: str) -> int:
    if not 0 <= at_s < 1e11:
        raise RecordError(f"a sample at {at_s} s", where=where, allowed="seconds since 1970")
    return round(at_s * 1000)


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RecordError(f"{text[:40]!r} is no number", where=where) from None
