"""The fields of a ``config.json`` that only one newer family has, and the table of all families.

The counterpart of ``newer_families``, ``latent_families`` and ``ngram_families``, which read them.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from inferometer.inputs.family_writing import (
    EARLIER_FIELDS,
    layer_kinds,
    listed_kinds,
    mixer_kinds,
)
from inferometer.inputs.ngram_families import first_prime
from inferometer.inputs.types import FullHeads, ModelSpec


def _cohere2_moe(model: ModelSpec) -> dict[str, object]:
    moe = model.moe
    fields: dict[str, object] = {"layer_types": layer_kinds(model, n_last=0)}
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
    return _shared_by_number(model) | listed_kinds(model)


def _shared_width(model: ModelSpec) -> int:
    return 0 if model.moe is None else model.moe.n_shared_experts * model.moe.intermediate_size


def _kinds_and_heads(model: ModelSpec) -> tuple[list[str], list[int]]:
    """The kind and the number of query heads of each layer."""
    kinds = layer_kinds(model, n_last=0)
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
        block: dict[str, object] = {
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
            for one in layer_kinds(model, n_last=0)
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
    return listed_kinds(model) | {"shared_expert_intermediate_size": _shared_width(model)}


def _muse_spark(model: ModelSpec) -> dict[str, object]:
    return _mellum(model) | {
        "moe_hidden_size": None if model.moe is None else model.moe.latent_size
    }


def _lfm3(model: ModelSpec) -> dict[str, object]:
    """LFM3's fields: convolutions first, then full attention, then attention to a window."""
    state, n_full = model.recurrent, model.attention.n_full_attention_layers
    n_full = model.n_attention_layers if n_full is None else n_full
    n_states = model.n_layers - model.n_attention_layers
    kinds = ["conv"] * n_states + ["full_attention"] * n_full
    return {
        "layer_types": kinds + ["sliding_attention"] * (model.n_layers - len(kinds)),
        "intermediate_size": model.mlp.intermediate_size,
        "head_dim": model.attention.head_dim,
        "block_auto_adjust_ff_dim": False,
        "tie_embedding": model.tie_word_embeddings,
        "use_attention_gate": model.attention.has_head_gate,
        "conv_L_cache": 7 if state is None else state.conv_kernel,
    }


def _mellum(model: ModelSpec) -> dict[str, object]:
    return listed_kinds(model) | _dense_first(model)


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
    **EARLIER_FIELDS,
    "bailing_hybrid": _bailing_hybrid,
    "cohere2_moe": _cohere2_moe,
    "exaone_moe": _exaone_moe,
    "glm5_next_text": _glm5_next,
    "grok": _grok,
    "hy_v3": _shared_by_number,
    "hy_v4": _hy_v4,
    "inkling_text": _inkling,
    "kolibri1": _kolibri,
    "laguna": _laguna,
    "lfm3": _lfm3,
    "longcat_flash": _longcat,
    "mellum": _mellum,
    "mllama_text_model": _mllama,
    "muse_spark_text": _muse_spark,
    "nanbeige": partial(_loops, "num_loops"),
    "nemotron-nas": _nemotron_nas,
    "ouro": partial(_loops, "total_ut_steps"),
    "qwen4_exp_text": _qwen4,
    "step3_text": _step3,
    "step3p5": _step,
    "zamba2": _zamba2,
}
