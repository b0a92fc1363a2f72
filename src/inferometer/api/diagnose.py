"""inferometer diagnose: what limits this running server, and which change would help?"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from inferometer.api.diagnosis import DiagnoseAnswer, answer_of
from inferometer.api.known_facts import known_facts
from inferometer.api.load_run import open_run
from inferometer.api.load_sending import is_open
from inferometer.api.progress import PartsDone, talk
from inferometer.api.question import DURATION, Option
from inferometer.decide.diagnosis.rebuilding import rebuilt_servers
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import MeasureError, SpecError
from inferometer.inputs.objectives import parse_objective
from inferometer.measure.scrape import scraping
from inferometer.records import reading
from inferometer.records.types import ServerSampleTable

_LEAST_S: Final = 10.0
_SEED: Final = 1
_EVERY_S: Final = 0.5
"""Gauges' highest values matter, and pass quickly."""
_WHERE_METRICS_ARE: Final = (
    "the address of the metrics page itself (trtllm-serve: /prometheus/metrics); SGLang has one"
    " with enable-metrics, llama.cpp with metrics"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnose:
    """A server, and its SLO."""

    target: Annotated[
        str,
        Option(
            "URL of a server, or a load test that stored its metrics.",
            heading="Runs",
            is_argument=True,
            metavar="URL|RUN",
        ),
    ]
    slo: Annotated[
        str | None,
        Option(
            "The SLO: ttft:p95<500ms, tpot:p95<50ms. Without it TTFT p95 is explained.",
            heading="Limits",
            is_common=True,
            metavar="SLO",
        ),
    ] = None
    duration: Annotated[
        float,
        Option(
            "For how long the metrics are read. [60s]",
            heading="Limits",
            is_common=True,
            flags=("--for",),
            metavar="DURATION",
            parse=DURATION,
            shows_default=False,
        ),
    ] = 60.0
    known: Annotated[
        str | None,
        Option(
            "Limits of the server that are known, such as"
            " max_num_seqs=256,max_num_batched_tokens=2048.",
            heading="Engine",
            is_common=True,
            metavar="NAME=VALUE,…",
        ),
    ] = None
    given: frozenset[str] = frozenset()


def diagnose(question: Diagnose) -> DiagnoseAnswer:
    """What limits this running server, how much of the latency is it, and which change would help?

    Nothing is sent to the server: its metrics are read, the requests that it got are rebuilt from
    them, and the server is simulated with one limit lifted after the other.

    Raises
    ------
    SpecError, MeasureError, RecordError
        There is no such run, or no metrics can be read.
    ModelError
        The window tells too little, or no simulated server resembles this one.
    """
    objective = None if question.slo is None else parse_objective(question.slo)
    known = known_facts(question.known).limits
    if question.duration < _LEAST_S:
        raise SpecError(
            f"{question.duration:g} s of metrics",
            where="--for",
            allowed=f"{_LEAST_S:g} s or more",
            try_="60s",
        )
    window = observed_window(_samples(question.target, question.duration))
    talk("looking for servers that would show the same metrics")
    agreement = rebuilt_servers(window, known, _SEED)
    agreement.check()
    return answer_of(question.target, window, agreement, objective, known)


def _samples(target: str, for_s: float) -> ServerSampleTable:
    """The metrics of a stored load test, or those of the server at a URL from now on."""
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
