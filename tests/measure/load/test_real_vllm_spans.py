"""Do vLLM's own spans join ours, and is its time the one that its clients saw?"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.measure.vllm_server import vllm_server

import otlp_receiver
from inferometer.inputs import span_names as names
from inferometer.inputs.otlp_spans import read_spans
from inferometer.records.span_joins import span_times

pytestmark = pytest.mark.slow
N = 60
EXPORTED_S = 30.0
WORKLOAD = """
[arrivals]
kind = "open"
rate_per_s = 6.0
[[classes]]
name = "talk"
prompt_tokens = { kind = "uniform", low = 5, high = 40 }
output_tokens = { kind = "uniform", low = 2, high = 24 }
"""


def test_each_request_has_its_span_of_vllm(tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "vllm")
    (tmp_path / "talk.toml").write_text(WORKLOAD)
    (tmp_path / "vllm").mkdir()
    with otlp_receiver.receiver(tmp_path / "spans.jsonl") as collector:
        traces = f"{collector.url}/v1/traces"
        with vllm_server(tmp_path / "vllm", "--otlp-traces-endpoint", traces) as url:
            inferometer = Path(sys.executable).parent / "inferometer"
            line = [inferometer, "load", url, "--model", "tiny", "--workload", "talk.toml"]
            line += ["--requests", str(N), "--out", "run", "--no-report"]
            line += ["--endpoint", "completions", "--prompts", "token-ids"]
            line += ["--otlp-endpoint", collector.url]
            done = subprocess.run(
                line, cwd=tmp_path, capture_output=True, text=True, check=False, env=os.environ
            )
            assert done.returncode in {0, 3}, done.stderr
            ends_s = time.monotonic() + EXPORTED_S
            while time.monotonic() < ends_s and served_in(collector.path) < N:
                time.sleep(0.5)
    times = span_times(read_spans(collector.path))
    assert times is not None
    assert (times.seen_by, times.n_requests) == ("client and server", N)
    assert times.n_client_only == 0
    means_s = {part.name: part.mean_s.value for part in times.parts}
    assert set(means_s) == {
        *("schedule delay", "network and router", "server's front end"),
        *("queue", "prefill", "decode"),
    }
    assert sum(means_s.values()) == pytest.approx(times.total_s.value)
    # The server's time is a part of the client's, up to what two clocks differ in a request.
    assert all(value_s > -2e-3 for value_s in means_s.values()), means_s
    assert means_s["decode"] > 0
    assert means_s["prefill"] > 0


def served_in(path):
    spans = read_spans(path) if path.exists() else ()
    return sum(
        span.number(names.IN_QUEUE) is not None and span.parent_id is not None for span in spans
    )
