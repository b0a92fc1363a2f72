"""How is a run of requests written in each format of other tools, and how is the file of each called?

The CSV of requests has one line per request, units in the header and empty cells where a value is
absent. The scheduler's log has one line per step and per rejected request; instants are since the
start of the run, and ``oldest_wait_s`` is how long the oldest of the requests that a step admits has
waited since it was sent: the window in which it gathered them.

In the result file of ``vllm bench serve --save-detailed`` names, units and definitions are vLLM's:
latencies in milliseconds from the send, percentiles by linear interpolation, statistics over
completed requests, ITL of chunks. What the run does not know is null or left out; where vLLM writes
0 for nothing, nothing is written.
"""

import csv
import io
import json
from datetime import datetime
from typing import Final, TypeAlias

import msgspec
import numpy as np

from inferometer.errors import RecordError
from inferometer.inputs.workload.types import AtOnce, ClosedArrivals, OpenArrivals
from inferometer.records.columns import F64, I32, Bools
from inferometer.records.exports import ExportFormat
from inferometer.records.exports.llmd_report import llmd_report
from inferometer.records.latencies import COMPLETED, end_ns, is_one_of
from inferometer.records.request_summaries import Judgement
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

JsonValue: TypeAlias = (
    "str | int | float | list[float] | list[int] | list[str] | list[list[float]] | None"
)

PERCENTILES: Final = (50, 90, 95, 99)


def vllm_bench_json(run: Run, *, judgement: Judgement | None = None) -> dict[str, JsonValue]:
    """The object to be written as JSON. ``judgement`` of an objective gives the goodput.

    Raises
    ------
    RecordError
        The run has no requests.
    """
    requests = run.requests
    if requests is None or not len(requests.status):
        raise RecordError(
            "the run has no requests",
            where=run.manifest.run_id,
            allowed="a load test, a simulated or an imported run",
        )
    is_done = is_one_of(requests, COMPLETED)
    took_s = (end_ns(run) - int(requests.intended_send_ns.min())) / NS_PER_S
    inputs = int(requests.prompt_tokens[is_done].sum())
    outputs = int(requests.output_tokens[is_done].sum())
    gaps_s = _chunk_gaps_s(run, requests)
    return {
        "date": _date(run.manifest.created_utc),
        "backend": None if run.manifest.engine is None else run.manifest.engine.engine,
        "label": run.manifest.run_id,
        "model_id": _model(run),
        "num_prompts": len(requests.status),
        **_arrivals(run),
        "duration": took_s,
        "completed": int(is_done.sum()),
        "failed": int((~is_done).sum()),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": int(is_done.sum()) / took_s if took_s else None,
        "request_goodput": None if judgement is None else judgement.good_requests_per_s,
        "output_throughput": outputs / took_s if took_s else None,
        "total_token_throughput": (inputs + outputs) / took_s if took_s else None,
        **_details(requests, gaps_s),
        **_statistics(requests, is_done, gaps_s),
    }


def _arrivals(run: Run) -> dict[str, JsonValue]:
    """Arrivals in vLLM's flags: a closed loop has the rate inf and a maximum concurrency.

    A rate that changes, and the instants of a trace, no flag says; a cap alone would be read as a
    closed loop.
    """
    rate: JsonValue = None
    burstiness: JsonValue = None
    load = run.manifest.load
    most = None if load is None else load.max_concurrency
    match None if load is None else load.workload.arrivals:
        case OpenArrivals(profile=None, process=process) as one:
            rate = one.rate_per_s
            burstiness = {"poisson": 1.0, "gamma": one.burstiness_ratio, "constant": None}[process]
        case ClosedArrivals(concurrency=most):
            rate = "inf"
        case AtOnce():
            rate = "inf"
        case _:
            most = None
    return {"request_rate": rate, "burstiness": burstiness, "max_concurrency": most}


def _details(requests: RequestTable, gaps_s: list[list[float]] | None) -> dict[str, JsonValue]:
    """A value for each request.

    VLLM's own readers take 0 for a time that there is not, so this is the one place where it is
    written.
    """
    first_s = _since_send_s(requests, requests.first_token_ns)
    last_s = _since_send_s(requests, requests.finished_ns)
    details: dict[str, JsonValue] = {
        "input_lens": requests.prompt_tokens.tolist(),
        "output_lens": requests.output_tokens.tolist(),
        "ttfts": np.nan_to_num(first_s).tolist(),
        "latencies": np.nan_to_num(last_s).tolist(),
        "start_times": (requests.sent_ns / NS_PER_S).tolist(),
        "queue_times": ((requests.sent_ns - requests.intended_send_ns) / NS_PER_S).tolist(),
        "errors": [
            "" if is_done else "not completed"
            for is_done in is_one_of(requests, COMPLETED).tolist()
        ],
    }
    return details if gaps_s is None else {**details, "itls": gaps_s}


def _statistics(
    requests: RequestTable, is_done: Bools, gaps_s: list[list[float]] | None
) -> dict[str, JsonValue]:
    first_s, last_s = (
        _since_send_s(requests, requests.first_token_ns),
        _since_send_s(requests, requests.finished_ns),
    )
    has_tpot = is_done & (requests.output_tokens > 1) & np.isfinite(first_s) & np.isfinite(last_s)
    found = {
        "ttft": first_s[is_done & np.isfinite(first_s)],
        "tpot": (last_s - first_s)[has_tpot] / (requests.output_tokens[has_tpot] - 1),
        "itl": np.array([gap_s for of_one in gaps_s or [] for gap_s in of_one]),
        "e2el": last_s[is_done & np.isfinite(last_s)],
    }
    statistics: dict[str, JsonValue] = {}
    for name, values_s in found.items():
        if values_s.size:
            statistics |= {
                f"mean_{name}_ms": float(values_s.mean()) * 1e3,
                f"median_{name}_ms": float(np.median(values_s)) * 1e3,
            }
            statistics |= {f"std_{name}_ms": float(values_s.std()) * 1e3}
            statistics |= {
                f"p{at}_{name}_ms": float(np.percentile(values_s, at)) * 1e3 for at in PERCENTILES
            }
    return statistics


def _chunk_gaps_s(run: Run, requests: RequestTable) -> list[list[float]] | None:
    if run.chunks is None:
        return None
    index, arrived_ns = run.chunks.request_index, run.chunks.arrived_ns
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    arrivals = np.split(arrived_ns, starts[1:])
    found = {
        int(index[start]): (np.diff(own_ns) / NS_PER_S).tolist()
        for start, own_ns in zip(starts.tolist(), arrivals, strict=False)
    }
    return [found.get(index, []) for index in requests.request_index.tolist()]


def _since_send_s(requests: RequestTable, at_ns: np.ndarray) -> F64:
    return np.where(
        (at_ns == ABSENT) | (requests.sent_ns == ABSENT),
        np.nan,
        (at_ns - requests.sent_ns) / NS_PER_S,
    )


def _model(run: Run) -> str | None:
    if run.manifest.load is not None:
        return run.manifest.load.served_model
    return None if run.manifest.model is None else run.manifest.model.model_id


def _date(created_utc: str) -> str | None:
    try:
        return datetime.fromisoformat(created_utc).strftime("%Y%m%d-%H%M%S")
    except ValueError:
        return None


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

    Latencies count from the intended send, ``ttft_uncorrected_s`` from the send. TPOT and E2E are
    those of completed requests: a refusal or a client's patience has an end, but no latency.

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
    is_done = is_one_of(requests, COMPLETED)
    n_gaps = requests.output_tokens - 1
    tpot_s = np.where(
        is_done & (n_gaps > 0), (finished_s - first_s) / np.maximum(n_gaps, 1), np.nan
    )
    e2e_s = np.where(is_done, finished_s - intended_s, np.nan)
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
                e2e_s,
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
    """For each instant of admissions: their number, and the longest wait."""
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
