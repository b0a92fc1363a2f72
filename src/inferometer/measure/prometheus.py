"""Samples of a model server from Prometheus, for a time in the past.

The time is written ``2026-11-23T14:00..14:20``, in UTC where no offset is written.
"""

from collections import defaultdict
from datetime import UTC, datetime, time
from typing import Final, NamedTuple
from urllib.parse import urlencode

import msgspec

from inferometer.errors import MeasureError, RecordError, SpecError
from inferometer.inputs.foreign_bytes import Door
from inferometer.measure.load.target import shown_url
from inferometer.measure.scrape import MetricsPage, MetricsSource
from inferometer.records.exposition import SeriesName, labels_text
from inferometer.records.server_names import START_TIME, exposed_names, kept_series
from inferometer.records.server_series import UP, table_of
from inferometer.records.types import ServerSampleTable

_TIMEOUT_S: Final = 30.0
_NS_PER_MS: Final = 1_000_000
_MOST_NAMED: Final = 8
_EXAMPLE: Final = "2026-11-23T14:00..14:20"


class TimeRange(NamedTuple):
    """Two Unix times."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """Length of the range."""
        return self.end_s - self.start_s

    @property
    def text(self) -> str:
        """Start and end in UTC, as on the command line.

        Example
        -------
        >>> time_range("2026-11-23T14:00+02:00..14:20", where="--range").text
        '2026-11-23T12:00:00..12:20:00'
        """
        start, end = (datetime.fromtimestamp(one, UTC).replace(tzinfo=None) for one in self)
        shown = (
            end.time().isoformat(timespec="seconds")
            if start.date() == end.date()
            else end.isoformat(timespec="seconds")
        )
        return f"{start.isoformat(timespec='seconds')}..{shown}"


def time_range(text: str, *, where: str) -> TimeRange:
    """``START..END``; an END without a date is on START's day, with its offset.

    Raises
    ------
    SpecError
        The range is invalid, or ends before it starts.
    """
    start_text, _, end_text = text.partition("..")
    try:
        start = _with_zone(datetime.fromisoformat(start_text.strip()))
        end = _end(end_text.strip(), start)
    except ValueError as error:
        raise SpecError(
            f"{text!r} is no range of times: {error}",
            where=where,
            allowed="START..END, in UTC where no offset such as +02:00 is written",
            try_=_EXAMPLE,
        ) from error
    if end <= start:
        raise SpecError(f"{text!r} ends before it starts", where=where, try_=_EXAMPLE)
    return TimeRange(start.timestamp(), end.timestamp())


def prometheus_samples(url: str, instance: str, past: TimeRange) -> ServerSampleTable:
    """Everything the Prometheus at ``url`` scraped from ``instance`` in this time.

    The samples are those that were scraped, not those of a ``query_range``, which would repeat or
    skip some of them at its own step.

    Raises
    ------
    MeasureError
        There is no Prometheus, or it did not scrape this instance then.
    RecordError
        What it answers cannot be read.
    """
    where = shown_url(url)
    query = selector(instance, past.duration_s)
    try:
        return samples_of(_answer(url, query, past.end_s), where=where)
    except RecordError as error:
        known = instances_of(_answer(url, "up", past.end_s), where=where)
        if instance in known:
            raise
        more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
        raise MeasureError(
            f"Prometheus did not scrape {instance} then",
            where=where,
            allowed=", ".join(known[:_MOST_NAMED]) + more if known else "nothing: it scraped none",
        ) from error


def _answer(url: str, query: str, at_s: float) -> bytes:
    """To an instant query: Prometheus' own JSON."""
    words = urlencode({"query": query, "time": f"{at_s:.3f}"})
    page = MetricsPage(MetricsSource(url=f"{url.rstrip('/')}/api/v1/query?{words}"), _TIMEOUT_S)
    try:
        return page.get()
    except MeasureError as error:
        raise MeasureError(
            f"Prometheus does not answer: {error.what}",
            where=page.url,
            allowed="the address of a Prometheus server",
            try_="--prometheus http://127.0.0.1:9090, or a shorter --range",
        ) from error
    finally:
        page.close()


def _end(text: str, start: datetime) -> datetime:
    if "T" in text or "-" in text[:10]:
        return _with_zone(datetime.fromisoformat(text))
    at = time.fromisoformat(text)
    return datetime.combine(start.date(), at, at.tzinfo or start.tzinfo)


def _with_zone(instant: datetime) -> datetime:
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)


# Which samples does an answer hold? That to a range selector (``{instance="host:port"}[10m]``)
# holds every sample as it was scraped. All samples of one scrape have the same timestamp, and
# ``up`` has one of every try: the scrapes come out as if they had been read from the server itself.


_DOOR: Final = Door(
    noun="answer of Prometheus",
    allowed="an answer of Prometheus' HTTP interface, version 1",
    refusal=RecordError,
)


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
    names = f"{exposed_names()}|{UP}|{START_TIME}"
    quoted = instance.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{__name__=~"{names}",instance="{quoted}"}}[{round(for_s * 1000)}ms]'


def samples_of(answer: bytes, *, where: str) -> ServerSampleTable:
    """The samples of one instance; instants since the first scrape.

    If several jobs scrape the instance, the job with the most scrapes counts.

    Raises
    ------
    RecordError
        The answer has another form, or no scrape.
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
        The answer has another form.
    """
    series = _DOOR.json(answer, _Answer, where=where).data.result
    return tuple(sorted({one.metric.get("instance", "?") for one in series}))


def _kept(metric: dict[str, str], target: dict[str, str]) -> SeriesName | None:
    """The series with the server's own labels; None where unused, or of another job."""
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
