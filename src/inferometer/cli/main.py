"""How is a verb called, and what happens when one fails?

A verb's module is imported when the verb is called, so that ``inferometer --help`` stays fast: the
table of verbs is the one late import of our own code.
"""

import difflib
import errno
import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

import click

from inferometer import __version__, suggestions
from inferometer.cli.flags import QuestionCommand, as_spec_error, asks, check_numbers
from inferometer.cli.terminal import show_crash, talk, write_answer
from inferometer.cli.verbs import VERBS, Verb
from inferometer.errors import (
    InferometerError,
    MeasureError,
    RecordError,
    SpecError,
    StoppedError,
)
from inferometer.simulate import hooks

_MEANT: Final = {
    **dict.fromkeys(("bench", "benchmark", "stress", "loadtest", "perf"), "load"),
    **dict.fromkeys(("run", "measure", "test", "demo", "start"), "quick"),
    **dict.fromkeys(("plan", "recommend", "cost", "price", "gpus"), "size"),
    **dict.fromkeys(("estimate", "calc", "calculate", "roofline", "memory", "vram"), "predict"),
    **dict.fromkeys(("sim", "replay"), "simulate"),
    **dict.fromkeys(("serve", "mock", "server"), "emulate"),
    **dict.fromkeys(("profile", "analyze", "analyse", "why"), "explain"),
    **dict.fromkeys(("optimize", "optimise", "autotune"), "tune"),
    **dict.fromkeys(("monitor", "top", "live"), "watch"),
    **dict.fromkeys(("diff", "ab"), "compare"),
    **dict.fromkeys(("accuracy", "eval", "perplexity"), "quality"),
    **dict.fromkeys(("models", "hardware", "devices", "list"), "catalog"),
    **dict.fromkeys(("workload", "workloads", "trace", "traces", "slos"), "catalog"),
    **dict.fromkeys(("view", "print", "summary", "open"), "show"),
    **dict.fromkeys(("convert", "read"), "import"),
    **dict.fromkeys(("ui", "dashboard", "playground"), "explore"),
    **dict.fromkeys(("html", "plot"), "report"),
    **dict.fromkeys(("check", "env", "info"), "doctor"),
    "install": "engines",
}
"""Names of verbs in other tools."""


class VerbTable(click.Group):
    """A click group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs in the order in which a newcomer needs them."""
        del ctx
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a plain verb; of another import its module, which has ``command``."""
        del ctx
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        if verb.help is None:
            command = importlib.import_module(verb.module).command
        elif verb.second_half is not None:
            command = begun_by(cmd_name, verb)
        else:
            command = importlib.import_module("inferometer.cli.answer").plain_command(cmd_name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{verb.module}.command is no click command")
        check_numbers(command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """``help VERB``, as git and docker have it, is ``VERB --help``."""
        is_help = args[:1] == ["help"]
        return super().parse_args(ctx, [*args[1:2], "--help"] if is_help else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb's command; of an unknown one, which verbs are close."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            meant = _MEANT.get(args[0].lower())
            close = [meant] if meant else difflib.get_close_matches(args[0], VERBS, n=2)
            try_ = (
                " or ".join(suggestions.command(verb, "--help") for verb in close)
                or "inferometer --help"
            )
            raise SpecError(
                f"{args[0]!r} is no verb", where="inferometer", allowed=", ".join(VERBS), try_=try_
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the verb, then its second half if the first returned something."""
        begun = super().invoke(ctx)
        name = ctx.invoked_subcommand or ""
        if begun is not None and name in VERBS and VERBS[name].second_half is not None:
            answering = importlib.import_module("inferometer.cli.answer")
            answering.answer_begun(name, begun.made, as_json=begun.as_json)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none of them."""
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.answers) for name, verb in VERBS.items()])


class Begun(NamedTuple):
    """Result of a verb's first half, and how to print the answer."""

    made: object
    as_json: bool


def begun_by(name: str, verb: Verb) -> click.Command:
    """The command of a verb whose start must be fast: it returns the second half's input.

    What answers is not imported here: a missing engine is reported, and the first request of a load
    test is sent, without waiting for it.
    """
    function = getattr(importlib.import_module(verb.module), verb.function)

    def body(question: object, *, as_json: bool) -> Begun | None:
        shown: Any = nullcontext()
        if verb.shows_first_half:
            shown = importlib.import_module("inferometer.cli.progress").heard(as_json=as_json)
        with shown:
            made = function(question)
        return None if made is None else Begun(made, as_json)

    body.__doc__ = verb.help
    flagged = asks(next(iter(inspect.get_annotations(function).values())))(body)
    command: click.Command = click.command(name, cls=QuestionCommand, epilog=verb.examples)(flagged)
    return command


_COMPLETE: Final = "_INFEROMETER_COMPLETE"
"""A shell sets it to ``bash_complete`` where it wants candidates; click has its name."""
_COMPLETION: Final = "inferometer.cli.completion"
_STORING: Final = frozenset({"load", "quick", "sweep", "verify", "compare", "tune", "quality"})
"""Verbs that write what they measure as they go."""
_SHOWN: Final = 160
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_FIRST_STEPS: Final = """\b
First steps:
  inferometer doctor
  inferometer quick smollm2-135m --load-format dummy
  inferometer predict llama-3.1-8b --hardware h100_sxm --batch 32 --prompt 1024 --output 256

Exit codes: 0 answered, 2 bad question, 3 measurement failed, 4 record, 5 model, 6 decision, 10 SLO missed,
11 undecided.
"""


@click.command(
    cls=VerbTable,
    epilog=_FIRST_STEPS,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "terminal_width": None if sys.stdout is not None and sys.stdout.isatty() else 100,
    },
)
@click.version_option(__version__, prog_name="inferometer")
@click.help_option("--help-all", hidden=True)
def app() -> None:
    """The instrument for LLM serving performance: measure, explain, predict, verify."""


# SIGTERM and SIGHUP end a verb in the same order as Ctrl-C (SIGINT): what was measured is stored
# and summarised, and the exit code is 128 and the signal's number, as shells have it.


_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)


class Ending:
    """Signal that ended the command."""

    def __init__(self) -> None:
        self._signal_number: int = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP."""
        return 128 + self._signal_number

    def take(self, signal_number: int, _: FrameType | None) -> None:
        """Python calls this for the signal, in the main thread."""
        self._signal_number = signal_number
        raise KeyboardInterrupt


@contextmanager
def orderly_ends() -> Generator[Ending]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt within, unless ignored as by ``nohup``."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread():
        yield ending
        return
    before = {number: signal.getsignal(number) for number in _ENDING}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, ending.take)
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _open_stdout() -> Generator[None]:
    """Replace a closed stdout (``>&-``) by one that discards its output."""
    if sys.stdout:
        yield
        return
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        yield


def main() -> None:
    """Run the command line; each kind of error has its own exit code."""
    sys.excepthook = show_crash
    hooks.listen(talk)
    with _open_stdout(), orderly_ends() as ending:
        wanted = os.environ.get(_COMPLETE, "")
        if not wanted or not importlib.import_module(_COMPLETION).answered(app, wanted):
            _run(ending)


def _run(ending: Ending) -> None:
    try:
        try:
            app(standalone_mode=False)
        finally:
            sys.stdout.flush()  # here a full disk can still be reported; at the interpreter's end it cannot
    except StoppedError as error:
        _say(error)
        sys.exit(ending.exit_code)
    except InferometerError as error:
        _say(error)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        write_answer(error.format_message())
        sys.exit(0)
    except click.ClickException as error:
        _say(as_spec_error(error))
        sys.exit(SpecError.exit_code)
    except (click.Abort, KeyboardInterrupt):
        is_stored = not _STORING.isdisjoint(sys.argv[1:2])
        stored = "stopped; what was measured is stored, and the same command goes on:\n  "
        talk(stored + suggestions.command(*sys.argv[1:]) if is_stored else "stopped")
        sys.exit(ending.exit_code)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except MemoryError as error:
        _say(
            SpecError(
                f"there is too little memory: {error}",
                where="the command",
                try_="fewer requests, replicas or KV blocks",
            )
        )
        sys.exit(SpecError.exit_code)
    except OSError as error:
        _end_of_the_system(error)


def _end_of_the_system(error: OSError) -> NoReturn:
    """A path that cannot be, a disk that is full, or no open files left."""
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        _say(
            MeasureError(
                f"{error.strerror}",
                where="the limit of this process",
                try_="ulimit -n 65536, then the same command",
            )
        )
        sys.exit(MeasureError.exit_code)
    if error.filename is not None:
        _say(
            SpecError(f"{error.strerror}", where=str(error.filename)[:_SHOWN], try_="another path")
        )
        sys.exit(SpecError.exit_code)
    if error.errno not in _FULL:
        raise error
    _close_stdout()
    _say(
        RecordError(
            f"the answer cannot be written: {error.strerror}",
            where="standard output",
            try_="another file or disk",
        )
    )
    sys.exit(RecordError.exit_code)


def _close_stdout() -> None:
    """Close stdout, so that the interpreter does not write to it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(error: InferometerError) -> None:
    talk(f"inferometer: {error}")
