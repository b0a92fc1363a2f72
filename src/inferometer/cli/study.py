"""inferometer study: how does an answer change with one option, or two?"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from inferometer.api.grid import Axis, GridAnswer, Verb, axes_of, grid
from inferometer.api.size_grid import SIZE
from inferometer.api.studies import GRIDDED, STUDIES, Study, study_options
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard

ANSWER = GridAnswer


class StudyTable(click.Group):
    """A command for each study, with the options of its verb."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The studies, most used first."""
        del ctx
        return list(STUDIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this study."""
        del ctx
        study = STUDIES.get(cmd_name)
        return None if study is None else _command(cmd_name, study)


def _command(name: str, study: Study) -> click.Command:
    def body(question: object, *, as_json: bool) -> None:
        raise AssertionError(f"a study is a grid: {question}, {as_json}")

    lists = " ".join(
        f"--{option.replace('_', '-')} {values}" for option, values in study.axes.items()
    )
    body.__doc__ = (
        f"{study.answers}\n\nThe options and the answer of `inferometer {study.verb.name}`, with"
        f" {lists} unless other values are given."
    )
    command = asks(study.verb.question, grid=partial(_grid, name))(body)
    return click.command(
        name,
        cls=QuestionCommand,
        short_help=study.answers,
        epilog=f"\b\nExample:\n  {study.example}\n",
    )(command)


def _grid(name: str, given: dict[str, Any], as_json: bool) -> bool:  # noqa: FBT001 -- as ``asks`` calls it
    verb, options = STUDIES[name].verb, study_options(name, given)
    _print_grid(verb, options, axes_of(verb.question, options), as_json=as_json)
    return True


def grid_of(name: str) -> Callable[[dict[str, Any], bool], bool]:
    """The ``grid`` argument of ``asks`` for this verb."""
    return partial(_give_grid, SIZE if name == "size" else GRIDDED[name])


def _give_grid(verb: Verb, given: dict[str, Any], as_json: bool) -> bool:  # noqa: FBT001 -- as ``asks`` calls it
    """Print the grid of the options with several values; false where each has one."""
    axes = axes_of(verb.question, given)
    if axes:
        _print_grid(verb, given, axes, as_json=as_json)
    return bool(axes)


def _print_grid(
    verb: Verb, given: dict[str, Any], axes: tuple[Axis, ...], *, as_json: bool
) -> None:
    with heard():
        answer = grid(verb, given, axes)
    give(answer, as_json=as_json, show=lambda one: one.pages())
    if answer.exit_code:
        sys.exit(answer.exit_code)


@click.group(
    "study",
    cls=StudyTable,
    epilog="""\b
Examples:
  inferometer study batch llama-3.1-8b --hardware h100_sxm --prompt 1024
  inferometer study devices llama-3.1-70b --tp 4 --quantization fp8
  inferometer study policies llama-3.1-8b --hardware h100_sxm --workload 512x128 --concurrency 1,8,32
""",
)
@click.help_option("--help-all", hidden=True)
def command() -> None:
    """How does an answer change with an option: one table, what it says in words, CSV and JSON?"""
