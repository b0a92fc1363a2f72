"""How does a question become the flags of a command, and the flags a question?

``--help`` lists the flags that most users need, under headings; ``--help-all`` lists all of them.
"""

import dataclasses
import inspect
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from inferometer import suggestions
from inferometer.api.question import Field, bounds_in_words, fields_of, is_listed, question_of
from inferometer.cli.foreign_flags import check_given, in_our_words, meant_by
from inferometer.cli.terminal import AS_CSV, REPORT, VERBOSE, write_answer
from inferometer.errors import SpecError
from inferometer.inputs.objectives import METRICS
from inferometer.inputs.synonyms import engine_name, number_format, plain_number
from inferometer.units import check_number

# How does a flag that click refuses become an error of ours, and which flags take several values?


class Several(click.ParamType[Any]):
    """A flag's value, or several of them: ``1,2,4`` or ``1..256``."""

    name = "several"

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self.kind = click.types.convert_type(kind)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Metavar of a single value."""
        return self.kind.get_metavar(param, ctx)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """One value in its type; several as text, which the grid parses."""
        if isinstance(value, str) and is_listed(value) and not Path(value).exists():
            return value
        return self.kind.convert(value, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Candidates for a single value."""
        return self.kind.shell_complete(ctx, param, incomplete)


class NamedPath(click.Path):
    """A path with a name: no empty text, which Python takes for the folder itself."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The path; an empty text is refused."""
        if value == "":
            self.fail("'' is not the name of a file or folder", param, ctx)
        return super().convert(value, param, ctx)


def one_of(kind: click.ParamType[Any]) -> click.ParamType[Any]:
    """The type of one value of a flag that takes several."""
    return kind.kind if isinstance(kind, Several) else kind


def as_spec_error(error: click.ClickException) -> SpecError:
    """The same refusal in the four parts that every error has."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    try_ = None if context is None else f"{context.command_path} --help"
    if isinstance(error, click.NoSuchOption):
        verb = "inferometer" if context is None else context.command_path
        alike = get_close_matches(error.option_name, error.possibilities or (), cutoff=_ALIKE_RATIO)
        close = meant_by(error.option_name, context) or " or ".join(alike)
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
    more = _MORE.match(error.message)
    if more is not None and context is not None and context.command.name == "compare":
        pair = [str(context.params[one]) for one in ("old", "new")]
        try_ = suggestions.command("report", *pair, *more[1].split())
    return SpecError(
        error.message.rstrip("."),
        where=None if context is None else context.command_path,
        try_=try_,
    )


def _nearest_choice(error: click.BadParameter) -> str | None:
    """The choice that is most similar to an invalid word."""
    kind = None if error.param is None else one_of(error.param.type)
    word = _NO_CHOICE.match(error.message)
    if not isinstance(kind, click.Choice) or word is None:
        return None
    close = _nearest(word[1], [str(choice) for choice in kind.choices])
    path = "" if error.ctx is None else error.ctx.command_path
    before = _name(error) if isinstance(error.param, click.Option) else path
    return f"{before} {close}" if close else None


def _nearest(word: str, choices: list[str]) -> str | None:
    """The choice that is a synonym of the word, or spelled like it."""
    names = (engine_name(word), *_MEANT.get(word.lower(), ()))
    meant = [one for one in names if one in choices]
    begun = [one for one in choices if len(word) > 1 and one.startswith(word.lower())]
    close = meant or begun or get_close_matches(word, choices, n=1)
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
    """An error that names all missing parameters; click stops at the first."""
    every, given = ([], {}) if context is None else (context.command.params, context.params)
    known = [one for one in every if one.required and one.name not in given]
    names = [_name(click.MissingParameter(ctx=context, param=one)) for one in known] or [
        _name(error)
    ]
    parameters = known or ([] if error.param is None else [error.param])
    usual = [
        (name, _USUAL.get(one.metavar if one.metavar in _USUAL else name))
        for name, one in zip(names, parameters, strict=False)
    ]
    if usual and all(value is not None for _, value in usual):
        words = [word for pair in usual for word in pair[not pair[0].startswith("-") :]]
        path = "" if context is None or usual[0][0].startswith("-") else context.command_path
        try_ = f"{path} {suggestions.flags(*words)}".strip()
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
    """Allowed values of the parameter; None where its help says more than its type."""
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


_ALIKE_RATIO: Final = 0.75
"""Least similarity of a mistyped flag and its correction."""
_NO_CHOICE = re.compile(r"'([^']*)' is not one of ")
_NO_COMMAND = re.compile(r"No such command '([^']*)'")
_MORE = re.compile(r"Got unexpected extra arguments? \((.*)\)")
_MEANT = {
    **dict.fromkeys(("devices", "device", "gpus", "gpu", "accelerators"), ("hardware", "devices")),
    **dict.fromkeys(("slo", "objectives", "slas", "presets"), ("slos",)),
    **dict.fromkeys(("traces", "datasets", "scenarios"), ("workloads",)),
    **dict.fromkeys(("policy", "engines", "schedulers"), ("policies",)),
    **dict.fromkeys(("lengths", "context", "prompt", "isl"), ("length",)),
    **dict.fromkeys(("dtype", "quantization", "formats"), ("precision",)),
    **dict.fromkeys(("users", "rate", "load"), ("concurrency",)),
    **dict.fromkeys(("continuous", "in-flight", "inflight"), ("vllm", "in-flight")),
    **dict.fromkeys(("chat", "latency"), ("interactive",)),
    "tensor-parallel": ("tp",),
}
"""Other names of our choices, for any flag or argument."""
_USUAL = {
    "--slo": "ttft:p95<500ms, tpot:p95<50ms",
    **dict.fromkeys(("--hardware", "--gpus"), "h100_sxm"),
    "DIR": "files",
    "FILE": "run.json",
    "PLAN": "plan.json",
    "{models|hardware|slos|workloads}": "models",
}
"""Suggested SLO of a first command: a chat that starts at once and outpaces a reader."""
_NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
_NOWHERE = click.Context(click.Command("inferometer"))


Q = TypeVar("Q")
HEADINGS: Final = ("Runs", "Model", "Hardware", "Workload", "Engine", "Cluster", "Limits", "Output")
_AS_JSON: Final = "as_json"
_IS_ALL: Final = "inferometer.help_all"
_N_EXAMPLES: Final = 3
_SYNONYMS: Final = "\n".join(
    (
        "\b\nAlso called:",
        *(f"  {metric}: {', '.join(words.synonyms)}" for metric, words in METRICS.items()),
    )
)
"""Other tools' names of latencies, listed in the help so that a search finds ours."""
_MOST_LISTED: Final = 36
"""Letters of choices that stand beside a flag; more stand in its text."""


class QuestionCommand(click.Command):
    """A command with grouped flags in its help; it also accepts other tools' flags."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words, after translating other tools' flags."""
        words = in_our_words(args, self)
        check_given(words, self)
        return super().parse_args(ctx, words)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first paragraph; ``--help-all`` has the others."""
        text = inspect.cleandoc(self.help or "")
        self.write_text(formatter, text if _IS_ALL in ctx.meta else text.partition("\n\n")[0])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The first examples; ``--help-all`` has the others, and what they mean."""
        blocks = inspect.cleandoc(self.epilog or "").split("\n\n")
        if _IS_ALL in ctx.meta:
            self.write_text(formatter, "\n\n".join((*blocks, _SYNONYMS)))
        else:
            lines = blocks[0].split("\n")
            self.write_text(formatter, "\n".join(lines[: _N_EXAMPLES + 2]))

    @staticmethod
    def write_text(formatter: click.HelpFormatter, text: str) -> None:
        """Write paragraphs; those that begin with backslash b are not wrapped."""
        for block in text.split("\n\n"):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(block)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The common flags under their headings, and where the others are."""
        self.format_grouped(ctx, formatter, is_all=False)

    def format_grouped(
        self, ctx: click.Context, formatter: click.HelpFormatter, *, is_all: bool
    ) -> None:
        """The flags under their headings."""
        n_hidden = 0
        for heading in HEADINGS:
            rows = list[tuple[str, str]]()
            for one in self.params:
                if not isinstance(one, QuestionOption) or one.heading != heading:
                    continue
                record = one.get_help_record(ctx)
                if record is not None and (is_all or one.is_common):
                    rows.append(record)
                n_hidden += not (is_all or one.is_common)
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
        others = [
            record
            for one in self.get_params(ctx)
            if not isinstance(one, QuestionOption | click.Argument)
            and (record := one.get_help_record(ctx)) is not None
        ]
        with formatter.section("Help"):
            formatter.write_dl(others)
            if any(isinstance(one.type, Several) for one in self.params):
                formatter.write_text(
                    "Several values (1,2,4 or 1..256) make a grid: one answer each."
                )
            if n_hidden:
                formatter.write_text(f"{n_hidden} more options: --help-all")


class QuestionOption(click.Option):
    """A flag of a question."""

    def __init__(self, *words: str, heading: str, is_common: bool, **more: Any) -> None:
        super().__init__(*words, **more)  # type: ignore[arg-type]
        self.heading = heading
        self.is_common = is_common

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The flag with a short metavar; allowed values follow the text."""
        del ctx
        words = (
            ", ".join(self.opts)
            if not self.secondary_opts
            else "/".join((self.opts[0], self.secondary_opts[0]))
        )
        allowed = ""
        if not self.is_flag:
            kind = one_of(self.type)
            choices = kind.choices if isinstance(kind, click.Choice) else ()
            listed = "|".join(str(one) for one in choices)
            is_short = bool(listed) and len(listed) <= _MOST_LISTED
            words += f" {self.metavar or (listed if is_short else _metavar(kind))}"
            if listed and not is_short:
                allowed = f" One of {', '.join(str(one) for one in choices)}."
        has_default = self.show_default and self.default is not None and not self.multiple
        shown = f" [{self.default}]" if has_default and not self.is_flag else ""
        return words, f"{self.help or ''}{allowed}{shown}"


def _metavar(kind: click.ParamType[Any]) -> str:
    """Placeholder of a value of this kind."""
    if isinstance(kind, NumberFormat):
        return "FORMAT"
    if isinstance(kind, click.types.IntParamType):
        return "N"
    if isinstance(kind, click.types.FloatParamType):
        return "X"
    return "PATH" if isinstance(kind, click.Path) else "TEXT"


def _show_all(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
    if value:
        formatter = ctx.make_formatter()
        command = ctx.command
        ctx.meta[_IS_ALL] = True
        command.format_usage(ctx, formatter)
        command.format_help_text(ctx, formatter)
        if isinstance(command, QuestionCommand):
            command.format_grouped(ctx, formatter, is_all=True)
        command.format_epilog(ctx, formatter)
        write_answer(formatter.getvalue().rstrip("\n"))
        ctx.exit()


def asks(
    question: type[Q],
    *,
    grid: Callable[[dict[str, Any], bool], bool] | None = None,
    has_page: bool = True,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the flags of ``question``, ``--json`` and ``--csv``: it gets ``(question, as_json)``.

    With ``grid`` options take several values: it gets what was given and whether JSON is wanted, and
    is true where it printed a grid. Without ``has_page``: no --csv, --report and --verbose.
    """
    named = {name for field in fields_of(question) for name in (field.name, *field.flags)}
    has_report = not has_page or not named.isdisjoint({"report", "--report"})

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        def with_question(**values: Any) -> Any:
            as_json = values.pop(_AS_JSON)
            given = _given(values)
            if grid is not None and grid(given, as_json):
                return None
            return function(question_of(question, given), as_json=as_json)

        with_question.__doc__ = function.__doc__
        with_question.__name__ = function.__name__
        wrapped: Callable[..., Any] = with_question
        wrapped = click.option(
            "--help-all",
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options and exit.",
        )(wrapped)
        wrapped = json_option(wrapped)
        wrapped = csv_option(_verbose_option(wrapped)) if has_page else wrapped
        wrapped = wrapped if has_report else _report_option(wrapped)
        for field in reversed(fields_of(question)):
            wrapped = _parameter(field, takes_lists=grid is not None)(wrapped)
        return wrapped

    return decorated


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Values from the command line or the environment, without defaults."""
    context = click.get_current_context()
    return {
        name: value
        for name, value in values.items()
        if context.get_parameter_source(name)
        not in {ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP}
    }


def _parameter(
    field: Field, *, takes_lists: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    option = field.option
    kind = _click_type(field)
    if takes_lists and field.is_axis:
        kind = Several(kind)
    if option.is_argument:
        return click.argument(
            field.name,
            type=kind,
            nargs=-1 if field.is_many else 1,
            required=field.default is dataclasses.MISSING,
            metavar=option.metavar,
        )
    more = dict[str, Any](
        help=option.help,
        heading=option.heading,
        is_common=option.is_common,
        metavar=option.metavar,
        envvar=option.envvar,
    )
    if field.default is dataclasses.MISSING:
        more |= {"required": True}
    elif field.kind is bool:
        more |= {"is_flag": True}
    elif not field.is_many:
        has_default = field.default is not None
        more |= {"default": field.default, "show_default": has_default and option.shows_default}
    if field.is_many:
        more |= {"multiple": True}
    if field.kind is not bool:
        more |= {"type": kind}
    return click.option(*field.flags, field.name, cls=QuestionOption, **more)


def _click_type(field: Field) -> Any:
    option = field.option
    if option.parse is not None:
        return click.STRING
    if option.formats:
        extra = tuple(one for one in option.formats if one in {"auto"})
        return NumberFormat([one for one in option.formats if one not in extra], extra=extra)
    if field.choices:
        return click.Choice(field.choices)
    if field.kind is int:
        low, high = (None if one is None else int(one) for one in (option.least, option.most))
        return WholeNumber(low, high)
    if field.kind is float:
        return Number(option.least, option.most, min_open=option.is_open)
    return NamedPath(path_type=Path) if field.kind is Path else click.STRING


json_option: Final = click.option(
    "--json",
    _AS_JSON,
    is_flag=True,
    cls=QuestionOption,
    heading="Output",
    is_common=True,
    help="Print the answer as JSON (see `inferometer schema`).",
)


def _ask_csv(ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
    ctx.meta[AS_CSV] = value


csv_option: Final = click.option(
    "--csv",
    is_flag=True,
    expose_value=False,
    callback=_ask_csv,
    cls=QuestionOption,
    heading="Output",
    is_common=False,
    help="Print the answer's main table as CSV.",
)


def _show_verbose(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001
    ctx.meta[VERBOSE] = value


def _ask_report(ctx: click.Context, _parameter: click.Parameter, value: Path | None) -> None:
    ctx.meta[REPORT] = value


_report_option: Final = click.option(
    "--report",
    type=NamedPath(path_type=Path, dir_okay=False),
    expose_value=False,
    callback=_ask_report,
    cls=QuestionOption,
    heading="Output",
    is_common=True,
    metavar="FILE",
    help="Also write an offline page with charts.",
)


_verbose_option: Final = click.option(
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_show_verbose,
    cls=QuestionOption,
    heading="Output",
    is_common=True,
    help="Show all of the answer, not its first screen.",
)


class WholeNumber(click.IntRange):
    """A whole number, also as people write it: `8k`."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number in digits."""
        return super().convert(_in_digits(value, param), param, ctx)


class Number(click.FloatRange):
    """A number, also as people write it: `5rps` or `90%`."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number in digits."""
        return super().convert(_in_digits(value, param), param, ctx)


def _in_digits(value: Any, param: click.Parameter | None) -> Any:
    if not isinstance(value, str) or value.isdecimal():
        return value
    return plain_number(value, (param and param.name) or "")


class NumberFormat(click.ParamType[str]):
    """A flag's value among ``allowed``, under any spelling of it.

    ``extra`` are further words that stand for themselves.
    """

    name = "format"

    def __init__(self, allowed: Sequence[str], *, extra: Sequence[str] = ()) -> None:
        self.allowed = tuple(allowed)
        self.extra = tuple(extra)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Allowed values, for the help."""
        del param, ctx
        return f"[{'|'.join((*self.extra, *self.allowed))}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The format under this program's name for it."""
        del ctx
        text = str(value)
        if text in self.extra:
            return text
        flag = "a number format" if param is None else param.opts[0]
        return number_format(text, allowed=(*self.extra, *self.allowed), where=flag)
