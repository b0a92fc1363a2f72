"""Which usual fields of a ``config.json`` follow from a family's own, which write them otherwise?"""

from collections.abc import Mapping
from typing import Final, TypeAlias

Config: TypeAlias = Mapping[str, object]

_COMPRESSED_KINDS: Final = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_MOST_LISTED_LAYERS: Final = 10_000
_MINIMAX_KINDS: Final = {"0": "linear_attention", "1": "full_attention"}


def fill_gpt2(config: Config) -> dict[str, object]:
    """The MLP is four times as wide as the hidden states."""
    width = config.get("n_embd")
    return {"intermediate_size": 4 * width} if isinstance(width, int) else {}


def fill_bigcode(config: Config) -> dict[str, object]:
    """As GPT-2, with one KV head unless the file says otherwise."""
    return fill_gpt2(config) | (
        {"num_key_value_heads": 1} if config.get("multi_query", True) else {}
    )


def fill_mpt(config: Config) -> dict[str, object]:
    """The MLP is a ratio wider than the hidden states."""
    width, ratio = config.get("d_model"), config.get("expansion_ratio", 4)
    return (
        {"intermediate_size": ratio * width}
        if isinstance(width, int) and isinstance(ratio, int)
        else {}
    )


def fill_falcon(config: Config) -> dict[str, object]:
    """Its MLP, its KV heads, its norms and its positions, by the architecture that the file names."""
    width = config.get("hidden_size")
    filled: dict[str, object] = {"intermediate_size": 4 * width} if isinstance(width, int) else {}
    is_new, n_parallel_norms = (
        bool(config.get("new_decoder_architecture")),
        config.get("num_ln_in_parallel_attn"),
    )
    # The old architecture's class has one such head, whatever the file says of `num_kv_heads`.
    if not is_new and config.get("multi_query", True):
        filled["num_kv_heads"] = 1
    has_two_norms = (
        n_parallel_norms in {None, 2} if is_new else not config.get("parallel_attn", True)
    )
    return filled | {
        "norms_per_layer": 2 if has_two_norms else 1,
        "position": "alibi" if config.get("alibi") else "rope",
    }


def fill_stablelm(config: Config) -> dict[str, object]:
    """One norm for each layer where attention and MLP are parallel."""
    return {"norms_per_layer": 1 if config.get("use_parallel_residual") else 2}


def fill_opt(config: Config) -> dict[str, object]:
    """The width of the embedding, and whether a norm comes last."""
    has_final = config.get("do_layer_norm_before", True) and not config.get(
        "_remove_final_layer_norm", False
    )
    return {"embedding_size": config.get("word_embed_proj_dim"), "has_final_norm": bool(has_final)}


def fill_llama4(config: Config) -> dict[str, object]:
    """Layers with positions attend to chunks of the context, those without to all of it.

    A chunk is read as a window of its length, which is twice what it holds in the mean.
    """
    n_layers, listed = config.get("num_hidden_layers"), config.get("moe_layers")
    filled: dict[str, object] = {}
    if isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS and isinstance(listed, list):
        filled["mlp_only_layers"] = [index for index in range(n_layers) if index not in listed]
    with_positions = config.get("no_rope_layers")
    if isinstance(with_positions, list) and with_positions:
        filled["layer_types"] = [
            "sliding_attention" if one else "full_attention" for one in with_positions
        ]
    return filled


def fill_deepseek_v4(config: Config) -> dict[str, object]:
    """What transformers writes by layer where the published files have a number for each layer."""
    kinds, experts = config.get("layer_types"), config.get("mlp_layer_types")
    filled = dict[str, object]()
    if isinstance(kinds, list) and {*map(str, kinds)} <= _COMPRESSED_KINDS.keys():
        filled["compress_ratios"] = [_COMPRESSED_KINDS[str(kind)] for kind in kinds]
    if isinstance(experts, list):
        filled["num_hash_layers"] = experts.count("hash_moe")
    return filled


def fill_gemma4(config: Config) -> dict[str, object]:
    """The kinds of layers, the heads of full ones, and what stands beside attention and MLP."""
    filled, n_layers = dict[str, object](), config.get("num_hidden_layers", 30)
    if isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS:
        is_full = [not index % 6 or index == n_layers for index in range(1, n_layers + 1)]
        filled["layer_types"] = [
            "full_attention" if one else "sliding_attention" for one in is_full
        ]
    by_layer = config.get("per_layer_config")  # as transformers writes it since version 5
    first = next(iter(by_layer.values()), None) if isinstance(by_layer, dict) else None
    if isinstance(first, dict):
        filled["full_head_dim"] = first.get("head_dim")
        filled["full_key_value_heads"] = first.get("num_key_value_heads")
    has_experts = config.get("enable_moe_block") is True
    if has_experts:  # beside the MLP, which every token passes like a shared expert
        filled["shared_expert_intermediate_size"] = config.get("intermediate_size", 9216)
    has_inputs = bool(config.get("hidden_size_per_layer_input", 256))
    # Three norms more with experts, and a scale of the router's input.
    return filled | {"norms_per_layer": 4 + has_inputs + 4 * has_experts}


def fill_mimo_v2(config: Config) -> dict[str, object]:
    """Which layers slide and have experts; transformers' class knows no fields of sliding heads."""
    n_layers, n_kv_heads = config.get("num_hidden_layers", 48), config.get("num_key_value_heads", 4)
    filled: dict[str, object] = {
        "swa_head_dim": config.get("swa_head_dim") or config.get("head_dim", 192),
        "swa_v_head_dim": config.get("swa_v_head_dim") or config.get("v_head_dim", 128),
        "swa_num_key_value_heads": config.get("swa_num_key_value_heads"),
    }
    if isinstance(n_kv_heads, int) and config.get("swa_num_key_value_heads") is None:
        filled["swa_num_key_value_heads"] = 2 * n_kv_heads
    sliding, sparse = config.get("hybrid_layer_pattern"), config.get("moe_layer_freq")
    if isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS:
        if not isinstance(sliding, list):
            sliding = [index > 0 and (index + 1) % 6 > 0 for index in range(n_layers)]
        if not isinstance(sparse, list):
            sparse = [index > 0 for index in range(n_layers)]
        filled["layer_types"] = [
            "sliding_attention" if one else "full_attention" for one in sliding
        ]
        filled["mlp_layer_types"] = ["sparse" if one else "dense" for one in sparse]
    return filled | {"sliding_window": config.get("sliding_window_size") or 129}


def fill_minimax(config: Config) -> dict[str, object]:
    """Lightning attention in the words of linear attention: a state for each head, of its width.

    The published files list layers as 0 (linear) and 1 (full), transformers' class by their names.
    """
    n_heads, head_dim = config.get("num_attention_heads", 32), config.get("head_dim")
    width, n_layers = config.get("hidden_size", 4096), config.get("num_hidden_layers", 32)
    if head_dim is None and isinstance(width, int) and isinstance(n_heads, int) and n_heads > 0:
        head_dim = width // n_heads
    listed = config.get("attn_type_list")
    kinds: object = None
    if isinstance(listed, list):
        kinds = [_MINIMAX_KINDS.get(str(one), str(one)) for one in listed]
    elif isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS:
        kinds = [_MINIMAX_KINDS[str((index + 1) % 2)] for index in range(n_layers)]
    return {
        "layer_types": kinds,
        "linear_num_key_heads": n_heads,
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": 1,
        # vLLM 0.32.0 and transformers 5.23 keep the state in the model's own format.
        "mamba_ssm_dtype": config.get("dtype") or config.get("torch_dtype") or "bfloat16",
    }


def fill_granite_hybrid(config: Config) -> dict[str, object]:
    """Without experts, what is elsewhere the shared expert is the MLP."""
    return {"enable_moe_block": bool(config.get("num_local_experts", 8))}
