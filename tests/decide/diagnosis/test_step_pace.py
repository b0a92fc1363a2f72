"""Step times by counters: near the truth, also where tokens are counted when a request ends."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages
from tests.decide.diagnosis.test_diagnosis import ROOMY, START_S, STEPS

from inferometer.decide.diagnosis.step_pace import overlapped_anew, step_paces
from inferometer.decide.diagnosis.window import observed_window
from inferometer.perfmodel.steptime_terms import step_duration_s

FEW = replace(ROOMY, max_num_seqs=4)


@pytest.mark.parametrize(
    ("names", "most_ratio"), [("vllm", 1.7), ("sglang-no-lengths", 1.7), ("tensorrt-llm", 2.6)]
)
def test_a_full_batch_tells_what_a_prompt_takes(names, most_ratio):
    """It decodes all the time: without the histogram of prefills up to 12 times as long was found."""
    plan = poisson(8.0, 640, 3, prompt=(900.0, 0.5), output=(90.0, 0.8))
    samples, _ = served_pages(FEW, STEPS, plan, start_s=START_S, for_s=60.0, names=names)
    window = observed_window(samples)
    found = step_paces(window, (8192,) * 9, 1)
    for tokens in (500, 2000):
        true_s, *took_s = (prompt_s(steps, tokens) for steps in (STEPS, *found))
        ratios = sorted(one / true_s for one in took_s)
        assert ratios[0] > 0.6
        assert ratios[-1] < most_ratio


def prompt_s(steps, tokens):
    """By how much a prompt lengthens a step of three answers."""
    alone_s = step_duration_s(steps, 0, 3, 0, 0, 3000, 3)
    return step_duration_s(steps, 1, 3, tokens, tokens * (tokens + 1) // 2, 3000, 4) - alone_s


def test_rows_of_small_steps_may_hide_wholly_behind_reading_the_weights():
    """All draws had steps that grow with each row: larger ones were then predicted too fast or slow."""
    few_rows = replace(ROOMY, max_num_batched_tokens=96, max_num_seqs=64)
    plan = poisson(8.0, 320, 3, prompt=(300.0, 0.5), output=(60.0, 0.5))
    samples, _ = served_pages(few_rows, STEPS, plan, start_s=START_S, for_s=20.0)
    found = step_paces(observed_window(samples), (96,) * 40, 1)
    growths = [whole_s(steps, 80) / whole_s(steps, 0) for steps in found]
    assert min(growths) < 1.005
    assert max(growths) > 1.15
    times_s = sorted(whole_s(steps, 800) for steps in found)
    assert times_s[0] < whole_s(STEPS, 800) < times_s[-1]


def test_what_larger_steps_take_is_drawn_again_and_what_was_seen_stays():
    few_rows = replace(ROOMY, max_num_batched_tokens=96, max_num_seqs=64)
    plan = poisson(8.0, 320, 3, prompt=(300.0, 0.5), output=(60.0, 0.5))
    samples, _ = served_pages(few_rows, STEPS, plan, start_s=START_S, for_s=20.0)
    first, *_ = step_paces(observed_window(samples), (96,), 1)
    rng, rows = np.random.default_rng(1), np.repeat([4.0, 96.0], 50)
    anew = [overlapped_anew(first, rows, rng) for _ in range(19)]
    for tokens, least, most in ((0, 0.9, 1.1), (92, 0.9, 1.1)):
        ratios = [whole_s(one, tokens) / whole_s(first, tokens) for one in anew]
        assert least < min(ratios) < 1.02
        assert most > max(ratios) > 0.98
    times_s = sorted(whole_s(one, 800) for one in anew)
    assert times_s[-1] > 1.5 * times_s[0]
    large = [overlapped_anew(first, np.repeat([4.0, 800.0], 50), rng) for _ in range(9)]
    spread_s = sorted(whole_s(one, 800) for one in large)
    assert spread_s[-1] < 1.2 * spread_s[0]  # large steps tell


def whole_s(steps, tokens):
    """Seconds of a step of three answers and a prompt of so many tokens."""
    return step_duration_s(steps, int(tokens > 0), 3, tokens, tokens * (tokens + 1) // 2, 900, 4)


@pytest.mark.slow
def test_tokens_of_requests_that_have_not_ended_count():
    """TensorRT-LLM counts a request at its end: a batch that fills up has computed far more."""
    plan = poisson(60.0, 4200, 3, prompt=(700.0, 0.5), output=(150.0, 0.6))
    config = replace(ROOMY, max_num_seqs=2048, num_blocks=400_000)
    pages = {
        names: served_pages(config, STEPS, plan, start_s=START_S, for_s=40.0, names=names)[0]
        for names in ("vllm", "tensorrt-llm")
    }
    true, found = (observed_window(one) for one in pages.values())
    ended = found.output_lengths.seen.total
    assert ended < 0.75 * true.output_tokens[-1]
    assert found.output_tokens[-1] == pytest.approx(true.output_tokens[-1], rel=0.15)
    assert found.step_prompt_tokens[-1] == pytest.approx(true.step_prompt_tokens[-1], rel=0.1)


@pytest.mark.slow
def test_who_waits_for_a_step_is_seen_where_the_gauge_is_written_after_it():
    """SGLang's queue is empty after each prefill of an overloaded server: the histogram has them."""
    plan = poisson(30.0, 2200, 3, prompt=(700.0, 0.5), output=(150.0, 0.6))
    config = replace(ROOMY, max_num_seqs=2048, num_blocks=400_000)
    true, found = (
        observed_window(
            served_pages(config, STEPS, plan, start_s=START_S, for_s=40.0, names=names)[0]
        )
        for names in ("vllm", "sglang-no-lengths")
    )
    assert found.waiting.mean() < 0.5 * true.mean_waiting
    assert found.mean_waiting == pytest.approx(true.mean_waiting, rel=0.4)
