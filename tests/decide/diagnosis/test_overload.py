"""An overloaded server, whose batch grows: does the true server show what its page shows?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import clients_of, poisson, served_pages
from tests.decide.diagnosis.test_diagnosis import ROOMY, START_S, STEPS

from inferometer.decide.diagnosis.rebuilding import (
    Agreement,
    Fitted,
    Rebuilt,
    mean_waiting,
    measured_means,
    simulated_means,
)
from inferometer.decide.diagnosis.step_pace import prior_of_log_paces
from inferometer.decide.diagnosis.traffic import drawn_requests
from inferometer.decide.diagnosis.window import observed_window

FOR_S = 20.0
OVERLOADED = replace(ROOMY, max_num_seqs=2048, num_blocks=400_000)
PLAN = poisson(60.0, 2100, seed=1, prompt=(150, 0.5), output=(400, 0.5))


def rebuilt_of(config, plan):
    """The true server and its requests."""
    ends_ns = [round(at_s * 1e9) for at_s in (START_S, START_S + FOR_S)]
    return Rebuilt(config=config, steps=STEPS, plan=plan, start_ns=ends_ns[0], until_ns=ends_ns[1])


@pytest.mark.parametrize("names", ["vllm", "sglang", "tensorrt-llm", "llama.cpp"])
def test_the_true_server_shows_what_is_measured(names):
    """Answers go on when the window ends, and what ended in it came when the batch was smaller."""
    samples, done = served_pages(OVERLOADED, STEPS, PLAN, start_s=START_S, for_s=FOR_S, names=names)
    window = observed_window(
        samples, clients_of(done, start_s=START_S) if names == "llama.cpp" else None
    )
    assert window.is_batch_growing
    true = rebuilt_of(OVERLOADED, PLAN)
    shown = simulated_means(true, true.simulation(record_steps=True), window)
    measured = measured_means(window)
    assert {"running", "waiting", "ttft_s", "gap_s"} <= measured.keys()
    assert ("output_tokens_per_s" in measured) == (names != "tensorrt-llm")
    for name, seen in measured.items():
        low, high = shown[name]
        assert 0.9 * low - 0.5 <= seen <= 1.1 * high + 0.5, name  # 41 looks at a gauge
        if name.endswith("_s") and name != "queue_s":
            assert seen == pytest.approx(high, rel=0.1), name


def test_who_waits_is_known_where_requests_are_counted_when_they_end():
    """TensorRT-LLM's gauge is written after it has admitted them, its histogram has those that ended."""
    plan = poisson(35.0, 1300, seed=2, prompt=(500, 0.5), output=(400, 0.5))
    window = {"start_s": START_S, "for_s": FOR_S}
    samples, _ = served_pages(OVERLOADED, STEPS, plan, **window, names="tensorrt-llm")
    seen, true = observed_window(samples), rebuilt_of(OVERLOADED, plan)
    done = true.simulation()
    table, edges_ns = done.requests, (true.start_ns, true.until_ns)
    began_ns, came_ns = (
        np.clip(one, *edges_ns) for one in (table.admitted_ns, table.intended_send_ns)
    )
    waiting = float((began_ns - came_ns).sum()) / (edges_ns[1] - edges_ns[0])
    agreement = Agreement((Fitted(true, done, {}, 0.0),), {})
    assert waiting > 1.2 * seen.mean_waiting
    assert mean_waiting(seen, agreement) == pytest.approx(waiting)


def test_a_batch_that_grows_has_grown_as_fast_before():
    samples, _ = served_pages(OVERLOADED, STEPS, PLAN, start_s=START_S, for_s=FOR_S)
    rng = np.random.default_rng(1)
    found = [drawn_requests(observed_window(samples), rng)[1] for _ in range(20)]
    assert np.median(found) == pytest.approx(START_S, rel=0.3)


def test_of_thousands_of_rows_a_step_reads_weights_for_a_small_part():
    for rows, least, most in ((16.0, 0.6, 0.8), (4000.0, 0.01, 0.1)):
        counted = np.array([[10.0, 10 * rows, 160.0, 160 * 500.0]])
        mean, _ = prior_of_log_paces(counted, np.array([5.0]))
        assert least < float(np.exp(mean[0])) / 0.5 < most
