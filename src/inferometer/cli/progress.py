"""How does a person see that a long measurement is alive, and when it will end?

On a terminal a bar with the time left; elsewhere a line per point. All of it on stderr.
"""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from inferometer.api.drawing import SafeConsole
from inferometer.api.progress import PartsDone, heard_by
from inferometer.cli.load_progress import shown_load
from inferometer.cli.terminal import STDERR, talk
from inferometer.measure.load.watch import LoadProgress
from inferometer.measure.time_left import OnProgress, Progress as SweepProgress


@contextmanager
def shown_progress() -> Generator[OnProgress]:
    """Draw what a sweep says about itself."""
    console = SafeConsole(file=STDERR)
    if not console.is_terminal:
        yield lambda progress: talk(f"{progress.n_done}/{progress.n_visits}  {_sentence(progress)}")
        return
    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda progress: bar.update(
            task,
            completed=progress.n_done,
            total=progress.n_visits,
            description=_sentence(progress),
        )


class TerminalListener:
    """Shows on stderr what is going on: sentences as lines, work that lasts as a bar or a status."""

    def __init__(self, *, as_json: bool) -> None:
        self._console = SafeConsole(file=STDERR)
        self._as_json = as_json
        self._began_s = time.monotonic()
        self._views = ExitStack()
        self._show: Callable[[Any], None] | None = None
        self._next_line_s = 0.0

    def __call__(self, event: object) -> None:
        """Show this."""
        if isinstance(event, str):
            self.close()
            talk(event)
            return
        if self._show is None:
            self._show = self._view_of(event)
        self._show(event)
        if isinstance(event, PartsDone) and event.n_done == event.n_parts:
            self.close()

    def close(self) -> None:
        """Take away what is drawn again and again."""
        self._views.close()
        self._show = None
        self._next_line_s = 0.0

    def _view_of(self, event: object) -> Callable[[Any], None]:
        if isinstance(event, LoadProgress):
            return self._views.enter_context(shown_load(as_json=self._as_json))
        if isinstance(event, SweepProgress):
            return self._views.enter_context(shown_progress())
        if not self._console.is_terminal:
            return self._print
        columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(
            TextColumn("{task.description}"), *columns, console=self._console, transient=True
        )
        task = self._views.enter_context(bar).add_task("", total=None)
        return lambda parts: bar.update(
            task, description=parts.what, completed=parts.n_done, total=parts.n_parts
        )

    def _print(self, parts: PartsDone) -> None:
        now_s = time.monotonic()
        if parts.n_done == 0:
            self._began_s = now_s
        if now_s < self._next_line_s:
            return
        self._next_line_s = now_s + _BETWEEN_LINES_S
        each_s = (now_s - self._began_s) / parts.n_done if parts.n_done else 0.0
        left_s = each_s * (parts.n_parts - parts.n_done)
        left = f", about {_rough(left_s)} left" if left_s else ""
        talk(f"{parts.n_done}/{parts.n_parts} {parts.what}{left}")


_BETWEEN_LINES_S: Final = 5.0
"""A log gets a line in this time, not one for each of twenty parts that last 0.2 s."""


@contextmanager
def heard(*, as_json: bool = False) -> Generator[None]:
    """What is going on is shown on stderr until the end of the block."""
    listener = TerminalListener(as_json=as_json)
    try:
        with heard_by(listener):
            yield
    finally:
        listener.close()


def _sentence(progress: SweepProgress) -> str:
    point = progress.point
    now = (
        f"prompt {point.prompt_tokens} x batch {point.batch_size}"
        if point is not None
        else "done"
        if progress.n_done == progress.n_visits
        else "the time is over"
    )
    left = f", {_rough(progress.left_s)} left" if progress.left_s else ""
    return now + left


def _rough(left_s: float) -> str:
    """An estimate of minutes has no milliseconds."""
    return f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
