"""What does a window of a changed server say of the sealed prediction, and when does it say nothing?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from served_pages import poisson, served_pages

from inferometer.decide.diagnosis.window import observed_window
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.records.server_names import START_TIME
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.verify import changes

STEPS = datasheet_levels(
    find_model("llama-3.1-8b"), EngineSpec(dtype="bfloat16"), find_hardware("h100_sxm")
).likely
CONFIG = SchedulerConfig(num_blocks=20_000, max_model_len=20_100, max_num_seqs=64)


def pages(rate=8.0, seed=1, config=CONFIG, prompt=(400, 0.5), users=None):
    plan = poisson(rate, round(rate * 30), seed, prompt=prompt, users=users)
    return served_pages(config, STEPS, plan, start_s=6, for_s=14)


def window_of(**asked):
    return observed_window(pages(**asked)[0])


@pytest.fixture(scope="module")
def sealed():
    window = window_of()
    return changes.SealedChange(
        target="http://127.0.0.1:8000",
        cause="max_num_seqs",
        change="--max-num-seqs 64",
        objective="ttft:p95<500ms",
        window_s=window.duration_s,
        n_requests=window.prompt_lengths.seen.n,
        server_started_s=changes.started_s(window),
        **changes.traffic_of(window),
    )


def test_the_same_traffic_of_another_time_decides(sealed):
    assert changes.why_nothing_is_proved(sealed, window_of(seed=2)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"rate": 30.0}, "requests/s"),
        ({"prompt": (4000, 0.1)}, "mean prompt tokens"),
        ({"users": 30, "rate": 60.0}, "closed loop"),
    ],
)
def test_other_traffic_decides_nothing(sealed, asked, said):
    assert said in changes.why_nothing_is_proved(sealed, window_of(**asked))


def test_a_server_that_was_not_started_anew_decides_nothing(sealed):
    samples, _ = pages(seed=2)
    grown = {
        name: np.append(getattr(samples, name), value)
        for name, value in zip(samples._fields, (0, START_TIME, "", 1.7e9), strict=True)
    }
    window = observed_window(samples._replace(**grown))
    assert changes.started_s(window) == 1.7e9
    said = changes.why_nothing_is_proved(replace(sealed, server_started_s=1.7e9), window)
    assert "not started anew" in said
    assert changes.why_nothing_is_proved(replace(sealed, server_started_s=1.6e9), window) == ""
    assert changes.why_nothing_is_proved(sealed, window) == ""  # it did not tell before


def test_means_are_exact_and_percentiles_lie_in_their_buckets():
    samples, done = pages()
    found = changes.measured_latencies(observed_window(samples))
    table = done.requests
    first_s = table.first_token_ns / 1e9
    rows = (first_s >= 6) & (first_s < 20)
    ttft_s = (first_s - table.intended_send_ns / 1e9)[rows]
    assert found["ttft_mean_s"].value == pytest.approx(ttft_s.mean(), rel=0.02)
    p95 = found["ttft_p95_s"]
    assert p95.low <= np.quantile(ttft_s, 0.95) <= p95.high
    assert p95.low <= p95.value <= p95.high
    assert 0 < found["tpot_mean_s"].value < found["tpot_p95_s"].high


def test_the_slo_is_judged_by_buckets_and_open_within_one():
    window = window_of()
    bucket = changes.measured_latencies(window)["ttft_p95_s"]
    limits = {"met": bucket.high, "missed": bucket.low * 0.99, "undecided": bucket.value}
    for verdict, limit_s in limits.items():
        assert changes.objective_met(f"ttft:p95<{limit_s * 1e3:.6f}ms", window) == verdict
