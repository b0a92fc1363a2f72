"""How does a verb give its answer: one frozen object, as text for people or as JSON for machines?

stdout carries the answer alone, stderr the talk. Keys of the JSON are the field names of the answer's dataclass, so
they carry their units; ``inferometer schema VERB`` prints the schema, and a test holds it still.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table

T = TypeVar("T")


def give(answer: T, *, as_json: bool, show: Callable[[T], RenderableType]) -> None:
    """Print the answer to stdout, as JSON or as ``show`` draws it."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    shown = show(answer)
    if isinstance(shown, str):
        click.echo(shown)  # rich would wrap it at the terminal's width
    else:
        Console(highlight=False).print(whole_words(shown))


def whole_words(shown: RenderableType) -> RenderableType:
    """The same with tables that fold what is longer than its column: rich would cut ids, paths and commands, made to be copied."""
    if isinstance(shown, Group):
        for part in shown.renderables:
            whole_words(part)
    elif isinstance(shown, Padding):
        whole_words(shown.renderable)
    elif isinstance(shown, Table):
        for column in shown.columns:
            column.overflow = "fold"
    return shown


def talk(text: str) -> None:
    """Say something about the work to stderr."""
    click.echo(text, err=True)


def json_schema(answer_type: type[object]) -> dict[str, Any]:
    """The JSON schema of a verb's answer."""
    return msgspec.json.schema(answer_type)


json_option = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON (see `inferometer schema`).")

__all__ = ["give", "json_option", "json_schema", "talk", "whole_words"]
