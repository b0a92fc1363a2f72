"""Columns of somebody's table of a sweep, by their headers, and tables of two benchmarks.

llama-bench prints Markdown, CSV, JSON, JSON lines or SQL. It has three kinds of tests. ``pp512`` times
the prefill of 512 tokens of one sequence. ``tg128 @ d512`` times 128 decode steps of one sequence
after 512 tokens. ``pg`` times both phases together; it is left out, as is a prefill after a
context. Its ``n_batch`` is the number of prompt tokens computed at once, not of sequences.
Source: llama.cpp, tools/llama-bench/README.md.

llama-batched-bench prints Markdown or JSON lines: B sequences of PP prompt tokens, then TG decode
steps of all. With ``is_pp_shared`` one prompt is computed for all; with ``is_tg_separate`` the
sequences decode one after the other, which is left out. So is the prefill of several sequences
that does not fit into one batch of ``n_batch`` tokens.
Source: llama.cpp, tools/batched-bench/README.md.

``bench_one_batch`` and ``bench_one_batch_server`` append one JSON object per line: a batch of equal
prompts, all at once; times in seconds. Without a server ``prefill_latency`` is the step of all
prompts and ``median_decode_latency`` a decode step. With a server ``last_ttft`` is the time of the
batch's last first token, and the rest of ``latency`` is that of the decode steps. Lines with
speculation, which yields several tokens per step, are refused. Source:
sgl-project/sglang, python/sglang/bench_one_batch.py, bench_one_batch_server.py and
test/bench_one_batch_server_internal.py.

A header is read word by word: the quantity under any of its names, a statistic (p50, mean), a unit.
So `VRAM_reserved (MB)`, `Prompt tokens`, `TTFT ms`, `TPOT mean (s)` and llm_bench's
`2nd_avg_latency(ms)` need no entry of their own.
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door

FieldName: TypeAlias = Literal[
    "prompt",
    "batch",
    "gen",
    "prefill_ms",
    "decode_ms",
    "step_ms",
    "median_ms",
    "steps",
    "reserved_mb",
    "allocated_mb",
    "flag",
]


class Column(NamedTuple):
    """The field that a column holds; its numbers times ``scale_ratio`` are in the field's unit.

    Of two columns for one field, the one of lower rank counts.
    """

    field: FieldName
    scale_ratio: float
    rank: int

    @property
    def is_median(self) -> bool:
        """Its header says so; ranks are ten times a name's preference, and a statistic's."""
        return self.rank % 10 == _STATISTIC["median"]


_COUNT_WORDS: Final[dict[str, FieldName]] = {
    **dict.fromkeys(
        (
            "seq", "seq_len", "seqlen", "sequence_length", "sequence_len",
            "prompt", "prompt_len", "prompt_length", "prompt_size",
            "input", "input_len", "input_length", "input_size", "isl",
            "context", "context_len", "context_length", "n_prompt",
        ),
        "prompt",
    ),
    **dict.fromkeys(("batch", "batch_size", "batchsize", "bs", "bsz"), "batch"),
    **dict.fromkeys(
        (
            "gen", "generated", "generation", "new", "max_new",
            "output", "output_len", "output_length", "output_size", "osl", "n_gen", "gen_len", "gen_length",
        ),
        "gen",
    ),
    **dict.fromkeys(("decode_steps", "n_decode_steps"), "steps"),
    **dict.fromkeys(("flag", "flags", "status"), "flag"),
}  # fmt: skip

_TIMES: Final[dict[str, tuple[FieldName, int]]] = {
    **dict.fromkeys(("prefill", "prefill_time", "prefill_latency"), ("prefill_ms", 0)),
    **dict.fromkeys(
        (
            "ttft", "ttft_latency", "time_to_first", "first", "first_latency",
            "1st", "1st_latency", "prompt_eval", "prompt_eval_time",
        ),
        ("prefill_ms", 10),
    ),
    **dict.fromkeys(
        ("tpot", "tpot_latency", "time_output", "2nd_latency", "next_latency", "other_latency"),
        ("step_ms", 0),
    ),
    **dict.fromkeys(("itl", "inter_latency", "tbt", "time_between"), ("step_ms", 10)),
}  # fmt: skip
"""Names without the words `token` and `per`, and their preference: a prefill's own time before a
TTFT, TPOT before gaps."""

_MEMORIES: Final[tuple[FieldName, ...]] = ("reserved_mb", "allocated_mb")
_MEMORY_WORDS: Final = {"vram", "gpu", "cuda", "mem", "memory", "peak", "max", "device", "torch"}
_MS: Final = {
    **dict.fromkeys(("ms", "msec", "milliseconds"), 1.0),
    **dict.fromkeys(("s", "sec", "seconds"), 1e3),
    **dict.fromkeys(("us", "µs", "microseconds"), 1e-3),
}
_MB: Final = {"mb": 1.0, "mib": 1.0, "gb": 1024.0, "gib": 1024.0, "bytes": 2.0**-20}
_PER_TOKEN: Final = {"per", "tok", "toks", "token", "tokens", "step"}
_STATISTIC: Final = {"p50": 0, "median": 0, "mean": 2, "avg": 2, "average": 2}
_OTHER_STATISTIC: Final = re.compile(
    r"p\d+|min|std|stddev|sd|var|low|high|ci\d*|q\d|iqr|stderr|sem"
)


def column_of(header: str) -> Column | None:
    """The field, unit and rank of a column; None for one not read, such as a rate or a p99.

    A time without a unit is not read: InferenceX writes seconds, most others milliseconds.

    Example
    -------
    >>> column_of("decode ms/step").field, column_of("Prompt tokens").field, column_of("prefill tok/s")
    ('decode_ms', 'prompt', None)
    >>> column_of("TPOT mean (s)")
    Column(field='step_ms', scale_ratio=1000.0, rank=2)
    """
    if re.search(r"tok\w*\s*(?:/|_per_|_|\s)\s*s(?:ec\w*)?\b", header.lower()):
        return None
    words = re.findall(r"[a-z0-9µ]+", header.lower())
    statistic = min((_STATISTIC[word] for word in words if word in _STATISTIC), default=1)
    words = [word for word in words if word not in _STATISTIC]
    if any(_OTHER_STATISTIC.fullmatch(word) for word in words):
        return None
    return _count_of(words) or _time(words, statistic) or _memory(words)


def unit_wanted(header: Sequence[str]) -> str | None:
    """What to do about columns of times that lack nothing but a unit; None where there are none.

    Example
    -------
    >>> unit_wanted(["concurrency", "ttft", "TPOT"])
    "the unit of ttft, TPOT in their names: 'ttft ms' or 'ttft s'"
    """
    lacking = [one for one in header if column_of(one) is None and column_of(f"{one} ms")]
    if not lacking:
        return None
    named, first = ", ".join(lacking), lacking[0]
    return f"the unit of {named} in their names: '{first} ms' or '{first} s'"


def _count_of(words: list[str]) -> Column | None:
    field = _COUNT_WORDS.get(
        "_".join(word for word in words if word not in {"tokens", "token", "n"})
    ) or _COUNT_WORDS.get("_".join(words))
    return None if field is None else Column(field, 1.0, 0)


def _time(words: list[str], statistic: int) -> Column | None:
    units = [word for word in words if word in _MS]
    if len(units) != 1:
        return None
    name = "_".join(word for word in words if word not in _MS and word not in _PER_TOKEN)
    scale = _MS[units[0]]
    is_per_token = any(word in _PER_TOKEN for word in words)
    if not name and "step" in words and statistic == _STATISTIC["median"]:
        return Column("median_ms", scale, 0)
    if name in {"decode", "decode_time", "decode_latency"} and is_per_token:
        return Column("decode_ms", scale, statistic)
    if name not in _TIMES or (name.startswith("prefill") and is_per_token):
        return None
    field, preference = _TIMES[name]
    return Column(field, scale, preference + statistic)


def _memory(words: list[str]) -> Column | None:
    units = [word for word in words if word in _MB]
    names = [word for word in words if word not in _MB and word not in _MEMORY_WORDS]
    for field in _MEMORIES:
        if len(units) == 1 and names == [field.removesuffix("_mb")]:
            return Column(field, _MB[units[0]], 0)
    return None


HEADER: Final = ("seq_len", "batch", "gen_tokens", "decode_steps", "prefill_p50_ms", "tpot_ms")
_TEST: Final = re.compile(r"(pp|tg)\s*(\d{1,9})(?:\s*@\s*d(\d{1,9}))?")
_RATE: Final = re.compile(r"\s*([\d.,]+)\s*(?:±.*)?")
_NS_PER_MS: Final = 1e6
_START_CHARACTERS: Final = 2**14
"""Length of the start in which a first record names its test."""
_SETTINGS: Final = (
    "model", "model_filename", "model_type", "backend", "backends", "gpu_info", "ngl", "n_gpu_layers",
    "threads", "n_threads", "n_batch", "n_ubatch", "fa", "flash_attn", "type_k", "type_v", "sm", "split_mode", "mmap",
)  # fmt: skip
"""Columns in which rows of one table must agree."""


_BATCHED_HEADER: Final = re.compile(r"\|\s*PP\s*\|\s*TG\s*\|\s*B\s*\|\s*N_KV\s*\|\s*T_PP s\s*\|")
_BATCHED_ROW: Final = re.compile(
    r"\|\s*(?P<pp>\d{1,9})\s*\|\s*(?P<tg>\d{1,9})\s*\|\s*(?P<pl>\d{1,9})\s*\|\s*\d+\s*"
    r"\|\s*(?P<t_pp>[\d.]+)\s*\|[^|]*\|\s*(?P<t_tg>[\d.]+)\s*\|"
)
_INSERTED: Final = re.compile(r"INSERT INTO \w+ \(([^)]*)\) VALUES \((.*)\);")
_LLAMA_TABLES: Final = (
    re.compile(r"\|\s*test\s*\|\s*t/s\s*\|"),
    re.compile(r"\bn_prompt,n_gen,[^\n]*\bavg_ns\b"),
    re.compile(r"\bn_prompt, n_gen,[^\n]*\bavg_ns\b"),
    _BATCHED_HEADER,
)


class _Test(NamedTuple):
    """One test and the milliseconds of its repetitions, or of their mean."""

    n_prompt: int
    n_generated: int
    depth: int
    times_ms: tuple[float, ...]


def is_json(text: str) -> bool:
    """Does this text begin as JSON of llama.cpp's benchmarks, or lines of it, or SGLang's do?"""
    return _is_llama(text) or _is_one_batch(text) or _is_batched_json(text)


def is_table(text: str) -> bool:
    """Is this text a table of one of them, of llama.cpp's also in Markdown, CSV or SQL?"""
    start = text.lstrip()[:_START_CHARACTERS]
    return is_json(text) or any(one.search(start) is not None for one in _LLAMA_TABLES)


def tool_of(text: str) -> str | None:
    """The benchmark whose table this is; None where it is a table without its writer's name."""
    if _is_one_batch(text):
        return "bench_one_batch"
    if _is_batched_json(text) or _BATCHED_HEADER.search(text) is not None:
        return "llama-batched-bench"
    return "llama-bench" if is_table(text) else None


def _is_llama(text: str) -> bool:
    start = text.lstrip()[:_START_CHARACTERS]
    return start[:1] in {"[", "{"} and '"n_prompt"' in start and '"n_gen"' in start


def _is_batched_json(text: str) -> bool:
    start = text.lstrip()[:_START_CHARACTERS]
    return start[:1] == "{" and all(f'"{name}"' in start for name in ("pl", "t_pp", "t_tg"))


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
    elif _is_batched_json(text) or _BATCHED_HEADER.search(text) is not None:
        lines = _batched_lines(_batched_rows(text, door, where), door, where)
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
    _check_settings(rows, where)
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


def _check_settings(rows: Sequence[Mapping[str, Any]], where: str) -> None:
    for name in _SETTINGS:
        is_told = any(name in row for row in rows)
        values = list(dict.fromkeys(str(row.get(name, "not stated")) for row in rows if is_told))
        if len(values) > 1:
            raise RecordError(
                f"llama-bench ran with several values of {name}: {', '.join(values[:4])}",
                where=where,
                allowed="rows of one model with one setting: put each other one into its own file",
                try_="the rows of one value in a file of their own",
            )


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
    if inserted := _inserted(text):
        return inserted
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


def _inserted(text: str) -> list[Mapping[str, Any]]:
    """The records of ``-o sql``."""
    return [
        dict(
            zip(
                re.split(r",\s*", names.strip()),
                (value.replace("''", "'") for value in re.findall(r"'((?:[^']|'')*)'", values)),
                strict=False,
            )
        )
        for names, values in _INSERTED.findall(text)
    ]


def _of_mapping(one: object, where: str) -> Mapping[str, Any]:
    if not isinstance(one, Mapping):
        raise RecordError(
            "a test of llama-bench that is no object",
            where=where,
            allowed="a list of objects",
            try_="llama-bench -o json > FILE",
        )
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


def _batched_rows(text: str, door: Door, where: str) -> list[Mapping[str, Any]]:
    """The records of llama-batched-bench, under the names of its JSON lines."""
    if _is_batched_json(text):
        parts = enumerate(text.splitlines(), start=1)
        return [
            _of_mapping(door.json(part, object, where=f"{where}, line {n}"), where)
            for n, part in parts
            if part.strip()
        ]
    settings, rows = dict[str, str](), list[Mapping[str, Any]]()
    for line in text.splitlines():
        if "n_kv_max" in line:  # each run prints its settings before its table
            settings = dict(re.findall(r"(\w+) = (-?[\w.]+)", line))
        match = _BATCHED_ROW.search(line)
        if match is not None:
            rows.append({**settings, **match.groupdict()})
    return rows


def _batched_lines(
    rows: Sequence[Mapping[str, Any]], door: Door, where: str
) -> list[tuple[object, ...]]:
    _check_settings(rows, where)
    lines = [line for row in rows for line in _batched_phases(row, door, where)]
    if not lines:
        raise RecordError(
            "the table of llama-batched-bench has no row with a prefill or a decode time",
            where=where,
            allowed="its Markdown, or its lines of JSON",
            try_="the whole output of llama-batched-bench",
        )
    return lines


def _batched_phases(row: Mapping[str, Any], door: Door, where: str) -> Iterable[tuple[object, ...]]:
    def number(name: str) -> float:
        return door.number(str(row.get(name) or 0), name, where=where)

    n_prompt, n_generated, n_sequences = (int(number(name)) for name in ("pp", "tg", "pl"))
    n_prefilled = 1 if number("is_pp_shared") else n_sequences
    is_one_batch = n_prefilled == 1 or n_prompt * n_prefilled <= number("n_batch")
    is_together = n_sequences == 1 or not number("is_tg_separate")
    prefill_s, decode_s = number("t_pp"), number("t_tg")
    prefill = f"{prefill_s * 1e3:.9g}" if n_prompt and prefill_s > 0 and is_one_batch else ""
    step = (
        f"{decode_s * 1e3 / n_generated:.9g}"
        if n_generated and decode_s > 0 and is_together
        else ""
    )
    if prefill and (n_prefilled != n_sequences or not step):
        yield n_prompt, n_prefilled, 1, "", prefill, ""
        prefill = ""
    if step:
        yield max(n_prompt, 1), n_sequences, n_generated, n_generated, prefill, step


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
            try_=f"grep '\"{names[0]}\"' {where} > one-run.jsonl",
        )
    return [_one_batch_line(row, door, f"{where}, line {number}") for number, row in rows]


def _one_batch_line(row: Mapping[str, Any], door: Door, where: str) -> tuple[object, ...]:
    def number(name: str) -> float:
        if row.get(name) is None:
            raise RecordError(
                f"the line has no {name}",
                where=where,
                allowed="a line as SGLang writes it",
                try_="leave the line out, or run it again",
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
                try_="measure again without the server's speculation",
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
