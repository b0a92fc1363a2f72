"""How does a person see how a load test is doing while it runs?

On a terminal a bar with the latencies so far and the time left, in one line; elsewhere a line
every few seconds; with --json a JSON
object a line. All of it on stderr.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec
from rich.progress import BarColumn, Progress, TextColumn

from inferometer.api.drawing import SafeConsole
from inferometer.api.printable import printable_json
from inferometer.cli.terminal import STDERR, talk
from inferometer.measure.load.watch import LoadProgress, OnProgress
from inferometer.units import format_duration, format_number

_EVERY_S: Final = 5.0
_JSON_EVERY_S: Final = 1.0


@contextmanager
def shown_load(*, as_json: bool) -> Generator[OnProgress]:
    """Show what a load test says of itself."""
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


def so_far(progress: LoadProgress) -> str:
    """Beside the bar: latencies so far, failures, time left; short enough for 80 columns."""
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


def _left_s(progress: LoadProgress) -> float | None:
    """Until all is sent, at the rate of the last seconds."""
    if progress.sent_per_s <= 0:
        return None
    return (progress.n_planned - progress.n_sent) / progress.sent_per_s


def sentence(progress: LoadProgress) -> str:
    """Where it stands, in a line."""
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


def _now_and_then(every_s: float, say: OnProgress) -> OnProgress:
    last_s = [time.monotonic() - every_s]

    def on_progress(progress: LoadProgress) -> None:
        now_s = time.monotonic()
        if now_s - last_s[0] >= every_s:
            last_s[0] = now_s
            say(progress)

    return on_progress
