"""Do steps that were recorded give the server's own step times, and more narrowly than its metrics?"""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.decide.diagnosis.step_pace import (
    counted_of,
    fitted_numbers,
    limits_shown,
    measured_paces,
    parts_of,
    step_paces,
)
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import ModelError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.records.step_logs import step_log_of
from inferometer.simulate.scheduler_config import SchedulerConfig

TRUE = datasheet_levels(
    find_model("llama-3.1-8b"), EngineSpec(dtype="bfloat16"), find_hardware("h100_sxm")
).likely
BUDGET, N_DRAWS = 1024, 20
CONFIG = SchedulerConfig(
    num_blocks=40_000,
    max_model_len=20_100,
    max_num_seqs=256,
    max_num_batched_tokens=BUDGET,
    enable_prefix_caching=True,
)
SHAPES = (
    decode_shape(batch_size=8, context_tokens=600),
    decode_shape(batch_size=64, context_tokens=600),
    prefill_shape(batch_size=1, prompt_tokens=1000),
)


@pytest.fixture(scope="module")
def served():
    plan = poisson(8.0, 280, seed=3)
    samples, done = served_pages(CONFIG, TRUE, plan, start_s=5.0, for_s=25.0)
    log = step_log_of(done.steps)
    noise = np.exp(np.random.default_rng(1).normal(0.0, 0.05, len(log.duration_s)))
    return samples, log._replace(duration_s=log.duration_s * noise)


def spread(draws, shape):
    seconds = np.array([shape_duration_s(one, shape) for one in draws])
    return float(seconds.min()), float(seconds.max())


def test_the_true_times_are_inside_and_the_intervals_narrower_than_by_metrics(served):
    samples, log = served
    recorded = measured_paces(log, N_DRAWS, 1)
    by_metrics = step_paces(observed_window(samples), [BUDGET] * N_DRAWS, 1)
    for shape in SHAPES:
        (low, high), wide = spread(recorded, shape), spread(by_metrics, shape)
        assert 0.97 * low <= shape_duration_s(TRUE, shape) <= 1.03 * high
        assert math.log(high / low) < 0.5 * math.log(wide[1] / wide[0])


def test_the_step_budget_is_shown_by_the_steps_that_it_cut(served):
    assert limits_shown(served[1]) == {"max_num_batched_tokens": BUDGET}


def test_prompts_of_one_length_show_no_step_budget(served):
    log = served[1]
    same = log._replace(
        prefill_requests=np.ones_like(log.duration_s),
        prefill_tokens=np.full_like(log.duration_s, 500.0),
        decode_requests=np.zeros_like(log.duration_s),
        decode_tokens=np.zeros_like(log.duration_s),
    )
    assert limits_shown(same) == {}


def test_parts_add_up_to_the_steps(served):
    log = served[1]
    x = fitted_numbers(log, 1, 1)[0]
    parts = parts_of(x, counted_of(log))
    together_s = sum(float(part.sum()) for part in parts)
    assert together_s == pytest.approx(float(log.duration_s.sum()), rel=0.05)
    assert all((part >= -1e-12).all() for part in parts)


def test_too_few_steps_are_refused(served):
    log = served[1]
    few = log._replace(**{
        name: getattr(log, name)[:20]
        for name in log._fields
        if isinstance(getattr(log, name), np.ndarray)
    })  # fmt: skip
    with pytest.raises(ModelError, match="20 steps"):
        measured_paces(few, N_DRAWS, 1)
