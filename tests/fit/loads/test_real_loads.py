"""Are the limits of real vLLM servers found from their requests alone, within what their devices can do?"""

import math

import numpy as np
import pytest
from real_loads import BLOCKS, DATA, rtx4090, vllm_cpu

from inferometer.errors import ModelError
from inferometer.fit.loads.estimation import Address, Subject, fit_server, judged_server
from inferometer.fit.loads.load_tests import LoadTest, latencies, peak_load, served_load
from inferometer.fit.loads.reported import reported_by_server
from inferometer.fit.loads.server import (
    LIMITS,
    SWITCHES,
    ReportedSettings,
    ServerKnobs,
    config_of,
    search_space,
)
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.inputs.workload import reading, replay
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape
from inferometer.records.imports.llmservingsim import read_llmservingsim
from inferometer.simulate.run import simulate

ADDRESS = Address("http://127.0.0.1:8000", "m")
VLLM = EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda")
WORKLOAD = DATA / "workload_sharegpt-llama-3.1-8b-300-sps10.jsonl"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published runs are not at hand")


def subject(hardware="rtx_4090", reported=None):
    device, model = (
        (None, None) if hardware is None else (find_hardware(hardware), find_model("llama-3.1-8b"))
    )
    return Subject(
        address=ADDRESS,
        model=model,
        hardware=device,
        engine=VLLM,
        reported=reported or ReportedSettings(),
    )


def limits_of(fit):
    return {knob.name: knob for knob in fit.knobs}


def holds(knob, value):
    return (knob.low is None or knob.low <= value) and (knob.high is None or value <= knob.high)


def check_found(fit):
    limits = limits_of(fit)
    assert holds(limits["n_kv_blocks"], BLOCKS - 1)
    assert limits["n_kv_blocks"].high < 1.1 * (BLOCKS - 1)
    assert holds(limits["max_num_seqs"], 256)
    assert holds(limits["max_num_batched_tokens"], 2048)
    # 16.06 GB of weights and 25 answers of 1,200 tokens at 1,008 GB/s take 20 ms; the server's
    # TPOT, prefills included, is 31 ms.
    assert (
        0.019
        < shape_duration_s(fit.steps(), decode_shape(batch_size=25, context_tokens=1200))
        < 0.027
    )
    assert fit.tpot_residual_fraction < 0.06


@pytest.mark.slow
@pytest.mark.long
def test_a_server_short_of_kv_blocks_is_found_with_nothing_known():
    check_found(fit_server([LoadTest(run=rtx4090())], subject(None)))


@pytest.mark.slow
def test_nothing_is_faster_or_larger_than_the_named_device():
    fit = fit_server([LoadTest(run=rtx4090())], subject())
    check_found(fit)
    floors = dict(zip((one.name for one in fit.parameters), fit.floors_s, strict=True))
    assert floors["read_s"] == pytest.approx((16.06e9 - 2 * 128256 * 4096 * 2) / 1.008e12, rel=0.01)
    assert all(one.estimate.low >= 0.999 * floors[one.name] for one in fit.parameters)
    assert all(
        value >= 0.999 * floor_s
        for draw in fit.draws
        for value, floor_s in zip(draw.parameters, fit.floors_s, strict=True)
    )
    assert fit.levels().fast.kv_token_s >= 0.999 * floors["kv_token_s"]


@pytest.mark.slow
@needs_data
def test_with_what_its_configuration_names_and_the_trace_the_residual_is_small():
    run = rtx4090()
    plan = replay.draw_workload(reading.resolve_workload(str(WORKLOAD))).plan
    judged = judged_server(
        [LoadTest(run=run, plan=plan)], subject(reported=reported_by_server([run], None))
    )
    assert judged.refusal is None
    assert (judged.fit.tpot_residual_fraction < 0.03, judged.fit.ttft_residual_fraction < 0.1) == (
        True,
        True,
    )


@pytest.mark.slow
@pytest.mark.long
@needs_data
def test_a_server_limited_by_max_num_seqs_is_found():
    run = read_llmservingsim(DATA / "rtxpro6000_llama-3.1-8b_tp1").run
    fit = fit_server([LoadTest(run=run)], subject("rtx_pro_6000_server"))
    limits = limits_of(fit)
    assert limits["max_num_seqs"].value == 128
    assert (limits["max_num_seqs"].low, limits["max_num_seqs"].high) >= (126, 128)
    assert limits["max_num_seqs"].high <= 130
    assert holds(limits["max_num_batched_tokens"], 2048)
    assert limits["n_kv_blocks"].high <= (96 * 2**30 - 16.06e9) / (131072 * 16)


@pytest.mark.slow
def test_synchronous_scheduling_is_found_and_a_rate_between_predicted():
    """With asynchronous scheduling assumed the p50 TTFT of the third load test was 12 % too high."""
    known = ReportedSettings(block_tokens=128, max_model_len=1024)
    tests = [LoadTest(run=vllm_cpu(name)) for name in ("low", "high")]
    fit = fit_server(tests, Subject(address=ADDRESS, engine=EngineSpec(), reported=known))
    limits = limits_of(fit)
    assert (limits["max_num_seqs"].low, limits["max_num_seqs"].high) == (4, 4)
    assert limits["async_scheduling"].value is False
    third = served_load(LoadTest(run=vllm_cpu("third")))
    space = search_space(peak_load([third]), known)
    knobs = ServerKnobs(**{name: fit.knob(name) for name in (*LIMITS, *SWITCHES)})
    found = simulate(
        third.demand(fit.front_end_s, 128, has_contents=False),
        config_of(knobs, space, has_contents=False),
        fit.steps(),
    )
    made = latencies(third.requests, found.requests)
    for metric, within in (("ttft_s", 0.05), ("tpot_s", 0.03), ("e2e_s", 0.03)):
        seen, predicted = (np.median(getattr(one, metric)) for one in (third.seen, made))
        assert predicted == pytest.approx(seen, rel=within), metric


def test_memory_bounds_what_no_load_reached():
    """Far more tokens inside than a 24 GB card can hold: neither the search nor the interval goes beyond its memory."""
    most = peak_load([served_load(LoadTest(run=rtx4090()))])
    terms = search_space(most, ReportedSettings(), 4630)
    assert most.n_inside_tokens > 5 * 4630 * 16
    assert terms.ranges["n_kv_blocks"].high == 4630
    assert search_space(most, ReportedSettings()).ranges["n_kv_blocks"].high > 20_000
    with pytest.raises(ModelError, match="held 298 KV blocks of 16 tokens at once") as refused:
        search_space(most, ReportedSettings(), 200)
    assert "--hardware" in str(refused.value)


def test_prompts_that_may_share_blocks_set_no_lower_end():
    """8 % of the prompts' blocks are shared here: what they would hold by themselves is no lower bound."""
    most = peak_load([served_load(LoadTest(run=rtx4090()))])
    longest = math.ceil(most.longest_tokens / 16)
    assert search_space(most, ReportedSettings()).ranges["n_kv_blocks"].low == longest
    held = (
        search_space(most, ReportedSettings(switches={"enable_prefix_caching": False}))
        .ranges["n_kv_blocks"]
        .low
    )
    assert longest < held < BLOCKS


def test_what_the_configuration_names_is_taken():
    told = reported_by_server([rtx4090()], None)
    assert told.limits == {
        "max_num_seqs": 256,
        "max_num_batched_tokens": 2048,
        "n_kv_blocks": BLOCKS - 1,
    }
    assert told.switches == {
        "enable_prefix_caching": True,
        "async_scheduling": True,
        "enable_chunked_prefill": True,
    }
    assert (told.block_tokens, told.max_model_len) == (16, 32768)


def test_a_known_limit_below_what_was_seen_is_refused():
    with pytest.raises(
        ModelError, match="max_num_seqs = 8 cannot be: the load tests show 49 or more"
    ):
        fit_server(
            [LoadTest(run=rtx4090())],
            subject(reported=ReportedSettings(limits={"max_num_seqs": 8})),
        )


@needs_data
def test_replicas_are_not_fitted_as_one_server():
    run = read_llmservingsim(DATA / "rtxpro6000_qwen3-30b-a3b_dp2ep2").run
    with pytest.raises(ModelError, match="2 data-parallel replicas"):
        reported_by_server([run], None)


def test_the_native_log_is_aligned_as_its_table_is():
    """The wall clock of arrivals is aligned to the engine's: nothing is queued before it arrives."""
    run = rtx4090()
    assert np.all(np.diff(run.requests.sent_ns) >= 0)
    assert np.all(run.requests.admitted_ns >= run.requests.sent_ns)
    assert run.requests.first_token_ns[0] == pytest.approx(691_279_000, abs=2_000)
