"""The fields of a ``config.json`` that only one model family has, from a model of the catalogue.

The counterpart of ``family_fields``, which reads them.
"""

from collections.abc import Callable
from typing import Final

from inferometer.inputs.types import FullHeads, ModelSpec


def mixer_kinds(model: ModelSpec) -> list[str]:
    """The kind of each layer: full or linear attention.

    Every N-th layer has full attention if the counts allow that; otherwise the last ones have it.
    """
    n_full, n_layers = model.n_attention_layers, model.n_layers
    every = n_layers // max(n_full, 1)
    is_full = [(index + 1) % every == 0 for index in range(n_layers)]
    if sum(is_full) != n_full:
        is_full = [index >= n_layers - n_full for index in range(n_layers)]
    return ["full_attention" if one else "linear_attention" for one in is_full]


def _mamba2(model: ModelSpec) -> dict[str, object]:
    """The fields of Mamba-2's heads and states, as named by Bamba, Granite 4 and Falcon-H1."""
    state = model.recurrent
    if state is None:
        return {}
    return {
        "mamba_n_heads": state.n_value_heads,
        "mamba_d_head": state.value_head_dim,
        "mamba_n_groups": state.n_key_heads,
        "mamba_d_state": state.key_head_dim,
        "mamba_d_conv": state.conv_kernel,
        "mamba_d_ssm": state.value_width,
        "mamba_expand": state.value_width / model.hidden_size
        if state.value_width % model.hidden_size
        else state.value_width // model.hidden_size,
        "mamba_rms_norm": state.has_norm,
        "mamba_conv_bias": state.has_conv_bias,
        "mamba_proj_bias": state.has_projection_bias,
        "projectors_bias": state.has_projection_bias,
    }


def _bamba(model: ModelSpec) -> dict[str, object]:
    attends = [i for i, kind in enumerate(mixer_kinds(model)) if kind == "full_attention"]
    return _mamba2(model) | {"attn_layer_indices": attends}


def _jamba(model: ModelSpec) -> dict[str, object]:
    """Jamba's fields: every N-th layer has attention, every M-th experts; 1 expert means an MLP."""
    state, moe, n_layers = model.recurrent, model.moe, model.n_layers
    period = n_layers // max(model.n_attention_layers, 1)
    n_expert = model.n_expert_layers
    fields: dict[str, object] = {
        "attn_layer_period": period,
        "attn_layer_offset": period - 1,
        "expert_layer_period": n_layers // max(n_expert, 1),
        "expert_layer_offset": n_layers // max(n_expert, 1) - 1,
        "mlp_only_layers": None,
    }
    if moe is None:
        fields |= {"num_experts": 1, "num_experts_per_tok": 1}
    if state is not None:
        fields |= {
            "mamba_d_state": state.key_head_dim,
            "mamba_d_conv": state.conv_kernel,
            "mamba_expand": state.value_width // model.hidden_size,
            "mamba_dt_rank": state.step_rank,
            "mamba_conv_bias": state.has_conv_bias,
            "mamba_proj_bias": state.has_projection_bias,
            # The fused kernels of Mamba need a GPU; without it the class computes the same.
            "use_mamba_kernels": False,
        }
    return fields


def _nemotron_h(model: ModelSpec) -> dict[str, object]:
    """Nemotron-H's fields: each layer is one block: Mamba-2, then MLPs, experts, attention."""
    state, moe = model.recurrent, model.moe
    n_dense = model.n_feed_forward_layers - model.n_expert_layers
    n_states = 0 if state is None else state.n_layers
    counts = {
        "M": n_states,
        "-": n_dense,
        "E": model.n_expert_layers,
        "*": model.n_attention_layers,
    }
    fields: dict[str, object] = {
        "hybrid_override_pattern": "".join(letter * count for letter, count in counts.items()),
        "mlp_hidden_act": "relu2",
        "head_dim": model.attention.head_dim,
    }
    if state is not None:
        fields |= {
            "mamba_num_heads": state.n_value_heads,
            "mamba_head_dim": state.value_head_dim,
            "n_groups": state.n_key_heads,
            "ssm_state_size": state.key_head_dim,
            "conv_kernel": state.conv_kernel,
            "use_conv_bias": state.has_conv_bias,
            "use_bias": state.has_projection_bias,
            "mamba_ssm_cache_dtype": state.state_dtype,
        }
    if moe is not None:
        fields |= {
            "n_shared_experts": 1,
            "moe_shared_expert_intermediate_size": moe.n_shared_experts * moe.intermediate_size,
            "moe_latent_size": moe.latent_size,
        }
    return fields


def _lfm2(model: ModelSpec) -> dict[str, object]:
    state = model.recurrent
    fields: dict[str, object] = {
        "layer_types": [
            "conv" if kind == "linear_attention" else kind for kind in mixer_kinds(model)
        ],
        "intermediate_size": model.mlp.intermediate_size,
        "block_auto_adjust_ff_dim": False,
        "tie_embedding": model.tie_word_embeddings,
    }
    if state is not None:
        fields |= {"conv_L_cache": state.conv_kernel, "conv_bias": state.has_conv_bias}
    if model.moe is not None:
        fields |= {"num_dense_layers": model.moe.n_dense_layers, "mlp_only_layers": None}
    return fields


def _kimi_linear(model: ModelSpec) -> dict[str, object]:
    state, n_dense = model.recurrent, 0 if model.moe is None else model.moe.n_dense_layers
    kinds = mixer_kinds(model)
    own: dict[str, object] = {
        f"{name}_layers": [index + 1 for index, kind in enumerate(kinds) if kind == word]
        for name, word in (("full_attn", "full_attention"), ("kda", "linear_attention"))
    }
    if state is not None:
        own |= {
            "num_heads": state.n_value_heads,
            "head_dim": state.value_head_dim,
            "short_conv_kernel_size": state.conv_kernel,
            "use_full_rank_gate": state.has_wide_gate,
        }
    fields: dict[str, object] = {"linear_attn_config": own, "first_k_dense_replace": n_dense}
    if model.moe is not None:
        fields["num_shared_experts"] = model.moe.n_shared_experts
        fields["routed_expert_hidden_size"] = model.moe.latent_size
    return fields


def _gemma4(model: ModelSpec) -> dict[str, object]:
    """Gemma 4's fields: heads of full-attention layers, KV sharing, per-layer inputs, experts."""
    heads, inputs, moe = model.attention, model.per_layer_inputs, model.moe
    sharing = heads.kv_sharing
    full = heads.full or FullHeads(n_kv_heads=heads.n_kv_heads, head_dim=heads.head_dim)
    fields: dict[str, object] = {
        "global_head_dim": full.head_dim,
        "num_global_key_value_heads": full.n_kv_heads,
        "attention_k_eq_v": not full.has_value_projection,
        "num_kv_shared_layers": 0 if sharing is None else sharing.n_layers,
        "use_double_wide_mlp": sharing is not None and sharing.has_double_mlp,
        "hidden_size_per_layer_input": 0 if inputs is None else inputs.size,
        "enable_moe_block": moe is not None,
        "layer_types": layer_kinds(model, n_last=1 if sharing is None else sharing.n_full_layers),
    }
    if inputs is not None:
        fields["vocab_size_per_layer_input"] = inputs.vocab_size
    return fields


def _mimo_v2(model: ModelSpec) -> dict[str, object]:
    """MiMo-V2's fields: heads of full-attention and of sliding-window layers.

    Named as in the published files and as in transformers' class.
    """
    heads, n_dense = model.attention, 0 if model.moe is None else model.moe.n_dense_layers
    full = heads.full or FullHeads(
        n_kv_heads=heads.n_kv_heads, head_dim=heads.head_dim, value_head_dim=heads.value_head_dim
    )
    return {
        "num_key_value_heads": full.n_kv_heads,
        "head_dim": full.head_dim,
        "v_head_dim": full.value_head_dim or full.head_dim,
        "swa_head_dim": heads.head_dim,
        "swa_v_head_dim": heads.value_head_dim or heads.head_dim,
        "add_full_attention_sink_bias": full.has_sinks,
        "add_swa_attention_sink_bias": heads.has_sinks,
        "layer_types": layer_kinds(model, n_last=0),
        "mlp_layer_types": ["dense"] * n_dense + ["sparse"] * (model.n_layers - n_dense),
    }


def layer_kinds(model: ModelSpec, *, n_last: int) -> list[str]:
    """The kind of each layer: full or sliding-window attention.

    By the model's pattern (every N-th is full), or else with the full-attention layers first, but
    ``n_last`` of them at the end.
    """
    heads, n_layers = model.attention, model.n_layers
    if heads.sliding_window_tokens is None:
        return ["full_attention"] * n_layers
    if (n_full := heads.n_full_attention_layers) is None:
        every = heads.full_attention_every or n_layers + 1
        is_full = [(index + 1) % every == 0 for index in range(n_layers)]
    else:
        n_first = n_full - n_last
        is_full = [not n_first <= index < n_layers - n_last for index in range(n_layers)]
    return ["full_attention" if one else "sliding_attention" for one in is_full]


def _falcon(model: ModelSpec) -> dict[str, object]:
    is_grouped = 1 < model.attention.n_kv_heads < model.attention.n_heads
    return {
        "new_decoder_architecture": is_grouped,
        "multi_query": model.attention.n_kv_heads == 1,
        "parallel_attn": is_grouped or model.norms_per_layer == 1,
        "num_ln_in_parallel_attn": model.norms_per_layer if is_grouped else None,
        "alibi": model.position == "alibi",
    }


def _mpt(model: ModelSpec) -> dict[str, object]:
    return {
        "expansion_ratio": model.mlp.intermediate_size // model.hidden_size,
        "attn_config": {"alibi": True, "attn_type": "multihead_attention"},
        "no_bias": True,
    }


def _opt(model: ModelSpec) -> dict[str, object]:
    return {
        "word_embed_proj_dim": model.embedding_size or model.hidden_size,
        "do_layer_norm_before": model.has_final_norm,
    }


def _bigcode(model: ModelSpec) -> dict[str, object]:
    return {"multi_query": model.attention.n_kv_heads == 1}


def _stablelm(model: ModelSpec) -> dict[str, object]:
    return {"use_parallel_residual": model.norms_per_layer == 1}


def _llama4(model: ModelSpec) -> dict[str, object]:
    """Llama 4's fields: which layers have chunked attention with positions, and which experts."""
    every = model.attention.full_attention_every or model.n_layers + 1
    chunked = [bool((index + 1) % every) for index in range(model.n_layers)]
    n_dense = 0 if model.moe is None else model.moe.n_dense_layers
    return {
        "no_rope_layers": [int(one) for one in chunked],
        "layer_types": ["chunked_attention" if one else "full_attention" for one in chunked],
        "moe_layers": list(range(n_dense, model.n_layers)),
    }


def _granite_hybrid(model: ModelSpec) -> dict[str, object]:
    """Granite 4's fields; without experts, its shared expert is the layer's MLP."""
    kinds = ["attention" if kind == "full_attention" else "mamba" for kind in mixer_kinds(model)]
    fields: dict[str, object] = {"layer_types": kinds} | _mamba2(model)
    if model.moe is None:
        return fields | {"num_local_experts": 0, "num_experts_per_tok": 0}
    shared = model.moe.n_shared_experts * model.moe.intermediate_size
    return fields | {"shared_intermediate_size": shared}


def _minimax_m3(model: ModelSpec) -> dict[str, object]:
    """MiniMax-M3's fields, the last layers being those with experts and with chosen blocks."""
    indexer, moe, n_layers = model.indexer, model.moe, model.n_layers
    n_dense = 0 if moe is None else moe.n_dense_layers
    n_whole = n_layers if indexer is None else n_layers - indexer.n_layers
    fields: dict[str, object] = {
        "head_dim": model.attention.head_dim,
        "layer_types": ["full_attention"] * n_whole + ["minimax_m3_sparse"] * (n_layers - n_whole),
        "mlp_layer_types": ["dense"] * n_dense + ["sparse"] * (n_layers - n_dense),
        "mlp_only_layers": None,
    }
    if moe is not None:
        fields["n_shared_experts"] = moe.n_shared_experts
        fields["shared_intermediate_size"] = moe.n_shared_experts * moe.intermediate_size
    if indexer is None:
        return fields
    return fields | {
        "index_n_heads": indexer.n_heads,
        "index_head_dim": indexer.head_dim,
        "index_block_size": 1,
        "index_topk_blocks": indexer.top_k_tokens,
    }


def _mamba(model: ModelSpec) -> dict[str, object]:
    """The fields of Mamba and Mamba-2 without attention."""
    state = model.recurrent
    if state is None:
        return {}
    fields: dict[str, object] = {
        "state_size": state.key_head_dim,
        "conv_kernel": state.conv_kernel,
        "expand": state.value_width // model.hidden_size,
        "use_conv_bias": state.has_conv_bias,
        "use_bias": state.has_projection_bias,
    }
    if state.kind == "mamba1":
        return fields | {"time_step_rank": state.step_rank}
    return fields | {
        "num_heads": state.n_value_heads,
        "head_dim": state.value_head_dim,
        "n_groups": state.n_key_heads,
    }


def _recurrent_gemma(model: ModelSpec) -> dict[str, object]:
    """RecurrentGemma's fields: its layers one by one, and its recurrence."""
    state = model.recurrent
    kinds = ["attention" if one == "full_attention" else "recurrent" for one in mixer_kinds(model)]
    return {
        "block_types": kinds,
        "intermediate_size": 2 * model.mlp.intermediate_size,
        "lru_width": None if state is None else state.value_width,
        "conv1d_width": 4 if state is None else state.conv_kernel,
    }


def _gemma3n(model: ModelSpec) -> dict[str, object]:
    """Gemma 3n's fields: KV sharing, per-layer inputs and residual streams."""
    inputs, sharing = model.per_layer_inputs, model.attention.kv_sharing
    fields: dict[str, object] = {
        "num_kv_shared_layers": 0 if sharing is None else sharing.n_layers,
        "head_dim": model.attention.head_dim,
    }
    if inputs is None:
        return fields | {"hidden_size_per_layer_input": 0}
    return fields | {
        "hidden_size_per_layer_input": inputs.size,
        "vocab_size_per_layer_input": inputs.vocab_size,
        "altup_num_inputs": inputs.n_streams,
        "laurel_rank": inputs.laurel_rank,
    }


def _bloom(model: ModelSpec) -> dict[str, object]:
    return {
        "n_layer": model.n_layers,
        "n_head": model.attention.n_heads,
        "seq_length": model.max_position_tokens,
    }


def _chatglm(model: ModelSpec) -> dict[str, object]:
    heads = model.attention
    return {
        "multi_query_attention": heads.n_kv_heads != heads.n_heads,
        "multi_query_group_num": heads.n_kv_heads,
        "kv_channels": heads.head_dim,
        "add_bias_linear": heads.has_out_bias,
        "add_qkv_bias": heads.has_qkv_bias,
        "post_layer_norm": model.has_final_norm,
    }


def _dbrx(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    fields: dict[str, object] = {"attn_config": {"kv_n_heads": model.attention.n_kv_heads}}
    if moe is None:
        return fields
    experts = {
        "ffn_hidden_size": moe.intermediate_size,
        "moe_num_experts": moe.n_experts,
        "moe_top_k": moe.n_experts_per_token,
    }
    return fields | {"ffn_config": experts}


def _gpt_neo(model: ModelSpec) -> dict[str, object]:
    is_full = [one == "full_attention" for one in layer_kinds(model, n_last=0)]
    kinds = [[["global" if one else "local"], 1] for one in is_full]
    window = model.attention.sliding_window_tokens or 256  # the class needs one, used or not
    return {"attention_types": kinds, "layer_types": None, "window_size": window}


def _qwen(model: ModelSpec) -> dict[str, object]:
    return {"intermediate_size": 2 * model.mlp.intermediate_size}


def _afmoe(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    fields: dict[str, object] = {"layer_types": layer_kinds(model, n_last=0)}
    if moe is not None:
        fields |= {
            "num_dense_layers": moe.n_dense_layers,
            "num_shared_experts": moe.n_shared_experts,
            "mlp_only_layers": None,
        }
    return fields


def _ernie(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    if moe is None:
        return {}
    return {
        "moe_layer_start_index": moe.n_dense_layers,
        "moe_num_shared_experts": moe.n_shared_experts,
        "mlp_only_layers": None,
    }


def _bailing(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    return {} if moe is None else {"num_shared_experts": moe.n_shared_experts}


def _hunyuan(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    if moe is None:
        return {}
    return {"num_shared_expert": moe.n_shared_experts, "moe_topk": moe.n_experts_per_token}


def listed_kinds(model: ModelSpec) -> dict[str, object]:
    """The kinds of attention layers, without a pattern."""
    return {"layer_types": layer_kinds(model, n_last=0), "sliding_window_pattern": None}


EARLIER_FIELDS: Final[dict[str, Callable[[ModelSpec], dict[str, object]]]] = {
    "afmoe": _afmoe,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "bamba": _bamba,
    "bloom": _bloom,
    "chatglm": _chatglm,
    "dbrx": _dbrx,
    "ernie4_5_moe": _ernie,
    "exaone4": listed_kinds,
    "falcon": _falcon,
    "falcon_h1": _mamba2,
    "falcon_mamba": _mamba,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "gpt_bigcode": _bigcode,
    "gpt_neo": _gpt_neo,
    "granitemoehybrid": _granite_hybrid,
    "hunyuan_v1_moe": _hunyuan,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "llama4_text": _llama4,
    "mamba": _mamba,
    "mamba2": _mamba,
    "mimo_v2_flash": _mimo_v2,
    "minimax_m3_vl_text": _minimax_m3,
    "mpt": _mpt,
    "nemotron_h": _nemotron_h,
    "opt": _opt,
    "qwen": _qwen,
    "recurrent_gemma": _recurrent_gemma,
    "stablelm": _stablelm,
}
