"""How does an error, or an option's help, read for a caller in Python?

Errors are written for the command line, deep inside, where nobody knows who called: with flags and
whole commands. The front door translates them: ``--tp 2`` is ``tp=2``, and ``inferometer predict
MODEL --batch 8`` is ``im.predict('MODEL', batch=8)``. Flags of other programs stay.
"""

import dataclasses
import inspect
import re
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, TypeVar, cast

from inferometer.api.question import Field, bounds_in_words, fields_of
from inferometer.errors import COMMAND, InferometerError
from inferometer.report.charts.plot import Chart

D = TypeVar("D")
VERBS: Final = {"read": "show", "import_results": "import"}
"""Commands that do not have the name of their function."""
Questions = Mapping[str, type[Any]]
"""The question of each function of the front door, by the function's name."""
_COMMA: Final = r",(?=[^\s-])"
"""A comma inside a value; before a blank it ends a clause."""
_WORD: Final = rf"(?:'[^']*'|(?:[^\s,;()]|{_COMMA})+)"
_COMMAND: Final = re.compile(rf"(!?){COMMAND}([a-z]+)((?: {_WORD})*)")
"""``!inferometer …`` stays: in a notebook a shell runs it."""
_VALUE: Final = (
    r"(?!--|(?:alone|and|are|as|beside|by|for|from|has|in|instead|is|needs|of|or|to|with|without)\b)"
    + _WORD
)
_FLAGS: Final = re.compile(
    rf"--[a-z][a-z0-9-]*(?:[ =]{_VALUE})?(?: --[a-z][a-z0-9-]*(?:[ =]{_VALUE})?)*"
)
_FLAG: Final = re.compile(rf"(--[a-z][a-z0-9-]*)(?:[ =]({_VALUE}))?")
_SURE_VALUE: Final = re.compile(r"'.*'|\d.*|[A-Z][A-Z_]*")
"""A word after a flag that is its value in the middle of a sentence."""
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?|[A-Z][A-Z_]*")
_CLASS: Final = re.compile(r"_?[A-Z][a-z]\w*")
_NAMED: Final = "NAME=VALUE"
_COLUMNS: Final = 88
_SECTION: Final = re.compile(r"\n\n(?=[A-Z]\w+\n---)")


@contextmanager
def errors_in_python(
    name: str, question: type[Any], questions: Callable[[], Questions]
) -> Generator[None]:
    """Errors within name keyword arguments and calls where they named flags and commands.

    ``name`` is the function that is called.
    """
    try:
        yield
    except InferometerError as error:
        known, ours = questions(), own_flags(question)
        own = _of_one(known) | ours
        arguments = {one.flag: one.name for one in fields_of(question) if one.option.is_argument}
        if _CLASS.fullmatch(error.where or ""):
            error.where = f"{name}()"
        error.where = _names(error.where, ours, arguments)
        lacks = next(filter(error.what.endswith, (" is missing", " missing")), None)
        if lacks is not None:
            error.what = _names(error.what.removesuffix(lacks), ours, arguments) + lacks
        error.what = in_python(error.what, own, known)
        error.allowed, error.try_ = (
            None if text is None else in_python(text, own, known)
            for text in (error.allowed, error.try_)
        )
        error.args = (error.what,)
        raise


def own_flags(question: type[Any]) -> dict[str, tuple[Field, bool]]:
    """Each flag of a question, also those that switch an option off."""
    return {
        flag: (field, flag == yes)
        for field in fields_of(question)
        if not field.option.is_argument
        for both in field.flags
        for yes, _, no in (both.partition("/"),)
        for flag in filter(None, (yes, no))
    }


def _of_one(questions: Questions) -> dict[str, tuple[Field, bool]]:
    """Flags that only one function has; others may be those of a server's own command."""
    each = [own_flags(question) for question in questions.values()]
    counts = Counter(flag for flags in each for flag in flags)
    return {flag: one for flags in each for flag, one in flags.items() if counts[flag] == 1}


def _names(
    where: str | None, own: Mapping[str, tuple[Field, bool]], arguments: Mapping[str, str]
) -> Any:  # noqa: ANN401 -- text as it is given
    """``--hardware, --gpus`` is ``hardware`` in a function that has no ``gpus``."""
    if where is None:
        return None
    if where == "the command line":
        return "the call"
    words = re.split("(, | and )", where)
    flags = words[::2]
    if not all(word in arguments or _FLAG.fullmatch(word) for word in flags):
        return where
    ours = [
        arguments[word] if word in arguments else own[word.partition(" ")[0]][0].name
        for word in flags
        if word in arguments or word.partition(" ")[0] in own
    ]
    return ", ".join(ours or [word.strip("-").replace("-", "_") for word in flags])


def in_python(text: str, own: Mapping[str, tuple[Field, bool]], questions: Questions) -> str:
    """The text with keyword arguments for the flags ``own``, and calls for commands."""
    parts, end = list[str](), 0
    for found in _COMMAND.finditer(text):
        called = found[0] if found[1] else _call(found[2], found[3], questions)
        if called is not None:
            parts += [_keywords(text[end : found.start()], own), called]
            end = found.end()
    return "".join([*parts, _keywords(text[end:], own)]).replace(
        "the same command", "the same call"
    )


def _call(verb: str, rest: str, questions: Questions) -> str | None:
    """A command as a call, and what follows it; None where it has no function, or is no command."""
    name = next((one for one, command in VERBS.items() if command == verb), verb)
    if name not in questions:
        return None
    words = re.findall(_WORD, rest)
    if words in (["--help"], ["--help-all"]):
        return f"help(im.{name})"
    own, free = own_flags(questions[name]), list[str]()
    arguments = [one for one in fields_of(questions[name]) if one.option.is_argument]
    values = dict[str, tuple[Field, list[str]]]()
    while words:
        flag, equals, value = words[0].partition("=")
        if words[0].startswith("--"):
            if flag not in own:
                return None
            field, is_on = own[flag]
            del words[0]
            if field.kind is bool:
                value = str(is_on)
            elif not equals:
                value = words.pop(0) if words else "VALUE"
            values.setdefault(field.name, (field, []))[1].append(value)
        elif arguments and (len(free) < len(arguments) or arguments[-1].is_many):
            free.append(repr(_unquoted(words.pop(0))))
        else:
            break
    given = [*free, *(_keyword(field, several) for field, several in values.values())]
    return f"im.{name}({', '.join(given)})" + "".join(f" {word}" for word in words)


def _keyword(field: Field, several: list[str]) -> str:
    if field.option.metavar == _NAMED:
        pairs = (_unquoted(one).partition("=") for one in several)
        written = ", ".join(f"{name!r}: {_literal(value)}" for name, _, value in pairs)
        return f"{field.name}={{{written}}}"
    is_bare = field.kind in {bool, int, float}
    values = [_literal(one) if is_bare else repr(_unquoted(one)) for one in several]
    return f"{field.name}={values[0] if len(values) == 1 else '[' + ', '.join(values) + ']'}"


def _literal(word: str) -> str:
    word = _unquoted(word)
    if word.lower() in {"true", "false"}:
        return word.capitalize()
    return word if _NUMBER.fullmatch(word) else repr(word)


def _unquoted(word: str) -> str:
    try:
        return "".join(shlex.split(word))
    except ValueError:  # an apostrophe
        return word


def _keywords(text: str, own: Mapping[str, tuple[Field, bool]], mark: str = "=") -> str:
    """``--tp 2`` as ``tp=2``, and a flag in a sentence as its name and ``mark``."""
    clauses = rf"(?:'[^']*'|{_COMMA}|[^,;()])+"
    return re.sub(clauses, lambda clause: _clause(clause[0], own, mark), text)


def _clause(text: str, own: Mapping[str, tuple[Field, bool]], mark: str) -> str:
    is_flags = _FLAGS.fullmatch(text.strip()) is not None
    is_followed = is_flags and " --" in text.strip()

    def keyword(found: re.Match[str]) -> str:
        flag, value = found[1], found[2]
        if flag not in own:
            return found[0]
        field, is_on = own[flag]
        if value is not None and value.endswith(":"):  # what follows is said of it
            return f"{_keyword(field, [value[:-1]])}:"
        before = ", " if is_followed and found.start() > len(text) - len(text.lstrip()) else ""
        if value is None or not (is_flags or _SURE_VALUE.fullmatch(value)):
            switched = f"{field.name}={is_on}" if mark and field.kind is bool else field.name + mark
            return before + switched + (f" {value}" if value else "")
        return before + _keyword(field, [value])

    translated = _FLAG.sub(keyword, text)
    return translated.replace(" , ", ", ") if is_followed else translated


def answer_in_python(document: D, translate: Callable[[str], str]) -> D:
    """The same page with each text translated; of charts the findings alone."""
    part: Any = document
    if isinstance(part, str):
        return cast("D", translate(part))
    if isinstance(part, Chart):
        return cast("D", dataclasses.replace(part, finding=translate(part.finding)))
    if isinstance(part, tuple):
        several = tuple(answer_in_python(one, translate) for one in part)
        named = getattr(part, "_make", tuple)
        return cast("D", named(several))
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {
            one.name: answer_in_python(getattr(part, one.name), translate)
            for one in dataclasses.fields(part)
        }
        return cast("D", dataclasses.replace(part, **fields))
    return document


def signature_of(question: type[Any], first: Sequence[str] = ()) -> inspect.Signature:
    """Signature of a question's Python function, for editors and notebooks.

    ``first``: what may stand without its name.
    """
    fields = sorted(fields_of(question), key=lambda one: one.name not in first)
    parameters = [
        inspect.Parameter(
            field.name,
            (
                inspect.Parameter.POSITIONAL_OR_KEYWORD
                if field.name in first
                else inspect.Parameter.KEYWORD_ONLY
            ),
            default=(
                inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default
            ),
            annotation=_annotation(field),
        )
        for field in fields
    ]
    progress = inspect.Parameter("progress", inspect.Parameter.KEYWORD_ONLY, default=None)
    return inspect.Signature([*parameters, progress])


def _annotation(field: Field) -> Any:  # noqa: ANN401 -- any annotation
    """The type in a signature; words that are allowed stand in the help."""
    one: Any = str if field.choices or field.option.formats else field.kind
    one = str | Path if one is Path else one
    either = one | Sequence[one] if field.is_many else one
    return either | None if field.is_optional else either


def parameters_text(question: type[Any], *, about: str, makes_grids: bool) -> str:
    """The docstring of a function: what it answers, and each keyword argument with its help.

    ``makes_grids``: several values of one option are answered, each by itself.
    """
    own = own_flags(question)
    summary, *sections = _SECTION.split(about, maxsplit=1)
    lines = [summary.rstrip(), "", "Parameters", "----------"]
    for field in sorted(fields_of(question), key=lambda one: not one.option.is_argument):
        lines.append(f"{field.name} : {_type_in_words(field, makes_grids=makes_grids)}")
        text = _keywords(field.option.help, own, mark="")
        words = field.choices or field.option.formats
        text = f"{text} One of {', '.join(words)}." if words else text
        if text:
            lines += wrap(
                text,
                _COLUMNS,
                initial_indent=" " * 4,
                subsequent_indent=" " * 4,
                break_on_hyphens=False,
            )
    lines += [
        "progress : callable, optional",
        "    Called with each sentence and count of the work that is done: progress=print.",
    ]
    return "\n".join([*lines, *(f"\n{section}" for section in sections)])


_KINDS: Final[Mapping[Any, str]] = {int: "int", float: "float", bool: "bool"}


def _type_in_words(field: Field, *, makes_grids: bool) -> str:
    metavar = field.option.metavar or ""
    kind = _KINDS.get(field.kind, "path" if "Path" in str(field.kind) else "str")
    if metavar == "DURATION":
        kind = "duration ('60s', seconds, or a timedelta)"
    elif field.is_many and {"=", ":"} & set(metavar):
        kind = "dict"
    elif field.is_many or (makes_grids and field.is_axis):
        kind += " or several"
    if field.kind in {int, float} and (field.least is not None or field.option.most is not None):
        bounds = bounds_in_words(
            is_whole=False, least=field.least, most=field.option.most, is_open=field.option.is_open
        )
        kind += f", {bounds.removeprefix('a number ').removeprefix('of ')}"
    if field.default is dataclasses.MISSING:
        return kind
    return (
        f"{kind}, optional" if field.default in {None, ()} else f"{kind}, default {field.default}"
    )
