"""Which table of a sweep is it that llama.cpp's ``llama-bench`` printed (Markdown, CSV, JSON, JSON lines)?

A test is one of three. ``pp512`` times the prefill of 512 tokens, one sequence. ``tg128 @ d512``
times 128 decode steps, one sequence, after 512 tokens. ``pg`` times both as one, and tells neither:
it is left out, as a prefill after a context is. ``n_batch`` there is how many tokens of one prompt
are computed at once, no number of sequences. Source: llama.cpp, tools/llama-bench/README.md.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from io import StringIO
from typing import Any, Final, NamedTuple

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door

HEADER: Final = ("seq_len", "batch", "gen_tokens", "decode_steps", "prefill_p50_ms", "tpot_ms")
_TEST: Final = re.compile(r"(pp|tg)\s*(\d{1,9})(?:\s*@\s*d(\d{1,9}))?")
_RATE: Final = re.compile(r"\s*([\d.]+)\s*(?:±.*)?")
_NS_PER_MS: Final = 1e6
_START_CHARACTERS: Final = 2**14
"""In which a first record names its test, behind names of files and devices."""
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
    """Does this text begin as llama-bench's JSON, or lines of it, does?"""
    start = text.lstrip()[:_START_CHARACTERS]
    return start[:1] in {"[", "{"} and '"n_prompt"' in start and '"n_gen"' in start


def as_sweep_table(text: str, door: Door, *, where: str) -> str | None:
    """The same numbers as lines under ``HEADER``; None where the text is none of llama-bench.

    Raises
    ------
    RecordError
        Its rows are of several models or settings, no test of them can be read, or one is broken.
    """
    rows = _rows(text, door, where)
    if rows is None:
        return None
    for name in _SETTINGS:
        values = list(dict.fromkeys(str(row[name]) for row in rows if name in row))
        if len(values) > 1:
            raise RecordError(
                f"llama-bench ran with several values of {name}: {', '.join(values[:4])}",
                where=where,
                allowed="one model with one setting: keep its rows, each other in a file of its own",
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
    buffer = StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows([HEADER, *lines])
    return buffer.getvalue()


def _rows(text: str, door: Door, where: str) -> list[Mapping[str, Any]] | None:
    """The records of any of its formats."""
    start = text.lstrip()[:_START_CHARACTERS]
    if start[:1] in {"[", "{"}:
        if not is_json(text):
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
    names, *others = (
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in lines[lines.index(header) :]
        if line.lstrip().startswith("|")
    )
    return [
        dict(zip(names, cells, strict=False))
        for cells in others
        if not set("".join(cells)) <= set("-: ")
    ]


def _of_mapping(one: object, where: str) -> Mapping[str, Any]:
    if not isinstance(one, Mapping):
        raise RecordError("a test of llama-bench that is no object", where=where)
    return one


def _test(row: Mapping[str, Any], door: Door, where: str) -> _Test | None:
    """What was timed; None for a test that tells neither phase."""
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
