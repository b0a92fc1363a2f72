"""Does TensorRT-LLM's refusal of prompts longer than a step end with the flags that accept them?"""

import numpy as np

import inferometer as im
from inferometer.api.missed import what_takes_prompts
from inferometer.api.server import Server, Settings, deployment_of
from inferometer.api.workload import alone_in_a_step
from inferometer.decide.traffic import plan_at
from inferometer.inputs.workload.reading import resolve_workload
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

CHAT = plan_at(resolve_workload("chat"), 1.0, 200)


def served(**more):
    return deployment_of(
        Server(model="qwen3-8b", hardware="h100_sxm", datasheet=True, policy="trtllm", **more)
    )


def test_the_flags_accept_the_prompts():
    remedy = what_takes_prompts(served(max_num_batched_tokens=2048), CHAT)
    assert remedy is not None
    assert remedy.startswith("--max-num-batched-tokens 40960, or --set enable_chunked_prefill=true")
    for cure in (
        {"max_num_batched_tokens": 40960},
        {"max_num_batched_tokens": 2048, "set": ("enable_chunked_prefill=true",)},
    ):
        assert what_takes_prompts(served(**cure), CHAT) is None


def test_a_prompt_longer_than_the_context_is_not_cured_by_longer_steps():
    short = served(max_num_batched_tokens=2048, settings=Settings(max_model_len=2048))
    assert what_takes_prompts(short, CHAT) is None


def test_a_capacity_of_nothing_names_them():
    """It proposed longer limits and more devices, which accept none of these prompts."""
    answer = im.capacity(
        "qwen3-8b",
        hardware="h100_sxm",
        datasheet=True,
        policy="trtllm",
        max_num_batched_tokens=2048,
        workload="chat",
        slo="ttft:p95<10s",
        requests=200,
        probe_requests=100,
        time_limit="2s",
    )
    assert answer.next_step.startswith("--max-num-batched-tokens 40960")


def test_prompts_that_fill_a_step_are_named_first():
    """TTFTs of a minute stood there without a word: each prompt waited until nobody generated."""
    options = {"model": "qwen3-8b", "hardware": "h100_sxm", "datasheet": True, "policy": "trtllm"}
    options |= {"concurrency": 4, "requests": 40, "executor": "inline"}
    alone = im.simulate(workload="8192x64", **options)
    assert alone.cautions[0].code == "ALONE_IN_A_STEP"
    assert alone.cautions[0].text.startswith("40 of 40 prompts fill a step")
    assert "enable_chunked_prefill=true" in alone.cautions[0].remedy
    for other in (
        {"workload": "4096x64"},
        {"workload": "8192x64", "max_num_batched_tokens": 16384},
    ):
        codes = {one.code for one in im.simulate(**options, **other).cautions}
        assert "ALONE_IN_A_STEP" not in codes


def test_a_refused_request_generates_nothing():
    """It has an end and no first token: it was counted as generating all the time."""
    requests = demand([0] * 4, [90] * 4, [9] * 4)
    config = SchedulerConfig(num_blocks=100, max_model_len=100)
    table = simulate(requests, config, linear_cost(launch_s=1e-3)).requests
    end_ns = int(table.finished_ns.max())
    refused = table._replace(
        first_token_ns=np.where(np.arange(4) < 3, ABSENT, table.first_token_ns),
        finished_ns=np.where(np.arange(4) < 3, end_ns, table.finished_ns),
    )
    assert alone_in_a_step(91, "longer steps", refused) == ()
    [caution] = alone_in_a_step(90, "longer steps", refused)
    assert caution.text.startswith("4 of 4 prompts fill a step")
