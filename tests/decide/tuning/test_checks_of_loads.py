"""Which pitfalls do the load tests of a server that is tuned show, by its metrics and by their clients?"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson, served_pages

from inferometer.api import tune_pairs
from inferometer.api.load_request import Load
from inferometer.api.tune_measured_answer import (
    box_of,
    cache_box,
    checks_of_loads,
)
from inferometer.api.tune_next import next_of_measured, quality_commands
from inferometer.api.tuning import MeasuredStep
from inferometer.api.workload import Workload
from inferometer.decide.diagnosis.observed import CHECKED
from inferometer.decide.probing import run_plan
from inferometer.decide.tuning.start_command import parse_start
from inferometer.inputs.objectives import parse_objective
from inferometer.records.pitfalls import judged
from inferometer.records.reading import read_run
from inferometer.records.server_summaries import summarise_server
from inferometer.records.store import write_run
from inferometer.records.types import UNKNOWN_COUNT
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


def paired(run):
    """What a pair of two such load tests shows."""
    bench = tune_pairs.Bench(
        url="http://127.0.0.1:8000",
        load=Load(),
        objective=parse_objective("ttft:p95<1s"),
        goal="interactive",
        folder=Path(),
        start_timeout_s=1,
        least_gain_ratio=0.02,
    )
    start = parse_start("vllm serve MODEL")
    comparison = tune_pairs.Comparison(
        name="same", commands=(start, start), n_least=1, n_most=1, seed=0
    )
    return tune_pairs.found_of(bench, comparison, [(run, run)], ())


def test_preemptions_are_those_of_the_servers_metrics_which_no_client_sees(tmp_path):
    run = read_run(load_test(tmp_path / "small", 90))
    unseen = np.full(len(run.requests.status), UNKNOWN_COUNT, np.int32)
    seen = paired(replace(run, requests=run.requests._replace(n_preemptions=unseen)))
    [one] = seen.after
    assert one.n_preemptions == summarise_server(run.server).n_preemptions > 0
    assert cache_box(seen.after).is_ticked is False
    blind = paired(replace(run, server=None))
    assert blind.after[0].n_preemptions is None
    assert cache_box(blind.after).is_ticked is None
    assert cache_box((one._replace(n_preemptions=0),)).is_ticked is True


def measured_step(**more):
    known = {"name": "weight_precision", "title": "", "gain_fraction": None, "why": "why"}
    return MeasuredStep(**known, predicted_gain_fraction=None, **more)


def test_the_format_that_was_measured_is_the_one_whose_quality_is_checked():
    step = measured_step(decision="check quality", change="quantization int4", n_pairs=5)
    assert quality_commands("./model", [step]) == (
        "inferometer quality ./model --quantization int4",
    )


def test_what_failed_ticks_no_box():
    failed = measured_step(decision="failed", change="--no-such-flag 1", n_pairs=2)
    assert box_of("kernels and graphs", [failed], "").is_ticked is None
    kept = measured_step(decision="keep", change="--some-flag 1", n_pairs=5)
    assert box_of("kernels and graphs", [failed, kept], "").is_ticked is True


def test_a_load_from_the_workloads_own_file_is_sent_again_as_it_stands():
    slo = parse_objective("ttft:p95<1s")
    step = next_of_measured("http://127.0.0.1:8000", Workload(), slo)
    assert "load http://127.0.0.1:8000 --workload chat --slo 'ttft:p95<1000ms' --for 10min" in step
