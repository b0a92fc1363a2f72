"""How are the texts of AIPerf's ``multi_turn`` and ``single_turn`` files read as requests?

A line of ``multi_turn`` is a session: each of its ``turns`` holds only what it adds, and AIPerf
sends it with the whole conversation before, the server's own answers included, ``delay`` ms after
the last of them. A leading turn of the system's is no request: it begins every prompt. A line of
``single_turn`` is a turn by itself. Answers are as long as ``output_length`` allows, or as
``output_tokens`` of the workload; the files hold none. Checked against the loaders of AIPerf 0.14
(``aiperf/dataset/loader/multi_turn.py``, ``single_turn.py``); its Mooncake lines with sessions are
read by ``trace_formats.mooncake_rows``.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from inferometer.inputs.workload.trace_formats import (
    Count,
    TraceRow,
    broken,
    check_instants,
    decoded,
    delay_ns,
    estimated_tokens,
    items,
    ns_from_trace,
)

_NS_PER_MS: Final = 1_000_000


class AiperfTurn(msgspec.Struct, frozen=True):
    """A turn, or a line of ``single_turn``; other keys are ignored."""

    text: str | None = None
    texts: tuple[str | dict[str, object], ...] = ()
    role: str | None = None
    timestamp: float | None = None
    """Milliseconds."""
    delay: float | None = None
    """Milliseconds."""
    output_length: Count | None = None

    @property
    def added_tokens(self) -> int:
        """Estimated tokens of what it adds to the conversation."""
        named = (one if isinstance(one, str) else _contents(one) for one in self.texts)
        return estimated_tokens(self.text if self.text is not None else "\n".join(named))


class AiperfLine(AiperfTurn, frozen=True):
    """A line of either file."""

    session_id: str | None = None
    turns: tuple[AiperfTurn, ...] = ()


def aiperf_rows(path: Path, *, output_tokens: int | None) -> Iterator[TraceRow]:
    """Requests of the sessions, each session's together, in the order of their first lines.

    ``output_tokens`` is used for turns without an ``output_length``. Lines of one ``session_id`` are
    one session; those of ``single_turn`` hold their whole prompts.

    Raises
    ------
    SpecError
        A line is malformed or has no text, or the length of its answer is unknown.
    """
    sessions: dict[str | int, list[TraceRow]] = {}
    system_tokens = dict[str | int, int]()
    for index, (number, raw) in enumerate(items(path)):
        line = decoded(raw, AiperfLine, path, number)
        key = index if line.session_id is None else line.session_id
        rows = sessions.setdefault(key, [])
        for place, turn in enumerate(line.turns or (line,)):
            if line.turns and turn.role == "system" and not place and not rows:
                system_tokens[key] = turn.added_tokens
                continue
            row = _row(turn, rows[-1] if rows else None, path, number, output_tokens)
            row = row._replace(session=rows[-1].session if rows else index)
            if line.turns:
                n_before = rows[-1].prompt_tokens + rows[-1].output_tokens if rows else 0
                own = row.prompt_tokens + (n_before or system_tokens.get(key, 0))
                row = row._replace(prompt_tokens=own, repeats=bool(rows))
            rows.append(row)
    found = [rows for rows in sessions.values() if rows]
    check_instants((rows[0] for rows in found), path)
    yield from chain.from_iterable(found)


def _row(
    turn: AiperfTurn, last: TraceRow | None, path: Path, number: int, output_tokens: int | None
) -> TraceRow:
    """The request of a turn, with the tokens of its own text."""
    if turn.text is None and not turn.texts:
        broken(path, number, "a turn without text")
    output = output_tokens if turn.output_length is None else turn.output_length
    if output is None:
        what = "no output_length, so the answer's length is unknown"
        broken(path, number, what, try_="--output-tokens 256")
    instant = turn.timestamp
    row = TraceRow(
        number,
        None if instant is None else ns_from_trace(instant, _NS_PER_MS, path, number),
        turn.added_tokens,
        output,
        prompt_is_estimate=True,
        max_tokens=output,
        output_is_estimate=True,
    )
    if last is None:
        return row
    think_ns = delay_ns(turn.delay, instant, path, number)
    return row._replace(arrival_ns=last.arrival_ns, think_ns=think_ns)


def _contents(named: dict[str, object]) -> str:
    """The texts of an object with a name and contents."""
    contents = named.get("contents")
    return "\n".join(map(str, contents)) if isinstance(contents, list) else ""
