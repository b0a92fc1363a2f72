"""How does a flag that click refuses become an error of ours, and which flags take several values?"""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from inferometer.api.question import bounds_in_words, is_listed
from inferometer.cli.foreign_flags import meant_by
from inferometer.errors import SpecError
from inferometer.inputs.synonyms import engine_name
from inferometer.units import check_number


class Several(click.ParamType[Any]):
    """A flag's value, or several of them: ``1,2,4`` or ``1..256``."""

    name = "several"

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind = click.types.convert_type(kind)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """That of one value."""
        return self.kind.get_metavar(param, ctx)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """One value as its type has it; several as they were written: the grid reads them."""
        if isinstance(value, str) and is_listed(value) and not Path(value).exists():
            return value
        return self.kind.convert(value, param, ctx)


def one_of(kind: click.ParamType[Any]) -> click.ParamType[Any]:
    """The type of one value of a flag that takes several."""
    return kind.kind if isinstance(kind, Several) else kind


def as_spec_error(error: click.ClickException) -> SpecError:
    """The same refusal in the four parts that every error has."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    try_ = None if context is None else f"{context.command_path} --help"
    if isinstance(error, click.NoSuchOption):
        verb = "inferometer" if context is None else context.command_path
        close = meant_by(error.option_name, context) or " or ".join(error.possibilities or ())
        return SpecError(f"there is no {error.option_name}", where=verb, try_=close or try_)
    if isinstance(error, click.MissingParameter):
        return _missing(error, context, try_)
    if isinstance(error, click.BadParameter):
        return SpecError(
            error.message.rstrip("."),
            where=_name(error),
            allowed=_allowed(error),
            try_=_nearest_choice(error) or try_,
        )
    unknown = _NO_COMMAND.match(error.message)
    if unknown is not None and context is not None and isinstance(context.command, click.Group):
        choices = context.command.list_commands(context)
        nearest = _nearest(unknown[1], choices)
        return SpecError(
            f"there is no {unknown[1]!r}",
            where=context.command_path,
            allowed=", ".join(choices),
            try_=f"{context.command_path} {nearest}" if nearest else try_,
        )
    return SpecError(
        error.message.rstrip("."),
        where=None if context is None else context.command_path,
        try_=try_,
    )


def _nearest_choice(error: click.BadParameter) -> str | None:
    """The choice that a word that is none comes closest to, as it would be typed."""
    kind = None if error.param is None else one_of(error.param.type)
    word = _NO_CHOICE.match(error.message)
    if not isinstance(kind, click.Choice) or word is None:
        return None
    close = _nearest(word[1], [str(choice) for choice in kind.choices])
    path = "" if error.ctx is None else error.ctx.command_path
    before = _name(error) if isinstance(error.param, click.Option) else path
    return f"{before} {close}" if close else None


def _nearest(word: str, choices: list[str]) -> str | None:
    """Of these, what others mean by the word, or what is spelled like it."""
    names = (engine_name(word), *_MEANT.get(word.lower(), ()))
    meant = [one for one in names if one in choices]
    close = meant or get_close_matches(word, choices, n=1)
    return close[0] if close else None


def check_numbers(command: click.Command) -> None:
    """Let each flag of a verb refuse a number that is not finite, or larger than anything of its name can be."""
    for parameter in command.params:
        if isinstance(parameter.type, _NUMBERS) and parameter.callback is not _checked:
            if parameter.callback is not None:
                raise TypeError(f"{parameter.name} has a callback of its own")
            parameter.callback = _checked


def _checked(context: click.Context, parameter: click.Parameter, value: object) -> object:
    del context
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and not isinstance(number, bool):
            name = parameter.name or ""
            where = max(parameter.opts, key=len)
            check_number(number, name, where=where)
    return value


def _missing(
    error: click.MissingParameter, context: click.Context | None, try_: str | None
) -> SpecError:
    """All that is missing at once: click stops at the first, when what was given is in the context already."""
    known = (
        []
        if context is None
        else [
            one for one in context.command.params if one.required and one.name not in context.params
        ]
    )
    names = [_name(click.MissingParameter(ctx=context, param=one)) for one in known] or [
        _name(error)
    ]
    if len(names) == 1:
        return SpecError(
            f"{names[0]} is missing", where=names[0], allowed=_allowed(error), try_=try_
        )
    helps = [
        f"{name}: {one.help}"
        for name, one in zip(names, known, strict=True)
        if isinstance(one, click.Option) and one.help
    ]
    return SpecError(
        f"{', '.join(names[:-1])} and {names[-1]} are missing",
        where=", ".join(names),
        allowed=" ".join(helps) or None,
        try_=try_,
    )


def _name(error: click.BadParameter) -> str:
    """The flag or the argument, as its help writes it."""
    parameter = error.param
    if parameter is None:
        return str(error.param_hint or "the command line")
    return (
        max(parameter.opts, key=len)
        if isinstance(parameter, click.Option)
        else parameter.make_metavar(error.ctx or _NOWHERE)
    )


def _allowed(error: click.BadParameter) -> str | None:
    """What the parameter takes; None where its help says more than its type."""
    if error.param is None:
        return None
    kind = one_of(error.param.type)
    if isinstance(kind, click.Choice):
        return ", ".join(str(choice) for choice in kind.choices)
    if isinstance(kind, (click.IntRange, click.FloatRange)):
        is_whole = isinstance(kind, click.IntRange)
        return bounds_in_words(
            is_whole=is_whole, least=kind.min, most=kind.max, is_open=kind.min_open
        )
    if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType)):
        return "a whole number" if isinstance(kind, click.types.IntParamType) else "a number"
    return error.param.help if isinstance(error.param, click.Option) else None


_NO_CHOICE = re.compile(r"'([^']*)' is not one of ")
_NO_COMMAND = re.compile(r"No such command '([^']*)'")
_MEANT = {
    **dict.fromkeys(("devices", "device", "gpus", "gpu", "accelerators"), ("hardware", "devices")),
    **dict.fromkeys(("slo", "objectives", "slas", "presets"), ("slos",)),
    **dict.fromkeys(("traces", "datasets", "scenarios"), ("workloads",)),
    **dict.fromkeys(("policy", "engines", "schedulers"), ("policies",)),
    **dict.fromkeys(("lengths", "context", "prompt", "isl"), ("length",)),
    **dict.fromkeys(("dtype", "quantization", "formats"), ("precision",)),
    **dict.fromkeys(("users", "rate", "load"), ("concurrency",)),
    "tensor-parallel": ("tp",),
}
"""What others call a choice of ours, of any flag or argument."""
_NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
_NOWHERE = click.Context(click.Command("inferometer"))
