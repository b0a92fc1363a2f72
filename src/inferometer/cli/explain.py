"""inferometer explain: where does the time of each measured point go?"""

from dataclasses import dataclass

import click
from rich.console import Group, RenderableType
from rich.text import Text

from inferometer.cli.answer import give, json_option
from inferometer.cli.fit_views import explained, held_out_rows
from inferometer.cli.runs import RunRequest, analyses_of, takes_runs
from inferometer.errors import ModelError
from inferometer.report.terminal import explained_table
from inferometer.report.views import Explained, HeldOutRow
from inferometer.units import format_fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainAnswer:
    """The parts of each step's time, and how well the model that says so does on points that it had not seen."""

    explained: tuple[Explained, ...]
    held_out: tuple[HeldOutRow, ...]


ANSWER = ExplainAnswer


@click.command(
    "explain",
    short_help="Where does the time of each point go?",
    epilog="""\b
Example:
  inferometer explain runs/example
""",
)
@takes_runs
@json_option
def command(request: RunRequest, *, as_json: bool) -> None:
    """Where does the time of each measured point go: weights, KV cache, matmul, attention, launches, unexplained?"""
    analyses = analyses_of(request)
    for analysis in analyses:
        if analysis.model is None:
            raise ModelError(f"no model can be fitted: {analysis.why_no_model}", where=str(analysis.path), try_="a sweep with more points")
    answer = ExplainAnswer(
        explained=tuple(row for analysis in analyses for row in explained(analysis)),
        held_out=tuple(row for analysis in analyses for row in held_out_rows(analysis)),
    )
    give(answer, as_json=as_json, show=_show)


def _show(answer: ExplainAnswer) -> RenderableType:
    errors = [f"{row.phase} {format_fraction(row.median_fraction)} (n={row.n_points})" for row in answer.held_out]
    trust = f"Median error of the model on points held out: {', '.join(errors) if errors else 'too few points to tell'}."
    return Group(explained_table(answer.explained), Text(""), Text(trust))


__all__ = ["ANSWER", "ExplainAnswer", "command"]
