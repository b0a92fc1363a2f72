"""Which table of a sweep is it that SGLang's ``bench_one_batch`` and ``bench_one_batch_server`` wrote?

Both append a JSON object a line: a batch of equal prompts, all at once; times in seconds. Without a
server ``prefill_latency`` is the step of all prompts and ``median_decode_latency`` a decode step.
With one, ``last_ttft`` is when the last of the batch had its first token, and the time from there
to the end (``latency``) is that of the other steps; speculation makes several tokens a step, and
such lines are refused. Source: sgl-project/sglang, python/sglang/bench_one_batch.py,
bench_one_batch_server.py and test/bench_one_batch_server_internal.py.
"""

import csv
from collections.abc import Mapping
from io import StringIO
from typing import Any, Final

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.records.llama_bench import HEADER

_START_CHARACTERS: Final = 2**14
_OFFLINE: Final = '"prefill_latency"'
_SERVER: Final = '"last_ttft"'
_MS: Final = 1e3


def is_json(text: str) -> bool:
    """Does this text begin as their lines do?"""
    start = text.lstrip()[:_START_CHARACTERS]
    is_one = _OFFLINE in start or _SERVER in start
    return start[:1] == "{" and '"batch_size"' in start and is_one


def as_sweep_table(text: str, door: Door, *, where: str) -> str | None:
    """The same numbers as lines under ``HEADER``; None where the text is none of these.

    Raises
    ------
    RecordError
        Its lines are of several runs or of speculation, or one is broken.
    """
    if not is_json(text):
        return None
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
            allowed="one run name: keep its lines, each other in a file of its own",
        )
    buffer = StringIO(newline="")
    lines = [_line(row, door, f"{where}, line {number}") for number, row in rows]
    csv.writer(buffer, lineterminator="\n").writerows([HEADER, *lines])
    return buffer.getvalue()


def _line(row: Mapping[str, Any], door: Door, where: str) -> tuple[object, ...]:
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
        f"{prefill_s * _MS:.9g}",
        "" if step_s is None else f"{step_s * _MS:.9g}",
    )
