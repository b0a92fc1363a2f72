"""How does a person see how a load test is doing while it runs?

On a terminal one line that is drawn again; elsewhere a line every few seconds; with --json a JSON
object a line. All of it on stderr.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec
from rich.status import Status
from rich.text import Text

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
        with Status("starting", console=console) as status:
            yield lambda progress: status.update(Text(sentence(progress)))


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
        parts.append(f"first bytes {format_duration(progress.first_bytes_s)}")
    if progress.read_gap_s is not None:
        parts.append(f"then every {format_duration(progress.read_gap_s)}")
    parts.append(f"client late by {format_duration(progress.worst_lag_s)} at most")
    if progress.n_failed:
        parts.append(
            f"{progress.n_failed:,} failed:"
            f" {', '.join(f'{code} {count:,}' for code, count in progress.errors[:3])}"
        )
    return " · ".join(parts)


def _now_and_then(every_s: float, say: OnProgress) -> OnProgress:
    last_s = [time.monotonic() - every_s]

    def on_progress(progress: LoadProgress) -> None:
        now_s = time.monotonic()
        if now_s - last_s[0] >= every_s:
            last_s[0] = now_s
            say(progress)

    return on_progress
