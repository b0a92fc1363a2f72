"""Has a simulated vLLM server the slots and the step budget that a real one has, if nobody says?"""

from dataclasses import replace

import pytest

from inferometer.api.server import fit_cautions
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.kv_cache import state_bytes
from inferometer.perfmodel.memory import default_limits
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.simulate.deployment import Knobs, deploy
from inferometer.simulate.scheduler_config import SchedulerConfig


def config_on(device, **knobs):
    return deployment_of("llama-3.1-8b", device, **knobs).config


def deployment_of(name, device, **knobs):
    model, hardware, engine = (
        find_model(name),
        find_hardware(device),
        EngineSpec(dtype="bfloat16", device="cuda"),
    )
    return deploy(
        model, engine, hardware, datasheet_levels(model, engine, hardware), Knobs(**knobs)
    )


@pytest.mark.parametrize(
    ("device", "limits"),
    [
        ("h100_sxm", (1024, 8192)),
        ("b200_sxm", (1024, 16_384)),
        ("a100_80gb_sxm", (256, 2048)),
        ("l40s", (256, 2048)),
    ],
)
def test_limits_follow_from_the_device(device, limits):
    config = config_on(device)
    assert (config.max_num_seqs, config.max_num_batched_tokens) == limits


@pytest.mark.parametrize(
    ("device", "limits"),
    [("tpu_v5e", (256, 512)), ("tpu_v5p", (256, 256)), ("tpu_v6e", (256, 1024))],
)
def test_a_tpu_has_the_step_budget_of_its_chip(device, limits):
    """``EngineArgs.get_batch_defaults`` of vLLM 0.33.0 for an API server."""
    assert default_limits(find_hardware(device), n_devices=4) == limits


def test_a_gb10_has_the_limits_of_a_small_gpu():
    spark = replace(find_hardware("h100_sxm"), name="NVIDIA GB10 (DGX Spark)")
    assert default_limits(spark, n_devices=1) == (256, 2048)


def test_each_rank_of_a_processor_brings_its_own():
    assert default_limits(find_hardware("xeon_8480p"), n_devices=2) == (256, 4096)
    assert default_limits(None, n_devices=2) == (256, 2048)


def test_what_is_said_counts():
    assert config_on("h100_sxm", shared={"max_num_seqs": 7}).max_num_seqs == 7
    assert (
        config_on("h100_sxm", own={"max_num_batched_tokens": "4096"}).max_num_batched_tokens == 4096
    )


def test_a_smaller_budget_leaves_no_more_seats_than_tokens():
    assert config_on("h100_sxm", shared={"max_num_batched_tokens": 512}).max_num_seqs == 512
    assert config_on("h100_sxm", own={"max_num_batched_tokens": "512"}).max_num_seqs == 512


def test_without_chunks_a_step_holds_the_longest_context():
    config = config_on(
        "h100_sxm", own={"enable_chunked_prefill": "false"}, shared={"max_model_len": 20_000}
    )
    assert config.max_num_batched_tokens == 20_000


def test_layers_with_a_window_give_their_blocks_back():
    server = deployment_of("gemma-3-27b", "h100_sxm")
    config = server.config
    assert (config.sliding_window, config.num_sliding_groups, config.num_full_groups) == (
        1024,
        6,
        1,
    )
    assert not server.keeps_windows_whole
    assert "those with a window of 1,024 tokens (6) give back what leaves it" in server.kv_origin
    whole = deployment_of("gemma-3-27b", "h100_sxm", own={"sliding_window": "0"})
    assert whole.keeps_windows_whole
    held, held_whole = (one.config.n_kv_blocks * one.kv_block_bytes for one in (server, whole))
    assert held == pytest.approx(held_whole, rel=1e-3)
    assert server.n_kv_tokens > 2 * whole.n_kv_tokens


def test_the_longest_context_is_what_vllm_starts_with():
    config = deployment_of("gemma-3-27b", "h100_sxm").config
    assert config.n_blocks_at_most_len <= config.n_kv_blocks
    with pytest.raises(SpecError, match="num_blocks"):
        replace(config, max_model_len=config.max_model_len + config.block_size)
    small = deployment_of("gpt-oss-20b", "h100_sxm", shared={"num_blocks": 2000}).config
    assert small.n_blocks_at_most_len == 1999


@pytest.mark.parametrize(
    "own",
    [
        {"preemption_mode": "swap"},
        {"kv_allocation": "contiguous", "enable_prefix_caching": "false"},
        {
            "num_speculative_tokens": "2",
            "draft_method": "eagle",
            "acceptance_fraction": "0.7",
            "draft_cost_ratio": "0.05",
        },
    ],
)
def test_what_cannot_give_blocks_back_counts_whole_contexts(own):
    server = deployment_of("gpt-oss-20b", "h100_sxm", own=own)
    assert server.config.sliding_window == 0
    assert server.keeps_windows_whole
    (caution,) = fit_cautions(server)
    assert caution.code == "WINDOWS"
    assert "12 of 24 layers" in caution.text


def test_a_server_of_other_layers_has_no_caution():
    assert not deployment_of("llama-3.1-8b", "h100_sxm").keeps_windows_whole
    short = deployment_of("gemma-3-1b", "h100_sxm", shared={"max_model_len": 512}, policy="sglang")
    assert not short.keeps_windows_whole


@pytest.mark.parametrize(
    ("knobs", "name", "where"),
    [
        ({"shared": {"max_model_len": 131_073}}, "max_model_len", "--max-model-len"),
        ({"own": {"max_model_len": "131073"}}, "max_model_len", "--set"),
        ({"own": {"context_length": "131073"}, "policy": "sglang"}, "context_length", "--set"),
        (
            {"shared": {"max_model_len": 131_073}, "policy": "trtllm"},
            "max_seq_len",
            "--max-model-len",
        ),
    ],
)
def test_contexts_end_where_the_positions_of_the_model_do(knobs, name, where):
    with pytest.raises(SpecError, match=f"^{name} = 131073") as refused:
        deployment_of("llama-3.1-8b", "h100_sxm", **knobs)
    assert refused.value.where == where
    assert refused.value.allowed.startswith("up to 131,072, the positions of 'llama-3.1-8b'")
    assert refused.value.try_.startswith("--max-model-len 131072")


def test_states_lie_in_blocks_that_are_as_long_as_vllm_makes_them():
    """Of Qwen3.5-35B-A3B 1056 tokens, three blocks of states; the cache of one H100 is small."""
    server = deployment_of("qwen3.5-35b-a3b", "h100_sxm")
    config = server.config
    assert (config.block_size, config.num_state_blocks) == (1056, 3)
    assert config.max_num_seqs == config.num_blocks < 256  # vLLM refuses to start with more
    assert "1,056 tokens" in server.kv_origin
    with pytest.raises(SpecError, match="vLLM refuses to start") as caught:
        deployment_of("qwen3.5-35b-a3b", "h100_sxm", shared={"max_num_seqs": 1024})
    assert f"--max-num-seqs {config.num_blocks}" in str(caught.value)
    shorter = deployment_of("qwen3.5-35b-a3b", "h100_sxm", shared={"block_size": 32}).config
    assert shorter.block_size == 1056
    longer = deployment_of("qwen3.5-35b-a3b", "h100_sxm", shared={"block_size": 2048}).config
    assert longer.block_size == 2048
    plain = deployment_of("llama-3.1-8b", "h100_sxm").config
    assert (plain.block_size, plain.num_state_blocks) == (16, 0)


def test_a_request_holds_its_states_beside_its_tokens():
    config = SchedulerConfig(num_blocks=20, max_model_len=64, max_num_seqs=8, num_state_blocks=3)
    assert config.n_blocks_of(17) == 2 + 3
    assert config.n_blocks_at_most_len == 4 + 3
    assert config.n_kv_tokens == int(19 / 7 * 64)
    for change in ({"sliding_window": 8, "num_sliding_groups": 1}, {"num_state_blocks": -1}):
        with pytest.raises(SpecError, match="num_state_blocks"):
            replace(config, **change)


@pytest.mark.parametrize("own", [{"preemption_mode": "swap", "swap_space_bytes": "0"}])
def test_states_that_lie_beside_the_kv_cache_leave_room_for_it(own):
    """Where vLLM's pool is not modelled: as many as SGLang's share of the memory holds."""
    server = deployment_of("qwen3.5-35b-a3b", "h200_sxm", own=own)
    config = server.config
    assert (config.block_size, config.num_state_blocks) == (16, 0)
    assert 100 < config.max_num_seqs < 1024
    states = config.max_num_seqs * state_bytes(server.model, "bfloat16")
    cache = config.n_kv_blocks * server.kv_block_bytes
    assert states / cache == pytest.approx(0.9, rel=0.08)  # fewer sequences have fewer logits
    with pytest.raises(SpecError, match="leaves no memory"):
        deployment_of("qwen3.5-35b-a3b", "h200_sxm", own=own, shared={"max_num_seqs": 1024})


def test_a_block_of_a_model_without_attention_is_the_state_of_a_request():
    """Falcon-Mamba-7B's states of 15.6 MiB; vLLM does not cache prefixes of such models."""
    fields = {
        "model_type": "falcon_mamba", "num_hidden_layers": 64, "hidden_size": 4096,
        "intermediate_size": 8192, "state_size": 16, "conv_kernel": 4, "time_step_rank": 256,
        "tie_word_embeddings": False, "vocab_size": 65024,
    }  # fmt: skip
    model = model_from_config(fields, where="config.json", model_id="falcon-mamba")
    hardware, engine = find_hardware("h100_sxm"), EngineSpec(dtype="bfloat16", device="cuda")
    levels = datasheet_levels(model, engine, hardware)
    server = deploy(model, engine, hardware, levels, Knobs())
    config = server.config
    assert not config.enable_prefix_caching
    assert config.n_blocks_of(1) == config.n_blocks_of(500_000) == 1
    assert server.kv_block_bytes == state_bytes(model, "bfloat16") == 64 * 8192 * 19 * 2
    assert 55e9 < config.num_blocks * server.kv_block_bytes < 66e9  # what weights of 14.5 GB leave
    for refused in (Knobs(policy="sglang"), Knobs(own={"preemption_mode": "swap"})):
        with pytest.raises(SpecError, match="no keys and values"):
            deploy(model, engine, hardware, levels, refused)
