"""Are the steps that servers record read as they are, and what their records leave open left open?"""

import json
import math

import msgspec
import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.inputs.workload.plan import request_plan
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.records.imports.detection import read_results
from inferometer.records.step_logs import (
    MESSAGES,
    ForwardPass,
    Numbered,
    forward_passes,
    read_step_log,
    step_log_of,
)
from inferometer.simulate import run
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

DYNAMO = {
    "version": 1,
    "worker_id": "w",
    "dp_rank": 0,
    "counter_id": 7,
    "wall_time": 0.025,
    "scheduled_requests": {
        "num_prefill_requests": 2,
        "sum_prefill_tokens": 300,
        "var_prefill_length": 12.5,
        "sum_prefill_kv_tokens": 64,
        "num_decode_requests": 5,
        "sum_decode_kv_tokens": 4000,
        "var_decode_kv_tokens": 1.5,
    },
    "queued_requests": {
        "num_prefill_requests": 3,
        "sum_prefill_tokens": 900,
        "var_prefill_length": 0.0,
        "num_decode_requests": 1,
        "sum_decode_kv_tokens": 800,
        "var_decode_kv_tokens": 0.0,
    },
}
"""As Dynamo's ``forward_pass_metrics.py`` has it, schema 1."""
SGLANG = {name: value for name, value in DYNAMO.items() if name not in {"version", "counter_id"}}
"""As SGLang's has it: without a version, its number in a frame of its own."""
VLLM = """\
INFO 11-25 00:12:36 [core.py:200] Engine started
INFO 11-25 00:12:37 [loggers.py:199] Engine 000: Iteration(0): 1 context requests, 64 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 12.50 ms, GPU KV cache usage: 25.0%
INFO 11-25 00:12:37 [loggers.py:199] Engine 000: Iteration(1): 0 context requests, 0 context tokens, 2 generation requests, 6 generation tokens, iteration elapsed time: 9.25 ms, GPU KV cache usage: 50.0%
INFO 11-25 00:12:37 [loggers.py:199] Engine 001: Iteration(0): 0 context requests, 0 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 9.00 ms (dummy), GPU KV cache usage: 0.0%
INFO 11-25 00:12:39 [loggers.py:199] Iteration(0): 1 context requests, 8 context tokens, 0 generation requests, 0 generation tokens, iteration elapsed time: 8.00 ms
INFO 11-25 00:12:40 [loggers.py:199] Engine 000: Iteration(0): 1 context requests, 9 context tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 8.00 ms, CPU KV cache usage: 1.5%
"""  # noqa: E501 - as vLLM writes it


def message(**changes):
    return MESSAGES.msgpack(msgspec.msgpack.encode(DYNAMO | changes), ForwardPass, where="wire")


def test_a_message_of_dynamo_is_a_step():
    log = forward_passes([Numbered(None, message())])
    assert log.duration_s.tolist() == [0.025]
    assert (log.rows.tolist(), log.sequences.tolist()) == ([305], [7])
    assert (log.held_tokens.tolist(), log.cached_tokens.tolist()) == ([4000], [64])
    assert log.waiting_requests.tolist() == [4]
    assert math.isnan(log.kv_usage_fraction[0])


def test_a_message_of_sglang_is_the_same_step():
    one = MESSAGES.msgpack(msgspec.msgpack.encode(SGLANG), ForwardPass, where="wire")
    ours, theirs = (forward_passes([Numbered(None, each)]) for each in (one, message()))
    assert all(
        np.array_equal(a, b, equal_nan=True) for a, b in zip(ours[1:], theirs[1:], strict=True)
    )


def test_numbers_that_jump_are_lost_steps_and_those_that_fall_a_restart():
    numbers = [3, 4, 8, 9, 0, 1]
    log = forward_passes([Numbered(None, message(counter_id=one)) for one in numbers])
    assert (len(log.duration_s), log.n_lost, log.n_restarts) == (6, 3, 1)


def test_each_rank_counts_for_itself():
    ranks = [Numbered(number, message(dp_rank=rank)) for number in (5, 6) for rank in (0, 1)]
    log = forward_passes(ranks)
    assert (log.n_lost, log.n_restarts) == (0, 0)


def test_another_version_is_refused_and_an_idle_server_makes_no_step():
    log = forward_passes(
        [
            Numbered(None, message(version=2)),
            Numbered(None, message(wall_time=math.inf)),
            Numbered(None, message(wall_time=0.0, counter_id=8)),
        ]
    )
    assert (len(log.duration_s), log.n_refused) == (0, 2)


def test_damaged_bytes_are_refused():
    with pytest.raises(RecordError, match="damaged"):
        MESSAGES.msgpack(b"\xc1", ForwardPass, where="wire")


def test_vllms_log_is_read_between_its_other_lines(tmp_path):
    (tmp_path / "vllm.log").write_text(VLLM)
    log = read_step_log(tmp_path / "vllm.log")
    assert log.source == "vLLM's iteration log"
    assert log.duration_s.tolist() == [0.0125, 0.00925, 0.008, 0.008]
    assert log.rows.tolist() == [64, 6, 8, 10]
    assert log.decode_requests.tolist() == [0, 2, 0, 1]
    assert log.kv_usage_fraction[[0, 1, 3]].tolist() == [0.25, 0.5, 0.015]
    assert np.isnan(log.kv_usage_fraction[2])
    assert np.isnan(log.held_tokens).all()
    assert log.n_restarts == 1


def test_messages_as_json_lines_are_read(tmp_path):
    path = tmp_path / "fpm.jsonl"
    path.write_text("".join(json.dumps(DYNAMO | {"counter_id": n}) + "\n" for n in (1, 2, 4)))
    log = read_step_log(path)
    assert (len(log.duration_s), log.n_lost) == (3, 1)


def test_a_scheduler_log_is_read(tmp_path):
    path = tmp_path / "scheduler-log.csv"
    path.write_text(
        "at_s,event,replica,duration_s,batch_size,prefill_requests,decode_requests,prefill_tokens,"
        "waiting_requests\n0.5,step,0,0.020,3,1,2,100,\n0.6,rejected,,,,,,,\n"
    )
    log = read_step_log(path)
    assert (log.duration_s.tolist(), log.rows.tolist()) == ([0.02], [102])
    assert np.isnan(log.waiting_requests[0])


@pytest.mark.parametrize("text", ["", "nothing here\n", "a,b\n1,2\n"])
def test_a_file_without_steps_is_refused(text, tmp_path):
    (tmp_path / "x").write_text(text)
    with pytest.raises(RecordError, match="no steps are in this file"):
        read_step_log(tmp_path / "x")


@pytest.mark.parametrize(
    "line",
    [
        (
            "INFO 09-02 13:08:10 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg"
            " generation throughput: 238.7 tokens/s, Running: 10 reqs, Waiting: 0 reqs\n"
        ),
        (
            "[2025-11-03 14:31:12 TP0] Decode batch, #running-req: 251, #token: 281120, token usage:"
            " 0.67, gen throughput (token/s): 2055.94, #queue-req: 655\n"
        ),
    ],
)
def test_a_servers_ordinary_log_has_averages_and_the_refusal_says_where_to_go(line, tmp_path):
    path = tmp_path / "server.log"
    path.write_text("starting\n" + line)
    with pytest.raises(RecordError, match=r"it has .* averages over") as refused:
        read_step_log(path)
    assert "inferometer diagnose http://" in str(refused.value)
    with pytest.raises(RecordError, match="a server's own log") as refused:
        read_results(path)
    assert "--server-log" in str(refused.value)


def test_steps_of_a_simulation_keep_what_they_held(simulated_steps):
    log = step_log_of(simulated_steps)
    first = int(np.flatnonzero(log.prefill_tokens > 0)[0])
    assert log.cached_tokens[first] == 0
    assert log.held_tokens[log.decode_requests > 0].min() > 0
    assert log.duration_s.sum() == pytest.approx(simulated_steps.duration_ns.sum() / 1e9)


@pytest.fixture(scope="module")
def simulated_steps():
    steps = datasheet_levels(
        find_model("llama-3.1-8b"), EngineSpec(dtype="bfloat16"), find_hardware("h100_sxm")
    ).likely
    plan = request_plan(
        "test",
        arrival_ns=np.arange(5, dtype=np.int64) * 10_000_000,
        prompt_tokens=np.full(5, 300, np.int32),
        output_tokens=np.full(5, 20, np.int32),
    )
    config = SchedulerConfig(
        num_blocks=1000, max_model_len=400, max_num_seqs=64, max_num_batched_tokens=128
    )
    return run.run(lone_replica(config, steps), plan).steps
