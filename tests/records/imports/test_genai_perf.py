"""Are GenAI-Perf's files read as it defines them? Written here as perf_analyzer's sources write them."""

import json

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.detection import read_results
from inferometer.records.types import RequestStatus

BEGAN_NS = 1_722_535_267_000_000_000
MS = 1_000_000


def event(**content):
    return "data: " + json.dumps(content) + "\n\n"


def chunk(text, **more):
    return event(
        object="chat.completion.chunk", choices=[{"index": 0, "delta": {"content": text}}], **more
    )


def request(at_ms, responses, payload):
    return {
        "timestamp": BEGAN_NS + at_ms * MS,
        "sequence_id": 1,
        "request_inputs": {"payload": json.dumps(payload)},
        "response_timestamps": [BEGAN_NS + at * MS for at, _ in responses],
        "response_outputs": [{"response": text} for _, text in responses],
    }


CHAT = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}], "max_tokens": 3}
STREAMED = request(
    0, [(40, chunk("")), (50, chunk("a")), (60, chunk("b")), (80, chunk("c")), (81, "data: [DONE]\n\n")], CHAT
)  # fmt: skip
COUNTED = request(
    5,
    [(55, chunk("a")), (70, chunk("bc")), (71, event(choices=[], usage={"prompt_tokens": 90, "completion_tokens": 3}))],
    CHAT,
)  # fmt: skip
FAILED = request(7, [(9, event(error={"message": "no"}))], CHAT)
WHOLE = request(
    9,
    [(99, json.dumps({"object": "chat.completion", "choices": [{"message": {"content": "y" * 40}}]}))],
    CHAT,
)  # fmt: skip


def export(*experiments):
    return {
        "service_kind": "openai",
        "endpoint": "v1/chat/completions",
        "experiments": [
            {
                "experiment": {"mode": mode, "value": value},
                "requests": list(requests),
                "window_boundaries": [],
            }
            for mode, value, requests in experiments
        ],
        "version": "2.60.0",
    }


def read(content, tmp_path):
    path = tmp_path / "profile_export.json"
    path.write_text(json.dumps(content))
    return read_results(path)


def test_the_requests_of_each_experiment_are_a_run(tmp_path):
    found = read(
        export(("concurrency", 2, [STREAMED, COUNTED, FAILED]), ("concurrency", 4, [STREAMED])),
        tmp_path,
    )
    assert found.tool == "genai-perf"
    run, other = found.runs
    assert run.manifest.run_id != other.manifest.run_id
    requests = run.requests
    # from 0; the empty first chunk of a chat and [DONE] are no tokens
    assert np.allclose(requests.first_token_ns[:2] / MS, [50, 55], atol=1e-3)
    assert np.allclose(requests.finished_ns[:2] / MS, [80, 70], atol=1e-3)
    assert requests.output_tokens[:2].tolist() == [3, 3]
    assert requests.prompt_tokens[:2].tolist() == [100, 90]
    statuses = [RequestStatus.LENGTH, RequestStatus.LENGTH, RequestStatus.FAILED]
    assert requests.status.tolist() == statuses
    assert [one.code for one in run.manifest.cautions] == ["TOKENS_ESTIMATED"]
    # two chunks for three counted tokens: nobody can tell how they are spread
    assert run.chunks.n_tokens[run.chunks.request_index == 1].tolist() == [-(2**63)] * 2


def test_counted_tokens_need_no_caution_and_a_whole_answer_has_no_first_token(tmp_path):
    (run,) = read(export(("request_rate", 5.0, [COUNTED])), tmp_path).runs
    assert run.manifest.cautions == ()
    (run,) = read(export(("request_rate", 5.0, [WHOLE])), tmp_path).runs
    assert run.requests.first_token_ns.tolist() == [-(2**63)]
    assert run.requests.finished_ns[0] / MS == pytest.approx(90, abs=1e-3)
    assert run.requests.output_tokens.tolist() == [10]


def test_an_event_in_pieces_is_of_its_last_piece(tmp_path):
    text = chunk("a")
    pieces = request(0, [(40, text[:30]), (50, text[30:]), (60, chunk("b"))], CHAT)
    (run,) = read(export(("concurrency", 1, [pieces])), tmp_path).runs
    assert run.requests.output_tokens.tolist() == [2]
    assert run.requests.first_token_ns[0] / MS == pytest.approx(50, abs=1e-3)
    with pytest.raises(RecordError, match="ends within its JSON"):
        read(export(("concurrency", 1, [request(0, [(40, text[:30])], CHAT)])), tmp_path)


def statistics(**config):
    times = {
        "unit": "ms",
        "avg": 20.0,
        "p50": 19.0,
        "p99": 40.0,
        "min": 10.0,
        "max": 41.0,
        "std": 2.0,
    }
    return {
        "request_throughput": {"unit": "requests/sec", "avg": 4.87},
        "request_latency": times | {"avg": 203.7},
        "request_count": {"unit": "count", "avg": 50.0},
        "time_to_first_token": times,
        "inter_token_latency": times | {"avg": 1.86},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 504.0},
        "output_sequence_length": {"unit": "tokens", "avg": 103.5},
        "input_sequence_length": {"unit": "tokens", "avg": 200.0},
        "input_config": config,
    }


@pytest.mark.parametrize(
    "config",
    [
        {"model": ["gpt2"], "service_kind": "openai", "concurrency": 8, "streaming": True},
        {
            "model_names": ["gpt2"],
            "endpoint": {"streaming": True},
            "perf_analyzer": {"stimulus": {"concurrency": 8}},
        },
    ],
    ids=["older", "newer"],
)
def test_statistics(config, tmp_path):
    (summary,) = read(statistics(**config), tmp_path).summaries
    assert (summary.tool, summary.model, summary.concurrency) == ("genai-perf", "gpt2", 8)
    assert (summary.n_completed, summary.mean_prompt_tokens) == (50, 200)
    assert summary.latency("tpot").mean_s == pytest.approx(1.86e-3)
    assert summary.latency("e2e").mean_s == pytest.approx(0.2037)


def test_answers_that_were_not_streamed_have_no_first_token(tmp_path):
    whole = statistics(model=["gpt2"], service_kind="openai", concurrency=8, streaming=False)
    (summary,) = read(whole, tmp_path).summaries
    assert [one.name for one in summary.latencies] == ["e2e"]
