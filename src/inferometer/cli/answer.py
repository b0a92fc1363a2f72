"""How does a verb give its answer: one frozen object, as text for people or as JSON for machines?

stdout carries the answer alone, stderr the talk. Keys of the JSON are the field names of the
answer's dataclass, so they carry their units; ``inferometer schema VERB`` prints the schema, and a
test holds it still.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast, get_args, get_origin

import click
import msgspec
from rich import padding, table, text
from rich.console import Group, RenderableType

from inferometer.api.answer import Answer, Lines, Paged, SafeConsole
from inferometer.api.progress import printable_json
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.progress import heard
from inferometer.cli.terminal import AS_CSV, REPORT, VERBOSE, talk, write_answer, write_drawn
from inferometer.cli.verbs import VERBS, Verb
from inferometer.errors import COMMAND
from inferometer.report.page import Page
from inferometer.report.terminal import page_text

A = TypeVar("A", bound=Answer)
Q = TypeVar("Q")
T = TypeVar("T")

_PIPE_COLUMNS: Final = 10_000


def plain_command(name: str) -> QuestionCommand:
    """The command of a plain verb: it answers its question, and the exit code is the answer's."""
    return _command(name, VERBS[name])


def _command(name: str, verb: Verb) -> QuestionCommand:
    function = _function(name, verb)

    def body(question: object, *, as_json: bool) -> None:
        give_answer(function, question, as_json=as_json, is_whole=verb.is_whole)

    body.__doc__ = verb.help
    grid = importlib.import_module(_STUDY).grid_of(name) if verb.takes_grid else None
    question = next(iter(inspect.get_annotations(function).values()))
    asked = asks(question, grid=grid, has_page=verb.has_page)(body)
    command: QuestionCommand = click.command(name, cls=VerbCommand, epilog=verb.examples)(asked)
    return command


def _function(name: str, verb: Verb) -> Callable[[Any], Any]:
    """The function that answers a plain verb, or its second half."""
    module, _, second = (verb.second_half or verb.module).partition(":")
    function: Callable[[Any], Any] = getattr(
        importlib.import_module(module), second or verb.function or name
    )
    return function


def answer_begun(name: str, made: object, *, as_json: bool) -> None:
    """Run the second half of a verb whose first half returned ``made``."""
    give_answer(_function(name, VERBS[name]), made, as_json=as_json)


class VerbCommand(QuestionCommand):
    """A plain verb's command; of servers, where some verbs have flags of their own, another one."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Parse the flags: those of servers, where the words address a server, else the verb's."""
        verb = VERBS[str(self.name)]
        if verb.of_servers and any(word.startswith(verb.servers_by) for word in args):
            other = of_servers(str(self.name))
            return QuestionCommand.make_context(other, info_name, args, parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def of_servers(name: str) -> QuestionCommand:
    """The command for a verb's question about servers."""
    verb = VERBS[name].of_servers
    if verb is None:
        raise ValueError(f"{name} asks the same of servers")
    return _command(name, verb)


_STUDY: Final = "inferometer.cli.study"


def answer_type(name: str) -> Any:
    """Type of the verb's answer: a dataclass, or a union of several."""
    verb = VERBS[name]
    if verb.help is None:
        return importlib.import_module(verb.module).ANSWER
    answer = inspect.get_annotations(_function(name, verb))["return"]
    origin: Any = get_origin(answer)
    if origin is Paged or origin is Lines:
        (answer,) = get_args(answer)
    return answer | importlib.import_module(_STUDY).ANSWER if verb.takes_grid else answer


def give_answer(
    by: Callable[[Q], A | Paged[A] | Lines[Any] | None],
    question: Q,
    *,
    as_json: bool,
    is_whole: bool = False,
) -> None:
    """Answer the question ``by`` this function, print its pages (``is_whole``: all of them) or JSON.

    Where the answer has an exit code of its own, the command ends here with it. None answers a dry
    run, printed whole.
    """
    with heard(prints=not as_json):
        made = by(question)
    if isinstance(made, Lines):
        give(made.answer, as_json=as_json, show=lambda _: made.text)
    if made is None or isinstance(made, Lines):
        return
    answer, pages, then = made if isinstance(made, Paged) else (made, None, None)

    def show(one: A) -> RenderableType | tuple[Page, ...]:
        if pages is None and not one.has_pages:
            return one.drawn()
        shown = one.pages() if pages is None else pages
        return _text_of(shown, is_verbose=True) if is_whole else shown

    give(answer, as_json=as_json, show=show)
    if then is not None:
        with heard():
            then()
    if answer.exit_code:
        sys.exit(answer.exit_code)


def give(
    answer: T, *, as_json: bool, show: Callable[[T], RenderableType | Page | tuple[Page, ...]]
) -> None:
    """Print the answer to stdout: as JSON, its main table as CSV, or as ``show`` draws it.

    With ``--report`` its page is written, too.
    """
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(REPORT) is not None:
        cast("Answer", answer).report(context.meta[REPORT])
        talk(f"REPORT {context.meta[REPORT]}")
    if context is not None and context.meta.get(AS_CSV):
        write_answer(cast("Answer", answer).to_csv().removesuffix("\n"))
        return
    if as_json:
        write_answer(
            printable_json(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        )
        return
    shown = show(answer)
    if isinstance(shown, str):
        write_answer(shown)
        return
    if isinstance(shown, Page):
        shown = (shown,)
    if shown == ():
        return
    if isinstance(shown, tuple):
        is_verbose = context is not None and bool(context.meta.get(VERBOSE))
        shown = _text_of(shown, is_verbose=is_verbose)
    write_drawn(drawn(shown))


def _text_of(pages: tuple[Page, ...], *, is_verbose: bool) -> RenderableType:
    return Group(*(page_text(page, is_verbose=is_verbose) for page in pages))


def drawn(shown: RenderableType) -> str:
    """``shown`` as text: at the terminal's width, or unwrapped in a pipe or a file.

    Programs and people who paste read pipes: nothing is wrapped there unless ``COLUMNS`` asks for
    it, and no line ends in blanks.
    """
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal or "COLUMNS" in os.environ else _PIPE_COLUMNS
    console = SafeConsole(width=width)
    with console.capture() as captured:
        console.print(whole_words(shown), crop=False)
    lines = captured.get().removesuffix("\n").split("\n")
    return "\n".join(lines if is_terminal else [line.rstrip() for line in lines])


def whole_words(shown: RenderableType) -> RenderableType:
    """The same with nothing cut or broken that is made to be copied.

    Tables fold what is longer than its column, where rich would cut ids and paths. A text that
    holds a command is left to the terminal to wrap, where rich would put newlines into the command.
    """
    if isinstance(shown, Group):
        for part in shown.renderables:
            whole_words(part)
    elif isinstance(shown, padding.Padding):
        whole_words(shown.renderable)
    elif isinstance(shown, table.Table):
        for column in shown.columns:
            column.overflow = "fold"
    elif isinstance(shown, text.Text) and COMMAND in shown.plain:
        shown.no_wrap, shown.overflow = True, "ignore"
    return shown


def json_schema(answer_type: Any) -> dict[str, Any]:
    """JSON schema of a verb's answer."""
    kinds = get_args(answer_type)
    if not kinds:
        return msgspec.json.schema(answer_type)
    schemas, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    return {"anyOf": list(schemas), "$defs": definitions}
