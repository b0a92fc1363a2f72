"""Are engines set up as the scripts of the published tables do, and are rows left out that contradict themselves?"""

from dataclasses import replace

import numpy as np
import pytest

from inferometer.fit.published.closed_loop import ClosedLoad
from inferometer.fit.published.loads import BUDGETS, PublishedLoad, published_loads, scheduler_of
from inferometer.fit.published.posterior import fit_published, seen_by, simulated
from inferometer.fit.published.priors import device_prior
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.records.imports.inferencex import read_silicon

ENGINE = EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda")
LLAMA, DEEPSEEK = find_model("llama-3.1-70b"), find_model("deepseek-v3")


def row_of(framework, prompt_tokens=1024, output_tokens=1024, concurrency=4, **changes):
    row = PublishedLoad(
        label="made",
        hardware=find_hardware("b200_sxm"),
        model=LLAMA,
        engine=ENGINE,
        framework=framework,
        framework_version="1",
        precision="bf16",
        load=ClosedLoad(
            concurrency=concurrency,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            least_share_ratio=0.8,
            n_rounds=4,
        ),
        statistic="mean",
    )
    return replace(row, **changes)


def test_engines_are_started_as_the_scripts_of_the_table_do():
    """Early scripts leave TensorRT-LLM a budget of one prompt a step; later ones ask for 8,192."""
    early, late = (
        row_of("trtllm", model=DEEPSEEK, framework_version=version).recipe
        for version in ("1.1.0rc2.post2", "1.2.0rc6.post3")
    )
    assert (early.budget_tokens, late.budget_tokens) == (1152, 8192)
    assert row_of("vllm", model=find_model("minimax-m2.5")).recipe.budget_tokens == 2048
    assert row_of("sglang", model=DEEPSEEK, precision="fp8").recipe.memory_fraction == 0.95
    others = row_of("trtllm", 4000, 1000, model=DEEPSEEK).recipe
    assert others.budget_tokens == BUDGETS["trtllm"], "not a workload of these scripts"


def test_prompts_wait_for_others_where_the_script_says_so():
    """Llama-3.1-70B on TensorRT-LLM: up to 20 steps more until the first token."""
    eight = replace(ENGINE, tensor_parallel_size=8)
    waiting = row_of("trtllm")
    long, wide = row_of("trtllm", output_tokens=8192), row_of("trtllm", engine=eight)
    assert [one.recipe.n_waited_steps for one in (waiting, long, wide)] == [20, 0, 0]
    schedule = simulated(waiting).schedule
    step_s = np.full((1, len(schedule.shapes)), 0.01)
    seen, at_once = (
        one.seen(step_s, np.zeros(1), "mean")
        for one in (schedule, replace(schedule, n_waited_steps=0))
    )
    assert seen.tpot_s == at_once.tpot_s
    assert seen.ttft_s - at_once.ttft_s == pytest.approx(20 * seen.tpot_s)
    assert seen.output_tokens_per_s < at_once.output_tokens_per_s


@pytest.mark.parametrize(
    ("device", "model", "precision", "users", "n_steps"),
    [
        ("b200_sxm", "deepseek-v3", "fp4", 8, 5),
        ("b200_sxm", "deepseek-v3", "fp4", 16, 15),
        ("b200_sxm", "qwen3.5-397b-a17b", "fp8", 8, 15),
        ("b300_sxm", "qwen3.5-397b-a17b", "fp8", 64, 5),
        ("b200_sxm", "glm-5", "fp4", 64, 5),
        ("b200_sxm", "glm-5", "fp8", 64, 0),
        ("h200_sxm", "deepseek-v3", "fp8", 64, 0),
        ("mi355x", "deepseek-v3", "fp4", 64, 0),
    ],
)
def test_new_requests_are_taken_after_as_many_steps_as_the_script_says(
    device, model, precision, users, n_steps
):
    """SGLang on Blackwell looks for new requests every 10 or 30 decode steps: half in the mean."""
    row = row_of("sglang", model=find_model(model), precision=precision, concurrency=users)
    row = replace(
        row, hardware=find_hardware(device), engine=replace(ENGINE, tensor_parallel_size=8)
    )
    assert row.recipe.n_waited_steps == n_steps


def test_a_share_of_free_memory_is_no_share_of_all():
    """TensorRT-LLM's 0.9 is of what the weights leave, so it holds more beside large ones."""
    float8 = replace(ENGINE, quantization="float8")
    of_free, of_all = (
        scheduler_of(row_of(name, 8192, concurrency=256, engine=float8))
        for name in ("trtllm", "vllm")
    )
    assert of_free.num_blocks * 32 > 1.05 * of_all.num_blocks * 16


def silicon_rows(folder, *lines):
    names = "id,origin,concurrency,wip,backend,backend_version,model_path,system,precision,mode"
    names += ",isl,osl,batch_size,tp_size,pp_size,attention_dp_size,moe_tp_size,moe_ep_size"
    workers = ("num_workers", "tp_size", "attention_dp_size", "moe_ep_size")
    names += "".join(f",{phase}_{name}" for phase in ("prefill", "decode") for name in workers)
    path = folder / "silicon_sample.csv"
    path.write_text("\n".join([f"{names},ttft_ms,tpot_ms", *lines]) + "\n")
    return published_loads(read_silicon(path))


def silicon_row(folder, ttft_ms, tpot_ms):
    kind = "openai/gpt-oss-120b,h100_sxm,fp4,agg,1024,1024"
    return silicon_rows(
        folder, f"1,made,512,,vllm,1,{kind},512,8,1,1,1,1{',' * 8},{ttft_ms},{tpot_ms}"
    )


def test_a_row_whose_engine_ran_far_fewer_than_it_had_room_for_is_left_out(tmp_path):
    """22 s until the first token of 512 users, all of whom fit: its max_num_seqs is not stated."""
    waits, runs = silicon_row(tmp_path, 22_295, 5.33), silicon_row(tmp_path, 900, 25)
    assert not waits.loads
    assert list(waits.left_out) == ["max_num_seqs below the users, by the row's own times"]
    assert len(runs.loads) == 1


def test_a_measurement_whose_workers_another_row_states_is_repeated(tmp_path):
    kind = "made,64,,trtllm,1,deepseek-ai/DeepSeek-R1,gb200,fp4,disagg,1024,1024" + "," * 6
    lines = [
        f"1,{kind},,4,1,4,,8,1,8,500.25,8.5",
        f"2,{kind},1,4,1,4,2,8,1,8,500.2500001,8.5",
        f"3,{kind},,4,1,4,,8,1,8,812.5,8.5",
    ]
    found = silicon_rows(tmp_path, *lines)
    assert [one.decode.n_workers for one in found.loads] == [2]
    assert found.left_out == {
        "repeated": 1,
        "prefill and decode apart, by workers that are not stated": 1,
    }


def agg_row(version, layout, ttft_ms, tpot_ms):
    kind = f"1,made,16,,vllm,{version},openai/gpt-oss-120b,h100_sxm,fp4,agg,1024,1024,16"
    return f"{kind},{layout}{',' * 8},{ttft_ms},{tpot_ms}"


def test_one_measurement_under_two_versions_and_once_rounded_counts_once(tmp_path):
    """The collection has rows of InferenceX again, rounded to 10 µs, with another version's name."""
    exact, rounded = ("dev-3", "4,1,1,4,1", 169.94070, 8.36142), ("dev", "4,1,1,4,1", 169.94, 8.36)
    another = ("dev", "4,1,1,4,1", 169.96, 8.36)
    found = silicon_rows(tmp_path, agg_row(*exact), agg_row(*rounded))
    assert [one.framework_version for one in found.loads] == ["dev-3"]
    assert found.left_out == {"repeated": 1}
    assert len(silicon_rows(tmp_path, agg_row(*exact), agg_row(*another)).loads) == 2


def test_a_measurement_of_which_two_rows_state_different_layouts_is_left_out(tmp_path):
    split, spread = agg_row("1", "4,1,1,1,4", 169.94, 8.36), agg_row("1", "1,1,4,1,4", 169.94, 8.36)
    other = agg_row("1", "8,1,1,8,1", 150.0, 7.0)
    found = silicon_rows(tmp_path, split, spread, other)
    assert [one.n_devices for one in found.loads] == [8]
    assert found.left_out == {"a measurement that another row states with another layout": 2}


def test_users_of_several_servers_are_not_those_of_one(tmp_path):
    """128 users in batches of 32 are on four servers; what stands before these is not stated."""

    def row(n_users, n_batched, layout):
        kind = f"1,made,{n_users},,trtllm,1,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,agg,1024,1024"
        return f"{kind},{n_batched},{layout}{',' * 8},{500 + n_users},8.5"

    rows = (row(128, 32, "4,1,1,1,4"), row(64, 64, "4,1,1,1,4"), row(256, 32, "1,1,8,1,8"))
    found = silicon_rows(tmp_path, *rows)
    assert [one.load.concurrency for one in found.loads] == [64, 256], (
        "eight replicas share experts"
    )
    assert found.left_out == {"several servers, by the users of one batch alone": 1}


def test_a_series_whose_prompts_would_take_more_than_the_peak_is_left_out(tmp_path):
    """64 users of 2,000 tokens at 2 ms a token on one H200 would be 2 PFLOP/s, the whole peak."""

    def row(number, users, version, ttft_ms, tpot_ms):
        kind = f"{number},made,{users},,vllm,{version},meta-llama/Llama-3.1-8B,h200_sxm,fp8,agg"
        return f"{kind},2000,100,{users},1,1,1,1,1{',' * 8},{ttft_ms},{tpot_ms}"

    rows = (row(1, 64, "a", 700, 2), row(2, 1, "a", 60, 5), row(3, 1, "b", 61, 5))
    found = silicon_rows(tmp_path, *rows)
    assert [one.framework_version for one in found.loads] == ["b"], "of another run"
    assert found.left_out == {"more prompts computed than the device can, in the row's series": 2}


def test_one_slow_run_is_not_carried_over_to_its_neighbours():
    """A row that takes 1.6 times as long as those with fewer and with more users."""
    small = find_model("llama-3.1-8b")
    places = [(n, prompt) for prompt in (256, 1024) for n in (2, 4, 6, 8, 12, 16, 32, 48, 64, 96)]
    loads = [simulated(row_of("vllm", prompt, 64, n, model=small)) for n, prompt in places]
    target = simulated(row_of("vllm", 256, 64, 24, model=small))
    centre = device_prior(small, ENGINE, target.published.hardware).mean
    found = seen_by([*loads, target], centre[None])
    seen = [
        replace(
            one,
            published=replace(
                one.published,
                tpot_s=(1.6 if place == (16, 256) else 1.0) * float(latency.tpot_s[0]),
                ttft_s=float(latency.ttft_s[0]),
            ),
        )
        for one, latency, place in zip(loads, found, places, strict=False)
    ]
    predicted = fit_published(seen, [target]).predicted
    assert abs(np.expm1(predicted.log_tpot[0] - np.log(found[-1].tpot_s[0]))) < 0.05
