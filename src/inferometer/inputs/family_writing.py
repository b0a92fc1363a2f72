"""The fields of a ``config.json`` that only one model family has, from a model of the catalogue.

The counterpart of ``family_fields``, which reads them.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from inferometer.inputs.ngram_families import first_prime
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
        "layer_types": _layer_kinds(model, n_last=1 if sharing is None else sharing.n_full_layers),
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
        "layer_types": _layer_kinds(model, n_last=0),
        "mlp_layer_types": ["dense"] * n_dense + ["sparse"] * (model.n_layers - n_dense),
    }


def _layer_kinds(model: ModelSpec, *, n_last: int) -> list[str]:
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
    is_full = [one == "full_attention" for one in _layer_kinds(model, n_last=0)]
    kinds = [[["global" if one else "local"], 1] for one in is_full]
    window = model.attention.sliding_window_tokens or 256  # the class needs one, used or not
    return {"attention_types": kinds, "layer_types": None, "window_size": window}


def _qwen(model: ModelSpec) -> dict[str, object]:
    return {"intermediate_size": 2 * model.mlp.intermediate_size}


def _afmoe(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    fields: dict[str, object] = {"layer_types": _layer_kinds(model, n_last=0)}
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


def _listed_kinds(model: ModelSpec) -> dict[str, object]:
    return {"layer_types": _layer_kinds(model, n_last=0), "sliding_window_pattern": None}


def _cohere2_moe(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    fields: dict[str, object] = {"layer_types": _layer_kinds(model, n_last=0)}
    if moe is None:
        return fields
    return (
        fields
        | _dense_first(model)
        | {
            "prefix_dense_intermediate_size": model.mlp.intermediate_size,
            "num_shared_experts": moe.n_shared_experts,
        }
    )


def _dense_first(model: ModelSpec) -> dict[str, object]:
    """The kinds of feed-forward blocks, the dense ones first."""
    n_dense = 0 if model.moe is None else model.moe.n_dense_layers
    return {
        "mlp_layer_types": ["dense"] * n_dense + ["sparse"] * (model.n_layers - n_dense),
        "mlp_only_layers": None,
    }


def _shared_by_number(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    shared = {} if moe is None else {"num_shared_experts": moe.n_shared_experts}
    return _dense_first(model) | shared


def _exaone_moe(model: ModelSpec) -> dict[str, object]:
    return _shared_by_number(model) | _listed_kinds(model)


def _shared_width(model: ModelSpec) -> int:
    return 0 if model.moe is None else model.moe.n_shared_experts * model.moe.intermediate_size


def _kinds_and_heads(model: ModelSpec) -> tuple[list[str], list[int]]:
    """The kind and the number of query heads of each layer."""
    kinds = _layer_kinds(model, n_last=0)
    heads, full = model.attention, model.attention.full
    n_full = heads.n_heads if full is None or full.n_heads is None else full.n_heads
    return kinds, [n_full if kind == "full_attention" else heads.n_heads for kind in kinds]


def _laguna(model: ModelSpec) -> dict[str, object]:
    kinds, n_heads = _kinds_and_heads(model)
    gate = "per-element" if model.attention.has_output_gate else "per-head"
    return _dense_first(model) | {
        "gating": gate if model.attention.has_head_gate or gate == "per-element" else False,
        "head_dim": model.attention.head_dim,
        "layer_types": kinds,
        "num_attention_heads": n_heads[0],
        "num_attention_heads_per_layer": n_heads,
        "shared_expert_intermediate_size": _shared_width(model),
    }


def _step(model: ModelSpec) -> dict[str, object]:
    kinds, n_heads = _kinds_and_heads(model)
    full = next((n for n, one in zip(n_heads, kinds, strict=True) if one == "full_attention"), None)
    return _dense_first(model) | {
        "head_dim": model.attention.head_dim,
        "layer_types": kinds,
        "num_attention_heads": full or model.attention.n_heads,
        "num_sliding_attention_heads": model.attention.n_heads,
        "use_head_wise_attn_gate": model.attention.has_head_gate,
        "share_expert_dim": _shared_width(model),
        "n_shared_experts": None,
    }


def _step3(model: ModelSpec) -> dict[str, object]:
    moe, n_layers = model.moe, model.n_layers
    n_dense = 0 if moe is None else moe.n_dense_layers
    return {
        "moe_layers_enum": list(range(n_dense, n_layers)),
        "mlp_only_layers": None,
        "head_dim": model.attention.head_dim,
        "share_q_dim": model.attention.query_rank,
        "share_expert_dim": _shared_width(model),
    }


def _grok(model: ModelSpec) -> dict[str, object]:
    moe, has_both = model.moe, model.n_feed_forward_layers > model.n_layers
    return {
        "residual_moe": has_both,
        "moe_intermediate_size": None if moe is None else moe.intermediate_size,
        "mlp_only_layers": None,
    }


def _longcat(model: ModelSpec) -> dict[str, object]:
    moe, ngrams = model.moe, model.ngrams
    fields: dict[str, object] = {"num_layers": model.n_layers // 2, "mlp_only_layers": None}
    if ngrams is not None:
        fields |= {
            "ngram_vocab_size_ratio": ngrams.n_rows // ngrams.n_projections // model.vocab_size,
            "emb_split_num": ngrams.n_projections,
            "emb_neighbor_num": 2,
        }
    if moe is None:
        return fields
    n_all = moe.n_experts + moe.n_empty_experts
    return fields | {
        "zero_expert_num": moe.n_empty_experts,
        "moe_topk": round(moe.n_experts_per_token * n_all / moe.n_experts),
        "first_k_dense_replace": None,
        "n_shared_experts": None,
    }


def _nemotron_nas(model: ModelSpec) -> dict[str, object]:
    """The blocks of each layer of a pruned Llama; layers with none come last."""
    nothing: dict[str, object] = {"no_op": True}
    blocks = list[dict[str, object]]()
    for group in model.groups:
        heads, size = group.attention, group.mlp.intermediate_size
        n_sharing = heads.n_heads // heads.n_kv_heads
        window = heads.sliding_window_tokens
        attention = {"n_heads_in_group": n_sharing, "window_length": window}
        block = {
            "attention": attention if group.blocks.n_attention else nothing,
            "ffn": {"intermediate_size": size} if group.blocks.n_feed_forward else nothing,
        }
        blocks += [block] * group.n_layers
    blocks += [{"attention": nothing, "ffn": nothing}] * (model.n_layers - len(blocks))
    return {"block_configs": blocks, "intermediate_size": None, "num_key_value_heads": None}


def _bailing_hybrid(model: ModelSpec) -> dict[str, object]:
    state, moe = model.recurrent, model.moe
    is_kda = state is None or state.kind == "kda"
    gates = {True: "head_wise", False: "element_wise" if model.attention.has_output_gate else None}
    fields: dict[str, object] = _dense_first(model) | {
        "layer_types": mixer_kinds(model),
        "head_dim": model.mla.qk_rope_head_dim if model.mla is not None else None,
        "gated_attention_proj_granularity_type": gates[model.attention.has_head_gate],
        "model_max_length": model.max_position_tokens,
    }
    if moe is not None:
        fields |= {
            "num_experts_per_token": moe.n_experts_per_token,
            "num_shared_experts": moe.n_shared_experts,
            "num_expert_group": 1,
            "topk_group": 1,
        }
    if state is None:
        return fields
    return fields | {
        "num_kv_heads_for_linear_attn": 0 if is_kda else state.n_value_heads,
        "linear_num_heads": state.n_value_heads,
        "linear_head_dim": state.value_head_dim,
        "short_conv_kernel_size": state.conv_kernel,
        "linear_conv_kernel_dim": state.conv_kernel,
        "use_qk_norm": is_kda or state.has_qk_norm,
    }


def _glm5_next(model: ModelSpec) -> dict[str, object]:
    indexer, streams, state = model.indexer, model.streams, model.recurrent
    kinds = mixer_kinds(model)
    fields: dict[str, object] = _dense_first(model) | {
        "layer_types": [
            one if one == "linear_attention" else "deepseek_sparse_attention" for one in kinds
        ],
        "indexer_types": ["full"] * model.n_layers,
        "mhc": streams is not None,
        "hc_mult": 4 if streams is None else streams.n_streams,
    }
    if indexer is not None:
        fields |= {
            "index_kpool": indexer.key_tokens,
            "index_kpool_compress": indexer.has_key_gate,
        }
    if state is not None:
        fields["linear_attn_config"] = {
            "num_heads": state.n_value_heads,
            "head_dim": state.value_head_dim,
            "short_conv_kernel_size": state.conv_kernel,
        }
    return fields


def _hy_v4(model: ModelSpec) -> dict[str, object]:
    heads, streams = model.attention, model.streams
    return _dense_first(model) | {
        "gated_mla": heads.has_output_gate or heads.has_head_gate,
        "gating_type": "headwise" if heads.has_head_gate else "elementwise",
        "learnable_sink": heads.has_sinks,
        "hc_mult": 4 if streams is None else streams.n_streams,
        "layer_types": ["deepseek_sparse_attention"] * model.n_layers,
    }


def _inkling(model: ModelSpec) -> dict[str, object]:
    heads, relative, moe = model.attention, model.relative, model.moe
    full = heads.full or FullHeads(n_kv_heads=heads.n_kv_heads, head_dim=heads.head_dim)
    fields: dict[str, object] = _dense_first(model) | {
        "layer_types": [
            "hybrid" if one == "full_attention" else "hybrid_sliding"
            for one in _layer_kinds(model, n_last=0)
        ],
        "max_position_embeddings": model.max_position_tokens,
        "intermediate_size": model.mlp.intermediate_size,
        "num_key_value_heads": full.n_kv_heads,
        "head_dim": full.head_dim,
        "swa_head_dim": heads.head_dim,
        "swa_num_key_value_heads": heads.n_kv_heads,
    }
    if relative is not None:
        fields |= {
            "d_rel": relative.dim,
            "rel_extent": relative.extent,
            "conv_kernel_size": relative.conv_kernel,
        }
    if moe is not None:
        fields |= {
            "moe_intermediate_size": moe.intermediate_size,
            "shared_expert_sink": moe.n_empty_experts > 0,
        }
    return fields


def _kolibri(model: ModelSpec) -> dict[str, object]:
    return _listed_kinds(model) | {"shared_expert_intermediate_size": _shared_width(model)}


def _mellum(model: ModelSpec) -> dict[str, object]:
    return _listed_kinds(model) | _dense_first(model)


def _loops(name: str, model: ModelSpec) -> dict[str, object]:
    return {name: model.n_loops}


def _qwen4(model: ModelSpec) -> dict[str, object]:
    """Qwen 3.8's fields; its tables of n-grams as one table for each token before."""
    indexer, streams, ngrams = model.indexer, model.streams, model.ngrams
    fields: dict[str, object] = {
        "layer_types": mixer_kinds(model),
        "mlp_only_layers": None,
        # The class refuses rotations that are wider than the indexer's heads.
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
    }
    if indexer is not None:
        fields |= {
            "indexer_n_heads": indexer.n_heads,
            "indexer_kv_heads": 1,
            "indexer_head_dim": indexer.head_dim,
            "indexer_budget": indexer.top_k_tokens,
            "indexer_compress_ratio": indexer.key_tokens,
        }
    if streams is not None:
        fields |= {"hc_count": streams.n_streams, "hc_lowrank": streams.rank}
    if ngrams is None or streams is None:
        return fields
    n_tables, per_layer = (
        ngrams.n_in // ngrams.width,
        ngrams.n_vector_elements // ngrams.n_projections,
    )
    linear = [n for n, one in enumerate(mixer_kinds(model)) if one == "linear_attention"]
    return fields | {
        "ple_layer_ids": [n + 1 for n in linear[: ngrams.n_projections]],
        "ple_embed_dim": ngrams.n_in,
        "ple_conv_kernel_size": per_layer // (streams.n_streams * model.hidden_size) - 3,
        "ngram_size": 3,
        "heads_per_ngram": n_tables // 2,
        "ngram_vocab_size_base": first_prime(ngrams.n_rows // ngrams.n_projections, n_tables),
        "eos_token_id": 1,
    }


def _zamba2(model: ModelSpec) -> dict[str, object]:
    state, shared = model.recurrent, model.shared
    first = model.n_layers - model.n_attention_layers
    fields: dict[str, object] = {
        "layers_block_type": ["linear_attention"] * first + ["hybrid"] * model.n_attention_layers,
        "hybrid_layer_ids": list(range(first, model.n_layers)),
        "intermediate_size": model.mlp.intermediate_size,
        "attention_head_dim": model.attention.head_dim,
    }
    if state is not None:
        fields |= {
            "mamba_ngroups": state.n_key_heads,
            "n_mamba_heads": state.n_value_heads,
            "mamba_d_state": state.key_head_dim,
            "mamba_d_conv": state.conv_kernel,
            "mamba_expand": state.value_width // model.hidden_size,
            "use_conv_bias": state.has_conv_bias,
            "add_bias_linear": state.has_projection_bias,
        }
    if shared is not None:
        fields |= {
            "num_mem_blocks": shared.n_stored,
            "adapter_rank": shared.adapter_rank,
            "use_shared_attention_adapter": shared.has_attention_adapters,
            "pad_token_id": 0,
        }
    return fields


def _mllama(model: ModelSpec) -> dict[str, object]:
    del model  # its layers that attend to images are not written
    return {"cross_attention_layers": []}


OWN_FIELDS: Final[dict[str, Callable[[ModelSpec], dict[str, object]]]] = {
    "afmoe": _afmoe,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "bailing_hybrid": _bailing_hybrid,
    "bamba": _bamba,
    "bloom": _bloom,
    "chatglm": _chatglm,
    "cohere2_moe": _cohere2_moe,
    "dbrx": _dbrx,
    "ernie4_5_moe": _ernie,
    "exaone4": _listed_kinds,
    "exaone_moe": _exaone_moe,
    "falcon": _falcon,
    "falcon_h1": _mamba2,
    "falcon_mamba": _mamba,
    "gemma3n_text": _gemma3n,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "glm5_next_text": _glm5_next,
    "gpt_bigcode": _bigcode,
    "gpt_neo": _gpt_neo,
    "granitemoehybrid": _granite_hybrid,
    "grok": _grok,
    "hunyuan_v1_moe": _hunyuan,
    "hy_v3": _shared_by_number,
    "hy_v4": _hy_v4,
    "inkling_text": _inkling,
    "jamba": _jamba,
    "kimi_linear": _kimi_linear,
    "kolibri1": _kolibri,
    "laguna": _laguna,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "llama4_text": _llama4,
    "longcat_flash": _longcat,
    "mamba": _mamba,
    "mamba2": _mamba,
    "mellum": _mellum,
    "mimo_v2_flash": _mimo_v2,
    "minimax_m3_vl_text": _minimax_m3,
    "mllama_text_model": _mllama,
    "mpt": _mpt,
    "nanbeige": partial(_loops, "num_loops"),
    "nemotron-nas": _nemotron_nas,
    "nemotron_h": _nemotron_h,
    "opt": _opt,
    "ouro": partial(_loops, "total_ut_steps"),
    "qwen": _qwen,
    "qwen4_exp_text": _qwen4,
    "recurrent_gemma": _recurrent_gemma,
    "stablelm": _stablelm,
    "step3_text": _step3,
    "step3p5": _step,
    "zamba2": _zamba2,
}
