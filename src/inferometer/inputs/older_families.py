"""Families whose files have names of fields of their own: BLOOM, ChatGLM, CodeGen, DBRX, GPT-Neo, Qwen."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from inferometer.inputs.family import BIASED, GPT_NAMES, MOST_LISTED_LAYERS, Config, Family, Flag
from inferometer.inputs.family_fields import fill_gpt2

_UNSTATED_TOKENS: Final = 2048
"""The longest context that vLLM 0.32.0 assumes if the file states none."""


def fill_bloom(config: Config) -> dict[str, object]:
    """BLOOM: the MLP is four times as wide as the hidden states; older files have other names."""
    width = config.get("hidden_size") or config.get("n_embed")
    return {
        "hidden_size": width,
        "num_hidden_layers": config.get("n_layer"),
        "num_attention_heads": config.get("n_head"),
        "max_position_embeddings": config.get("seq_length") or _UNSTATED_TOKENS,
        "intermediate_size": 4 * width if isinstance(width, int) else None,
    }


def fill_chatglm(config: Config) -> dict[str, object]:
    """ChatGLM2, ChatGLM3 and GLM-4: KV heads only with ``multi_query_attention``."""
    n_groups = config.get("multi_query_group_num", 1)
    return {
        "num_key_value_heads": n_groups if config.get("multi_query_attention") else None,
        "qkv_bias": bool(config.get("add_bias_linear") or config.get("add_qkv_bias")),
        "has_final_norm": config.get("post_layer_norm", True),
    }


def fill_dbrx(config: Config) -> dict[str, object]:
    """DBRX: KV heads and experts, from the nested fields of attention and MLP."""
    attention, experts = _nested(config, "attn_config"), _nested(config, "ffn_config")
    return {
        "num_key_value_heads": attention.get("kv_n_heads", 1),
        "moe_intermediate_size": experts.get("ffn_hidden_size", 3584),
        "moe_num_experts": experts.get("moe_num_experts", 4),
        "num_experts_per_tok": experts.get("moe_top_k", 1),
    }


def fill_gpt_neo(config: Config) -> dict[str, object]:
    """GPT-Neo: which layers attend to a window, and the width of the MLP."""
    width, kinds = config.get("hidden_size"), config.get("attention_layers")
    types, listed = config.get("attention_types"), list[str]()
    if not isinstance(kinds, list) and isinstance(types, list):
        for one in types:
            pattern, times = one if isinstance(one, list) and len(one) == 2 else ((), 0)
            if isinstance(pattern, list) and isinstance(times, int) and times <= MOST_LISTED_LAYERS:
                listed += [str(kind) for kind in pattern] * times
        kinds = listed
    names = {"global": "full_attention", "local": "sliding_attention"}
    listed_kinds = kinds if isinstance(kinds, list) else []
    return {
        "intermediate_size": 4 * width if isinstance(width, int) else None,
        "layer_types": [names.get(str(kind), str(kind)) for kind in listed_kinds] or None,
    }


def fill_qwen(config: Config) -> dict[str, object]:
    """Qwen (the first): the stated size is that of gate and up together."""
    size = config.get("intermediate_size")
    return {"mlp_size": size // 2 if isinstance(size, int) else None}


def _nested(config: Config, name: str) -> Mapping[str, object]:
    found = config.get(name)
    return {str(key): one for key, one in found.items()} if isinstance(found, dict) else {}


OLDER_FAMILIES: Final[dict[str, Family]] = {
    "bloom": replace(
        BIASED,
        class_name="BloomForCausalLM",
        fill=fill_bloom,
        ties_by_default=True,
        position="alibi",
        has_embedding_norm=True,
    ),
    "chatglm": Family(
        class_name="ChatGLMForConditionalGeneration",
        names={
            "num_hidden_layers": "num_layers",
            "intermediate_size": "ffn_hidden_size",
            "head_dim": "kv_channels",
            "vocab_size": "padded_vocab_size",
            "max_position_embeddings": "seq_length",
        },
        fill=fill_chatglm,
        qkv_bias=Flag(name="qkv_bias", default=False),
        out_bias=Flag(name="add_bias_linear", default=False),
        mlp_bias=Flag(name="add_bias_linear", default=False),
    ),
    "codegen": replace(
        BIASED,
        class_name="CodeGenForCausalLM",
        names=GPT_NAMES,
        fill=fill_gpt2,
        norms_per_layer=1,
        has_head_bias=True,
        qkv_bias=False,
        out_bias=False,
    ),
    "dbrx": Family(
        class_name="DbrxForCausalLM",
        names={
            "num_hidden_layers": "n_layers",
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        fill=fill_dbrx,
        norm="layernorm",
        experts="moe_num_experts",
    ),
    "gpt_neo": replace(
        BIASED,
        class_name="GPTNeoForCausalLM",
        names={
            "num_hidden_layers": "num_layers",
            "num_attention_heads": "num_heads",
            "sliding_window": "window_size",
        },
        defaults={"sliding_window": 256},
        fill=fill_gpt_neo,
        ties_by_default=True,
        qkv_bias=False,
        position="learned",
        window="pattern",
    ),
    "qwen": Family(
        class_name="QWenLMHeadModel",
        names={"intermediate_size": "mlp_size"},
        fill=fill_qwen,
        qkv_bias=True,
    ),
}
