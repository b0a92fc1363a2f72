"""Does the command line take what a message suggests?

Whatever ``inferometer.suggestions`` builds during the tests is parsed here.
"""

import functools
import re
import shlex

import click

from inferometer.cli.answer import of_servers
from inferometer.cli.foreign_flags import in_our_words
from inferometer.cli.main import VERBS, app

PLACEHOLDER = re.compile(r"[A-Z][A-Z_]*(/[A-Z]+)?|runs/NAME")
"""What only the reader knows: the types of such values are not checked."""
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


OF_OTHERS = frozenset(
    {
        "--enable-dp-attention",
        "--enable-expert-parallel",
        "--save-detailed",
        "--otlp-traces-endpoint",
    }
)
"""Flags of other tools that are named beside ours."""
READERS = frozenset({"show", "report", "explain", "export", "compare", "verify"})
"""What they print of a run are remedies for the command that made it."""


@functools.cache  # each takes 2 ms to build, and a test suggests up to a hundred
def commands_of(verb: str) -> list[click.Command]:
    """A verb's parsers: some verbs have a second one for servers; each study has its own."""
    with click.Context(app) as context:
        command = app.get_command(context, verb)
        if isinstance(command, click.Group):
            found = [command.get_command(context, name) for name in command.list_commands(context)]
            return [one for one in found if one is not None]
    assert command is not None, f"no verb {verb!r}"
    return [command, of_servers(verb)] if VERBS[verb].of_servers else [command]


@functools.cache
def flags_of(verb: str) -> frozenset[str]:
    """Every flag that a verb takes."""
    parameters = [parameter for command in commands_of(verb) for parameter in command.params]
    return frozenset({"--help"}).union(
        *(set(one.opts) | set(one.secondary_opts) for one in parameters)
    )


@functools.cache
def all_flags() -> frozenset[str]:
    return frozenset({"--help", "--version"}).union(*(flags_of(verb) for verb in VERBS))


def check_words(words: tuple[str, ...]) -> None:
    """Refuse what a shell or the verb's own parser would: another flag, a value of another type, too many words.

    A suggestion of flags alone is checked against all verbs; ``command_line.run`` checks it against
    the verb that printed it.
    """
    assert tuple(shlex.split(shlex.join(words))) == words
    if words[0] != "inferometer":
        unknown = [
            word
            for word in words
            if word.startswith("--") and word.partition("=")[0] not in all_flags()
        ]
        assert not unknown, f"no verb takes {unknown}"
        return
    verb, *arguments = words[1:]
    if {"--help", "--help-all"} & set(arguments):
        assert verb in VERBS
        return
    if verb == "study":
        study, *arguments = arguments
        assert study in {command.name for command in commands_of(verb)}
    problems = [
        problem
        for command in commands_of(verb)
        if (problem := _problem(command, verb, arguments)) is not None
    ]
    assert len(problems) < len(commands_of(verb)), f"{shlex.join(words)}: {problems}"


def _problem(command: click.Command, verb: str, arguments: list[str]) -> str | None:
    context = click.Context(command, info_name=verb)
    try:
        arguments = in_our_words(arguments, command)
        values, left, _ = command.make_parser(context).parse_args(args=arguments)
        if left:
            return f"too many words: {left}"
        for parameter in command.params:
            value = values.get(parameter.name)
            if parameter.required and (value is None or "UNSET" in str(value)):
                return f"{parameter.name} is missing"
            _convert(parameter, value, context)
    except click.ClickException as problem:
        return problem.format_message()
    return None


def _convert(parameter: click.Parameter, value: object, context: click.Context) -> None:
    """Convert what was given as the verb would; whether a file is there is no matter of the suggestion."""
    given = value if isinstance(value, (list, tuple)) else [value]
    for one in given:
        if (
            isinstance(one, str)
            and not PLACEHOLDER.fullmatch(one)
            and not isinstance(parameter.type, click.Path)
        ):
            parameter.type.convert(one, parameter, context)


def check_said(verb: str, text: str) -> None:
    """Of help, an error or a page: each flag is the verb's own, or one of a verb that its line names."""
    for line in text.splitlines():
        own = {
            *re.findall(r"\b(?:inferometer|with|of) ([a-z]+)\b", line),
            *re.findall(r"\b([a-z]+) --", line),
            verb,
        }
        own |= VERBS.keys() if verb in READERS else set()
        known = OF_OTHERS.union(*(flags_of(one) for one in own if one in VERBS))
        unknown = [flag for flag in FLAG.findall(line) if flag not in known]
        assert not unknown, f"`inferometer {verb}` says {line.strip()!r}, but has no {unknown}"


__all__ = ["all_flags", "check_said", "check_words", "commands_of", "flags_of"]
