"""Which model does a GGUF file hold?

The file's metadata are turned into the fields of a Hugging Face configuration, and that is read
like any other.
"""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Final

from inferometer.errors import SpecError
from inferometer.spec.config_families import FAMILIES, Flag
from inferometer.spec.gguf_file import GgufHeader, read_gguf_header
from inferometer.spec.model_config import model_from_config
from inferometer.spec.types import DType, ModelSpec, Source

_MODEL_TYPES: Final = {
    "command-r": "cohere",
    "cohere2": "cohere2",
    "deepseek2": "deepseek_v3",
    "falcon": "falcon",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "gpt2": "gpt2",
    "gptj": "gptj",
    "gptneox": "gpt_neox",
    "granite": "granite",
    "llama": "llama",
    "mpt": "mpt",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi2": "phi",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
"""Architectures of llama.cpp (llama-arch.cpp) and the model types of Hugging Face with the same
shape."""

_FIELDS: Final = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
}
_STORED: Final[dict[str, DType]] = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "Q8_0": "int8",
    "Q4_0": "int4",
    "Q4_1": "int4",
    "Q4_K": "int4",
    "MXFP4": "float4",
}


def read_gguf_model(path: Path) -> ModelSpec:
    """The model in a GGUF file; its ``checkpoint_dtype`` is the format of most of its weights.

    Raises
    ------
    SpecError
        The file is damaged, or its architecture is not known here.
    """
    header = read_gguf_header(path)
    config = _config(header, where=str(path))
    model = model_from_config(config, where=str(path), model_id=path.stem)
    return replace(model, source=Source(kind="config", where=path.name))


def _config(header: GgufHeader, *, where: str) -> dict[str, object]:
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _MODEL_TYPES:
        raise SpecError(
            f"general.architecture = {architecture!r}",
            where=where,
            allowed=f"one of {', '.join(_MODEL_TYPES)}",
            try_="the model's own folder",
        )
    said = {
        field: _single(header.metadata.get(f"{architecture}.{name}"))
        for field, name in _FIELDS.items()
    }
    n_experts = _single(header.metadata.get(f"{architecture}.expert_count"))
    model_type = _MODEL_TYPES[architecture]
    if model_type == "llama" and n_experts:
        model_type = "mixtral"
    family = FAMILIES[model_type]
    names = {tensor.name for tensor in header.tensors}
    config = {
        family.names.get(field, field): value for field, value in said.items() if value is not None
    }
    config |= {
        "model_type": model_type,
        "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": _n_tokens(header, where=where),
    }
    if family.experts is not None and n_experts:
        config[family.experts] = n_experts
    if family.has_latent_attention:
        config |= _latent_dims(header, architecture, config)
    if family.window == "switch":
        config["use_sliding_window"] = False
    for what, tensor in (
        (family.mlp_bias, "ffn_up.bias"),
        (family.out_bias, "attn_output.bias"),
        (family.qkv_bias, "attn_q.bias"),
    ):
        if isinstance(what, Flag):
            config[what.name] = f"blk.0.{tensor}" in names or (
                tensor == "attn_q.bias" and "blk.0.attn_qkv.bias" in names
            )
    if isinstance(family.qk_norm, Flag):
        config[family.qk_norm.name] = "blk.0.attn_q_norm.weight" in names
    return config | _stored_format(header)


def _single(value: object) -> object:
    """Some writers give a list with a number for each layer; where all agree it is that number."""
    if isinstance(value, list):
        distinct = {item for item in value if isinstance(item, int)}
        return distinct.pop() if len(distinct) == 1 else None
    return value


def _n_tokens(header: GgufHeader, *, where: str) -> int:
    shape = next(
        (tensor.shape for tensor in header.tensors if tensor.name == "token_embd.weight"), None
    )
    if shape is None or len(shape) != 2:
        raise SpecError(
            "tensor 'token_embd.weight' is missing",
            where=where,
            allowed="a GGUF file with the whole model",
            try_="its first part",
        )
    return shape[1]


def _latent_dims(
    header: GgufHeader, architecture: str, config: dict[str, object]
) -> dict[str, object]:
    def number(name: str) -> object:
        metadata = header.metadata
        return metadata.get(
            f"{architecture}.attention.{name}_mla", metadata.get(f"{architecture}.attention.{name}")
        )

    query, value, rotary = (
        number("key_length"),
        number("value_length"),
        config.get("qk_rope_head_dim"),
    )
    if not (isinstance(query, int) and isinstance(rotary, int)):
        return {}
    return {"qk_nope_head_dim": query - rotary, "v_head_dim": value}


def _stored_format(header: GgufHeader) -> dict[str, object]:
    weights: Counter[str] = Counter()
    for tensor in header.tensors:
        if tensor.name.startswith("blk."):
            weights[tensor.format] += tensor.n_elements
    main = weights.most_common(1)[0][0] if weights else ""
    dtype = _STORED.get(main)
    if dtype in {"int4", "int8"}:
        return {
            "quantization_config": {"quant_method": "gguf", "bits": 4 if dtype == "int4" else 8}
        }
    if dtype == "float4":
        return {"quantization_config": {"quant_method": "mxfp4"}}
    return {} if dtype is None else {"dtype": dtype}
