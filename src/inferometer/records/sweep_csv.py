"""How does a sweep become a CSV table, and somebody's table a run that can be fitted and reported?

Read are tables with commas, semicolons, tabs or bars (also a Markdown table cut out of a page) and
one header line. Needed are the prompt length, the batch and the times of prefill or decode; what
else is known is used.

Megabytes in these tables are 2^20 bytes: that is what tools built on torch print (the weights of a
3.09 B model in 16 bit are 5,886 of them, and published tables start just above that, below its
6,172 · 10^6 bytes).

``decode_p50_ms_per_tok`` is TPOT, as ``tpot_ms``: published tables write it under the first name.
Decode time is TPOT · decode_steps.
"""

import csv
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.types import Caution, EngineSpec, ModelSpec, Source, SweepPlan, SweepPoint
from inferometer.records import foreign_sweeps, run_folder, tables
from inferometer.records.foreign_sweeps import Column, FieldName, column_of, unit_wanted
from inferometer.records.summaries import PointSummary
from inferometer.records.types import Origin, PointStatus, Run, RunManifest, SweepTable
from inferometer.stats.estimate import Estimate
from inferometer.units import MOST_COUNT

BYTES_PER_MB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One line of the table: a point, its utilisation (computed elsewhere) and its flag."""

    summary: PointSummary
    mbu_fraction: Estimate | None = None
    mfu_fraction: Estimate | None = None
    flag: str = ""


def column_texts(row: SweepRow) -> dict[str, str]:
    """Text of each column of a line, in order; empty where there is no number."""
    summary, point = row.summary, row.summary.point
    n_prompt_tokens = point.batch_size * point.prompt_tokens
    prefill, decode = summary.prefill_s, summary.tpot_s
    ms, mb = 1e3, 1 / BYTES_PER_MB
    return {
        "seq_len": str(point.prompt_tokens),
        "batch": str(point.batch_size),
        "gen_tokens": str(point.gen_tokens),
        "prefill_p50_ms": _value(prefill, ms),
        "prefill_ms_per_tok": _value(prefill, ms / n_prompt_tokens),
        "prefill_tok_s": _value(summary.prefill_tokens_per_s),
        "decode_p50_ms_per_tok": _value(decode, ms),
        "decode_tok_s": _value(summary.decode_tokens_per_s),
        "total_tok_s": _value(summary.total_tokens_per_s),
        "reserved_mb": _value(summary.reserved_bytes, mb),
        "allocated_mb": _value(summary.allocated_bytes, mb),
        "mbu": _value(row.mbu_fraction),
        "mfu": _value(row.mfu_fraction),
        "flag": row.flag,
        "ttft_ms": _value(summary.ttft_s, ms),
        "tpot_ms": _value(decode, ms),
        "decode_steps": "" if summary.n_decode_steps is None else str(summary.n_decode_steps),
        "median_step_ms": _value(summary.decode_step_s, ms),
        "prefill_low_ms": _end(prefill, ms, _low),
        "prefill_high_ms": _end(prefill, ms, _high),
        "decode_low_ms_per_tok": _end(decode, ms, _low),
        "decode_high_ms_per_tok": _end(decode, ms, _high),
        "tpot_low_ms": _end(decode, ms, _low),
        "tpot_high_ms": _end(decode, ms, _high),
        "mbu_low": _end(row.mbu_fraction, 1, _low),
        "mbu_high": _end(row.mbu_fraction, 1, _high),
        "mfu_low": _end(row.mfu_fraction, 1, _low),
        "mfu_high": _end(row.mfu_fraction, 1, _high),
        "n_reps": str(summary.n_reps),
        "output_tok_s": _value(summary.output_tokens_per_s),
        "cpu": _value(summary.cpu_fraction),
        "device": _value(summary.device_fraction),
        "power_w": _value(summary.power_watt),
        "energy_j": _value(summary.energy_joule),
        "minor_faults": _value(summary.minor_faults),
        "major_faults": _value(summary.major_faults),
        "reserved_unused": _value(summary.unused_reserved_fraction),
        "tok_s_per_w": _value(_inverse(summary.energy_joule_per_token)),
    }


def write_sweep_csv(path: Path, rows: Iterable[SweepRow]) -> None:
    """Write the table of a sweep, one line per point; an empty field is an absent number.

    Raises
    ------
    RecordError
        The sweep has no points, or the file cannot be written.
    """
    texts = [column_texts(row) for row in rows]
    if not texts:
        raise RecordError(
            "the sweep has no points to write",
            where=str(path),
            try_="a sweep that measured a point",
        )
    buffer = StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(texts[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(texts)
    run_folder.replace_file(path, buffer.getvalue().encode())


def _value(estimate: Estimate | None, factor_ratio: float = 1.0) -> str:
    return "" if estimate is None else f"{estimate.value * factor_ratio:.6g}"


def _inverse(energy_joule_per_token: Estimate | None) -> Estimate | None:
    """Output tokens per second and watt: one over the energy of a token."""
    return None if energy_joule_per_token is None else energy_joule_per_token.inverted(1)


def _end(
    estimate: Estimate | None, factor_ratio: float, end_of: Callable[[Estimate], float | None]
) -> str:
    end = None if estimate is None else end_of(estimate)
    return "" if end is None else f"{end * factor_ratio:.6g}"


def _low(estimate: Estimate) -> float | None:
    return estimate.low


def _high(estimate: Estimate) -> float | None:
    return estimate.high


_DOOR: Final = Door(
    noun="table", allowed="a text file in UTF-8", refusal=RecordError, max_bytes=2**27
)
_UNCLEAR: Final = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
"""Thousands, or a decimal comma: spreadsheets that write ``;`` between cells have decimal commas."""
_ABSENT_TEXTS: Final = {"", "-", "\u2013", "\u2014", "n/a", "na", "nan", "none", "null"}
_ALLOWED: Final = (
    "columns such as 'seq_len', 'batch', 'gen_tokens', 'prefill ms' or 'TTFT (s)', 'decode ms/tok'"
    " or 'TPOT ms': times with their unit"
)
_OUT_OF_MEMORY: Final = ("oom", "out of memory", "out_of_memory")
_NS_PER_MS: Final = 1e6
_COUNTS: Final = ("prompt", "batch", "gen")
_MOST: Final = 1e12
"""Milliseconds or megabytes: in nanoseconds and bytes they fit into int64."""
_FLAGS: Final = {"seq_len": "--prompt", "batch": "--batch", "gen_tokens": "--gen-tokens"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """Facts about a table that it does not contain itself; what it does say, counts more."""

    prompt_tokens: int | None = None
    batch_size: int | None = None
    gen_tokens: int | None = None
    origin: Origin = "published"
    model: ModelSpec | None = None
    engine: EngineSpec | None = None
    """With an engine the run gets a plan, as fits need one; warm-ups are unknown and count as 0."""
    source: Source | None = None


def read_sweep_csv(path: Path, facts: TableFacts | None = None) -> Run:
    """The run of a table: one repetition per line, points numbered by first line.

    Raises
    ------
    RecordError
        The file is no such table, or a line is broken; the message has its number.
    """
    facts = facts or TableFacts()
    try:
        content = _DOOR.bytes_of(path)
        text = _DOOR.text(content, where=str(path))
        modified_utc = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(
            timespec="seconds"
        )
    except (OSError, OverflowError, ValueError) as error:
        raise RecordError(
            f"the date of the table cannot be read: {error}",
            where=str(path),
            allowed="a file with a date",
            try_="a copy of the file, which has a date of its own",
        ) from error
    tool = foreign_sweeps.tool_of(text)
    text = foreign_sweeps.as_sweep_table(text, _DOOR, where=str(path)) or text
    lines = _lines_of(text, str(path))
    is_gen_known = facts.gen_tokens is not None or any(line.fields.get("gen") for line in lines)
    sweep = _table_of(lines, facts, str(path))
    manifest = RunManifest(
        run_id=f"table-{hashlib.sha256(content).hexdigest()[:12]}",
        origin=facts.origin,
        created_utc=modified_utc,
        tool_version="unknown",
        plan=_plan_of(sweep, facts),
        model=facts.model,
        source=facts.source
        or Source(kind="unsourced", where=f"{path.name}{f' of {tool}' if tool else ''}"),
        is_complete=True,
        cautions=(*(() if is_gen_known else (_GEN_UNKNOWN,)), *_unread_times(text)),
    )
    return Run(manifest=manifest, sweep=sweep, steps=None, ceilings=None)


class _Line(NamedTuple):
    number: int
    fields: dict[FieldName, str]
    scales: dict[FieldName, float]


_GEN_UNKNOWN: Final = Caution(
    code="GEN_TOKENS_UNKNOWN",
    text=(
        "the table does not say how many tokens were generated: one decode step is assumed, and"
        " total throughput is that of one"
    ),
    remedy="add a column gen_tokens",
)


def cells_of(text: str, where: str) -> list[tuple[int, list[str]]]:
    """The cells of a table's header and lines, each with its number.

    Columns are apart by the mark that the header has most of: a bar, a tab, ``;`` or ``,``.

    Raises
    ------
    RecordError
        The table is empty, a line has more or fewer cells than the header, or a number is unclear.
    """
    if text.lstrip()[:5].lower() in {"<!doc", "<html"}:
        raise RecordError(
            "this is a page, not a table",
            where=where,
            allowed=_ALLOWED,
            try_="open it in a browser; its numbers are in the folder of its run",
        )
    numbered = [
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    delimiter = max("|\t;,", key=numbered[0][1].count) if numbered else ","
    found = [(number, _cells(line, delimiter)) for number, line in numbered]
    if delimiter == "|":  # without the rule below the header of a Markdown table
        found = [
            (number, cells)
            for number, cells in found
            if not all(set(cell) <= set("-: ") and "-" in cell for cell in cells)
        ]
    if not found:
        raise RecordError(
            "the table is empty", where=where, allowed=_ALLOWED, try_="the file of a run that ended"
        )
    n_columns = len(found[0][1])
    for number, cells in found:
        if len(cells) != n_columns:
            raise RecordError(
                f"line {number} has {len(cells)} fields, the header has {n_columns}",
                where=f"{where}, line {number}",
                allowed=f"{n_columns} fields",
                try_="quote a field that has a comma, or leave the line out",
            )
        unclear = [cell for cell in cells if delimiter == ";" and _UNCLEAR.fullmatch(cell)]
        if unclear:
            raise RecordError(
                f"{unclear[0]!r} may be thousands, or have a decimal comma",
                where=f"{where}, line {number}",
                allowed="numbers as 1234.5",
                try_="write the numbers with a point and without marks of thousands",
            )
    return found


def _lines_of(text: str, where: str) -> list[_Line]:
    """Lines with numbers, and their known fields by the header."""
    (header_number, header), *lines = cells_of(text, where)
    columns = _preferred([column_of(cell) for cell in header])
    names: list[FieldName | None] = [None if column is None else column.field for column in columns]
    _check_header(names, header, where, header_number)
    scales: dict[FieldName, float] = {
        column.field: column.scale_ratio for column in columns if column is not None
    }
    if not lines:
        raise RecordError(
            "the table has a header and no lines",
            where=where,
            allowed=_ALLOWED,
            try_="the file of a run that ended",
        )
    return [
        _Line(
            number,
            {name: cell for name, cell in zip(names, cells, strict=True) if name is not None},
            scales,
        )
        for number, cells in lines
    ]


def _preferred(columns: list[Column | None]) -> list[Column | None]:
    """The columns of lowest rank for a field: a median before a mean, prefill time before TTFT."""
    known = [column for column in columns if column is not None]
    ranks = {
        column.field: min(other.rank for other in known if other.field == column.field)
        for column in known
    }
    return [
        column if column is not None and column.rank == ranks[column.field] else None
        for column in columns
    ]


def _unread_times(text: str) -> tuple[Caution, ...]:
    """Caution on a phase whose only columns have unclear meaning."""
    cells = cells_of(text, "the table")[0][1]
    fields = {column.field for cell in cells if (column := column_of(cell)) is not None}
    found: list[Caution] = []
    for word, known, clear in (
        ("prefill", {"prefill_ms"}, "prefill_ms"),
        ("decode", {"decode_ms", "step_ms"}, "decode_ms_per_tok or tpot_ms"),
    ):
        unclear = [cell for cell in cells if word in cell.lower()]
        if unclear and not known & fields:
            text_of = (
                f"no {word} time was read: the meaning of the column {unclear[0]!r} is not clear"
            )
            found.append(
                Caution(
                    code="COLUMN_NOT_READ", text=text_of, remedy=f"name it {clear}, in milliseconds"
                )
            )
    return tuple(found)


def _check_header(names: list[FieldName | None], header: list[str], path: str, number: int) -> None:
    where = f"{path}, line {number}"
    repeated = {name for name in names if name is not None and names.count(name) > 1}
    if repeated:
        raise RecordError(
            f"two columns both say {', '.join(sorted(repeated))}",
            where=where,
            try_="remove or rename one of them",
        )
    if not {"prefill_ms", "decode_ms", "step_ms"} & set(names):
        raise RecordError(
            f"no known column of times in the header {', '.join(header)[:200]!r}",
            where=where,
            allowed=_ALLOWED,
            try_=unit_wanted(header)
            or "results of another tool: " + suggestions.command("import", path),
        )


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":
        return [cell.strip() for cell in line.strip().strip("|").split("|")]
    return [
        cell.strip()
        for cell in next(_DOOR.csv_rows([line], where="the table", delimiter=delimiter))
    ]


def _table_of(lines: list[_Line], facts: TableFacts, where: str) -> SweepTable:
    point_indices: dict[SweepPoint, int] = {}
    n_seen: dict[SweepPoint, int] = {}
    rows: list[dict[str, object]] = []
    for line in lines:
        here = f"{where}, line {line.number}"
        point = SweepPoint(
            prompt_tokens=_count(line, "prompt", facts.prompt_tokens, here, "seq_len"),
            batch_size=_count(line, "batch", facts.batch_size, here, "batch"),
            gen_tokens=_count(line, "gen", facts.gen_tokens or 1, here, "gen_tokens"),
        )
        repetition = n_seen.get(point, 0)
        n_seen[point] = repetition + 1
        index = point_indices.setdefault(point, len(point_indices))
        rows.append(_row(line, point, here) | {"point_index": index, "repetition": repetition})
    return tables.from_rows(SweepTable, rows)


def _row(line: _Line, point: SweepPoint, where: str) -> dict[str, object]:
    """One repetition.

    A table without decode_steps that has both decode time / generated tokens and TPOT gives them by
    their quotient.
    """
    prefill_ms, decode_ms, step_ms, median_ms = (
        _number(line, name, where) for name in ("prefill_ms", "decode_ms", "step_ms", "median_ms")
    )
    reserved_mb = _number(line, "reserved_mb", where)
    allocated_mb = _number(line, "allocated_mb", where)
    is_out_of_memory = any(word in line.fields.get("flag", "").lower() for word in _OUT_OF_MEMORY)
    if prefill_ms is None and decode_ms is None and step_ms is None and not is_out_of_memory:
        raise RecordError(
            "neither a prefill nor a decode time",
            where=where,
            allowed="a time, or OOM in a column called flag",
            try_="leave the line out",
        )
    n_steps = _count(line, "steps", point.gen_tokens, where, "decode_steps")
    total_ms = None if decode_ms is None else decode_ms * n_steps
    if step_ms is not None and line.fields.get("steps", "").lower() not in _ABSENT_TEXTS:
        total_ms = step_ms * n_steps
    elif step_ms is not None:
        n_steps = (
            max(1, point.gen_tokens - 1) if total_ms is None else max(1, round(total_ms / step_ms))
        )
        total_ms = step_ms * n_steps if total_ms is None else total_ms
    return {
        "is_warmup": False,
        "status": PointStatus.OUT_OF_MEMORY if is_out_of_memory else PointStatus.OK,
        "prompt_tokens": point.prompt_tokens,
        "batch_size": point.batch_size,
        "gen_tokens": point.gen_tokens,
        "prefill_ns": None if prefill_ms is None else round(prefill_ms * _NS_PER_MS),
        "decode_ns": None if total_ms is None else round(total_ms * _NS_PER_MS),
        "n_decode_steps": 0 if total_ms is None else n_steps,
        "median_step_ns": None if median_ms is None else round(median_ms * _NS_PER_MS),
        "reserved_bytes": None if reserved_mb is None else round(reserved_mb * BYTES_PER_MB),
        "allocated_bytes": None if allocated_mb is None else round(allocated_mb * BYTES_PER_MB),
    }


def _plan_of(sweep: SweepTable, facts: TableFacts) -> SweepPlan | None:
    if facts.engine is None:
        return None
    points: dict[int, SweepPoint] = {}
    for index, prompt, batch, gen in zip(
        sweep.point_index, sweep.prompt_tokens, sweep.batch_size, sweep.gen_tokens, strict=True
    ):
        points[int(index)] = SweepPoint(
            prompt_tokens=int(prompt), batch_size=int(batch), gen_tokens=int(gen)
        )
    return SweepPlan(
        model="unknown" if facts.model is None else facts.model.model_id,
        engine=facts.engine,
        points=tuple(points[index] for index in sorted(points)),
        n_warmup=0,
        n_reps=int(sweep.repetition.max()) + 1,
        seed=0,
    )


def _count(line: _Line, name: FieldName, known: int | None, where: str, column: str) -> int:
    text = line.fields.get(name, "")
    if text.lower() in _ABSENT_TEXTS:
        if known is None:
            raise RecordError(
                f"the table does not say {column}",
                where=where,
                try_=f"add a column {column}, or say it for all lines: {_FLAGS[column]}",
            )
        return known
    number = _number(line, name, where)
    if number is None or number != int(number):
        raise RecordError(
            f"{column} = {text!r} is no whole number",
            where=where,
            allowed="1 or more",
            try_="leave the line out, or correct it",
        )
    return int(number)


def _number(line: _Line, name: FieldName, where: str) -> float | None:
    text = line.fields.get(name, "")
    if text.lower() in _ABSENT_TEXTS:
        return None
    number = _DOOR.number(text, name, where=where, most=MOST_COUNT if name in _COUNTS else _MOST)
    if number <= 0:
        raise RecordError(
            f"line {line.number}: {text} is not positive",
            where=where,
            allowed="a positive number, or nothing",
            try_="leave the field empty where nothing was measured",
        )
    return number * line.scales.get(name, 1.0)
