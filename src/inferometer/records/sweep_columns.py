"""What are the columns of a sweep's CSV table called, ours and others', and how is ours written?

Megabytes in these tables are 2^20 bytes: that is what tools built on torch print (the weights of a
3.09 B model in 16 bit are 5,886 of them, and published tables start just above that, below its
6,172 · 10^6 bytes).

``decode_p50_ms_per_tok`` is TPOT, as ``tpot_ms``: published tables write it under the first name.
Decode time is TPOT · decode_steps.
"""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Final

from inferometer.errors import RecordError
from inferometer.records import durability
from inferometer.records.summaries import PointSummary
from inferometer.stats.estimate import Estimate

BYTES_PER_MB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow:
    """One line of the table: a point, its utilisation (computed elsewhere) and its flag."""

    summary: PointSummary
    mbu_fraction: Estimate | None = None
    mfu_fraction: Estimate | None = None
    flag: str = ""


def column_texts(row: SweepRow) -> dict[str, str]:
    """What stands in each column of a line, in order. Nothing where there is no number."""
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
        raise RecordError("the sweep has no points to write", where=str(path))
    buffer = StringIO(newline="")
    writer = csv.DictWriter(buffer, fieldnames=list(texts[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(texts)
    durability.replace_file(path, buffer.getvalue().encode())


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
