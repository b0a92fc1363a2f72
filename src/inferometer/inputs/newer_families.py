"""Families that are Llama's but for a few properties: norms, biases, gates, names of fields."""

from dataclasses import replace
from typing import Final

from inferometer.inputs.family import LLAMA, PLAIN, UNBIASED, Config, Family, Flag

_USE_BIAS: Final = Flag(name="use_bias", default=False)
_INTERNLM: Final = replace(
    PLAIN, qkv_bias=Flag(name="qkv_bias", default=False), out_bias=Flag(name="bias", default=False)
)
_BAILING: Final = replace(
    UNBIASED,
    names={"n_shared_experts": "num_shared_experts"},
    qkv_bias=Flag(name="use_qkv_bias", default=False),
    out_bias=_USE_BIAS,
    experts="num_experts",
)
"""Ling and Ring."""


def fill_exaone4(config: Config) -> dict[str, object]:
    """EXAONE 4: every how many layers are full, as a number or a text such as ``LLLG``."""
    pattern = config.get("sliding_window_pattern", 4)
    return {"full_every": len(pattern) if isinstance(pattern, str) else pattern}


def fill_muse(config: Config) -> dict[str, object]:
    """Muse Glimmer: every fourth layer attends to everything, if no list states the layers."""
    del config
    return {"sliding_window_pattern": 4}


NEWER_FAMILIES: Final[dict[str, Family]] = {
    "afmoe": replace(
        PLAIN,
        class_name="AfmoeForCausalLM",
        names={
            "n_shared_experts": "num_shared_experts",
            "first_k_dense_replace": "num_dense_layers",
            "sliding_window_pattern": "global_attn_every_n_layers",
        },
        defaults={"head_dim": 128},
        norms_per_layer=4,
        qk_norm=True,
        output_gate=True,
        window="pattern",
        full_attention_every=4,
        experts="num_experts",
        router_bias=True,
    ),
    # Its activation has two numbers per layer besides, which are not counted.
    "apertus": replace(PLAIN, class_name="ApertusForCausalLM", qk_norm=True, is_gated=False),
    "arcee": replace(LLAMA, class_name="ArceeForCausalLM", is_gated=False),
    "baichuan": replace(UNBIASED, class_name="BaichuanForCausalLM"),
    "bailing_moe": replace(_BAILING, class_name="BailingMoeForCausalLM"),
    "bailing_moe_v2": replace(
        _BAILING,
        class_name="BailingMoeV2ForCausalLM",
        qk_norm=Flag(name="use_qk_norm", default=True),
        router_bias=True,
    ),
    "deepseek": replace(PLAIN, class_name="DeepseekForCausalLM", experts="n_routed_experts"),
    "dots1": replace(
        PLAIN,
        class_name="Dots1ForCausalLM",
        qk_norm=True,
        experts="n_routed_experts",
        router_bias=True,
    ),
    "ernie4_5": replace(
        PLAIN,
        class_name="Ernie4_5ForCausalLM",
        ties_by_default=True,
        qkv_bias=_USE_BIAS,
        out_bias=_USE_BIAS,
        mlp_bias=_USE_BIAS,
    ),
    "ernie4_5_moe": replace(
        PLAIN,
        class_name="Ernie4_5_MoeForCausalLM",
        names={
            "n_shared_experts": "moe_num_shared_experts",
            "first_k_dense_replace": "moe_layer_start_index",
            "num_experts_per_tok": "moe_k",
        },
        ties_by_default=True,
        qkv_bias=_USE_BIAS,
        out_bias=_USE_BIAS,
        mlp_bias=_USE_BIAS,
        experts="moe_num_experts",
        router_bias=True,
    ),
    "exaone": replace(
        UNBIASED, class_name="ExaoneForCausalLM", names={"num_hidden_layers": "num_layers"}
    ),
    "exaone4": replace(
        UNBIASED,
        class_name="Exaone4ForCausalLM",
        names={"sliding_window_pattern": "full_every"},
        fill=fill_exaone4,
        qk_norm=True,
        window="pattern",
    ),
    "hunyuan_v1_dense": replace(PLAIN, class_name="HunYuanDenseV1ForCausalLM", qk_norm=True),
    "hunyuan_v1_moe": replace(
        PLAIN,
        class_name="HunYuanMoEV1ForCausalLM",
        names={"num_experts_per_tok": "moe_topk", "n_shared_experts": "num_shared_expert"},
        qk_norm=Flag(name="use_qk_norm", default=True),
        experts="num_experts",
    ),
    "internlm2": replace(_INTERNLM, class_name="InternLM2ForCausalLM"),
    "internlm3": replace(_INTERNLM, class_name="InternLM3ForCausalLM"),
    "minicpm": replace(UNBIASED, class_name="MiniCPMForCausalLM", ties_by_default=True),
    "muse_glimmer_text": replace(
        PLAIN,
        class_name="MuseGlimmerForCausalLM",
        fill=fill_muse,
        norms_per_layer=4,
        output_gate=True,
        window="pattern",
    ),
    "nemotron": replace(
        LLAMA,
        class_name="NemotronForCausalLM",
        is_gated=False,
        norm="layernorm",
        norm_has_bias=True,
    ),
    "phimoe": replace(
        PLAIN,
        class_name="PhimoeForCausalLM",
        norm="layernorm",
        norm_has_bias=True,
        experts="num_local_experts",
        expert_size="intermediate_size",
    ),
    "seed_oss": replace(
        PLAIN,
        class_name="SeedOssForCausalLM",
        defaults={"head_dim": 128},
        qkv_bias=Flag(name="attention_bias", default=True),
        out_bias=Flag(name="attention_out_bias", default=False),
        mlp_bias=Flag(name="mlp_bias", default=False),
    ),
    "telechat": replace(
        UNBIASED,
        class_name="TelechatForCausalLM",
        names={
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "ffn_hidden_size",
            "max_position_embeddings": "seq_length",
        },
        out_bias=True,
    ),
}
