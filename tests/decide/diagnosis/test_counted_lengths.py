"""Are lengths known where a server counts tokens and requests, and has no histogram of lengths?"""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.api.diagnose_source import Source, stated_limits
from inferometer.decide.diagnosis.missing_counts import lengths_by_counts
from inferometer.decide.diagnosis.window import observed_window
from inferometer.simulate import step_cost
from inferometer.simulate.scheduler_config import SchedulerConfig

STEPS = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
CONFIG = SchedulerConfig(num_blocks=20_000, max_model_len=20_100, max_num_batched_tokens=4096)
PLAN = poisson(10.0, 500, seed=1, prompt=(400, 0.7), output=(60, 0.5))


def counted(lengths, per_interval, seed=1):
    """The counters (T) of requests that end so many to an interval."""
    ended = np.random.default_rng(seed).poisson(per_interval, 20 * len(lengths))
    finished = np.minimum(np.cumsum([0, *ended]), len(lengths))
    return finished.astype(float), np.concatenate([[0], np.cumsum(lengths)])[finished]


def fractions(seen, at):
    """The share of lengths up to each of these."""
    below = np.cumsum(seen.counts) / seen.counts.sum()
    return below[np.searchsorted(seen.edges, at)]


@pytest.mark.parametrize("per_interval", [0.2, 1.0, 5.0])
@pytest.mark.parametrize("spread", [0.05, 0.4, 0.9])
def test_the_spread_of_lengths_is_found(per_interval, spread):
    true = np.rint(np.random.default_rng(2).lognormal(np.log(500), spread, 800))
    seen, means = lengths_by_counts(*counted(true, per_interval))
    assert seen.n == 800
    assert float(means @ seen.counts) == pytest.approx(true.sum(), rel=0.01)
    at = np.quantile(true, (0.1, 0.5, 0.9, 0.97))
    below = fractions(seen, at * 1.2), fractions(seen, at / 1.2)
    assert (below[0] > (0.06, 0.42, 0.84, 0.93)).all()
    assert (below[1] < (0.16, 0.58, 0.96, 1.0)).all()


def test_a_few_very_long_ones_stay_what_they_are():
    rng = np.random.default_rng(3)
    true = np.where(rng.random(1000) < 0.03, 12_000, rng.lognormal(np.log(400), 0.5, 1000))
    seen, means = lengths_by_counts(*counted(np.rint(true), 4.0))
    is_long = means > 6000
    assert seen.counts[is_long].sum() == pytest.approx((true > 6000).sum(), rel=0.5)
    ordinary = np.average(means[~is_long], weights=seen.counts[~is_long])
    assert ordinary == pytest.approx(true[true < 6000].mean(), rel=0.15)


def test_tokens_that_are_counted_as_they_come_tell_the_mean_alone():
    finished, tokens = counted(np.full(400, 50.0), 0.2)
    steady = np.linspace(0, tokens[-1], len(tokens))
    seen, means = lengths_by_counts(finished, steady)
    assert float(means @ seen.counts) / seen.n == pytest.approx(50, rel=0.02)


def test_nothing_ended():
    assert lengths_by_counts(np.zeros(9), np.arange(9.0)) is None
    assert lengths_by_counts(np.arange(9.0), np.zeros(9)) is None


@pytest.mark.parametrize("names", ["sglang-no-lengths", "tensorrt-llm"])
def test_a_page_without_lengths_tells_what_one_with_them_does(names):
    window = {"start_s": 15.0, "for_s": 30.0}
    pages = [served_pages(CONFIG, STEPS, PLAN, **window, names=one)[0] for one in ("vllm", names)]
    told, found = map(observed_window, pages)
    for name in ("prompt_lengths", "output_lengths"):
        right, lengths = getattr(told, name), getattr(found, name)
        assert lengths.seen.n == pytest.approx(right.seen.n, abs=2)
        assert lengths.seen.total == pytest.approx(right.seen.total, rel=0.02)
        sds = [
            np.sqrt(np.average((one.means - one.seen.total / one.seen.n) ** 2, weights=one.seen.counts))
            for one in (right, lengths)
        ]  # fmt: skip
        assert sds[1] == pytest.approx(sds[0], rel=0.3)


def test_tensorrt_llm_reports_its_limits_among_its_metrics():
    pages, _ = served_pages(CONFIG, STEPS, PLAN, start_s=15.0, for_s=10.0, names="tensorrt-llm")
    assert stated_limits(Source(window=observed_window(pages)), {}) == {
        "max_num_seqs": (CONFIG.max_num_seqs, "metrics"),
        "max_num_batched_tokens": (4096, "metrics"),
    }
