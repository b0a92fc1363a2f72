"""inferometer load: how does this server do under this traffic?

Here until all is sent; ``load_answer`` says how it went.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import click

from inferometer.api.load_request import LoadRequest
from inferometer.api.load_wording import (
    check_prompts,
    check_size,
    default_folder,
    default_traffic,
    what_will_happen,
)
from inferometer.cli.answer import json_option
from inferometer.cli.load_options import takes_load
from inferometer.cli.load_sending import SentLoad, send_load
from inferometer.cli.terminal import talk
from inferometer.records.exports import formats
from inferometer.spec.objectives import ObjectiveSpec, parse_objective
from inferometer.spec.workload import replay


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerableLoad:
    """A test that is over, and how its answer is wanted."""

    sent: SentLoad | None
    """None: it was made before."""
    folder: Path
    class_names: tuple[str, ...]
    objective: ObjectiveSpec | None
    exports: tuple[formats.ExportFormat, ...]
    as_json: bool
    has_report: bool = True


@click.command(
    "load",
    short_help="Load a server with requests, and measure it.",
    epilog="""\b
Examples (a server must listen there):
  inferometer load http://127.0.0.1:8000 --model NAME --workload chat --rate 5 --for 60s --slo 'ttft:p95<500ms, tpot:p95<50ms'
  inferometer load http://127.0.0.1:8000 --model NAME --concurrency 32 --for 2min --processes 2
  inferometer load https://host/prefix --model NAME --workload trace.jsonl --speed-up 2 --endpoint completions --prompts token-ids

\b
The bearer token is taken from INFEROMETER_API_KEY, else OPENAI_API_KEY; it is neither printed nor stored.
""",
)
@takes_load
@click.option(
    "--slo",
    metavar="TEXT",
    help="What is promised: 'ttft:p95<500ms, tpot:p95<50ms'. Exit 0 met, 10 missed, 11 undecided.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the run; the same one resumes it.",
)
@click.option(
    "--export",
    "exports",
    multiple=True,
    type=click.Choice(get_args(formats.ExportFormat)),
    help="Also for other tools, in the run's folder.",
)
@click.option(
    "--report/--no-report",
    "has_report",
    default=True,
    show_default=True,
    help="Write the page report.html into the folder.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be sent.")
@json_option
def command(
    request: LoadRequest,
    slo: str | None,
    out: Path | None,
    exports: tuple[formats.ExportFormat, ...],
    *,
    has_report: bool,
    dry_run: bool,
    as_json: bool,
) -> AnswerableLoad | None:
    """How does the server at URL do under this traffic: throughput, TTFT, TPOT, E2E, and is the objective met?

    Each request is sent at its instant of the workload, the same that `inferometer simulate` takes,
    whatever became of those before; latencies count from that instant. The client watches itself:
    where it was the bottleneck, the run is INVALID (exit 3). Requests that ended are on the disk
    within a second: the same command goes on after Ctrl-C or a crash.
    """
    objective = None if slo is None else parse_objective(slo)
    check_size(request.load)
    drawn = replay.draw_workload(request.load.workload)
    check_prompts(request.load, drawn)
    folder = out or default_folder(request.load)
    default = default_traffic(request.load, click.get_current_context().params)
    if default is not None:
        talk(default)
    talk(f"{what_will_happen(request.load, drawn)}; into {folder}")
    if dry_run:
        return None
    sent = send_load(request, drawn, folder, as_json=as_json)
    return AnswerableLoad(
        sent=sent,
        folder=folder,
        class_names=drawn.class_names,
        objective=objective,
        exports=tuple(dict.fromkeys(exports)),
        as_json=as_json,
        has_report=has_report,
    )
