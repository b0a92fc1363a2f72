"""inferometer export: how does a run look to other tools?"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click

from inferometer.cli.answer import give, json_option
from inferometer.errors import RecordError
from inferometer.records.durability import replace_file
from inferometer.records.exports.formats import ExportFormat
from inferometer.records.exports.writing import exported_text
from inferometer.records.promises import judge_objective
from inferometer.records.store import read_run
from inferometer.spec.objectives import parse_objective


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportAnswer:
    """What was written."""

    run: str
    format: ExportFormat
    file: str
    n_requests: int
    n_good: int | None
    """Requests within every limit; None without --slo, or where the format has no place for it."""


ANSWER = ExportAnswer


@click.command(
    "export",
    short_help="Write a run for other tools.",
    epilog="""\b
Examples:
  inferometer export runs/example --format llm-d --out report.json
  inferometer export runs/example --format csv --out requests.csv
""",
)
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("--format", "format_", type=click.Choice(get_args(ExportFormat)), required=True, help="Whose format.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where to.")
@click.option("--slo", metavar="TEXT", help="With the goodput under this objective: 'ttft:p95<500ms, tpot:p95<50ms'.")
@json_option
def command(run: Path, *, format_: ExportFormat, out: Path, slo: str | None, as_json: bool) -> None:
    """Write a run of requests as llm-d's Benchmark Report 0.2.1, as vLLM bench's result file, or as a table.

    Their latencies count from the send, as other tools' do. Intervals, latencies from the intended send and validity go into the report
    under results.profiling.inferometer.
    """
    if out.exists():
        raise RecordError("the file is there already", where=str(out), allowed="a new file", try_="another name with --out")
    loaded = read_run(run)
    if loaded.requests is None:
        raise RecordError("the run has no requests", where=str(run), try_="inferometer sweep --csv, for a sweep's points")
    judgement = None if slo is None or format_ == "csv" else judge_objective(loaded, parse_objective(slo))
    replace_file(out, exported_text(loaded, format_, judgement=judgement).encode())
    answer = ExportAnswer(
        run=str(run),
        format=format_,
        file=str(out),
        n_requests=len(loaded.requests.status),
        n_good=None if judgement is None else judgement.n_good,
    )
    give(answer, as_json=as_json, show=_shown)


def _shown(answer: ExportAnswer) -> str:
    good = "" if answer.n_good is None else f", {answer.n_good} of them within every limit"
    return f"{answer.n_requests} requests{good} -> {answer.file} ({answer.format})"


__all__ = ["ANSWER", "ExportAnswer", "command"]
