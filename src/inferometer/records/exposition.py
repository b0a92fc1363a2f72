"""Parser of pages in the Prometheus text format.

Values are parsed here by a plain split; names and labels, which need unquoting and unescaping, are
parsed by prometheus_client, once per series. Comments are skipped: a family is known by its name
(``records.server_names``). Any bytes give samples or a ``RecordError``, in bounded time and memory.
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from inferometer.errors import RecordError

MAX_PAGE_BYTES: Final = 16 * 2**20
MAX_LINE_BYTES: Final = 2**14
MAX_SERIES: Final = 100_000

_ALLOWED: Final = "the Prometheus text format 0.0.4: a name, labels in braces, a number"
# Possessive quantifiers: a malformed line is scanned only once.
_LINE: Final = re.compile(
    r'([^\s{#]*+(?:\{(?:[^"{}]|"(?:[^"\\]|\\.)*+")*+\})?+)[ \t]*+([^\s#]++)(?:[ \t]++([^\s#]++))?+['
    r" \t]*+(?:#.*+)?+"
)
_PLAIN_NUMBER: Final = re.compile(r"[-+.0-9eE]++")
"""A value of a series that is known, after a space: such a line needs no further look."""


class SeriesName(NamedTuple):
    """Name and labels of a server's series."""

    name: str
    labels: str
    """Sorted by name, quoted and escaped as in the format: ``engine="0",le="0.5"``."""


class PageSample(NamedTuple):
    """One line of a page."""

    series: SeriesName
    value: float


class PageReader:
    """Reads pages of one server, one after the other: a series seen before costs a look-up."""

    def __init__(self, keep: Callable[[SeriesName], SeriesName | None] | None = None) -> None:
        """``keep`` maps a series to its stored form, or to None to skip its values."""
        self._keep = keep
        self._known: dict[str, SeriesName | None] = {}
        self._before: dict[str, PageSample | None] = {}
        """Lines of the last page: most come again as they were."""

    def read(self, page: bytes) -> tuple[PageSample, ...]:
        """The samples of a page, in its order.

        Raises
        ------
        RecordError
            It is too large or not text, or a line is malformed; the message has its number.
        """
        if len(page) > MAX_PAGE_BYTES:
            raise RecordError(f"a page of {len(page)} bytes", allowed=f"at most {MAX_PAGE_BYTES}")
        try:
            lines = page.decode().split("\n")
        except UnicodeDecodeError as error:
            raise RecordError(
                f"the page is no UTF-8 text: byte {error.start}", allowed=_ALLOWED
            ) from error
        before, now = self._before, dict[str, PageSample | None]()
        samples: list[PageSample] = []
        for number, line in enumerate(lines, start=1):
            if line in before:
                sample = before[line]
            else:
                text = line.strip()
                sample = None if not text or text.startswith("#") else self._sample(text, number)
            now[line] = sample
            if sample is not None:
                samples.append(sample)
        self._before = now
        return tuple(samples)

    def _sample(self, line: str, number: int) -> PageSample | None:
        written, _, value = line.rpartition(" ")
        is_known = written in self._known and _PLAIN_NUMBER.fullmatch(value) is not None
        if not is_known or len(line) > MAX_LINE_BYTES:
            match = _LINE.fullmatch(line) if len(line) <= MAX_LINE_BYTES else None
            if match is None:
                raise _broken(line, number)
            written, value = match.group(1), match.group(2)
        if written not in self._known:
            if len(self._known) >= MAX_SERIES:
                raise RecordError(
                    f"more than {MAX_SERIES} series", allowed="the metrics of one model server"
                )
            self._known[written] = self._series(written, line, number)
        series = self._known[written]
        return None if series is None else PageSample(series, _number(value, line, number))

    def _series(self, written: str, line: str, number: int) -> SeriesName | None:
        # Imported here: a load test sends its first request before it reads a page.
        from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

        try:
            (family,) = text_string_to_metric_families(written + " 0\n")
            (sample,) = family.samples
        except (ValueError, IndexError) as error:
            raise _broken(line, number) from error
        series = SeriesName(sample.name, labels_text(sample.labels))
        return series if self._keep is None else self._keep(series)


def labels_text(labels: dict[str, str]) -> str:
    """The labels as stored: sorted by name, quoted and escaped.

    Example
    -------
    >>> labels_text({"le": "0.5", "engine": "0"})
    'engine="0",le="0.5"'
    """
    return ",".join(f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))


def labels_of(text: str) -> dict[str, str]:
    """The labels of a stored series.

    Example
    -------
    >>> labels_of('engine="0",le="0.5"')
    {'engine': '0', 'le': '0.5'}
    """
    return {
        name: re.sub(r"\\(.)", _unescaped, value)
        for name, value in re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', text)
    }


def _number(text: str, line: str, number: int) -> float:
    try:
        if "_" not in text:  # Python reads 1_000, the format does not
            return float(text)
    except ValueError:
        pass
    raise _broken(line, number)


def _broken(line: str, number: int) -> RecordError:
    shown = line if len(line) <= 80 else line[:77] + "..."
    return RecordError(
        f"line {number} is no sample: {shown!r}",
        allowed=_ALLOWED,
        try_="is this the server's /metrics?",
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
