"""Which pitfalls do the load tests of a server that is tuned show, by its metrics and by their clients?"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.api.tune_measured_answer import checks_of_loads
from inferometer.decide.diagnosis.observed import CHECKED
from inferometer.decide.probing import run_plan
from inferometer.records.pitfalls import judged
from inferometer.records.store import write_run
from inferometer.simulate import step_cost
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

STEPS = step_cost.linear_cost(launch_s=10e-3, per_row_s=2e-5)
PLAN = poisson(8.0, 60, seed=1, prompt=(200, 0.3), output=(60, 0.3))


def load_test(folder, num_blocks, *, has_metrics=True):
    config = SchedulerConfig(num_blocks=num_blocks, max_model_len=900, enable_prefix_caching=True)
    samples, _ = served_pages(config, STEPS, PLAN, start_s=0.5, for_s=6.0)
    run = run_plan(lone_replica(config, STEPS), PLAN)
    write_run(folder, replace(run, steps=None, server=samples if has_metrics else None))
    return folder


def test_the_median_of_load_tests_decides_and_a_vanished_page_does_not_count(tmp_path):
    small = [load_test(tmp_path / "small", 90)] * 2
    large = load_test(tmp_path / "large", 9000)
    blind = load_test(tmp_path / "blind", 90, has_metrics=False)
    found = {one.name: one for one in checks_of_loads([large, *small, blind])}
    assert set(found) == {*CHECKED}
    assert found["preemption_thrash"].finding == "found"
    one = found["preemption_thrash"].measured_ratio
    [alone] = [row for row in checks_of_loads(small[:1]) if row.name == "preemption_thrash"]
    assert one == pytest.approx(alone.measured_ratio)
    assert found["speculation_not_paying"] == judged("speculation_not_paying", None)
    [thrash] = [row for row in checks_of_loads([large]) if row.name == "preemption_thrash"]
    assert (thrash.finding, thrash.measured_ratio) == ("ruled out", 0)


def test_without_metrics_nothing_is_reported_and_the_reason_is(tmp_path):
    rows = checks_of_loads([load_test(tmp_path / "blind", 90, has_metrics=False)])
    assert {one.name for one in rows} == {*CHECKED}
    assert {one.finding for one in rows} == {"not reported"}
    assert all("holds no metrics of a server" in one.evidence for one in rows)
