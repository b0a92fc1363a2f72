"""How does a person see that a long measurement is alive, and when it will end?

On a terminal a bar with the time left; elsewhere a line per point. All of it on stderr.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from inferometer.cli.drawing import SafeConsole
from inferometer.cli.terminal import STDERR, talk
from inferometer.measure.executors.parts import OnDone
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


@contextmanager
def shown_parts(what: str) -> Generator[OnDone]:
    """Draw how many parts of some work are done, and how long the others take."""
    console, began_s = SafeConsole(file=STDERR), time.monotonic()

    def print_line(n_done: int, n_parts: int) -> None:
        left_s = (time.monotonic() - began_s) / n_done * (n_parts - n_done) if n_done else 0.0
        talk(f"{n_done}/{n_parts} {what}" + (f", about {_rough(left_s)} left" if left_s else ""))

    if not console.is_terminal:
        yield print_line
        return
    with Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda n_done, n_parts: bar.update(task, completed=n_done, total=n_parts)


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
