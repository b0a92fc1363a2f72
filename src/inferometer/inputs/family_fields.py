"""Translates fields of a ``config.json`` that only one model family has to the usual fields.

Each ``fill_`` function gets the file's content, and returns usual fields with their values. They
are added to the file's fields, and replace some of them. Recurrent layers of all kinds are
described by the fields of linear attention (``linear_...``).
"""

from typing import Final

from inferometer.inputs.family import MOST_LISTED_LAYERS, Config

_COMPRESSED_KINDS: Final = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_FULL: Final = "full_attention"
_LINEAR: Final = "linear_attention"
_SLIDING: Final = "sliding_attention"
_KIND_OF: Final = {
    **dict.fromkeys(("M", "mamba", "conv"), _LINEAR),
    **dict.fromkeys(("*", "attention"), _FULL),
    "-": "mlp",
    "E": "moe",
}
"""Usual name of a layer's kind, by its name or letter in Nemotron-H's pattern and other files."""
_MINIMAX_KINDS: Final = {"0": "linear_attention", "1": "full_attention"}


def fill_gpt2(config: Config) -> dict[str, object]:
    """GPT-2, CodeGen: the MLP is four times as wide as the hidden states."""
    width = config.get("n_embd")
    return {"intermediate_size": 4 * width} if isinstance(width, int) else {}


def fill_bigcode(config: Config) -> dict[str, object]:
    """GPT-BigCode: as GPT-2, with one KV head unless the file has ``multi_query: false``."""
    return fill_gpt2(config) | (
        {"num_key_value_heads": 1} if config.get("multi_query", True) else {}
    )


def fill_mpt(config: Config) -> dict[str, object]:
    """MPT: the MLP is ``expansion_ratio`` times as wide as the hidden states."""
    width, ratio = config.get("d_model"), config.get("expansion_ratio", 4)
    return (
        {"intermediate_size": ratio * width}
        if isinstance(width, int) and isinstance(ratio, int)
        else {}
    )


def fill_falcon(config: Config) -> dict[str, object]:
    """Falcon: MLP size, KV heads, norms and positions, by ``new_decoder_architecture``."""
    width = config.get("hidden_size")
    filled: dict[str, object] = {"intermediate_size": 4 * width} if isinstance(width, int) else {}
    is_new = bool(config.get("new_decoder_architecture"))
    n_parallel_norms = config.get("num_ln_in_parallel_attn")
    # The old architecture's class has one KV head, whatever value `num_kv_heads` has.
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
    """StableLM: one norm per layer if attention and MLP are parallel, else two."""
    return {"norms_per_layer": 1 if config.get("use_parallel_residual") else 2}


def fill_opt(config: Config) -> dict[str, object]:
    """OPT: the embedding's width, and whether there is a norm after the last layer."""
    has_final = config.get("do_layer_norm_before", True) and not config.get(
        "_remove_final_layer_norm", False
    )
    return {"embedding_size": config.get("word_embed_proj_dim"), "has_final_norm": bool(has_final)}


def fill_llama4(config: Config) -> dict[str, object]:
    """Llama 4: layers with positions attend to a chunk of the context, others to all of it.

    A chunk is treated as a sliding window of its length: on average, twice the tokens in a chunk.
    """
    n_layers, listed = config.get("num_hidden_layers"), config.get("moe_layers")
    filled: dict[str, object] = {}
    if isinstance(n_layers, int) and n_layers <= MOST_LISTED_LAYERS and isinstance(listed, list):
        filled["mlp_only_layers"] = [index for index in range(n_layers) if index not in listed]
    with_positions = config.get("no_rope_layers")
    if isinstance(with_positions, list) and with_positions:
        filled["layer_types"] = [
            "sliding_attention" if one else "full_attention" for one in with_positions
        ]
    return filled


def fill_deepseek_v4(config: Config) -> dict[str, object]:
    """DeepSeek-V4: the published files' fields from transformers' lists of layer kinds."""
    kinds, experts = config.get("layer_types"), config.get("mlp_layer_types")
    filled = dict[str, object]()
    if isinstance(kinds, list) and {*map(str, kinds)} <= _COMPRESSED_KINDS.keys():
        filled["compress_ratios"] = [_COMPRESSED_KINDS[str(kind)] for kind in kinds]
    if isinstance(experts, list):
        filled["num_hash_layers"] = experts.count("hash_moe")
    return filled


def fill_mimo_v2(config: Config) -> dict[str, object]:
    """MiMo-V2: which layers have a sliding window or experts, and the heads of windowed layers.

    transformers' class has no fields for the latter.
    """
    n_layers, n_kv_heads = config.get("num_hidden_layers", 48), config.get("num_key_value_heads", 4)
    filled: dict[str, object] = {
        "swa_head_dim": config.get("swa_head_dim") or config.get("head_dim", 192),
        "swa_v_head_dim": config.get("swa_v_head_dim") or config.get("v_head_dim", 128),
        "swa_num_key_value_heads": config.get("swa_num_key_value_heads"),
    }
    if isinstance(n_kv_heads, int) and config.get("swa_num_key_value_heads") is None:
        filled["swa_num_key_value_heads"] = 2 * n_kv_heads
    sliding, sparse = config.get("hybrid_layer_pattern"), config.get("moe_layer_freq")
    if isinstance(n_layers, int) and n_layers <= MOST_LISTED_LAYERS:
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
    """MiniMax: lightning attention as linear attention, with a square state for each head.

    The published files list kinds of layers as 0 (linear) and 1 (full), transformers as names.
    """
    n_heads, head_dim = config.get("num_attention_heads", 32), config.get("head_dim")
    width, n_layers = config.get("hidden_size", 4096), config.get("num_hidden_layers", 32)
    if head_dim is None and isinstance(width, int) and isinstance(n_heads, int) and n_heads > 0:
        head_dim = width // n_heads
    listed = config.get("attn_type_list")
    kinds: object = None
    if isinstance(listed, list):
        kinds = [_MINIMAX_KINDS.get(str(one), str(one)) for one in listed]
    elif isinstance(n_layers, int) and n_layers <= MOST_LISTED_LAYERS:
        kinds = [_MINIMAX_KINDS[str((index + 1) % 2)] for index in range(n_layers)]
    return {
        "layer_types": kinds,
        "linear_num_key_heads": n_heads,
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": 1,
        # vLLM 0.32.0 and transformers 5.23 store the state in the model's own format.
        "mamba_ssm_dtype": config.get("dtype") or config.get("torch_dtype") or "bfloat16",
    }


def fill_minimax_m3(config: Config) -> dict[str, object]:
    """MiniMax-M3: which layers choose blocks of tokens, how many, and which have experts.

    The published files nest these fields, transformers writes them flat. If no list states the
    layers, vLLM 0.32.0 assumes that the first three attend to everything and have no experts.
    """
    nested, n_layers = config.get("sparse_attention_config"), _n_layers(config) or 0
    sparse: Config = (
        {str(key): one for key, one in nested.items()} if isinstance(nested, dict) else {}
    )
    usual = [index > 2 for index in range(n_layers)]
    chooses = _flags(config.get("layer_types"), "minimax_m3_sparse")
    chooses = chooses or _flags(sparse.get("sparse_attention_freq"), "1") or usual
    experts = _flags(config.get("mlp_layer_types"), "sparse")
    experts = experts or _flags(config.get("moe_layer_freq"), "1") or usual
    block = sparse.get("sparse_block_size", config.get("index_block_size", 128))
    n_blocks = sparse.get("sparse_topk_blocks", config.get("index_topk_blocks", 16))
    is_on = sparse.get("use_sparse_attention", True)
    n_tokens = block * n_blocks if isinstance(block, int) and isinstance(n_blocks, int) else None
    return {
        "indexer_types": ["full" if one and is_on else "none" for one in chooses],
        "index_topk": n_tokens,
        "index_block_size": block,
        "index_n_heads": sparse.get("sparse_num_index_heads", config.get("index_n_heads", 4)),
        "index_head_dim": sparse.get("sparse_index_dim", config.get("index_head_dim", 128)),
        "mlp_layer_types": ["sparse" if one else "dense" for one in experts],
    }


OF_QUERY_HEADS: Final = ("attention_other_setting", "num_attention_heads_per_layer")


def fill_unknown(config: Config) -> dict[str, object]:
    """An unknown ``model_type``: which layers have experts, as Step and MiMo write it."""
    enum, n_layers = config.get("moe_layers_enum"), _n_layers(config)
    freq: list[bool] | None = None
    if isinstance(enum, str | list) and n_layers is not None:
        listed = {str(one).strip() for one in (enum.split(",") if isinstance(enum, str) else enum)}
        freq = [str(index) in listed for index in range(n_layers)]
    freq = freq or _flags(config.get("moe_layer_freq"), "1")
    kinds = ["sparse" if one else "dense" for one in freq] if freq else None
    return query_heads(config) | {"mlp_layer_types": kinds}


def query_heads(config: Config) -> dict[str, object]:
    """Query heads of full and of sliding layers where they differ, and all else is the same.

    Step 3.5 states the sliding layers' in ``attention_other_setting``, Laguna those of each layer.
    """
    kinds, head_dim = config.get("layer_types"), config.get("head_dim")
    other, listed = (config.get(name) for name in OF_QUERY_HEADS)
    full, sliding = config.get("num_attention_heads"), None
    if not isinstance(kinds, list) or not isinstance(head_dim, int):
        return {}
    if isinstance(other, dict) and other.get("attention_type", _SLIDING) == _SLIDING:
        own = {name: config.get(name) for name in ("num_attention_groups", "head_dim")}
        if all(other.get(name, one) == one for name, one in own.items()):
            sliding = other.get("num_attention_heads")
    elif isinstance(listed, list) and len(listed) == len(kinds):
        rows = [pair for pair in zip(listed, kinds, strict=True) if isinstance(pair[0], int)]
        found = [{n for n, one in rows if one == kind} for kind in (_FULL, _SLIDING)]
        if len(rows) == len(listed) and all(len(one) == 1 for one in found):
            full, sliding = (one.pop() for one in found)
    if not isinstance(full, int) or not isinstance(sliding, int):
        return {}
    return {
        "full_attention_heads": full,
        "swa_num_attention_heads": sliding,
        "full_head_dim": head_dim,
    }


def _flags(listed: object, word: str) -> list[bool] | None:
    return [str(one) == word for one in listed] if isinstance(listed, list) else None


def fill_bamba(config: Config) -> dict[str, object]:
    """Bamba: Mamba-2 as linear attention, and which layers have attention instead."""
    n_layers, attends = _n_layers(config), config.get("attn_layer_indices") or []
    kinds: list[str] | None = None
    if n_layers is not None and isinstance(attends, list):
        kinds = [_FULL if index in attends else _LINEAR for index in range(n_layers)]
    return {"block_kinds": kinds} | _mamba2(config)


def fill_granite_hybrid(config: Config) -> dict[str, object]:
    """Granite 4: Mamba-2 as linear attention; without experts, the shared expert is the MLP."""
    has_experts = bool(config.get("num_local_experts", 8))
    return {
        "enable_moe_block": has_experts,
        "block_kinds": _kinds(config.get("layer_types")),
    } | _mamba2(config)


def fill_falcon_h1(config: Config) -> dict[str, object]:
    """Falcon-H1: each layer has Mamba-2 beside its attention."""
    return _mamba2(config)


def fill_nemotron_h(config: Config) -> dict[str, object]:
    """Nemotron-H: each layer is a single block of Mamba-2, attention, an MLP or experts."""
    listed = config.get("layer_types") or config.get("layers_block_type")
    pattern = config.get("hybrid_override_pattern")
    if listed is None and isinstance(pattern, str):
        listed = list(pattern[:MOST_LISTED_LAYERS])
    kinds = _kinds(listed)
    filled: dict[str, object] = {
        "block_kinds": kinds,
        "head_dim": config.get("head_dim") or config.get("attention_head_dim") or 128,
        "enable_moe_block": kinds is not None and "moe" in kinds,
    }
    if kinds is not None:
        blocks = [kind for kind in kinds if kind in {"mlp", "moe"}]
        filled["num_hidden_layers"] = len(kinds)
        filled["mlp_layer_types"] = ["dense" if kind == "mlp" else "sparse" for kind in blocks]
    shared = config.get("moe_shared_expert_intermediate_size")
    n_shared = config.get("n_shared_experts", 1)
    if isinstance(shared, int) and isinstance(n_shared, int):
        filled["all_shared_experts_size"] = shared * n_shared
    own = {
        "mamba_n_heads": config.get("mamba_num_heads", 128),
        "mamba_d_head": config.get("mamba_head_dim", 64),
        "mamba_n_groups": config.get("n_groups", config.get("mamba_n_groups", 8)),
        "mamba_d_state": config.get("ssm_state_size", 128),
        "mamba_d_conv": config.get("conv_kernel", config.get("mamba_d_conv", 4)),
    }
    filled["mamba_conv_bias"] = config.get("use_conv_bias", True)
    filled["mamba_proj_bias"] = bool(config.get("use_bias"))
    # vLLM's default for this family, if the file does not state it.
    stated = config.get("mamba_ssm_cache_dtype") or "float32"
    return filled | _mamba2(own) | {"mamba_ssm_dtype": stated}


def fill_jamba(config: Config) -> dict[str, object]:
    """Jamba: Mamba as linear attention, each channel being a value head, without key heads."""
    n_layers, width = _n_layers(config), config.get("hidden_size", 4096)
    filled: dict[str, object] = {
        "enable_moe_block": config.get("num_experts", 16) != 1,
        "linear_num_key_heads": 0,
        "linear_key_head_dim": config.get("mamba_d_state", 16),
        "linear_value_head_dim": 1,
        "linear_conv_kernel_dim": config.get("mamba_d_conv", 4),
    }
    expand, rank = config.get("mamba_expand", 2), config.get("mamba_dt_rank", "auto")
    if isinstance(width, int) and isinstance(expand, int):
        filled["linear_num_value_heads"] = expand * width
        filled["linear_step_rank"] = -(-width // 16) if rank == "auto" else rank
    for name, part, usual in (
        ("block_kinds", "attn", (8, 4)),
        ("mlp_layer_types", "expert", (2, 1)),
    ):
        every = config.get(f"{part}_layer_period", usual[0])
        first = config.get(f"{part}_layer_offset", usual[1])
        words = (_FULL, _LINEAR) if part == "attn" else ("sparse", "dense")
        if n_layers is not None and isinstance(every, int) and every > 0:
            filled[name] = [words[index % every != first] for index in range(n_layers)]
    return filled


def fill_lfm2(config: Config) -> dict[str, object]:
    """LFM2: short convolutions as linear attention without keys, and the width of the MLP."""
    width, size = config.get("hidden_size", 2560), config.get("intermediate_size")
    size = config.get("block_ff_dim", size)
    ratio, unit = config.get("block_ffn_dim_multiplier", 1.0), config.get("block_multiple_of", 256)
    if config.get("block_auto_adjust_ff_dim", True) and isinstance(size, int):
        size = int(2 * size / 3)
        if isinstance(ratio, int | float) and isinstance(unit, int) and unit > 0:
            size = -(-int(ratio * size) // unit) * unit
    attends, n_layers = config.get("full_attn_idxs"), _n_layers(config)
    kinds = _kinds(config.get("layer_types"))
    if kinds is None and isinstance(attends, list) and n_layers is not None:
        kinds = [_FULL if index in attends else _LINEAR for index in range(n_layers)]
    return {
        "mlp_size": size,
        "block_kinds": kinds,
        "tie_word_embeddings": config.get("tie_embedding", True),
        "linear_num_key_heads": 0,
        "linear_num_value_heads": width,
        "linear_key_head_dim": 0,
        "linear_value_head_dim": 1,
        "linear_conv_kernel_dim": config.get("conv_L_cache", 3),
        "mamba_conv_bias": bool(config.get("conv_bias")),
        "mamba_proj_bias": bool(config.get("conv_bias")),
    }


def fill_lfm3(config: Config) -> dict[str, object]:
    """LFM3: as LFM2, but the file states the width of the MLP, and ties as others do."""
    filled = fill_lfm2({**config, "conv_L_cache": config.get("conv_L_cache", 7)})
    tied = config.get("tie_embedding", config.get("tie_word_embeddings", True))
    return filled | {"mlp_size": config.get("intermediate_size"), "tie_word_embeddings": tied}


def fill_lfm2_moe(config: Config) -> dict[str, object]:
    """LFM2-MoE: as LFM2, but the file states the width of the MLP."""
    return fill_lfm2(config) | {"mlp_size": config.get("intermediate_size", 7168)}


def fill_kimi_linear(config: Config) -> dict[str, object]:
    """Kimi Linear: which layers (counted from 1) have Kimi Delta Attention, and its sizes."""
    listed, n_layers = config.get("linear_attn_config"), _n_layers(config)
    own: Config = {str(key): one for key, one in listed.items()} if isinstance(listed, dict) else {}
    kinds, attends = _kinds(config.get("layer_types")), own.get("full_attn_layers")
    if kinds is None and n_layers is not None and isinstance(attends, list):
        kinds = [_FULL if index + 1 in attends else _LINEAR for index in range(n_layers)]
    n_heads = own.get("num_heads", config.get("linear_num_heads", 32))
    head_dim = own.get("head_dim", config.get("linear_head_dim", 128))
    kernel = own.get("short_conv_kernel_size", config.get("linear_conv_kernel_dim", 4))
    experts = config.get("mlp_layer_types")
    if not isinstance(experts, list) and n_layers is not None:
        n_dense = config.get("first_k_dense_replace", 1)
        experts = ["dense"] * min(n_dense if isinstance(n_dense, int) else 0, n_layers)
    return {
        "block_kinds": kinds,
        "mlp_layer_types": experts,
        "linear_num_key_heads": n_heads,
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": kernel,
        "use_full_rank_gate": own.get("use_full_rank_gate"),
        "max_position_embeddings": config.get("model_max_length"),
        "mamba_ssm_dtype": "float32",  # vLLM 0.32.0 does so whatever the model's format
    }


def fill_bailing_hybrid(config: Config) -> dict[str, object]:
    """Ling and Ring since 2.5: latent attention in the last layer of each group, else a state.

    The state is lightning attention's in version 2.5, and Kimi Delta Attention's in version 3.
    """
    n_layers, group = _n_layers(config), config.get("layer_group_size", 6)
    kinds = _kinds(config.get("layer_types"))
    is_kda = not config.get("num_kv_heads_for_linear_attn")
    if kinds is None and n_layers is not None and isinstance(group, int) and group > 0:
        n_grouped = n_layers // group * group if is_kda else n_layers
        kinds = [
            _FULL if (index + 1) % group == 0 or index >= n_grouped else _LINEAR
            for index in range(n_layers)
        ]
    n_heads = config.get("linear_num_heads", config.get("num_attention_heads", 32))
    head_dim = config.get("linear_head_dim", config.get("head_dim", 128))
    kernel = config.get("short_conv_kernel_size", config.get("linear_conv_kernel_dim", 4))
    gate = config.get("gated_attention_proj_granularity_type", "head_wise" if is_kda else None)
    return {
        "block_kinds": kinds,
        "n_chosen_experts": config.get("num_experts_per_token", config.get("num_experts_per_tok")),
        "linear_num_key_heads": n_heads,
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": kernel if is_kda else 1,
        "recurrent_kind": "kda" if is_kda else "lightning",
        "use_full_rank_gate": is_kda,
        "no_kda_lora": is_kda,
        "has_state_qk_norm": not is_kda and config.get("use_qk_norm", True),
        "has_head_gate": gate == "head_wise",
        "has_channel_gate": gate == "element_wise",
        "max_position_embeddings": config.get("model_max_length"),
        "mamba_ssm_dtype": "float32"
        if is_kda
        else config.get("dtype") or config.get("torch_dtype") or "bfloat16",
    }


def fill_glm5_next(config: Config) -> dict[str, object]:
    """GLM-5.3: Kimi Delta Attention, and latent attention to tokens that an indexer chooses."""
    kinds, n_pooled = config.get("layer_types"), config.get("index_kpool", 1)
    named = [str(one) for one in kinds] if isinstance(kinds, list) else []
    attends = [one != _LINEAR for one in named]
    n_streams, dense = config.get("hc_mult", 4), config.get("mlp_layer_types")
    is_mixed = config.get("mhc", True) is True and isinstance(n_streams, int)
    mixed: dict[str, object] = {}
    if is_mixed and isinstance(n_streams, int):
        mixed = {"hc_count": n_streams, "hc_numbers": (2 + n_streams) * n_streams, "hc_scales": 3}
    return (
        fill_kimi_linear({**config, "layer_types": None})
        | mixed
        | {
            "block_kinds": [_FULL if one else _LINEAR for one in attends] or None,
            "indexer_kinds": ["full" if one else "none" for one in attends] or None,
            "index_key_tokens": n_pooled,
            "max_position_embeddings": config.get("max_position_embeddings"),
            **({"mlp_layer_types": dense} if isinstance(dense, list) else {}),
        }
    )


def fill_hy_v4(config: Config) -> dict[str, object]:
    """Hy4: residual streams that are mixed without a matrix between them."""
    n_streams, gate = config.get("hc_mult", 4), config.get("gating_type", "elementwise")
    filled: dict[str, object] = {
        "has_channel_gate": bool(config.get("gated_mla", True)) and gate == "elementwise",
        "has_head_gate": bool(config.get("gated_mla", True)) and gate == "headwise",
        "learnable_sink": config.get("learnable_sink", True),
    }
    if isinstance(n_streams, int):
        filled |= {
            "hc_count": n_streams,
            "hc_numbers": 2 * n_streams,
            "hc_scales": 2,
            "has_hc_head": True,
        }
    return filled


def _n_layers(config: Config) -> int | None:
    n_layers = config.get("num_hidden_layers", 32)
    is_count = isinstance(n_layers, int) and 0 < n_layers <= MOST_LISTED_LAYERS
    return n_layers if is_count and isinstance(n_layers, int) else None


def _kinds(listed: object) -> list[str] | None:
    """The usual names of the listed kinds of layers, unknown ones unchanged; None: no list."""
    if not isinstance(listed, list):
        return None
    return [_KIND_OF.get(str(one), str(one)) for one in listed]


def _mamba2(config: Config) -> dict[str, object]:
    """Mamba-2 as linear attention: its groups, which share B and C, are the key heads."""
    width, expand = config.get("hidden_size", 4096), config.get("mamba_expand", 2)
    n_heads, head_dim = config.get("mamba_n_heads", 128), config.get("mamba_d_head", "auto")
    inner = config.get("mamba_d_ssm")
    if inner is None and isinstance(width, int) and isinstance(expand, int):
        inner = expand * width
    if head_dim == "auto" and isinstance(inner, int) and isinstance(n_heads, int) and n_heads > 0:
        head_dim = inner // n_heads
    return {
        "linear_num_key_heads": config.get("mamba_n_groups", 1),
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": config.get("mamba_d_state", 256),
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": config.get("mamba_d_conv", 4),
    }
