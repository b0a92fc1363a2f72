"""Is a published serving run read as it was written, and a broken one named by its line?"""

import json

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.llmservingsim import read_llmservingsim
from inferometer.records.types import RequestStatus

HEADER = (
    "request_id,input_toks,output_toks,arrival_s,queued_s,scheduled_s,first_token_s,last_token_s"
)
LINES = ["bench-0,40,3,0.0,0.001,0.0015,0.25,0.75", "bench-1,33,1,0.125,0.25,0.2505,0.5,0.5"]
WORKLOAD = [
    {"request_id": "bench-0", "input_toks": 40, "output_toks": 3, "hash_runs": [[0, 2]]},
    {"request_id": "bench-1", "input_toks": 33, "output_toks": 1, "hash_runs": [[0, 1], [7, 2]]},
]
SUMMARY = (
    "Metric   vLLM   Sim   Diff%\n-----\nTTFT Mean    1086.0   938.6   -13.6%\nLatency P99  "
    " 43901.1   43089.4   -1.8%\n"
)
ARGUMENTS = {
    "model": "Qwen/Qwen3-30B-A3B-Instruct-2507",
    "tensor_parallel_size": 1,
    "data_parallel_size": 2,
    "enable_expert_parallel": True,
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "max_model_len": None,
    "dtype": "bfloat16",
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "requests.csv").write_text("\n".join([HEADER, *LINES]) + "\n")
    (tmp_path / "meta.json").write_text(
        json.dumps({"engine_kwargs": ARGUMENTS, "started_at": "2026-04-25T19:21:30Z"})
    )
    (tmp_path / "llmservingsim_prediction_summary.txt").write_text(SUMMARY)
    (tmp_path / "workload.jsonl").write_text("\n".join(json.dumps(row) for row in WORKLOAD))
    return tmp_path


def test_what_is_read(folder):
    serving = read_llmservingsim(folder, folder / "workload.jsonl")
    table = serving.run.requests
    assert serving.run.manifest.origin == "published"
    assert serving.run.manifest.model.model_id == "qwen3-30b-a3b"
    assert table.sent_ns.tolist() == [0, 125_000_000]
    assert serving.queued_ns.tolist() == [1_000_000, 250_000_000]
    assert table.admitted_ns.tolist() == [1_500_000, 250_500_000]
    assert (table.first_token_ns[0], table.finished_ns[0]) == (250_000_000, 750_000_000)
    assert (table.prompt_tokens.tolist(), table.output_tokens.tolist()) == ([40, 33], [3, 1])
    assert set(table.status.tolist()) == {RequestStatus.LENGTH}
    assert serving.arguments.data_parallel_size == 2
    assert [claim[:2] for claim in serving.claims] == [("ttft", "mean"), ("e2e", "p99")]
    assert serving.claims[0][2:] == pytest.approx((1.086, 0.9386))
    assert serving.claims[1][2:] == pytest.approx((43.9011, 43.0894))


def test_only_full_blocks_of_the_prompt_are_shared(folder):
    prefix = read_llmservingsim(folder, folder / "workload.jsonl").prefix
    assert prefix.start.tolist() == [0, 2, 4]
    assert prefix.ids.tolist() == [0, 1, 0, 7]
    assert read_llmservingsim(folder).prefix is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("bench-1,33,1,0.125,,0.2505,0.5,0.5", "queued_s = ''"),
        ("bench-1,33,1,-1,0,0,0,0", "line 3 arrives before"),
        (
            "bench-1,33,1,0.125,0.25,0.2505,-5,0.5",
            "first_token_s = -5\n.*line 3\n.*arrival_s = 0.125",
        ),
        ("bench-1,33,1,0.125,0.25,0.2505,0.5,0.4", "last_token_s = 0.4\n.*line 3"),
    ],
)
def test_broken_lines(folder, line, said):
    (folder / "requests.csv").write_text("\n".join([HEADER, LINES[0], line]))
    with pytest.raises(RecordError, match=said):
        read_llmservingsim(folder)


def test_a_workload_of_other_requests(folder):
    other = [WORKLOAD[0], WORKLOAD[1] | {"input_toks": 34}]
    (folder / "workload.jsonl").write_text("\n".join(json.dumps(row) for row in other))
    with pytest.raises(RecordError, match="line 2 has 34 prompt tokens, the log 33"):
        read_llmservingsim(folder, folder / "workload.jsonl")
    (folder / "workload.jsonl").write_text(json.dumps(WORKLOAD[0]))
    with pytest.raises(RecordError, match="1 requests for a log of 2"):
        read_llmservingsim(folder, folder / "workload.jsonl")


def test_a_missing_file(folder):
    (folder / "meta.json").unlink()
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        read_llmservingsim(folder)


def test_times_are_whole_nanoseconds(folder):
    assert all(column.dtype == np.int64 for column in read_llmservingsim(folder).run.requests[:5])
