"""inferometer explain SPANS: where is the time of each request, by the spans of client and server?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from inferometer import suggestions
from inferometer.api.answer import Answer
from inferometer.errors import RecordError
from inferometer.inputs.spans import read_spans
from inferometer.inputs.types import Caution
from inferometer.records.request_spans import SpanPart, SpanTimes, span_times
from inferometer.report.charts.plot import Axis, Chart, Part, rows_plot, stacked
from inferometer.report.page import Number, Page, Section, lines_of
from inferometer.report.tables import TextTable, estimate_cell
from inferometer.units import format_duration, format_fraction, format_number

_COLOURS: Final = ("c4", "c5", "c6", "c7", "c3", "c0", "c1", "c2")
_SLOWEST: Final = "the slowest 5 %"
_NEXT: Final = {
    "schedule delay": "the client sent late: more client processes, or another machine for them",
    "queue": "requests wait before they run: a lower rate, more replicas, or a larger max_num_seqs",
    "prefill": "prompts are computed: cached prefixes, a larger token budget of a step, or tensor"
    " parallelism",
    "decode": "tokens are generated: fewer concurrent sequences, quantised weights, or speculation",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpansAnswer(Answer):
    """Parts of the time of requests, by OpenTelemetry spans."""

    table = "times.parts"

    paths: tuple[str, ...]
    times: SpanTimes


def explain_spans(paths: tuple[Path, ...]) -> SpansAnswer:
    """Schedule delay, network, router, queue, prefill and decode; all files are one set of spans.

    Raises
    ------
    RecordError
        A file cannot be read, or none has the span of a request.
    """
    times = span_times([span for path in paths for span in read_spans(path)])
    if times is None:
        raise RecordError(
            "no span is one of a request to a model",
            where=", ".join(map(str, paths)),
            allowed="spans of inferometer load, of vLLM (--otlp-traces-endpoint), or of clients with"
            " gen_ai.* attributes",
            try_=suggestions.command("load", "URL", "--otlp-endpoint", "http://127.0.0.1:4318"),
        )
    return SpansAnswer(paths=tuple(map(str, paths)), times=times)


def spans_page(answer: SpansAnswer) -> Page:
    """The largest part first, then all parts in the order in which a request passes them."""
    times = answer.times
    chart = _chart(times)
    return Page(
        title=_title(times),
        subtitle=f"{', '.join(Path(path).name for path in answer.paths)} ·"
        f" {times.n_requests:,} requests, seen by {times.seen_by}",
        numbers=_numbers(times),
        table=_table(times),
        chart=chart,
        lines=lines_of(("TRUST", _TRUST), ("NEXT", _NEXT.get(_largest(times).name, ""))),
        cautions=tuple(_cautions(times)),
        sections=(Section(id="time", title="Where is the time?", nav="Time", charts=(chart,)),),
    )


_TRUST: Final = (
    "95 % intervals, in which requests of one run are not taken to be independent; each side"
    " measures with its own clock, and only durations are compared"
)


def _largest(times: SpanTimes) -> SpanPart:
    return max(times.parts, key=lambda part: part.share_fraction.value)


def _title(times: SpanTimes) -> str:
    part = _largest(times)
    mean = format_duration(times.total_s.value)
    title = f"{part.name}: {_percent(part.share_fraction.value)} of {mean} that a request takes"
    slow = max(times.parts, key=lambda part: part.slowest_share_fraction.value)
    share = _percent(slow.slowest_share_fraction.value)
    same = ", too" if slow.name == part.name else ""
    return f"Mostly {title}; of {_SLOWEST} it is {slow.name}{same} ({share})"


def _percent(fraction: float) -> str:
    return format_fraction(max(fraction, 0.0))


def _numbers(times: SpanTimes) -> tuple[Number, ...]:
    return (
        Number(name="a request, mean", value=1e3 * times.total_s.value, unit="ms"),
        Number(name="p95", value=1e3 * times.total_p95_s.value, unit="ms"),
    )


def _table(times: SpanTimes) -> TextTable:
    return TextTable(
        caption=f"Where the time is, ms and shares of {times.n_requests:,} requests",
        header=("", "mean ms", "% of all", "p50 ms", "p95 ms", f"% of {_SLOWEST}"),
        rows=tuple(
            (
                part.name,
                estimate_cell(part.mean_s, 1e3),
                estimate_cell(part.share_fraction, 100),
                estimate_cell(part.p50_s, 1e3),
                estimate_cell(part.p95_s, 1e3),
                estimate_cell(part.slowest_share_fraction, 100),
            )
            for part in times.parts
        ),
    )


def _cautions(times: SpanTimes) -> list[Caution]:
    found = list[Caution]()
    if times.n_client_only and times.seen_by == "client and server":
        found.append(
            Caution(
                code="NOT_JOINED",
                text=f"requests of the client without a span of the server: {times.n_client_only:,}",
                remedy="the server must take the header traceparent and send its spans to the same"
                " collector (vLLM: --otlp-traces-endpoint)",
            )
        )
    if times.n_server_only and times.seen_by == "client and server":
        found.append(
            Caution(
                code="OTHER_CLIENTS",
                text=f"answers of the server below no client's span: {times.n_server_only:,}",
                remedy="none: the request before the run, and those of other clients, are such",
            )
        )
    if times.n_failed:
        found.append(
            Caution(
                code="FAILED",
                text=f"requests that failed and are in no part: {times.n_failed:,}",
                remedy="the run itself, which has their errors by code",
            )
        )
    return found


def _chart(times: SpanTimes) -> Chart:
    """A bar of all requests and one of the slowest."""
    totals_s = times.total_s.value, times.total_p95_s.value
    labels = ("all requests", _SLOWEST)
    shares = (
        [(part.name, max(part.share_fraction.value, 0.0)) for part in times.parts],
        [(part.name, max(part.slowest_share_fraction.value, 0.0)) for part in times.parts],
    )
    bars = [
        (label, _parts(share, total_s), total_s)
        for label, share, total_s in zip(labels, shares, totals_s, strict=True)
    ]
    colours = dict(zip([part.name for part in times.parts], _COLOURS, strict=False))
    plot = rows_plot(
        labels,
        Axis(title="of the mean time of these requests, %", low=0.0, high=112.0),
        stacked(bars, colours),
        "at the right the mean of all, and the p95",
        n_all=len(labels),
        rows="rows: requests",
    )
    return Chart(
        chart_id="request-time",
        title="Where the time of requests is",
        finding=f"{_title(times)}.",
        plots=(plot,),
        header=("requests", "part", "%"),
        rows=tuple(
            (label, part.name, format_number(part.end - part.start))
            for label, parts, _ in bars
            for part in parts
        ),
    )


def _parts(shares: list[tuple[str, float]], total_s: float) -> list[Part]:
    parts, start = list[Part](), 0.0
    for name, fraction in shares:
        end = start + 100 * fraction
        parts.append(Part(name, start, end, fraction * total_s))
        start = end
    return parts
