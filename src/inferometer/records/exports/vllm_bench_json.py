"""How does a run look as a result file of ``vllm bench serve --save-detailed``?

Names, units and definitions are vLLM's: latencies in milliseconds from the send, percentiles by
linear interpolation, statistics over completed requests, ITL of chunks. What the run does not know
is null or left out; where vLLM writes 0 for nothing, nothing is written.
"""

from datetime import datetime
from typing import Final, TypeAlias

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.columns import F64, Bools
from inferometer.records.latencies import COMPLETED, end_ns, is_one_of
from inferometer.records.slo_verdicts import Judgement
from inferometer.records.types import ABSENT, RequestTable, Run
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
    inputs, outputs = (
        int(requests.prompt_tokens[is_done].sum()),
        int(requests.output_tokens[is_done].sum()),
    )
    gaps_s = _chunk_gaps_s(run, requests)
    return {
        "date": _date(run.manifest.created_utc),
        "backend": None if run.manifest.engine is None else run.manifest.engine.engine,
        "label": run.manifest.run_id,
        "model_id": _model(run),
        "num_prompts": len(requests.status),
        "request_rate": None,
        "burstiness": None,
        "max_concurrency": None,
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


def _details(requests: RequestTable, gaps_s: list[list[float]] | None) -> dict[str, JsonValue]:
    """A value for each request.

    VLLM's own readers take 0 for a time that there is not, so this is the one place where it is
    written.
    """
    first_s, last_s = (
        _since_send_s(requests, requests.first_token_ns),
        _since_send_s(requests, requests.finished_ns),
    )
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
