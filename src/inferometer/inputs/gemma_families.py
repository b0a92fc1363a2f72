"""Families of Gemma models: their fields, and what their classes assume."""

from dataclasses import replace
from functools import partial
from typing import Final

from inferometer.inputs.family import ATTENTION_BIAS, MOST_LISTED_LAYERS, Config, Family

_GEMMA: Final = Family(
    class_name="GemmaForCausalLM",
    ties_by_default=True,
    qkv_bias=ATTENTION_BIAS,
    out_bias=ATTENTION_BIAS,
    defaults={"head_dim": 256},
)
_GEMMA3_DEFAULTS: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_GEMMA4_DEFAULTS: Final = _GEMMA3_DEFAULTS | {
    "num_hidden_layers": 30,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "vocab_size": 262_144,
    "sliding_window": 512,
    "full_head_dim": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "enable_moe_block": False,
}
_UNIFIED_DEFAULTS: Final = _GEMMA4_DEFAULTS | {
    "max_position_embeddings": 262_144,
    "sliding_window": 1024,
    "hidden_size_per_layer_input": 0,
}
_GEMMA3N_DEFAULTS: Final = {
    "num_hidden_layers": 35,
    "hidden_size": 2048,
    "intermediate_size": 16_384,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 262_400,
    "max_position_embeddings": 32_768,
    "sliding_window": 512,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 262_144,
    "num_kv_shared_layers": 15,
    "altup_num_inputs": 4,
    "laurel_rank": 64,
}


def fill_gemma4(config: Config, n_inputs: int = 256) -> dict[str, object]:
    """Gemma 4: kinds of layers, heads of full-attention layers, norms, experts beside the MLP.

    ``n_inputs``: the class's size of per-layer inputs.
    """
    filled, n_layers = dict[str, object](), config.get("num_hidden_layers", 30)
    if isinstance(n_layers, int) and n_layers <= MOST_LISTED_LAYERS:
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
    has_inputs = bool(config.get("hidden_size_per_layer_input", n_inputs))
    # With experts: three more norms, and a scale of the router's input of the same size.
    return filled | {"norms_per_layer": 4 + has_inputs + 4 * has_experts}


def fill_gemma3n(config: Config) -> dict[str, object]:
    """Gemma 3n: kinds of layers, if the file does not list them: every fifth has full attention."""
    n_layers = config.get("num_hidden_layers", 35)
    if not isinstance(n_layers, int) or n_layers > MOST_LISTED_LAYERS:
        return {}
    kinds = [
        "sliding_attention" if index % 5 else "full_attention" for index in range(1, n_layers + 1)
    ]
    return {"layer_types": kinds}


_GEMMA4: Final = replace(
    _GEMMA,
    class_name="Gemma4ForCausalLM",
    names={
        "num_experts_per_tok": "top_k_experts",
        "full_head_dim": "global_head_dim",
        "full_key_value_heads": "num_global_key_value_heads",
    },
    qk_norm=True,
    window="pattern",
    full_attention_every=6,
    experts="num_experts",
    router_bias=True,
    fill=fill_gemma4,
    defaults=_GEMMA4_DEFAULTS,
)

GEMMA_FAMILIES: Final[dict[str, Family]] = {
    "gemma": _GEMMA,
    "gemma2": replace(
        _GEMMA,
        class_name="Gemma2ForCausalLM",
        norms_per_layer=4,
        window="pattern",
        full_attention_every=2,
    ),
    "gemma3_text": replace(
        _GEMMA,
        class_name="Gemma3ForCausalLM",
        norms_per_layer=4,
        qk_norm=True,
        window="pattern",
        full_attention_every=6,
        defaults=_GEMMA3_DEFAULTS,
    ),
    "gemma3n_text": replace(
        _GEMMA,
        class_name="Gemma3nForCausalLM",
        # Beside the five of Gemma 4: of Laurel and of AltUp's router, and AltUp's output scale.
        norms_per_layer=8,
        qk_norm=True,
        window="pattern",
        full_attention_every=5,
        fill=fill_gemma3n,
        read_fields=frozenset(("altup_num_inputs",)),
        defaults=_GEMMA3N_DEFAULTS,
    ),
    "gemma4_text": _GEMMA4,
    "gemma4_unified_text": replace(
        _GEMMA4,
        class_name="Gemma4UnifiedForCausalLM",
        fill=partial(fill_gemma4, n_inputs=0),
        defaults=_UNIFIED_DEFAULTS,
    ),
}
