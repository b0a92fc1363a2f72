"""Are loads foretold from others: where the truth is known, and on the published tables where they are at hand?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inferometer.errors import ModelError, SpecError
from inferometer.fit.published.closed_loop import ClosedLoad, Workers
from inferometer.fit.published.loads import PublishedLoad, published_loads, scheduler_of
from inferometer.fit.published.posterior import fit_published, simulated
from inferometer.fit.published.priors import UNKNOWNS, device_prior
from inferometer.fit.published.step_time import published_step_time
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.roofline import ParallelPlan
from inferometer.perfmodel.steptime_terms import (
    NO_STAIRCASE,
    PARAMETERS,
    term_columns,
    work_columns,
)
from inferometer.perfmodel.types import decode_shape
from inferometer.records.imports.inferencex import read_inferencex, read_silicon

TABLE = (
    Path(__file__).parents[4]
    / "shared"
    / "data"
    / "inferencemax-official-2025-11"
    / "agg_gptoss_1k1k.json"
)
MODEL, ENGINE = (
    find_model("llama-3.1-8b"),
    EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda"),
)


def asked(concurrency, hardware="h100_sxm", prompt_tokens=256, n_tensor=1):
    return PublishedLoad(
        label="made",
        hardware=find_hardware(hardware),
        model=MODEL,
        engine=replace(ENGINE, tensor_parallel_size=n_tensor),
        framework="vllm",
        framework_version="1",
        precision="bf16",
        load=ClosedLoad(
            concurrency=concurrency,
            prompt_tokens=prompt_tokens,
            output_tokens=64,
            least_share_ratio=0.8,
            n_rounds=4,
        ),
        statistic="median",
    )


def test_prompts_that_no_step_of_the_engine_holds_are_refused():
    """TensorRT-LLM refuses them one by one; a loop of such requests has nothing to tell."""
    with pytest.raises(SpecError, match="prompts of 20000 tokens"):
        simulated(replace(asked(4, prompt_tokens=20_000), framework="trtllm"))


def measured(load, away):
    """The load as a device would be seen to serve it whose parameters lie ``away`` from what is believed."""
    centre = device_prior(MODEL, load.engine, load.hardware).mean + away
    steps = simulated(load)
    step_s = term_columns(centre[: len(PARAMETERS)], NO_STAIRCASE, steps.work).total_s
    front_end_s = np.exp(centre[-2:]) @ [1.0, load.load.prompt_tokens]
    seen = steps.schedule.seen(step_s[None], np.full(1, front_end_s), load.statistic)
    known = replace(load, ttft_s=float(seen.ttft_s[0]), tpot_s=float(seen.tpot_s[0]))
    return replace(steps, published=known)


def away_from(seed):
    deviation = device_prior(MODEL, ENGINE, find_hardware("h100_sxm")).sd
    return 0.7 * deviation * np.random.default_rng(seed).standard_normal(len(UNKNOWNS))


def errors(fit, loads):
    told = np.stack([fit.predicted.log_tpot, fit.predicted.log_ttft], axis=1)
    true = np.log([(one.published.tpot_s, one.published.ttft_s) for one in loads])
    half = np.stack([fit.predicted.half_tpot, fit.predicted.half_ttft], axis=1)
    return np.abs(told - true), half


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_concurrencies_and_lengths_of_a_known_device(seed):
    away = away_from(seed)
    seen = [measured(asked(concurrency), away) for concurrency in (1, 4, 16, 64)]
    held = [
        measured(asked(8), away),
        measured(asked(32), away),
        measured(asked(16, prompt_tokens=1024), away),
    ]
    misses, half = errors(fit_published(seen, held), held)
    assert misses[:2, 0].max() < 0.05
    assert misses[:2, 1].max() < 0.2
    assert misses[2].max() < 0.35
    assert np.mean(misses <= half) >= 5 / 6


def test_another_device_is_told_by_its_datasheet_and_by_what_devices_share():
    away = away_from(4)
    seen = [measured(asked(concurrency), away) for concurrency in (1, 8, 32)]
    held = [measured(asked(concurrency, hardware="h200_sxm"), away) for concurrency in (1, 8, 32)]
    misses, half = errors(fit_published(seen, held), held)
    assert misses[:, 0].max() < 0.1
    assert misses[:, 1].max() < 0.25
    assert (misses <= half).all()
    own = fit_published([*seen, *held[:2]], held[2:])
    assert own.devices == ("h100_sxm", "h200_sxm")
    assert own.predicted.half_tpot[0] < half[2, 0]


def test_what_first_tokens_take_beyond_the_steps_is_carried_to_another_device():
    """Who waits for whom, and what a table means by it, is the engine's: half as much again here."""
    devices = ("h100_sxm", "h200_sxm")
    plain, slow = (
        [
            [
                replace(one, published=replace(one.published, ttft_s=ratio * one.published.ttft_s))
                for one in (measured(asked(n, hardware=name), 0.0) for n in (1, 4, 16, 64))
            ]
            for name in devices
        ]
        for ratio in (1.0, 1.5)
    )
    expected, carried = (fit_published(one[0], one[1]).predicted.log_ttft for one in (plain, slow))
    assert np.median(carried - expected) > 0.6 * np.log(1.5)


def test_devices_that_do_not_tell_one_another_promise_less_of_a_further_one():
    names = ("h100_sxm", "a100_80gb_sxm", "b200_sxm")
    asked_of = [measured(asked(8, hardware="h200_sxm"), 0.0)]

    def half_tpot(aways):
        loads = zip(names, aways, strict=True)
        seen = [
            measured(asked(concurrency, hardware=name), away)
            for name, away in loads
            for concurrency in (1, 8, 32)
        ]
        return float(fit_published(seen, asked_of).predicted.half_tpot[0])

    apart = away_from(4)
    assert half_tpot((apart, -apart, 2 * apart)) > 1.1 * half_tpot((apart, apart, apart))


def test_a_step_time_model_with_its_errors():
    seen = [measured(asked(concurrency), away_from(5)).published for concurrency in (1, 4, 16, 64)]
    model = published_step_time(seen, seen[0].hardware, n_tensor=2)
    front_end_s = model.front_end_s
    assert model.engine.tensor_parallel_size == 2
    assert {error.phase for error in model.held_out} == {"prefill", "decode"}
    assert max(error.median_fraction for error in model.held_out) < 0.3
    assert front_end_s.low < front_end_s.value < front_end_s.high
    assert (
        model.predict(decode_shape(batch_size=4, context_tokens=300)).duration_s.value
        < seen[1].tpot_s
    )
    other = published_step_time(seen, find_hardware("h200_sxm"), n_tensor=2)
    assert "based on NVIDIA H100" in other.trained_on.hardware
    step = decode_shape(batch_size=4, context_tokens=300)
    ratio = model.predict(step).duration_s.value / other.predict(step).duration_s.value
    assert 1.15 < ratio < 1.05 * 4.8 / 3.35, "the launch does not shrink with the bandwidth"
    with pytest.raises(ModelError, match="3 loads"):
        published_step_time(seen[:3], seen[0].hardware, n_tensor=1)
    with pytest.raises(ModelError, match="several kinds"):
        published_step_time(
            [*seen, replace(seen[0], precision="fp8")], seen[0].hardware, n_tensor=1
        )


@pytest.mark.skipif(not TABLE.is_file(), reason="the published tables are not at hand")
def test_half_of_a_published_table_from_the_other_half():
    loads = [
        one
        for one in published_loads(read_inferencex(TABLE)).loads
        if one.hardware.hardware_id == "h100_sxm"
    ]
    steps = [
        simulated(one)
        for one in sorted(
            loads, key=lambda one: (one.engine.tensor_parallel_size, one.load.concurrency)
        )
    ]
    seen, held = steps[::2], steps[1::2]
    misses, half = errors(fit_published(seen, held), held)
    assert np.median(misses[:, 0]) < 0.05
    assert np.median(misses[:, 1]) < 0.12
    assert np.mean(misses <= half) >= 0.7


def test_rows_with_workers_apart_predict_others_of_their_kind():
    """They are simulated without a schedule, predicted from both kinds, and predict their own alone."""
    workers = Workers(n_workers=2, plan=ParallelPlan(n_tensor=2))
    alike = replace(asked(16), prefill=workers, n_decode_workers=3)
    assert (alike.n_devices, alike.replica_load.concurrency) == (2 * 2 + 3, 6)
    apart, together = measured(alike, 0.0), measured(asked(16), 0.0)
    assert apart.published.tpot_s < together.published.tpot_s  # nobody's prompts come between
    seen = [measured(replace(alike, load=asked(n).load), 0.0) for n in (4, 64)]
    misses, _ = errors(fit_published([*seen, together], [apart]), [apart])
    assert misses.max() < 0.1


def silicon_rows(tmp_path, *rows):
    """Rows of the collected table, as (engine, model, device, precision, lengths)."""
    names = "id,origin,concurrency,wip,backend,backend_version,model_path,system,precision,mode"
    names += ",isl,osl,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size"
    workers = ("num_workers", "tp_size", "attention_dp_size", "moe_ep_size")
    names += "".join(f",{phase}_{name}" for phase in ("prefill", "decode") for name in workers)
    path = tmp_path / "silicon_sample.csv"
    lines = [
        f"{k},made,{64 + k},,{engine},1,{model},{device},{precision},agg,{isl},{osl},64,1,1,1,1,1"
        f"{',' * 8},100,10"
        for k, (engine, model, device, precision, isl, osl) in enumerate(rows)
    ]
    path.write_text("\n".join([f"{names},ttft_ms,tpot_ms", *lines]) + "\n")
    return published_loads(read_silicon(path)).loads


def test_users_of_engines_that_mix_prompts_and_tokens_do_not_stay_in_step(tmp_path):
    """With equal lengths, as in NVIDIA's own rows; InferenceX draws its lengths."""
    kinds = [(name, 2048) for name in ("sglang", "trtllm", "vllm")] + [("sglang", 1024)]
    loads = silicon_rows(
        tmp_path,
        *((name, "Qwen/Qwen3-32B", "h100_sxm", "fp8", isl, isl) for name, isl in kinds[:3]),
        ("sglang", "Qwen/Qwen3-32B", "h100_sxm", "fp8", 1024, 1024),
    )
    found = [(one.framework, one.load.least_share_ratio, one.statistic) for one in loads]
    assert found == [
        ("sglang", 1.0, "median"),
        ("trtllm", 0.8, "mean"),
        ("vllm", 0.8, "mean"),
        ("sglang", 0.8, "mean"),
    ]


def test_recipes_for_blackwell_hold_the_kv_cache_in_8_bit(tmp_path):
    """590,000 tokens, more than a B200 holds beside 4-bit weights in 16 bit: the row did not wait."""
    loads = silicon_rows(
        tmp_path,
        *(
            (engine, "meta-llama/Llama-3.1-70B", device, precision, 1024, 8192)
            for engine, device, precision in (
                ("vllm", "b200_sxm", "fp4"),
                ("vllm", "b200_sxm", "bf16"),
                ("vllm", "h200_sxm", "fp8"),
                ("trtllm", "h200_sxm", "fp8"),
            )
        ),
    )
    blackwell, unquantised, hopper, trtllm = (scheduler_of(one) for one in loads)
    assert blackwell.num_blocks * 16 > 64 * 9216
    assert unquantised.num_blocks < blackwell.num_blocks
    assert trtllm.num_blocks * 32 > 1.8 * hopper.num_blocks * 16


def test_replicas_that_share_experts_have_a_part_of_the_users_and_of_the_experts():
    mixture = find_model("qwen3-30b-a3b")
    whole = replace(asked(64), model=mixture)
    shared = replace(whole, n_sharing=4)
    one, four = simulated(whole), simulated(shared)
    assert four.schedule.load.concurrency == 16
    assert shared.n_devices == 4
    decode = decode_shape(batch_size=8, context_tokens=300)
    alone, group = (
        work_columns(mixture, whole.engine, [decode], kv_traffic_ratio=1.0, plan=load.plan)
        for load in (whole, shared)
    )
    experts = 48 * 128 * 3 * 2048 * 768 * 2  # layers, experts, matrices of bfloat16
    touched = [1 - (1 - 8 / 128) ** n_rows for n_rows in (8, 32)]
    dense = alone.layer_bytes[0] - touched[0] * experts
    assert group.layer_bytes[0] == pytest.approx(dense + touched[1] * experts / 4)
    assert (group.kv_bytes == alone.kv_bytes).all()
    assert group.link_bytes[0] > alone.link_bytes[0] == 0
    assert one.published.key != four.published.key
