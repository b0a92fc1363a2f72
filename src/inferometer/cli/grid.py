"""How does the command line ask for a grid?"""

from typing import Any

from inferometer.api.grid import Verb, axes_of, grid
from inferometer.cli.answer import give
from inferometer.cli.progress import heard


def give_grid(verb: Verb, given: dict[str, Any], as_json: bool) -> bool:  # noqa: FBT001 -- as ``asks`` calls it
    """Print the grid of the options with several values; false where each has one."""
    axes = axes_of(verb.question, given)
    if axes:
        with heard():
            answer = grid(verb, given, axes)
        give(answer, as_json=as_json, show=lambda one: one.pages())
    return bool(axes)
