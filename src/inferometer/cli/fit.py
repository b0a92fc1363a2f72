"""inferometer fit: which step-time model do runs carry, and how far may it be trusted?"""

from dataclasses import dataclass
from pathlib import Path

import click

from inferometer.cli.answer import give, json_option
from inferometer.cli.fit_text import fit_text
from inferometer.cli.published_fit import published_fit
from inferometer.cli.published_tables import TableChoice, are_published, takes_table_choice
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
with --model, --dtype and --hardware to say what was measured. So are InferenceX's agg_*.json, with
--model gpt-oss-120b --hardware h200_sxm --framework vllm --tp 4 to say which of their rows.
""",
)
@takes_runs
@takes_table_choice
@click.option("--out", type=click.Path(path_type=Path), help="The model's file. Default: step_time.json beside the first run.")
@json_option
def command(request: RunRequest, *, choice: TableChoice, out: Path | None, as_json: bool) -> None:
    """Which step-time model do these runs of one model on one engine carry?

    Parameters come with intervals, the model with its error on points held out and the box of shapes in which it was checked.
    """
    model = published_fit(request, choice) if are_published(request.paths) else _measured(request)
    first = request.paths[0]
    path = out or (first if first.is_dir() else first.parent) / FIT_NAME
    try:
        model.save(path)
    except OSError as error:
        raise RecordError(f"the model cannot be written: {error.strerror}", where=str(path), try_="--out with another file") from error
    give(FitAnswer(model_file=str(path), model=model), as_json=as_json, show=lambda given: fit_text(given.model, given.model_file))


def _measured(request: RunRequest) -> StepTimeModel:
    return fit_step_time([load_run(path, request) for path in request.paths], hardware=request.hardware)


__all__ = ["ANSWER", "FitAnswer", "command"]
