"""What did Prometheus scrape of a model server in a time gone by?

The time is written ``2026-11-23T14:00..14:20``, in UTC where no offset is written.
"""

from datetime import UTC, datetime, time
from typing import Final, NamedTuple
from urllib.parse import urlencode

from inferometer.errors import MeasureError, RecordError, SpecError
from inferometer.measure.load.target import shown_url
from inferometer.measure.scrape import MetricsPage, MetricsSource
from inferometer.records.prometheus_answer import instances_of, samples_of, selector
from inferometer.records.types import ServerSampleTable

_TIMEOUT_S: Final = 30.0
_MOST_NAMED: Final = 8
_EXAMPLE: Final = "2026-11-23T14:00..14:20"


class TimeRange(NamedTuple):
    """Two Unix times."""

    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        """From the start to the end."""
        return self.end_s - self.start_s

    @property
    def text(self) -> str:
        """As it is written, in UTC.

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
        It is none, or ends before it starts.
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
    """All that the Prometheus at ``url`` scraped of ``instance`` then.

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
