"""What does a server's metrics page show over time: from now on, or in a stored load test?"""

import time
from pathlib import Path
from typing import Final

from inferometer.api.load_record import is_open
from inferometer.api.load_run import open_run
from inferometer.api.progress import PartsDone, talk
from inferometer.errors import MeasureError, SpecError
from inferometer.measure.scrape import scraping
from inferometer.records import reading
from inferometer.records.load_types import ServerSampleTable

_EVERY_S: Final = 0.5
"""Gauges' highest values matter, and pass quickly."""
_WHERE_METRICS_ARE: Final = (
    "the address of the metrics page itself (trtllm-serve: /prometheus/metrics); SGLang has one"
    " with enable-metrics, llama.cpp with metrics"
)


def server_samples(target: str, for_s: float) -> ServerSampleTable:
    """The metrics of a stored load test, or those of the server at a URL from now on.

    Raises
    ------
    SpecError, RecordError
        There is no such run, or it has no metrics.
    MeasureError
        The server's metrics cannot be read.
    """
    if "://" in target:
        return _scraped(target, for_s)
    folder = Path(target)
    run = open_run(folder) if is_open(folder) else reading.read_run(folder)
    if run.server is None:
        raise SpecError(
            f"{target} holds no metrics of a server",
            where="the run",
            allowed="a load test of a server that reports metrics",
            try_="inferometer load URL --metrics-url URL, or the server's own URL here",
        )
    return run.server


def _scraped(url: str, for_s: float) -> ServerSampleTable:
    started_ns = time.monotonic_ns()
    n_parts = max(round(for_s / _EVERY_S), 1)
    try:
        with scraping(url, started_ns=started_ns, every_s=_EVERY_S) as scraper:
            talk(f"reading the metrics of {url} for {for_s:.0f} s; nothing is sent to the server")
            for part in range(n_parts):
                time.sleep(_EVERY_S)
                talk(PartsDone("half seconds", part + 1, n_parts))
    except MeasureError as error:
        raise MeasureError(
            error.what, where=error.where, allowed=error.allowed, try_=_WHERE_METRICS_ARE
        ) from error
    return scraper.table()
