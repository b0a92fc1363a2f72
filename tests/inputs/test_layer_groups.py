"""Are models whose layers differ in their shapes read as published, and counted layer by layer?"""

import json
from pathlib import Path

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.kv_cache import (
    cache_rows,
    kv_bytes,
    kv_bytes_per_token,
    n_kv_shards,
)
from inferometer.perfmodel.matrices import linears
from inferometer.perfmodel.roofline import step_work
from inferometer.perfmodel.types import decode_shape
from inferometer.perfmodel.weights import (
    n_active_parameters,
    n_parameters,
    splits_heads,
    step_weight_bytes,
    weight_bytes,
)
from inferometer.perfmodel.whatif import windowed

CASES = json.loads((Path(__file__).parent / "small_configs.json").read_text())
BF16 = EngineSpec(engine="vllm", dtype="bfloat16")
LLAMA = CASES["llama"][0] | {"model_type": "llama", "head_dim": 16}


def read(config):
    return model_from_config(config, where="config.json", model_id="m")


def block(n_sharing, ratio):
    """An entry of block_configs: None is a part that the layer does not have."""
    attention = {"no_op": True} if n_sharing is None else {"n_heads_in_group": n_sharing}
    return {
        "attention": attention | {"replace_with_linear": False, "sparsify": None},
        "ffn": {"no_op": True} if ratio is None else {"ffn_mult": ratio},
    }


PRUNED = {
    "model_type": "nemotron-nas",
    "num_key_value_heads": None,
    "intermediate_size": None,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
SUPER = PRUNED | {
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "num_attention_heads": 64,
    "block_configs": [
        block(n_sharing, ratio)
        for n_sharing, ratio, n_layers in (
            (8, 5.25, 48), (8, 2.625, 1), (None, 5.25, 1), (None, 3.28125, 1), (None, 2.625, 5),
            (None, 1.3125, 10), (None, 1.0, 8), (None, 0.5, 6),
        )
        for _ in range(n_layers)
    ],
}  # fmt: skip
ULTRA = PRUNED | {
    "num_hidden_layers": 162,
    "hidden_size": 16384,
    "num_attention_heads": 128,
    "block_configs": [
        block(n_sharing, ratio)
        for n_sharing, ratio, n_layers in (
            (None, None, 81), (16, 4.875, 32), (16, 2.4375, 10), (None, 2.4375, 9), (16, 1.95, 8),
            (16, 1.4625, 6), (16, 3.4125, 4), (None, 1.95, 2), (None, 4.875, 2), (16, 2.925, 2),
            (16, 0.4875, 1), (16, 0.975, 1), (None, 36.5625, 1), (None, 39.0, 1),
            (None, 31.40625, 1), (None, 27.5625, 1),
        )
        for _ in range(n_layers)
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "parameters", "n_attention", "n_feed_forward"),
    [(SUPER, 49_867_145_216, 49, 80), (ULTRA, 253_401_268_224, 64, 81)],
)
def test_pruned_llamas_have_the_layers_that_their_files_list(
    config, parameters, n_attention, n_feed_forward
):
    """Llama 3.3 Nemotron Super 49B and Llama 3.1 Nemotron Ultra 253B."""
    model = read(config)
    assert n_parameters(model) == parameters
    assert (model.n_attention_layers, model.n_feed_forward_layers) == (n_attention, n_feed_forward)
    assert kv_bytes_per_token(model, "bfloat16") == n_attention * 2 * 8 * 128 * 2
    assert model.n_blocks == n_attention + n_feed_forward
    # All weights are read for a token but those of the embedding, of which it reads a row.
    embedding = model.vocab_size * model.hidden_size
    assert n_active_parameters(model) == parameters - embedding
    read_bytes = step_weight_bytes(model, BF16, n_rows=1, n_logit_positions=1)
    assert read_bytes == 2 * (parameters - embedding)
    assert weight_bytes(model, BF16) == 2 * parameters


def test_a_group_is_counted_as_a_model_of_its_layers():
    """Llama with two kinds of layers is what two Llamas are, beside embedding, head and last norm."""
    sizes = {"intermediate_size": [96, 192, 96, 192], "num_key_value_heads": [2, 4, 2, 4]}
    model = read(LLAMA | sizes)
    halves = [
        read(LLAMA | {"num_hidden_layers": 2, "intermediate_size": size, "num_key_value_heads": n})
        for size, n in ((96, 2), (192, 4))
    ]
    none = n_parameters(read(LLAMA | {"num_hidden_layers": 1})) - sum(
        part.n_weights + part.n_biases for part in linears(read(LLAMA | {"num_hidden_layers": 1}))
    )
    ends = none - 2 * 64  # the norms of its layer
    assert n_parameters(model) == sum(n_parameters(half) - ends for half in halves) + ends
    assert kv_bytes_per_token(model, "bfloat16") == sum(
        kv_bytes_per_token(half, "bfloat16") for half in halves
    )
    assert {rows.elements for rows in cache_rows(model)} == {64, 128}
    shape = decode_shape(batch_size=2, context_tokens=64)
    works = [step_work(one, BF16, shape) for one in (model, *halves)]
    assert works[0].matmul_flop == pytest.approx(works[1].matmul_flop + works[2].matmul_flop)
    assert works[0].attention_flop == pytest.approx(
        works[1].attention_flop + works[2].attention_flop
    )


def test_a_change_of_heads_reaches_all_groups():
    model = read(SUPER)
    windowed_model = windowed(model, window_tokens=1020, n_sinks=4)
    assert kv_bytes(windowed_model, "bfloat16", context_tokens=9000) == (
        1024 * kv_bytes_per_token(model, "bfloat16")
    )


def test_devices_divide_the_heads_of_all_layers():
    model = read(LLAMA | {"num_attention_heads": 12, "num_key_value_heads": [2, 6, 2, 6]})
    assert [n for n in (1, 2, 3, 4, 6) if splits_heads(model, n)] == [1, 2, 6]
    assert n_kv_shards(model, EngineSpec(engine="vllm", tensor_parallel_size=6)) == 2


PUZZLE = CASES["nemotron_h"][0] | {"model_type": "nemotron_h_puzzle"}


def test_nemotron_h_whose_experts_differ_from_layer_to_layer():
    """NVIDIA-Nemotron-Labs-3-Puzzle: an own width and number of experts for each such layer."""
    kinds = ["mamba", "moe", "attention", "moe"]
    own = {"moe": [{"moe_intermediate_size": 32, "num_experts_per_tok": 2}]}
    plain = {name: one for name, one in PUZZLE.items() if "pattern" not in name}
    sizes = {
        "n_routed_experts": 4,
        "moe_shared_expert_intermediate_size": 64,
        "n_shared_experts": 1,
    }
    blocks = [{"block_type": kind} for kind in kinds]
    blocks[1] |= own["moe"][0]
    blocks[3] |= {"moe_intermediate_size": 64, "num_experts_per_tok": 1}
    model = read(plain | sizes | {"block_configs": blocks, "layers_block_type": kinds})
    assert (model.n_attention_layers, model.n_expert_layers, model.recurrent.n_layers) == (1, 2, 1)
    equal = [
        n_parameters(
            read(
                plain
                | sizes
                | {"layers_block_type": kinds, "moe_intermediate_size": size}
                | {"num_experts_per_tok": 1, "model_type": "nemotron_h"}
            )
        )
        for size in (32, 64)
    ]
    assert 2 * n_parameters(model) == sum(equal)


@pytest.mark.parametrize(
    ("blocks", "what"),
    [
        ([block(8, 1.0)] * 3, "3 entries for 4 layers"),
        ([block(3, 1.0)] * 4, "block_configs has an entry"),
        ([block(None, None)] * 4, "block_configs has an entry"),
        (
            [{"attention": {"replace_with_linear": True}, "ffn": {}}] * 4,
            "block_configs has an entry",
        ),
        ([7] * 4, "block_configs has an entry"),
    ],
)
def test_blocks_that_are_not_understood_are_refused(blocks, what):
    config = CASES["nemotron-nas"][0] | {"model_type": "nemotron-nas", "block_configs": blocks}
    with pytest.raises(SpecError, match=what) as caught:
        read(config)
    assert caught.value.allowed


def test_an_empty_list_of_a_file_without_layers_gets_one_error():
    with pytest.raises(SpecError, match="num_hidden_layers"):
        read(LLAMA | {"num_hidden_layers": None, "intermediate_size": []})


DIFFERING = {
    "1": {"intermediate_size": 128},
    "2": {"num_key_value_heads": 1, "intermediate_size": 32},
}


def test_fields_of_single_layers_are_read():
    model = read(LLAMA | {"per_layer_config": DIFFERING, "intermediate_size": 96})
    assert [group.n_layers for group in model.groups] == [2, 1, 1]
    assert kv_bytes_per_token(model, "bfloat16") == (3 * 2 + 1) * 2 * 16 * 2


def test_layers_that_skip_a_part_have_none():
    skips = {"0": {"skip": ["attention"]}, "3": {"skip": ["mlp"]}}
    model, whole = read(LLAMA | {"per_layer_config": skips}), read(LLAMA)
    assert (model.n_attention_layers, model.n_feed_forward_layers) == (3, 3)
    parts = {part.name: part.n_in * part.n_out for part in linears(whole)}
    norms = 2 * whole.hidden_size  # one of each layer
    assert n_parameters(whole) - n_parameters(model) == sum(parts.values()) + norms
    with pytest.raises(SpecError, match="skip"):
        read(LLAMA | {"per_layer_config": {"0": {"skip": ["gate"]}}})


STEP = CASES["step3p5"][1] | {"model_type": "step3p5", "num_sliding_attention_heads": 8}


@pytest.mark.slow
def test_transformers_builds_step_as_it_is_read():
    """Its class has no language model alone: embedding, layers and norm are compared."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    fields = {
        name: value for name, value in STEP.items() if name not in {"model_type", "pad_token_id"}
    }
    with torch.device("meta"):
        built = transformers.models.step3p7.modeling_step3p7.Step3p7TextModel(
            transformers.AutoConfig.for_model("step3p5", **fields)
        )
    buffers = [part for name, part in built.named_buffers() if name.endswith("correction_bias")]
    head = read(STEP).vocab_size * read(STEP).hidden_size
    counted = sum(part.numel() for part in [*built.parameters(), *buffers])
    assert counted + head == n_parameters(read(STEP))
