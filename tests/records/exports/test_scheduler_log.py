"""Has the log a line for each step and each request turned away, with how long the oldest waited?"""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.errors import RecordError
from inferometer.inputs.types import SweepPoint
from inferometer.records import tables
from inferometer.records.exports.writing import scheduler_log
from inferometer.records.imports.detection import read_results
from inferometer.records.types import ABSENT, Phase, RequestStatus, RequestTable, StepTable

NS = 10**6
POINT = SweepPoint(prompt_tokens=10, batch_size=1, gen_tokens=2)


def test_a_window_of_three_milliseconds_and_a_drop(make_run):
    """Two requests are gathered for 3 ms, a third comes too late and is turned away at 4 ms."""
    requests = tables.from_rows(
        RequestTable,
        [
            {
                "request_index": i,
                "intended_send_ns": sent * NS,
                "sent_ns": sent * NS,
                "admitted_ns": 3 * NS if i < 2 else ABSENT,
                "first_token_ns": 5 * NS if i < 2 else ABSENT,
                "finished_ns": (5 if i < 2 else 4) * NS,
                "prompt_tokens": 10,
                "cached_tokens": 0,
                "output_tokens": 1 if i < 2 else 0,
                "n_preemptions": 0,
                "status": RequestStatus.STOPPED if i < 2 else RequestStatus.REJECTED,
                "priority": 0,
                "class_index": 7,
            }
            for i, sent in enumerate((0, 1, 2))
        ],
    )
    step = {
        "point_index": -1,
        "repetition": -1,
        "is_warmup": False,
        "phase": Phase.PREFILL,
        "start_ns": 3 * NS,
        "duration_ns": 2 * NS,
        "n_prefill_requests": 2,
        "n_decode_requests": 0,
        "n_waiting_requests": 1,
        "n_preempted_requests": 0,
        "prefill_tokens": 20,
        "prefill_context_product_tokens2": 110,
        "decode_context_tokens": 0,
        "kv_blocks_used": 4,
        "replica": 1,
    }
    run = replace(
        make_run({POINT: ([0.2], [1.0])}),
        steps=tables.from_rows(StepTable, [step]),
        requests=requests,
    )
    first, second = csv.DictReader(io.StringIO(scheduler_log(run)))
    assert (first["event"], first["at_s"], first["duration_s"]) == (
        "step",
        "0.003000000",
        "0.002000000",
    )
    assert (first["batch_size"], first["admitted_requests"], first["oldest_wait_s"]) == (
        "2",
        "2",
        "0.003000000",
    )
    assert (first["replica"], first["kv_used_blocks"], first["waiting_requests"]) == ("1", "4", "1")
    assert (second["event"], second["at_s"]) == ("rejected", "0.004000000")
    assert (second["request_index"], second["class_index"]) == ("2", "7")


def test_a_run_without_steps_is_refused():
    results = Path(__file__).parents[1] / "imports" / "results"
    with pytest.raises(RecordError, match="no steps"):
        scheduler_log(read_results(results / "vllm-bench-detailed.json").runs[0])
