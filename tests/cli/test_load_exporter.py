"""Does a real Prometheus see of a load test what its run holds: counts, and quantiles within a bucket?"""

import time

import numpy as np
import pytest
from command_line import run
from tests.decide.peers import free_port, program, prometheus
from tests.serve.emulated import PLAN

from inferometer.measure.load.exporter import EDGES_S
from inferometer.records import latencies
from inferometer.records.reading import read_run
from inferometer.serve.emulator_process import start

pytestmark = pytest.mark.slow
SCRAPES = """
global:
  scrape_interval: 15s
scrape_configs:
  - job_name: load
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
WORKLOAD = """
n_requests = 300
[arrivals]
kind = "open"
rate_per_s = 20
[[classes]]
name = "short"
prompt_tokens = { kind = "constant", value = 50 }
output_tokens = { kind = "lognormal", median = 40, sigma = 0.8, max = 200 }
"""


def bucket_of(value_s):
    return int(np.searchsorted(EDGES_S, value_s))


def test_prometheus_counts_and_quantiles_are_those_of_the_run(tmp_path):
    program("prometheus", "prometheus")
    port = free_port()
    (tmp_path / "prometheus.yml").write_text(SCRAPES.format(port=port))
    (tmp_path / "prometheus-rules.yaml").write_text("groups: []\n")
    (tmp_path / "short.toml").write_text(WORKLOAD)
    words = ("--workload", "short.toml", "--out", "loaded", "--metrics-port", port)
    with start(PLAN) as emulator, prometheus(tmp_path) as server:
        outcome = run("load", emulator.url, "--model", "test-model", *words, folder=tmp_path)
        assert outcome.returncode in {0, 3}, outcome.stderr
        time.sleep(1)
        # The load test has ended: the last sample is that of its last scrape.
        at = "[5m]"

        def value(expression):
            ((_, found),) = server.values(expression)
            return found

        requests = read_run(tmp_path / "loaded").requests
        n_done = sum(
            found
            for _, found in server.values(
                f"sum(last_over_time(inferometer_load_requests_total{at}))"
            )
        )
        assert n_done == len(requests.status) == 300
        output = value(f'last_over_time(inferometer_load_tokens_total{{type="output"}}{at})')
        assert output == requests.output_tokens.sum()
        for name in ("ttft", "tpot", "e2e"):
            seconds = latencies.latency_samples(requests, name, at_ns=0).upper_s
            series = f"inferometer_load_{name}_seconds"
            assert value(f"last_over_time({series}_count{at})") == len(seconds)
            assert value(f"last_over_time({series}_sum{at})") == pytest.approx(seconds.sum())
            for fraction in (0.5, 0.95):
                seen = value(f"histogram_quantile({fraction}, last_over_time({series}_bucket{at}))")
                truth = np.quantile(seconds, fraction, method="inverted_cdf")
                assert abs(bucket_of(seen) - bucket_of(truth)) <= 1, (name, fraction, seen, truth)
