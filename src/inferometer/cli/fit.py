"""inferometer fit: which step-time model do runs carry, and how far may it be trusted?"""

from dataclasses import dataclass
from pathlib import Path

import click

from inferometer.cli.answer import give, json_option
from inferometer.cli.fit_text import fit_text
from inferometer.cli.runs import RunRequest, load_run, takes_runs
from inferometer.errors import RecordError
from inferometer.fit.sweep_fit import fit_step_time
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_file import FIT_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class FitAnswer:
    """The fitted model, and the file that holds it."""

    model_file: str
    model: StepTimeModel


ANSWER = FitAnswer


@click.command(
    "fit",
    short_help="Learn a step-time model from runs.",
    epilog="""\b
Example:
  inferometer fit runs/example

Somebody's table of a sweep (CSV with prompt or seq, batch, prefill ms, decode ms/tok) is fitted the same way,
with --model, --dtype and --hardware to say what was measured.
""",
)
@takes_runs
@click.option("--out", type=click.Path(path_type=Path), help="The model's file. Default: step_time.json beside the first run.")
@json_option
def command(request: RunRequest, *, out: Path | None, as_json: bool) -> None:
    """Which step-time model do these runs of one model on one engine carry?

    Parameters come with intervals, the model with its error on points held out and the box of shapes in which it was checked.
    """
    runs = [load_run(path, request) for path in request.paths]
    model = fit_step_time(runs, hardware=request.hardware)
    first = request.paths[0]
    path = out or (first if first.is_dir() else first.parent) / FIT_NAME
    try:
        model.save(path)
    except OSError as error:
        raise RecordError(f"the model cannot be written: {error.strerror}", where=str(path), try_="--out with another file") from error
    give(FitAnswer(model_file=str(path), model=model), as_json=as_json, show=lambda given: fit_text(given.model, given.model_file))


__all__ = ["ANSWER", "FitAnswer", "command"]
