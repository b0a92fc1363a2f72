"""inferometer load: how does this server do under this traffic?"""

import sys
from pathlib import Path

import click

from inferometer.cli.answer import give, json_option, talk
from inferometer.cli.load_answer import LoadAnswer, exit_code, load_answer
from inferometer.cli.load_options import LoadRequest, takes_load
from inferometer.cli.load_running import run_load
from inferometer.cli.load_wording import check_prompts, check_size, default_folder, what_will_happen
from inferometer.cli.request_view import RequestQuestion, request_view
from inferometer.report.request_terminal import request_report_text
from inferometer.spec.objectives import ObjectiveSpec, parse_objective
from inferometer.spec.workload import replay

ANSWER = LoadAnswer


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
@click.option("--slo", metavar="TEXT", help="What is promised: 'ttft:p95<500ms, tpot:p95<50ms'. Exit 0 met, 10 missed, 11 undecided.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the run; the same one resumes it.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent.")
@json_option
def command(request: LoadRequest, slo: str | None, out: Path | None, *, dry_run: bool, as_json: bool) -> None:
    """How does the server at URL do under this traffic: throughput, TTFT, TPOT, E2E, and is the objective met?

    Each request is sent at its instant of the workload, the same that `inferometer simulate` takes, whatever became of those before;
    latencies count from that instant. The client watches itself: where it was the bottleneck, the run is INVALID (exit 3). Requests that
    ended are on the disk within a second: the same command goes on after Ctrl-C or a crash.
    """
    objective = None if slo is None else parse_objective(slo)
    check_size(request.load)
    drawn = replay.draw_workload(request.load.workload)
    check_prompts(request.load, drawn)
    folder = out or default_folder(request.load)
    talk(f"{what_will_happen(request.load, drawn)}; into {folder}")
    if dry_run:
        return
    loaded = run_load(request, drawn, folder, _percentiles(objective), as_json=as_json)
    view = request_view(loaded.run, RequestQuestion(objective=objective, class_names=drawn.class_names), path=folder)
    give(load_answer(loaded, view, folder), as_json=as_json, show=lambda _: request_report_text(view))
    if loaded.is_interrupted:
        raise KeyboardInterrupt
    sys.exit(exit_code(loaded, view))


def _percentiles(objective: ObjectiveSpec | None) -> tuple[float, ...]:
    thresholds = () if objective is None else objective.thresholds
    return tuple(one.percentile_fraction for one in thresholds if one.percentile_fraction is not None)


__all__ = ["ANSWER", "command"]
