"""How does the command line ask for a grid?"""

from typing import Any

import click

from inferometer.api.grid import Verb, axes_of, grid
from inferometer.cli.answer import give
from inferometer.cli.progress import heard
from inferometer.cli.terminal import REPORT


def give_grid(verb: Verb, given: dict[str, Any], as_json: bool) -> bool:  # noqa: FBT001 -- as ``asks`` calls it
    """Print the grid of the options with several values; false where each has one."""
    axes = axes_of(verb.question, given)
    if axes:
        if "report" in given:  # an option of the verb's own: of a grid it is one page
            click.get_current_context().meta[REPORT] = given.pop("report")
        with heard():
            answer = grid(verb, given, axes)
        give(answer, as_json=as_json, show=lambda one: one.pages())
    return bool(axes)
