"""inferometer watch: in which regime are these servers now, and what changed?"""

import sys
from contextlib import ExitStack

import click
from rich.console import Group, RenderableType
from rich.live import Live

from inferometer.api import watch, watch_page, watch_state
from inferometer.api.drawing import SafeConsole
from inferometer.api.progress import heard_by
from inferometer.cli.answer import give
from inferometer.cli.flags import QuestionCommand, asks
from inferometer.cli.terminal import talk, write_answer
from inferometer.errors import EXIT_OF_SLO
from inferometer.report.terminal import page_text

ANSWER = watch_state.WatchAnswer


@click.command(
    "watch",
    cls=QuestionCommand,
    epilog="""\b
Examples (a server must listen there):
  inferometer watch http://127.0.0.1:8000 --slo 'ttft:p95<500ms, tpot:p95<50ms' --for 5s
  inferometer watch http://127.0.0.1:8000 --once --window 3s --json
""",
)
@asks(watch.Watch)
def command(question: watch.Watch, *, as_json: bool) -> None:
    """In which regime are these servers now, how long will the SLO be met, and what changed?

    Their metrics are read once a second, and nothing is sent to them. On a terminal the state is
    drawn again and again; elsewhere one line is printed for each change of regime: idle,
    overloaded, KV cache or batch full, preempting, restarted, unreachable, slower or faster than
    it was at this load, prefix cache hits lost, fewer drafted tokens accepted.
    """
    is_quiet = as_json or question.once
    with ExitStack() as stack:
        listener = _Listener(stack, is_quiet=is_quiet)
        with heard_by(listener):
            answer = watch.watch(question)
    if is_quiet:
        give(answer, as_json=as_json, show=watch_page.watch_pages)
    sys.exit(EXIT_OF_SLO[answer.slo_verdict])


class _Listener:
    """Draws the state on a terminal; elsewhere prints each change."""

    def __init__(self, stack: ExitStack, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._changes: list[watch_state.RegimeChange] = []
        self._live: Live | None = None
        if sys.stdout.isatty() and not is_quiet:
            self._live = stack.enter_context(Live(console=SafeConsole(), auto_refresh=False))

    def __call__(self, event: object) -> None:
        """Show this."""
        if isinstance(event, watch_state.RegimeChange):
            self._changes.append(event)
            if self._is_quiet:
                talk(event.text)
            elif self._live is None:
                write_answer(event.text)
                sys.stdout.flush()
        elif isinstance(event, watch.Screen):
            if self._live is not None:
                self._live.update(self._drawn(event), refresh=True)
        else:
            talk(str(event))

    def _drawn(self, screen: watch.Screen) -> RenderableType:
        pages = (
            watch_page.server_page(
                one, tuple(change for change in self._changes if change.url == one.url)
            )
            for one in screen.read()
        )
        return Group(*(page_text(page) for page in pages))
