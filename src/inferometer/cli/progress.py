"""How does a person see that a long measurement is alive, and when it will end?

On a terminal a bar with the time left; elsewhere a line per point. All of it on stderr.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from inferometer.api.progress import Event, PartsDone, heard_by
from inferometer.cli.drawing import SafeConsole
from inferometer.cli.terminal import STDERR, talk
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
    """Shows on stderr what is going on: sentences as lines, parts of the work as a bar."""

    def __init__(self) -> None:
        self._console = SafeConsole(file=STDERR)
        self._began_s = time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __call__(self, event: Event) -> None:
        """Show this."""
        if isinstance(event, str):
            talk(event)
        elif self._console.is_terminal:
            self._draw(event)
        else:
            self._print(event)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, parts: PartsDone) -> None:
        if parts.n_done == 0:
            self._began_s = time.monotonic()
        each_s = (time.monotonic() - self._began_s) / parts.n_done if parts.n_done else 0.0
        left_s = each_s * (parts.n_parts - parts.n_done)
        left = f", about {_rough(left_s)} left" if left_s else ""
        talk(f"{parts.n_done}/{parts.n_parts} {parts.what}{left}")

    def _draw(self, parts: PartsDone) -> None:
        if self._bar is None or self._task is None:
            self._bar = Progress(
                TextColumn(parts.what),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=None)
        self._bar.update(self._task, completed=parts.n_done, total=parts.n_parts)
        if parts.n_done == parts.n_parts:
            self.close()


@contextmanager
def heard() -> Generator[None]:
    """What is going on is shown on stderr until the end of the block."""
    listener = TerminalListener()
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
