"""What did the scheduler do, step by step: a line for each step and for each request turned away?

Instants are since the start of the run. ``oldest_wait_s`` is how long the oldest of the requests
that a step admits has waited since it was sent: the window in which it gathered them.
"""

import csv
import io
from typing import Final

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.types import ABSENT, RequestStatus, RequestTable, Run, StepTable
from inferometer.units import NS_PER_S

HEADER: Final[tuple[str, ...]] = (
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
    writer = csv.DictWriter(text, list[str](HEADER), restval="", lineterminator="\n")
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
