"""Are the step times behind a request log found again, from the log alone?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.errors import MeasureError, ModelError
from inferometer.fit.loads.load_tests import Replay, agreements, latencies
from inferometer.fit.loads.requests import fit_requests, moved_to
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_step_time
from inferometer.records.types import (
    ABSENT,
    RequestStatus,
    Run,
    RunManifest,
    Validity,
    ValidityReason,
)
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

N_REQUESTS = 120
CONFIG = SchedulerConfig(
    num_blocks=8000,
    max_model_len=4096,
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    enable_prefix_caching=False,
)
MANIFEST = RunManifest(
    run_id="log",
    origin="published",
    created_utc="2026-11-21T00:00:00+00:00",
    command=(),
    tool_version="0",
    plan=None,
    model=None,
    engine=None,
    host=None,
    source=None,
)
BELIEFS = {
    "launch_s": (4e-3, 0.7),
    "weight_bytes_per_s": (None, 0.2),
    "kv_bytes_per_s": (None, 0.3),
    "matmul_flop_per_s": (None, 0.3),
}


@pytest.fixture(scope="module")
def prior():
    engine = EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda")
    model = datasheet_step_time(find_model("llama-3.1-8b"), engine, find_hardware("h100_sxm"))
    parameters = tuple(
        replace(
            entry,
            estimate=replace(
                entry.estimate,
                value=BELIEFS.get(entry.name, (None,))[0] or entry.estimate.value,
                low=None,
                high=None,
            ),
        )
        for entry in model.parameters
    )
    covariance = np.diag([deviation**2 for _, deviation in BELIEFS.values()]).tolist()
    return replace(
        model,
        parameters=parameters,
        free=tuple(BELIEFS),
        covariance=tuple(tuple(row) for row in covariance),
    )


@pytest.fixture(scope="module")
def asked():
    """Some requests alone in the engine, then more than it has slots for, then the drain."""
    rng = np.random.default_rng(5)
    arrival_s = np.cumsum(
        np.concatenate(
            [rng.exponential(0.6, N_REQUESTS // 3), rng.exponential(0.03, 2 * N_REQUESTS // 3)]
        )
    )
    prompt, output = rng.integers(50, 1500, N_REQUESTS), rng.integers(20, 300, N_REQUESTS)
    return simulate(
        demand(np.round(arrival_s * 1e9), prompt, output), CONFIG, linear_cost(launch_s=1e-3)
    ).requests


@pytest.fixture(scope="module")
def truth(prior):
    return moved_to(prior, prior.free, np.log([7e-3, 2.1e12, 1.7e12, 3.5e14]))


@pytest.fixture(scope="module")
def log(asked, truth):
    """What an engine of the true step times would have logged, its front end taking 6 ms."""
    told = Replay(config=CONFIG).simulated(asked, truth, 6e-3).requests
    return Run(
        manifest=MANIFEST,
        sweep=None,
        steps=None,
        ceilings=None,
        requests=told._replace(sent_ns=asked.sent_ns),
    )


def test_what_is_found(log, prior, truth):
    fit = fit_requests(log, Replay(config=CONFIG), prior)
    for name in prior.free:
        found = next(entry.estimate for entry in fit.model.parameters if entry.name == name)
        assert found.low < getattr(truth.physical(), name) < found.high, name
    assert fit.front_end_s.low < 6e-3 < fit.front_end_s.high
    assert fit.misfit_ratio < 0.3
    assert fit.model.trained_on.run_ids == ("log",)


def test_half_of_the_log_foretells_the_other(log, prior):
    replay, table = Replay(config=CONFIG), log.requests
    is_first = np.arange(N_REQUESTS) % 2 == 0
    fit = fit_requests(log, replay, prior, keep=is_first)
    assert fit.n_requests == N_REQUESTS // 2
    found = latencies(table, replay.simulated(table, fit.model, fit.front_end_s.value).requests)
    before = latencies(table, replay.simulated(table, prior, 3e-3).requests)
    told = {
        row[:2]: row.error_fraction for row in agreements(latencies(table, table), found, ~is_first)
    }
    untold = {
        row[:2]: row.error_fraction
        for row in agreements(latencies(table, table), before, ~is_first)
    }
    assert max(abs(error) for (_, statistic), error in told.items() if statistic == "mean") < 0.02
    assert (
        max(abs(error) for error in told.values()) < 0.1
    )  # a percentile of 60 first tokens lies a step more or less away
    assert max(abs(error) for error in untold.values()) > 0.2


def test_what_no_request_tells_stays_as_believed(log, prior):
    """Two tokens a request and one request at a time: nothing tells the bandwidth of the cache."""
    few = log.requests._replace(sent_ns=np.arange(N_REQUESTS, dtype=np.int64) * 10**9)
    short = few._replace(
        prompt_tokens=np.full(N_REQUESTS, 16, np.int32),
        output_tokens=np.full(N_REQUESTS, 2, np.int32),
    )
    replay = Replay(config=CONFIG)
    told = replay.simulated(short, prior, 6e-3).requests._replace(sent_ns=short.sent_ns)
    fit = fit_requests(replace(log, requests=told), replay, prior)
    by_name = {entry.name: entry for entry in fit.model.parameters}
    assert by_name["kv_bytes_per_s"].informed_by == "prior"
    assert by_name["kv_bytes_per_s"].estimate.value == pytest.approx(
        prior.physical().kv_bytes_per_s, rel=0.02
    )


def test_requests_without_an_end_are_not_looked_at(log, prior):
    table = log.requests
    status, finished_ns = table.status.copy(), table.finished_ns.copy()
    status[-30:], finished_ns[-30:] = RequestStatus.UNFINISHED, ABSENT
    cut = replace(log, requests=table._replace(status=status, finished_ns=finished_ns))
    assert fit_requests(cut, Replay(config=CONFIG), prior).n_requests == N_REQUESTS - 30
    assert np.isnan(latencies(cut.requests, cut.requests).e2e_s[-30:]).all()


def test_what_cannot_be_fitted(log, prior):
    replay = Replay(config=CONFIG)
    with pytest.raises(ModelError, match="has no requests"):
        fit_requests(replace(log, requests=None), replay, prior)
    with pytest.raises(ModelError, match="5 requests that ended well are too few"):
        fit_requests(log, replay, prior, keep=np.arange(N_REQUESTS) < 5)
    with pytest.raises(ModelError, match="leaves no parameter open"):
        fit_requests(log, replay, replace(prior, free=(), covariance=()))


def test_nothing_is_fitted_to_an_invalid_load_test(prior):
    check = ValidityReason(
        check="send lag", verdict="INVALID", text="60 ms late", remedy="another client"
    )
    run = Run(
        manifest=replace(MANIFEST, validity=Validity(verdict="INVALID", reasons=(check,))),
        sweep=None,
        steps=None,
        ceilings=None,
        requests=None,
    )
    with pytest.raises(MeasureError, match="60 ms late"):
        fit_requests(run, None, prior)
    with pytest.raises(ModelError, match="no requests"):
        fit_requests(run, None, prior, forced=True)
