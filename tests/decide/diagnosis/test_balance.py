"""Is the page of one whole server told from one whose gauges or counters are of a part of it?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.decide.diagnosis.observed import balance, check_balanced
from inferometer.decide.diagnosis.window import observed_window
from inferometer.errors import ModelError
from inferometer.records.server_summaries import summarise_server
from inferometer.simulate import step_cost
from inferometer.simulate.scheduler_config import SchedulerConfig

STEPS = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
CONFIG = SchedulerConfig(num_blocks=20_000, max_model_len=20_100, enable_prefix_caching=True)
START_S, FOR_S = 10.0, 30.0


def samples_of(names="vllm", rate=10.0, seed=1, config=CONFIG, output=(80, 0.6)):
    plan = poisson(rate, round(rate * (START_S + FOR_S)), seed, output=output)
    window = {"start_s": START_S, "for_s": FOR_S, "names": names}
    return served_pages(config, STEPS, plan, **window)[0]


@pytest.mark.parametrize("names", ["vllm", "sglang"])
@pytest.mark.parametrize("rate", [1.2, 4.0, 20.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_one_whole_server_is_balanced(names, rate, seed):
    window = observed_window(samples_of(names, rate, seed))
    check_balanced(window)
    found = balance(window)
    assert found.counted == pytest.approx(found.by_times, rel=0.35)


@pytest.mark.parametrize("names", ["vllm", "sglang"])
def test_a_queue_that_grows_is_no_contradiction(names):
    config = replace(CONFIG, max_num_seqs=4)
    window = observed_window(samples_of(names, config=config))
    assert window.waiting[-1] > 50
    check_balanced(window)


def test_clients_that_go_away_together_are_no_contradiction():
    """A load test whose queue is long ends it: nobody waits at the last scrape, and few have ended."""
    samples = samples_of(config=replace(CONFIG, max_num_seqs=4))
    is_gauge = np.isin(samples.name, ["vllm:num_requests_running", "vllm:num_requests_waiting"])
    is_last = samples.scraped_ns == samples.scraped_ns.max()
    left = observed_window(samples._replace(value=np.where(is_gauge & is_last, 0.0, samples.value)))
    assert left.waiting[-2] > 50
    assert left.waiting[-1] == 0
    check_balanced(left)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_gauges_of_half_the_engines_or_of_each_rank_are_refused(factor):
    samples = samples_of(rate=20.0, output=(300, 0.3))
    is_gauge = np.isin(samples.name, ["vllm:num_requests_running", "vllm:num_requests_waiting"])
    assert is_gauge.any()
    value = np.where(is_gauge, samples.value * factor, samples.value)
    window = observed_window(samples._replace(value=value))
    with pytest.raises(ModelError, match="Little's law") as refused:
        check_balanced(window)
    assert refused.value.what.startswith("inconclusive")


def test_a_server_that_reports_no_stay_is_not_judged():
    samples = samples_of()
    kept = np.array(["e2e" not in name for name in samples.name])
    left = samples._replace(**{name: getattr(samples, name)[kept] for name in samples._fields})
    assert balance(observed_window(left)) is None


def test_the_same_requests_on_two_tensor_parallel_ranks_count_once():
    samples = samples_of("sglang")

    def of_rank(rank):
        return np.array([f'{one},tp_rank="{rank}"' if one else one for one in samples.labels])

    both = samples._replace(
        scraped_ns=np.tile(samples.scraped_ns, 2),
        name=np.tile(samples.name, 2),
        labels=np.concatenate([of_rank(0), of_rank(1)]),
        value=np.tile(samples.value, 2),
    )
    once, twice = summarise_server(samples), summarise_server(both)
    assert twice.running == once.running
    assert twice.output_tokens == once.output_tokens
    assert twice.time("ttft") == once.time("ttft")


@pytest.mark.parametrize("seed", range(4))
def test_a_light_load_is_no_contradiction(seed):
    """Half a request in the server on average: each look shows none, one or two."""
    plan = poisson(2.0, 150, seed, prompt=(128, 0.2), output=(20, 0.2))
    samples, _ = served_pages(CONFIG, STEPS, plan, start_s=5.0, for_s=40.0, every_s=1.0)
    check_balanced(observed_window(samples))
