"""inferometer schema: what does a verb's --json look like?"""

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click
import msgspec
from rich.console import RenderableType

from inferometer import suggestions
from inferometer.cli.answer import answer_type, give, json_schema
from inferometer.cli.flags import json_option
from inferometer.cli.verbs import VERBS
from inferometer.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaAnswer:
    """The JSON schema of a verb's answer."""

    verb: str
    schema: dict[str, Any]


ANSWER = SchemaAnswer


@click.command(
    "schema",
    epilog="""\b
Example:
  inferometer schema predict
""",
)
@click.argument("verb")
@json_option
def command(verb: str, *, as_json: bool) -> None:
    """What does a verb's --json look like? A JSON schema; keys carry their units."""
    if verb not in VERBS:
        raise SpecError(
            f"{verb!r} is no verb",
            where="VERB",
            allowed=", ".join(VERBS),
            try_=suggestions.command(
                "schema", *(get_close_matches(verb, VERBS, n=1) or ["predict"])
            ),
        )
    answer = SchemaAnswer(verb=verb, schema=json_schema(answer_type(verb)))
    give(answer, as_json=as_json, show=_show)


def _show(answer: SchemaAnswer) -> RenderableType:
    return msgspec.json.format(msgspec.json.encode(answer.schema), indent=2).decode()
