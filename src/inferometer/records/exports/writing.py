"""How is a run of requests written in each format of other tools, and how is the file of each called?

The CSV of requests has one line per request, units in the header and empty cells where a value is
absent. The scheduler's log has one line per step and per rejected request; instants are since the
start of the run, and ``oldest_wait_s`` is how long the oldest of the requests that a step admits has
waited since it was sent: the window in which it gathered them.
"""

import csv
import io
import json
from typing import Final

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.records.columns import F64, I32
from inferometer.records.exports.formats import ExportFormat
from inferometer.records.exports.llmd_report import llmd_report
from inferometer.records.exports.vllm_bench_json import vllm_bench_json
from inferometer.records.slo_verdicts import Judgement
from inferometer.records.tables import optional_ns
from inferometer.records.types import (
    ABSENT,
    UNKNOWN_COUNT,
    RequestStatus,
    RequestTable,
    Run,
    StepTable,
)
from inferometer.units import NS_PER_S

HEADER: Final = (
    "request_index",
    "status",
    "class_index",
    "intended_send_s",
    "sent_s",
    "admitted_s",
    "first_token_s",
    "finished_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "n_preemptions",
    "ttft_s",
    "ttft_uncorrected_s",
    "tpot_s",
    "e2e_s",
)
LOG_COLUMNS: Final[tuple[str, ...]] = (
    "at_s",
    "event",
    "replica",
    "duration_s",
    "batch_size",
    "prefill_requests",
    "decode_requests",
    "prefill_tokens",
    "admitted_requests",
    "oldest_wait_s",
    "waiting_requests",
    "preempted_requests",
    "kv_used_blocks",
    "request_index",
    "class_index",
)
_TURNED_AWAY: Final = (RequestStatus.REJECTED, RequestStatus.ABORTED)


def request_csv(run: Run) -> str:
    """The table's text.

    Latencies count from the intended send, ``ttft_uncorrected_s`` from the send.

    Raises
    ------
    RecordError
        The run has no requests.
    """
    requests = run.requests
    if requests is None:
        raise RecordError(
            "the run has no requests", where=run.manifest.run_id, try_="show or report, for a sweep"
        )
    names = ("intended_send_ns", "sent_ns", "admitted_ns", "first_token_ns", "finished_ns")
    intended_s, sent_s, admitted_s, first_s, finished_s = (
        optional_ns(getattr(requests, name)) / NS_PER_S for name in names
    )
    has_tpot = requests.output_tokens > 1
    tpot_s = np.where(
        has_tpot, (finished_s - first_s) / np.maximum(requests.output_tokens - 1, 1), np.nan
    )
    columns: tuple[list[str], ...] = (
        requests.request_index.astype(str).tolist(),
        [RequestStatus(status).name.lower() for status in requests.status.tolist()],
        requests.class_index.astype(str).tolist(),
        *(_texts(column_s) for column_s in (intended_s, sent_s, admitted_s, first_s, finished_s)),
        requests.prompt_tokens.astype(str).tolist(),
        _counts(requests.cached_tokens),
        requests.output_tokens.astype(str).tolist(),
        _counts(requests.n_preemptions),
        *(
            _texts(column_s)
            for column_s in (
                first_s - intended_s,
                first_s - sent_s,
                tpot_s,
                finished_s - intended_s,
            )
        ),
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _texts(column_s: F64) -> list[str]:
    return ["" if np.isnan(value_s) else f"{value_s:.9f}" for value_s in column_s.tolist()]


def _counts(column: I32) -> list[str]:
    return ["" if value == UNKNOWN_COUNT else str(value) for value in column.tolist()]


def scheduler_log(run: Run) -> str:
    """The log as CSV, by time.

    Raises
    ------
    RecordError
        The run has no steps of requests.
    """
    steps, requests = run.steps, run.requests
    if steps is None or requests is None or not len(steps.start_ns):
        raise RecordError(
            "the run has no steps of requests",
            where=run.manifest.run_id,
            allowed="a run of `inferometer simulate --out`",
        )
    rows = [*_steps(steps, requests), *_drops(requests)]
    rows.sort(key=lambda row: (row[0], row[1]["event"] != "step"))
    text = io.StringIO()
    writer = csv.DictWriter(text, list[str](LOG_COLUMNS), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | {"at_s": f"{at_ns / NS_PER_S:.9f}"} for at_ns, row in rows)
    return text.getvalue()


def _steps(steps: StepTable, requests: RequestTable) -> list[tuple[int, dict[str, object]]]:
    admitted, oldest_ns = _admissions(requests)
    rows = list[tuple[int, dict[str, object]]]()
    for i, at_ns in enumerate(steps.start_ns.tolist()):
        n_prefill, n_decode = int(steps.n_prefill_requests[i]), int(steps.n_decode_requests[i])
        row: dict[str, object] = {
            "event": "step",
            "duration_s": f"{int(steps.duration_ns[i]) / NS_PER_S:.9f}",
            "batch_size": n_prefill + n_decode,
            "prefill_requests": n_prefill,
            "decode_requests": n_decode,
            "prefill_tokens": int(steps.prefill_tokens[i]),
            "admitted_requests": admitted.get(at_ns, 0),
            "waiting_requests": int(steps.n_waiting_requests[i]),
            "preempted_requests": int(steps.n_preempted_requests[i]),
        }
        if at_ns in oldest_ns:
            row["oldest_wait_s"] = f"{oldest_ns[at_ns] / NS_PER_S:.9f}"
        if steps.replica[i] != ABSENT:
            row["replica"] = int(steps.replica[i])
        if steps.kv_blocks_used[i] != ABSENT:
            row["kv_used_blocks"] = int(steps.kv_blocks_used[i])
        rows.append((at_ns, row))
    return rows


def _admissions(requests: RequestTable) -> tuple[dict[int, int], dict[int, int]]:
    """Of each instant of admissions: how many, and how long the oldest of them waited."""
    is_in = requests.admitted_ns != ABSENT
    at_ns = requests.admitted_ns[is_in]
    waited_ns = at_ns - requests.sent_ns[is_in]
    instants, group, counts = np.unique(at_ns, return_inverse=True, return_counts=True)
    oldest_ns = np.zeros(len(instants), np.int64)
    np.maximum.at(oldest_ns, group, waited_ns)
    return (
        dict(zip(instants.tolist(), counts.tolist(), strict=True)),
        dict(zip(instants.tolist(), oldest_ns.tolist(), strict=True)),
    )


def _drops(requests: RequestTable) -> list[tuple[int, dict[str, object]]]:
    rows = list[tuple[int, dict[str, object]]]()
    for status in _TURNED_AWAY:
        for i in np.flatnonzero((requests.status == status) & (requests.finished_ns != ABSENT)):
            row: dict[str, object] = {
                "event": status.name.lower(),
                "request_index": int(requests.request_index[i]),
                "class_index": int(requests.class_index[i]),
            }
            rows.append((int(requests.finished_ns[i]), row))
    return rows


def exported_text(run: Run, format_: ExportFormat, *, judgement: Judgement | None = None) -> str:
    """The file's text.

    ``judgement`` of an objective gives the goodput, for which a table has no place.

    Raises
    ------
    RecordError
        The run has no requests.
    """
    if format_ == "scheduler-log":
        return scheduler_log(run)
    if format_ == "csv":
        return request_csv(run)
    if format_ == "vllm-bench":
        return json.dumps(vllm_bench_json(run, judgement=judgement)) + "\n"
    return (
        msgspec.json.format(
            msgspec.json.encode(llmd_report(run, judgement=judgement)), indent=2
        ).decode()
        + "\n"
    )
