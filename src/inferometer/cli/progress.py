"""How does a person see that a measurement or a load test is alive, and when it will end?

On a terminal a bar with the time left, for a load test with its latencies so far; elsewhere a
line now and then; with --json a JSON object a line. All of it on stderr.
"""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import msgspec
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from inferometer.api.answer import SafeConsole
from inferometer.api.progress import (
    AnswerLine,
    PartsDone,
    Screen,
    heard_by,
    printable_json,
)
from inferometer.cli.terminal import STDERR, talk, write_answer
from inferometer.measure.load import watch
from inferometer.measure.time_left import OnProgress, Progress as SweepProgress
from inferometer.units import format_duration, format_number

_EVERY_S: Final = 5.0
_JSON_EVERY_S: Final = 1.0


@contextmanager
def shown_load(*, as_json: bool) -> Generator[watch.OnProgress]:
    """Show the progress of a load test."""
    console = SafeConsole(file=STDERR)
    if as_json:
        yield _now_and_then(
            _JSON_EVERY_S,
            lambda progress: talk(printable_json(msgspec.json.encode(progress).decode())),
        )
    elif not console.is_terminal:
        yield _now_and_then(_EVERY_S, lambda progress: talk(sentence(progress)))
    else:
        columns = (
            TextColumn("{task.completed}/{task.total}"),
            BarColumn(bar_width=14),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda progress: bar.update(
                task,
                completed=progress.n_good + progress.n_failed,
                total=progress.n_planned,
                description=so_far(progress),
            )


def so_far(progress: watch.LoadProgress) -> str:
    """Text after the bar: latencies, failures, time left; fits 80 columns."""
    parts = [f"{progress.n_in_flight:,} in flight"]
    for name, p50_s, p95_s in (
        ("TTFT", progress.first_bytes_s, progress.first_bytes_p95_s),
        ("TPOT", progress.read_gap_s, progress.read_gap_p95_s),
    ):
        if p50_s is not None and p95_s is not None:
            parts.append(f"{name} {format_duration(p50_s)}, p95 {format_duration(p95_s)}")
    parts += [f"{progress.n_failed:,} failed"] if progress.n_failed else []
    left_s = _left_s(progress)
    parts += [] if left_s is None else [f"{left_s:.0f} s left"]
    return " · ".join(parts)


def _left_s(progress: watch.LoadProgress) -> float | None:
    """Until all is sent, at the rate of the last seconds."""
    if progress.sent_per_s <= 0:
        return None
    return (progress.n_planned - progress.n_sent) / progress.sent_per_s


def sentence(progress: watch.LoadProgress) -> str:
    """Progress of the load test in one line."""
    parts = [
        f"{progress.elapsed_s:.0f} s",
        (
            f"{progress.n_sent:,} of {progress.n_planned:,} sent"
            f" ({format_number(progress.sent_per_s)}/s)"
        ),
        f"{progress.n_in_flight:,} in flight",
    ]
    if progress.first_bytes_s is not None:
        parts.append(f"first bytes {_both(progress.first_bytes_s, progress.first_bytes_p95_s)}")
    if progress.read_gap_s is not None:
        parts.append(f"then every {_both(progress.read_gap_s, progress.read_gap_p95_s)}")
    parts.append(f"client late by {format_duration(progress.worst_lag_s)} at most")
    if progress.n_failed:
        parts.append(
            f"{progress.n_failed:,} failed:"
            f" {', '.join(f'{code} {count:,}' for code, count in progress.errors[:3])}"
        )
    return " · ".join(parts)


def _both(p50_s: float, p95_s: float | None) -> str:
    """``120 ms, p95 340 ms``"""
    return format_duration(p50_s) + ("" if p95_s is None else f", p95 {format_duration(p95_s)}")


def _now_and_then(every_s: float, say: watch.OnProgress) -> watch.OnProgress:
    last_s = [time.monotonic() - every_s]

    def on_progress(progress: watch.LoadProgress) -> None:
        now_s = time.monotonic()
        if now_s - last_s[0] >= every_s:
            last_s[0] = now_s
            say(progress)

    return on_progress


@contextmanager
def shown_progress() -> Generator[OnProgress]:
    """Show the progress of a sweep."""
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
    """Shows progress on stderr: sentences as lines, long work as a bar or a status."""

    def __init__(self, *, as_json: bool, prints: bool) -> None:
        self._console = SafeConsole(file=STDERR)
        self._as_json = as_json
        self._prints = prints
        self._live: Live | None = None
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
        if isinstance(event, AnswerLine):
            self._line(event.text)
            return
        if isinstance(event, Screen):
            self._draw(event)
            return
        if self._show is None:
            self._show = self._view_of(event)
        self._show(event)
        if isinstance(event, PartsDone) and event.n_done == event.n_parts:
            self.close()

    def close(self) -> None:
        """Erase the lines that are redrawn."""
        self._views.close()
        self._show = self._live = None
        self._next_line_s = 0.0

    def _line(self, text: str) -> None:
        """A part of the answer: on stdout, where no screen shows it."""
        if not self._prints:
            talk(text)
        elif not sys.stdout.isatty():
            write_answer(text)
            sys.stdout.flush()

    def _draw(self, screen: Screen) -> None:
        if not self._prints or not sys.stdout.isatty():
            return
        if self._live is None:
            live = Live(console=SafeConsole(), auto_refresh=False)
            self._live = self._views.enter_context(live)
        self._live.update(screen.drawn(), refresh=True)

    def _view_of(self, event: object) -> Callable[[Any], None]:
        if isinstance(event, watch.LoadProgress):
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
        """Print a line at intervals, not for every part."""
        now_s = time.monotonic()
        if parts.n_done <= 1:
            self._began_s = now_s
        if now_s < self._next_line_s:
            return
        self._next_line_s = now_s + _BETWEEN_LINES_S
        each_s = (now_s - self._began_s) / max(parts.n_done - 1, 1)
        left_s = each_s * (parts.n_parts - parts.n_done)
        left = f", about {_rough(left_s)} left" if left_s else ""
        talk(f"{parts.n_done}/{parts.n_parts} {parts.what}{left}")


_BETWEEN_LINES_S: Final = 5.0
"""A log gets a line in this time, not one for each of twenty parts that last 0.2 s."""


@contextmanager
def heard(*, as_json: bool = False, prints: bool = False) -> Generator[None]:
    """Show progress on stderr until the end of the block.

    With ``prints`` parts of the answer that are known before it is whole are printed to stdout.
    """
    listener = TerminalListener(as_json=as_json, prints=prints)
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
    """Time left in whole seconds or minutes."""
    return f"{left_s:.0f} s" if left_s < 120 else f"{left_s / 60:.0f} min"
