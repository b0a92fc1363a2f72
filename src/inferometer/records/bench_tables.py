"""Which table of a sweep did llama.cpp's ``llama-bench`` or SGLang's ``bench_one_batch`` write?

llama-bench prints Markdown, CSV, JSON or JSON lines. It has three kinds of tests. ``pp512`` times
the prefill of 512 tokens of one sequence. ``tg128 @ d512`` times 128 decode steps of one sequence
after 512 tokens. ``pg`` times both phases together; it is left out, as is a prefill after a
context. Its ``n_batch`` is the number of prompt tokens computed at once, not of sequences.
Source: llama.cpp, tools/llama-bench/README.md.

``bench_one_batch`` and ``bench_one_batch_server`` append one JSON object per line: a batch of equal
prompts, all at once; times in seconds. Without a server ``prefill_latency`` is the step of all
prompts and ``median_decode_latency`` a decode step. With a server ``last_ttft`` is the time of the
batch's last first token, and the rest of ``latency`` is that of the decode steps. Lines with
speculation, which yields several tokens per step, are refused. Source:
sgl-project/sglang, python/sglang/bench_one_batch.py, bench_one_batch_server.py and
test/bench_one_batch_server_internal.py.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, Final, NamedTuple

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door

HEADER: Final = ("seq_len", "batch", "gen_tokens", "decode_steps", "prefill_p50_ms", "tpot_ms")
_TEST: Final = re.compile(r"(pp|tg)\s*(\d{1,9})(?:\s*@\s*d(\d{1,9}))?")
_RATE: Final = re.compile(r"\s*([\d.]+)\s*(?:±.*)?")
_NS_PER_MS: Final = 1e6
_START_CHARACTERS: Final = 2**14
"""Length of the start in which a first record names its test."""
_SETTINGS: Final = (
    "model", "model_filename", "model_type", "backend", "backends", "gpu_info", "ngl", "n_gpu_layers",
    "threads", "n_threads", "n_batch", "n_ubatch", "fa", "flash_attn", "type_k", "type_v", "sm", "split_mode", "mmap",
)  # fmt: skip
"""Columns in which rows of one table must agree."""


class _Test(NamedTuple):
    """One test and the milliseconds of its repetitions, or of their mean."""

    n_prompt: int
    n_generated: int
    depth: int
    times_ms: tuple[float, ...]


def is_json(text: str) -> bool:
    """Does this text begin as JSON of llama-bench, or lines of it, or SGLang's lines do?"""
    return _is_llama(text) or _is_one_batch(text)


def is_table(text: str) -> bool:
    """Is this text a table of one of them, of llama-bench also in Markdown?"""
    start = text.lstrip()[:_START_CHARACTERS]
    return is_json(text) or re.search(r"\|\s*test\s*\|\s*t/s\s*\|", start) is not None


def _is_llama(text: str) -> bool:
    start = text.lstrip()[:_START_CHARACTERS]
    return start[:1] in {"[", "{"} and '"n_prompt"' in start and '"n_gen"' in start


def _is_one_batch(text: str) -> bool:
    start = text.lstrip()[:_START_CHARACTERS]
    is_one = '"prefill_latency"' in start or '"last_ttft"' in start
    return start[:1] == "{" and '"batch_size"' in start and is_one


def as_sweep_table(text: str, door: Door, *, where: str) -> str | None:
    """The same numbers as lines under ``HEADER``; None where the text is of neither.

    Raises
    ------
    RecordError
        Its rows mix several models, settings or runs, use speculation, have no readable test, or
        are malformed.
    """
    if _is_one_batch(text):
        lines = _one_batch_lines(text, door, where)
    elif (rows := _rows(text, door, where)) is not None:
        lines = _llama_lines(rows, door, where)
    else:
        return None
    buffer = StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows([HEADER, *lines])
    return buffer.getvalue()


def _llama_lines(
    rows: Sequence[Mapping[str, Any]], door: Door, where: str
) -> list[tuple[object, ...]]:
    for name in _SETTINGS:
        is_told = any(name in row for row in rows)
        values = list(dict.fromkeys(str(row.get(name, "not stated")) for row in rows if is_told))
        if len(values) > 1:
            raise RecordError(
                f"llama-bench ran with several values of {name}: {', '.join(values[:4])}",
                where=where,
                allowed="rows of one model with one setting: put each other one into its own file",
            )
    tests = [_test(row, door, where) for row in rows]
    lines = [line for test in tests if test is not None for line in _lines(test)]
    if not lines:
        raise RecordError(
            "no test of llama-bench tells a prefill or a decode time",
            where=where,
            allowed="pp tests without a depth and tg tests (pg times both as one)",
            try_="llama-bench -p 512,2048 -n 128 -d 0,2048 -o json",
        )
    return lines


def _rows(text: str, door: Door, where: str) -> list[Mapping[str, Any]] | None:
    """The records of any of its formats."""
    start = text.lstrip()[:_START_CHARACTERS]
    if start[:1] in {"[", "{"}:
        if not _is_llama(text):
            return None
        parts = [text] if start[0] == "[" else text.splitlines()
        found = [door.json(part, object, where=where) for part in parts if part.strip()]
        flat = [one for part in found for one in (part if isinstance(part, list) else [part])]
        return [_of_mapping(one, where) for one in flat]
    lines = [line for line in text.splitlines() if line.strip()]
    header = next((line for line in lines if "t/s" in line or "n_gen" in line), "")
    if "n_gen" in header and "avg_ns" in header:
        return list(door.csv_records(lines[lines.index(header) :], where=where))
    if "|" not in header or "test" not in header:
        return None
    names, records = list[str](), list[Mapping[str, Any]]()
    for line in lines[lines.index(header) :]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if {"test", "t/s"} <= set(cells):  # each run prints its own header
            names = cells
        elif line.lstrip().startswith("|") and not set("".join(cells)) <= set("-: "):
            records.append(dict(zip(names, cells, strict=False)))
    return records


def _of_mapping(one: object, where: str) -> Mapping[str, Any]:
    if not isinstance(one, Mapping):
        raise RecordError("a test of llama-bench that is no object", where=where)
    return one


def _test(row: Mapping[str, Any], door: Door, where: str) -> _Test | None:
    """The test's times; None for a test of neither phase."""
    if "test" in row:
        match, rate = _TEST.fullmatch(str(row["test"])), _RATE.fullmatch(str(row.get("t/s", "")))
        if match is None or rate is None:
            return None
        n, depth = int(match[2]), int(match[3] or 0)
        n_prompt, n_generated = (n, 0) if match[1] == "pp" else (0, n)
        rate_per_s = door.number(rate[1], "t/s", where=where)
        times_ms: tuple[float, ...] = (1e3 * n / rate_per_s,) if rate_per_s > 0 else ()
    else:
        n_prompt, n_generated, depth = (
            int(door.number(str(row.get(name) or 0), name, where=where))
            for name in ("n_prompt", "n_gen", "n_depth")
        )
        samples = row.get("samples_ns") or [row.get("avg_ns", "")]
        times_ms = tuple(
            door.number(str(one), "samples_ns", where=where) / _NS_PER_MS
            for one in (samples if isinstance(samples, list) else [samples])
        )
    is_one_phase = (n_prompt > 0) != (n_generated > 0) and not (n_prompt and depth)
    return _Test(n_prompt, n_generated, depth, times_ms) if is_one_phase and times_ms else None


def _lines(test: _Test) -> Iterable[tuple[object, ...]]:
    """One line for each repetition."""
    for time_ms in test.times_ms:
        if test.n_prompt:
            yield test.n_prompt, 1, 1, "", f"{time_ms:.9g}", ""
        else:
            n = test.n_generated
            yield max(test.depth, 1), 1, n, n, "", f"{time_ms / n:.9g}"


def _one_batch_lines(text: str, door: Door, where: str) -> list[tuple[object, ...]]:
    rows = [
        (number, door.json(line, dict, where=f"{where}, line {number}"))
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
    names = list(dict.fromkeys(str(row.get("run_name")) for _, row in rows))
    if len(names) > 1:
        raise RecordError(
            f"the lines are of several runs: {', '.join(names[:4])}",
            where=where,
            allowed="lines of one run name: put each run into its own file",
        )
    return [_one_batch_line(row, door, f"{where}, line {number}") for number, row in rows]


def _one_batch_line(row: Mapping[str, Any], door: Door, where: str) -> tuple[object, ...]:
    def number(name: str) -> float:
        if row.get(name) is None:
            raise RecordError(
                f"the line has no {name}", where=where, allowed="a line as SGLang writes it"
            )
        return door.number(str(row[name]), name, where=where)

    n_steps = int(number("output_len")) - 1
    if "prefill_latency" in row:
        prefill_s = number("prefill_latency")
        has_decode = row.get("median_decode_latency") is not None
        step_s = number("median_decode_latency") if has_decode else None
    else:
        if row.get("acc_length") is not None and number("acc_length") > 1:
            raise RecordError(
                f"acc_length {row['acc_length']}: several tokens a step",
                where=where,
                allowed="runs without speculation",
            )
        prefill_s = number("last_ttft")
        step_s = (number("latency") - prefill_s) / n_steps if n_steps > 0 else None
    return (
        int(number("input_len")),
        int(number("batch_size")),
        n_steps + 1,
        n_steps if step_s is not None else "",
        f"{prefill_s * 1e3:.9g}",
        "" if step_s is None else f"{step_s * 1e3:.9g}",
    )
