"""Reader of the requests in trace files.

Of AIPerf's files a line of ``multi_turn`` is a session: each of its ``turns`` holds only what it
adds, and AIPerf sends it with the whole conversation before, the server's own answers included,
``delay`` ms after the last of them. A leading turn of the system's is no request: it begins every
prompt. A line of ``single_turn`` is a turn by itself. Answers are as long as ``output_length``
allows, or as ``output_tokens`` of the workload; the files hold none. Checked against the loaders of
AIPerf 0.14 (``aiperf/dataset/loader/multi_turn.py``, ``single_turn.py``); its Mooncake lines with
sessions are read by ``trace_formats.mooncake_rows``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.spans import is_spans_file
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import text_formats, trace_formats
from inferometer.inputs.workload.own_trace import read_own_trace, table_heading, table_rows
from inferometer.inputs.workload.plan import (
    I64,
    NONE,
    DrawnWorkload,
    RequestPlan,
    request_plan,
)
from inferometer.inputs.workload.trace_formats import (
    DOOR,
    OWN_FORMAT,
    Count,
    Spoken,
    TraceRow,
    broken,
    check_instants,
    decoded,
    delay_ns,
    estimated_tokens,
    items,
    ns_from_trace,
)
from inferometer.inputs.workload.types import TraceFormat, TraceSource
from inferometer.units import NS_PER_S, format_duration, format_request_rate

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


_FEWEST_FOR_A_GAP: Final = 20
_COARSE_S: Final = 0.1
"""Times were rounded if several requests share each of them and the next is at least this
much later."""

_LEAST_GAP, _MOST_GAP = 2, 1000
"""Mean distance of whole numbers as instants: below the first they are seconds (in milliseconds more
than 500 requests/s), from the second on milliseconds (in seconds less than 4 requests an hour)."""
_BURST_GPT: Final = "Request tokens"

_OWN_COLUMN: Final = b"arrival_ns"
"""Column in the first line of our files without a header: a CSV's names, or a JSON line."""
_OWN_TABLE: Final = (
    "a first line arrival_s,prompt_tokens,output_tokens and one line a request (CSV)"
)
_FORMATS: Final = (
    "azure, mooncake, llmservingsim, sharegpt, openai-batch, prompts, aiperf, otel, inferometer,"
    " table"
)
_KEYS: Final[tuple[tuple[str, TraceFormat], ...]] = (
    ("input_length", "mooncake"),
    ("text_input", "mooncake"),
    ("input_toks", "llmservingsim"),
    ("sub_requests", "llmservingsim"),
    ("custom_id", "openai-batch"),
    ("conversations", "sharegpt"),
    ("conversation", "sharegpt"),
    ("messages", "sharegpt"),
    ("prompt", "prompts"),
    ("question", "prompts"),
    ("turns", "prompts"),
    ("resourceSpans", "otel"),
)
_TEXTS_ONLY: Final = ("text", "texts")
"""Keys of AIPerf's single turns; a table of counts may have such a column too."""
_NAME: Final = re.compile(rb'"(\w+)"\s*:')
_OBJECT_TURNS: Final = re.compile(rb'"turns"\s*:\s*\[\s*\{')
"""AIPerf's turns are objects, MT-Bench's are texts."""
_LIST_BYTES: Final = 4096
"""Bytes of a JSON list's start that show its format."""
_WALL_CLOCK: Final[tuple[TraceFormat, ...]] = ("azure", "otel", "table")
_A_YEAR_NS: Final = 365 * 86_400 * NS_PER_S
WITH_TEXTS: Final[tuple[TraceFormat, ...]] = ("sharegpt", "openai-batch", "prompts")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTrace:
    """Contents of a trace file.

    Without ``has_instants`` all first requests are at 0: the workload must set arrivals.
    """

    format: TraceFormat
    workload: DrawnWorkload
    has_instants: bool


class PrefixTree:
    """Finds the earlier request with the longest common prefix; requests are added in order."""

    __slots__ = ("_children", "_owner")

    def __init__(self) -> None:
        self._children: dict[tuple[int, int], int] = {}
        self._owner: list[int] = []

    def longest(self, request: int, block_ids: Iterable[int]) -> tuple[int, int]:
        """The first request with the longest known prefix of these blocks, and the prefix length.

        The rest is stored as this request's.

        Ids are compared together with all before them, so ids of a block's own content alone also
        work.
        """
        node, owner, n_shared = NONE, NONE, 0
        for block_id in block_ids:
            child = self._children.setdefault((node, block_id), len(self._owner))
            if child == len(self._owner):
                self._owner.append(request)
            else:
                owner, n_shared = self._owner[child], n_shared + 1
            node = child
        return owner, n_shared


def detect_format(path: Path) -> TraceFormat:
    """Format of the file, by its beginning.

    Raises
    ------
    SpecError
        The format is unknown.
    """
    found = known_format(path)
    if found is not None:
        return found
    number, first = next(DOOR.lines_of(path), (0, b""))
    if not first:
        raise SpecError(
            "the trace is empty", where=str(path), allowed=_FORMATS, try_="--workload chat"
        )
    if first.startswith(b"{"):
        decoded(first, dict[str, msgspec.Raw], path, number)
    raise SpecError(
        "the trace's format is not known",
        where=str(path),
        allowed=_FORMATS,
        try_=f'{_OWN_TABLE}; of texts a line {{"prompt": "..."}} each, and --output-tokens N',
    )


def known_format(path: Path) -> TraceFormat | None:
    """Format of the file, by its beginning; None where it is unknown.

    Raises
    ------
    SpecError
        The file cannot be read.
    """
    start = DOOR.start_of(path)
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        DOOR.text(start, where=str(path))  # refuses UTF-16, as what tables of Windows may be in
    first = start.partition(b"\n")[0]
    if start.startswith(b"PAR1") or OWN_FORMAT.encode() in first[:200]:
        return "inferometer"
    if _OWN_COLUMN in first:
        return "table" if _is_of_others(first.strip()) else "inferometer"
    if start.lower().startswith(b"timestamp,contexttokens,generatedtokens"):
        return "azure"
    if start.startswith(b"["):
        return _format_of_list(path)
    line = next(DOOR.lines_of(path), (0, b""))[1]
    try:
        keys = DOOR.json(line, dict[str, msgspec.Raw], where=str(path))
    except SpecError:
        keys = {}
    known: TraceFormat | None = next((name for key, name in _KEYS if key in keys), None)
    known = "otel" if is_spans_file(path) else known  # Jaeger's too, and exports on several lines
    if known is not None:
        return "aiperf" if known == "prompts" and _OBJECT_TURNS.search(line) else known
    has_texts = any(key in keys for key in _TEXTS_ONLY)
    return "table" if table_heading(line) is not None else "aiperf" if has_texts else None


def _format_of_list(path: Path) -> TraceFormat:
    """Format of a JSON list, by the first known name at its beginning."""
    start = DOOR.start_of(path, _LIST_BYTES)
    at = {match[1].decode(): match.start() for match in reversed([*_NAME.finditer(start)])}
    known: list[tuple[int, TraceFormat]] = [(at[key], name) for key, name in _KEYS if key in at]
    if known and min(known)[1] == "prompts" and _OBJECT_TURNS.search(start):
        return "aiperf"
    if not known and table_heading(next(trace_formats.items(path), (0, b""))[1]) is not None:
        return "table"
    return min(known)[1] if known else "sharegpt"


def _is_of_others(first: bytes) -> bool:
    """Is it another tool's table, without the columns of our own traces?"""
    heading, own = table_heading(first), set(RequestPlan._fields)
    if heading is None:
        return False
    names = set(heading.names)
    shared = {_OWN_COLUMN.decode(), "prompt_tokens", "output_tokens"}
    return not names <= own and not names & (own - shared)


def read_trace(source: TraceSource, *, needs_instants: bool = True) -> ReadTrace:
    """The requests of a trace file of any known format, line by line.

    Without ``needs_instants`` their unit may stay unknown.

    Raises
    ------
    SpecError
        The file cannot be read or is of no known format; or a line is malformed, out of order or
        without tokens (the message has its number); or nothing says or shows the unit of its
        instants.
    """
    path = Path(source.path)
    kind = source.format or detect_format(path)
    if kind == "inferometer":
        return ReadTrace(
            format=kind,
            workload=read_own_trace(path, is_sorted=source.is_sorted),
            has_instants=True,
        )
    rows = list(_rows(kind, path, source))
    if not rows:
        allowed = f"requests in the format {kind}"
        try_ = f"its own --trace-format, or {_OWN_TABLE}"
        raise SpecError("the trace has no requests", where=str(path), allowed=allowed, try_=try_)
    has_instants = all(row.arrival_ns is not None for row in rows)
    if kind == "table" and has_instants and needs_instants and source.speed_up_ratio == 1:
        rows = _in_their_unit(rows, path)
    start_ns = min((row.arrival_ns or 0 for row in rows), default=0)
    if has_instants and (kind in _WALL_CLOCK or start_ns > _A_YEAR_NS):
        # wall-clock times: the first request is at 0
        rows = [row._replace(arrival_ns=(row.arrival_ns or 0) - start_ns) for row in rows]
    cautions = [*_estimates(rows), *_unread(rows)]
    if (
        not needs_instants or source.speed_up_ratio != 1
    ):  # nothing follows from the unit, or it is given
        cautions = [one for one in cautions if one.code != "unit_of_instants_assumed"]
    if source.skip_empty:
        n_before = len(rows)
        rows = _without_empty(rows)
        if len(rows) < n_before:
            text = (
                f"{n_before - len(rows)} of {n_before} requests were left out: without prompt or"
                " answer, or after such a turn"
            )
            cautions.append(
                Caution(code="rows_skipped", text=text, remedy="skip_empty = false refuses them")
            )
    if has_instants and not source.is_sorted:
        rows.sort(key=lambda row: row.arrival_ns or 0)
    first_rows = [row for row in rows if row.think_ns is None]
    cautions += _coarse(first_rows) if has_instants and not source.jitter_s else []
    cautions += _gaps(first_rows) if has_instants else []
    return ReadTrace(
        format=kind, workload=_workload(rows, path, tuple(cautions)), has_instants=has_instants
    )


def read_texts(source: TraceSource) -> tuple[tuple[Spoken, ...], ...]:
    """Messages of each request of a file of texts, in the order of ``read_trace``.

    Each holds only the messages that it adds to its session's request before.

    Raises
    ------
    SpecError
        The file cannot be read, or holds numbers only.
    """
    path = Path(source.path)
    kind = source.format or detect_format(path)
    if kind not in WITH_TEXTS:
        raise SpecError(
            f"the {kind} trace holds no texts",
            where=str(path),
            allowed=", ".join(WITH_TEXTS),
            try_="--prompts words",
        )
    rows: Sequence[TraceRow] = list(_rows(kind, path, source, with_texts=True))
    rows = _without_empty(rows) if source.skip_empty else rows
    for row in rows:
        if not row.said:
            raise SpecError(
                f"line {row.line} has no text",
                where=str(path),
                allowed="requests with texts",
                try_="--prompts words",
            )
    return tuple(row.said for row in rows)


def _rows(
    kind: TraceFormat, path: Path, source: TraceSource, *, with_texts: bool = False
) -> Iterator[TraceRow]:
    readers: dict[TraceFormat, Callable[[], Iterator[TraceRow]]] = {
        "azure": lambda: table_rows(path, is_csv=True, skips_empty=source.skip_empty),
        "table": lambda: table_rows(path, skips_empty=source.skip_empty),
        "mooncake": lambda: trace_formats.mooncake_rows(path, source.hash_block_tokens),
        "llmservingsim": lambda: trace_formats.llmservingsim_rows(path),
        "otel": lambda: trace_formats.otel_rows(path),
        "sharegpt": lambda: text_formats.sharegpt_rows(
            path, only_first_turn=source.turns == "first", with_texts=with_texts
        ),
        "openai-batch": lambda: text_formats.openai_batch_rows(
            path, output_tokens=source.output_tokens, with_texts=with_texts
        ),
        "aiperf": lambda: aiperf_rows(path, output_tokens=source.output_tokens),
        "prompts": lambda: text_formats.prompt_rows(
            path, output_tokens=source.output_tokens, with_texts=with_texts
        ),
    }
    return readers[kind]()


def _workload(rows: Sequence[TraceRow], path: Path, cautions: tuple[Caution, ...]) -> DrawnWorkload:
    index = np.arange(len(rows))
    session = np.array([NONE if row.session is None else row.session for row in rows])
    is_later = (session != NONE) & (session == np.concatenate([[NONE], session[:-1]]))
    prompt, output = (
        np.array([getattr(row, name) for row in rows])
        for name in ("prompt_tokens", "output_tokens")
    )
    owner, shared = _shared(rows, prompt)
    repeats = is_later & np.array([row.think_ns is None or row.repeats for row in rows])
    plan = request_plan(
        str(path),
        lambda row: f"the request of line {rows[row].line}",
        arrival_ns=np.where(is_later, NONE, [row.arrival_ns or 0 for row in rows]),
        follows=np.where(is_later, index - 1, NONE),
        think_ns=np.where(is_later, [row.think_ns or 0 for row in rows], NONE),
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=[
            row.output_tokens if row.max_tokens is None else row.max_tokens for row in rows
        ],
        session_index=session,
        prefix_request=np.where(repeats, index - 1, owner),
        prefix_tokens=np.where(repeats, np.roll(prompt + output, 1), shared),
    )
    return DrawnWorkload(
        name=path.stem,
        plan=plan,
        class_names=("trace",),
        class_slos=(None,),
        tenant_names=("trace",),
        cautions=cautions,
    )


def _shared(rows: Sequence[TraceRow], prompt: I64) -> tuple[I64, I64]:
    """The owner of the longest shared prefix of each prompt, and its tokens."""
    tree = PrefixTree()
    found = np.array(
        [tree.longest(index, row.block_ids) for index, row in enumerate(rows)], np.int64
    ).reshape(-1, 2)
    owner = found[:, 0]
    # The last block of either prompt may be partial.
    whole = found[:, 1] * np.array([row.block_tokens for row in rows])
    return owner, np.where(owner == NONE, 0, np.minimum(whole, np.minimum(prompt, prompt[owner])))


def _without_empty(rows: Sequence[TraceRow]) -> list[TraceRow]:
    kept: list[TraceRow] = []
    ended: set[int] = set()
    for row in rows:
        if row.prompt_tokens < 1 or row.output_tokens < 1:
            ended |= set() if row.session is None else {row.session}
        elif row.session is None or row.session not in ended:
            kept.append(row)
    return kept


def _estimates(rows: Sequence[TraceRow]) -> Iterator[Caution]:
    n_prompts = sum(row.prompt_is_estimate for row in rows)
    n_outputs = sum(row.output_is_estimate for row in rows)
    n_capped = sum(row.output_is_estimate and row.max_tokens is not None for row in rows)
    if n_prompts or n_outputs - n_capped:
        yield Caution(
            code="token_counts_estimated",
            text=(
                f"{max(n_prompts, n_outputs - n_capped)} of {len(rows)} requests have text only: "
                f"a token is taken for {trace_formats.CHARACTERS_PER_TOKEN} characters"
            ),
            remedy="a trace with token counts, or the model's tokenizer",
        )
    assumed_ns = max((row.assumed_unit_ns for row in rows), default=0)
    if assumed_ns:
        is_s = assumed_ns == NS_PER_S
        unit, other, ratio = ("", "milli", "1000") if is_s else ("milli", "", "0.001")
        yield Caution(
            code="unit_of_instants_assumed",
            text=f"nothing says the unit of the trace's instants: they are taken as {unit}seconds",
            remedy=f"{suggestions.flags('--speed-up', ratio)} if they are {other}seconds",
        )
    n_later = sum(row.n_later_turns for row in rows)
    if n_later:
        yield Caution(
            code="later_turns_left_out",
            text=(
                f"{n_later} later turns were left out: the trace does not have the answers between"
            ),
            remedy="a trace of conversations",
        )
    if n_capped:
        yield Caution(
            code="outputs_run_to_max_tokens",
            text=(
                f"{n_capped} of {len(rows)} requests say only max_tokens: every answer is taken to"
                " be that long"
            ),
            remedy="a trace with counts of tokens: a batch's output file has usage.completion_tokens",
        )


def _in_their_unit(rows: list[TraceRow], path: Path) -> list[TraceRow]:
    """The rows with whole numbers of unknown unit as seconds or as milliseconds, by their rate.

    Raises
    ------
    SpecError
        Either rate is plausible.
    """
    at_ns = [row.arrival_ns or 0 for row in rows]
    is_assumed = all(row.assumed_unit_ns == NS_PER_S for row in rows)
    if len(rows) < _FEWEST_FOR_A_GAP or not is_assumed or any(one % NS_PER_S for one in at_ns):
        return rows  # a fraction is of seconds
    gap = (max(at_ns) - min(at_ns)) / NS_PER_S / (len(rows) - 1)
    heading = table_heading(next(items(path))[1])
    if gap <= _LEAST_GAP or heading is None or heading.prompt == _BURST_GPT:
        return rows
    if gap >= _MOST_GAP:
        return [
            row._replace(arrival_ns=(row.arrival_ns or 0) // 1000, assumed_unit_ns=_NS_PER_MS)
            for row in rows
        ]
    raise SpecError(
        f"the unit of {heading.at} is not known: {format_request_rate(1 / gap)} if it has seconds,"
        f" {format_request_rate(1000 / gap)} if milliseconds",
        where=str(path),
        allowed="a unit in the column's name",
        try_=f"{suggestions.flags('--speed-up', 1000)} if milliseconds; name it {heading.at}_s if"
        " seconds",
    )


def _unread(rows: Sequence[TraceRow]) -> list[Caution]:
    """A caution where a column of cached tokens is not read."""
    cached = next((row.cached_column for row in rows if row.cached_column), "")
    text = (
        f"{cached} is not read: it is what the recording server's cache held, and does not say"
        " with which request a prompt begins alike"
    )
    remedy = "hash_ids of the prompts' blocks (mooncake), or prefix_request and prefix_tokens"
    return [Caution(code="cached_tokens_not_read", text=text, remedy=remedy)] if cached else []


def _coarse(rows: Sequence[TraceRow]) -> list[Caution]:
    instants = np.unique([row.arrival_ns or 0 for row in rows])
    if len(rows) < 2 * len(instants) or len(instants) < 2:
        return []
    step_s = float(np.median(np.diff(instants))) / NS_PER_S
    if step_s < _COARSE_S:
        return []
    text = (
        f"{len(rows)} requests come at {len(instants)} instants, {step_s:.3g} s apart: instants"
        " were rounded"
    )
    return [
        Caution(
            code="instants_are_coarse", text=text, remedy=f"jitter_s = {step_s:.3g} spreads them"
        )
    ]


def _gaps(rows: Sequence[TraceRow]) -> list[Caution]:
    """A caution if most of a trace's time is a gap between two requests."""
    instants = np.sort([row.arrival_ns or 0 for row in rows])
    if len(rows) < _FEWEST_FOR_A_GAP:
        return []
    longest_ns, span_ns = int(np.diff(instants).max()), int(instants[-1] - instants[0])
    if 2 * longest_ns <= span_ns:
        return []
    longest, span = (format_duration(one / NS_PER_S) for one in (longest_ns, span_ns))
    text = f"{longest} of the trace's {span} pass without a request: rates are means over them too"
    return [Caution(code="instants_have_a_gap", text=text, remedy="cut the trace there")]
