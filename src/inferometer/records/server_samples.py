"""How do pages of a server's metrics become the record's table of samples?

As in Prometheus: a sample where a value changed, NaN where a series went away, and ``up`` for every
try, 1 or 0.
"""

from collections.abc import Iterable

from inferometer.errors import RecordError
from inferometer.records.exposition import PageReader, PageSample, SeriesName
from inferometer.records.load_types import ServerSampleTable
from inferometer.records.server_names import SERVERS, kept_series, plain
from inferometer.records.server_series import UP
from inferometer.records.tables import from_columns


def sample_table(
    pages: Iterable[tuple[int, bytes | None]], *, keeps_all: bool = False
) -> ServerSampleTable:
    """The samples of pages, each with the nanoseconds since the start of the run; None where there was no answer.

    Families that no summary reads are left out unless ``keeps_all``. A page that cannot be read
    counts as no answer.
    """
    reader = PageReader(None if keeps_all else kept_series)
    rows: list[tuple[int, str, str, float]] = []
    last: dict[SeriesName, float] = {}
    for at_ns, page in pages:
        samples = _read(reader, page)
        rows.append((at_ns, UP, "", 0.0 if samples is None else 1.0))
        if samples is not None:
            now = dict(samples)
            gone = {series: float("nan") for series in last if series not in now}
            changed = {series: value for series, value in now.items() if last.get(series) != value}
            rows += [
                (at_ns, series.name, series.labels, value)
                for series, value in (changed | gone).items()
            ]
            last = now
    names = ("scraped_ns", "name", "labels", "value")
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * len(names)
    return from_columns(ServerSampleTable, dict(zip(names, columns, strict=True)))


def check_page(page: bytes) -> None:
    """Is this a page of a model server that is known?

    Raises
    ------
    RecordError
        It cannot be read, or none of its samples is of one.
    """
    samples = PageReader().read(page)
    if not any(
        plain(sample.series.name).startswith(server.prefix)
        for sample in samples
        for server in SERVERS
    ):
        raise RecordError(
            f"none of the page's {len(samples)} samples is of a known model server",
            allowed=", ".join(f"{server.kind} ({server.prefix}...)" for server in SERVERS),
            try_="is this the server's address, and are its metrics switched on?",
        )


def _read(reader: PageReader, page: bytes | None) -> tuple[PageSample, ...] | None:
    try:
        return None if page is None else reader.read(page)
    except RecordError:
        return None
