"""Writes the ``config.json`` with which Hugging Face libraries build a model of the catalogue.

With it, transformers and vLLM (``--load-format dummy``) load the true architecture without a
download.
"""

from dataclasses import replace
from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.config_families import FAMILIES
from inferometer.inputs.family import Family, Flag
from inferometer.inputs.family_writing import mixer_kinds
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.newer_writing import OWN_FIELDS
from inferometer.inputs.types import AttentionSpec, DType, ModelSpec

_NAMES: Final = frozenset((
    "model_id", "family", "hf_id", "note", "checkpoint_dtype", "stored_apart", "stored_bits",
    "n_tower_weights",
    "float4_bits", "source",
))  # fmt: skip
"""Fields of ``ModelSpec`` that do not describe the shape of the language model."""


def config_from_model(model: ModelSpec, *, dtype: DType = "bfloat16") -> dict[str, object]:
    """The content of this model's ``config.json``; reading it back gives a model of the same shape.

    Raises
    ------
    SpecError
        The architecture is not known, or its config.json cannot express this model.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> config_from_model(find_model("gpt2"))["n_embd"]
    768
    """
    family = FAMILIES.get(model.architecture)
    where = f"model {model.model_id!r}"
    if family is None:
        raise SpecError(
            f"no configuration is known for architecture {model.architecture!r}",
            where=where,
            allowed=", ".join(sorted(FAMILIES)),
        )
    config = (
        _usual_fields(model, family)
        | _flags(model, family)
        | _window(model.attention, family, n_layers=model.n_layers)
    )
    config |= _experts(model, family) | _latent(model) | _indexed(model) | _recurrent(model)
    config = {family.names.get(name, name): value for name, value in config.items()}
    if model.architecture in OWN_FIELDS:
        config |= OWN_FIELDS[model.architecture](model)
    config |= {
        "architectures": [family.class_name],
        "model_type": model.architecture,
        "torch_dtype": dtype,
    }
    _check_same_shape(config, model, where=where)
    return config


def _usual_fields(model: ModelSpec, family: Family) -> dict[str, object]:
    """The fields that (nearly) all families have."""
    heads = model.attention
    config: dict[str, object] = {
        "num_hidden_layers": model.n_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": heads.n_heads,
        "num_key_value_heads": heads.n_kv_heads,
        "intermediate_size": model.mlp.intermediate_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_tokens,
        "tie_word_embeddings": model.tie_word_embeddings,
    }
    is_implied = (
        "head_dim" not in family.defaults and heads.head_dim * heads.n_heads == model.hidden_size
    )
    if not family.has_latent_attention and not is_implied:
        config["head_dim"] = heads.head_dim
    # No special tokens: the classes' own lie outside small vocabularies, and random weights must
    # not end an answer early.
    return config | {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


def _flags(model: ModelSpec, family: Family) -> dict[str, object]:
    """The boolean fields by which the family's files state biases, norms and gates."""
    heads = model.attention
    stated = (
        (family.qkv_bias, heads.has_qkv_bias),
        (family.out_bias, heads.has_out_bias),
        (family.mlp_bias, model.mlp.has_bias),
        (family.qk_norm, heads.has_qk_norm),
        (family.output_gate, heads.has_output_gate),
    )
    return {what.name: value for what, value in stated if isinstance(what, Flag)}


def _window(heads: AttentionSpec, family: Family, *, n_layers: int) -> dict[str, object]:
    if family.window == "none":
        return {}
    window_tokens = heads.sliding_window_tokens
    if family.window == "all":
        return {"sliding_window": window_tokens}
    if family.window == "switch":
        is_on = window_tokens is not None
        n_full = (heads.n_full_attention_layers or 0) if is_on else n_layers
        return {
            "use_sliding_window": is_on,
            "sliding_window": window_tokens,
            "max_window_layers": n_full,
        }
    every = heads.full_attention_every or n_layers + 1
    kinds = [
        "sliding_attention" if (index + 1) % every else "full_attention"
        for index in range(n_layers)
    ]
    return {"sliding_window": window_tokens, "layer_types": kinds}


def _experts(model: ModelSpec, family: Family) -> dict[str, object]:
    moe = model.moe
    if moe is None or family.experts is None:
        return {}
    config: dict[str, object] = {
        family.experts: moe.n_experts,
        "num_experts_per_tok": moe.n_experts_per_token,
        family.expert_size: moe.intermediate_size,
    }
    if moe.has_shared_expert_gate:
        config["shared_expert_intermediate_size"] = moe.n_shared_experts * moe.intermediate_size
    elif family.experts == "n_routed_experts":
        config |= {
            "n_shared_experts": moe.n_shared_experts,
            "first_k_dense_replace": moe.n_dense_layers,
        }
        # Group-limited routing needs groups that divide the experts; one group is no limit, and
        # costs the same.
        config |= {"n_group": 1, "topk_group": 1}
    if moe.n_dense_layers and family.experts != "n_routed_experts":
        config["mlp_only_layers"] = list(range(moe.n_dense_layers))
    return config


def _latent(model: ModelSpec) -> dict[str, object]:
    mla = model.mla
    if mla is None:
        return {}
    return {
        "q_lora_rank": mla.q_lora_rank,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_nope_head_dim": mla.qk_nope_head_dim,
        "qk_rope_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
    }


def _indexed(model: ModelSpec) -> dict[str, object]:
    indexer, compressed = model.indexer, model.compressed
    if indexer is None:
        return {}
    if compressed is not None:
        n_plain = model.n_layers - compressed.n_fine_layers - compressed.n_coarse_layers
        return {
            "index_n_heads": indexer.n_heads,
            "index_head_dim": indexer.head_dim,
            "index_topk": indexer.top_k_tokens // compressed.fine_tokens,
            "compress_ratios": [
                *[compressed.coarse_tokens] * compressed.n_coarse_layers,
                *[compressed.fine_tokens] * compressed.n_fine_layers,
                *[0] * n_plain,
            ],
            "q_lora_rank": compressed.q_lora_rank,
            "o_groups": compressed.n_output_groups,
            "o_lora_rank": compressed.output_lora_rank,
            "hc_mult": compressed.n_streams,
            "num_hash_layers": 0 if model.moe is None else model.moe.n_hashed_layers,
        }
    if indexer.chooses_blocks:
        return {}  # ``_minimax_m3``
    types = ["full"] * indexer.n_layers + ["shared"] * (model.n_layers - indexer.n_layers)
    return {
        "index_n_heads": indexer.n_heads,
        "index_head_dim": indexer.head_dim,
        "index_topk": indexer.top_k_tokens,
        "indexer_types": types,
    }


def _recurrent(model: ModelSpec) -> dict[str, object]:
    linear = model.recurrent
    if linear is None:
        return {}
    kinds: dict[str, object] = {} if model.blocks else {"layer_types": mixer_kinds(model)}
    return kinds | {
        "linear_num_key_heads": linear.n_key_heads,
        "linear_num_value_heads": linear.n_value_heads,
        "linear_key_head_dim": linear.key_head_dim,
        "linear_value_head_dim": linear.value_head_dim,
        "linear_conv_kernel_dim": linear.conv_kernel,
        "mamba_ssm_dtype": linear.state_dtype,
    }


def _check_same_shape(config: dict[str, object], model: ModelSpec, *, where: str) -> None:
    """Raise SpecError if the written configuration, read again, gives a model of another shape."""
    differences = _differences(
        model_from_config(config, where=where, model_id=model.model_id), model
    )
    if differences:
        raise SpecError(
            f"a configuration of {model.architecture!r} cannot say that {'; '.join(differences)}",
            where=where,
            allowed="what the architecture's class can build",
        )


def _differences(written: ModelSpec, model: ModelSpec) -> list[str]:
    """The fields of ``model`` that ``written`` has with other values, as text."""
    # Formats of quantised matrices are left out: random weights are not quantised.
    if model.moe is not None and written.moe is not None:
        is_plain = model.moe.has_only_experts_quantised
        written = replace(written, moe=replace(written.moe, has_only_experts_quantised=is_plain))
    shape = [name for name in ModelSpec.__dataclass_fields__ if name not in _NAMES]
    return [
        f"{name} = {getattr(model, name)}"
        for name in shape
        if getattr(written, name) != getattr(model, name)
    ]
