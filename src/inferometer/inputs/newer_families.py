"""Families that are Llama's but for a few properties: norms, biases, gates, names of fields."""

from dataclasses import replace
from typing import Final

from inferometer.inputs.family import (
    LLAMA,
    MOST_LISTED_LAYERS,
    PLAIN,
    UNBIASED,
    Config,
    Family,
    Flag,
)
from inferometer.inputs.family_fields import fill_unknown, query_heads

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


def fill_laguna(config: Config) -> dict[str, object]:
    """Laguna: heads of full and of sliding layers, and what its gate multiplies: heads or channels."""
    gate = config.get("gating", True)
    return query_heads(config) | {
        "has_head_gate": gate is True or str(gate).replace("_", "-") == "per-head",
        "has_channel_gate": str(gate).replace("_", "-") == "per-element",
    }


def fill_step(config: Config) -> dict[str, object]:
    """Step 3.5: the published files' names of fields, or those of transformers; heads of layers."""
    other, n_sliding = (
        config.get("attention_other_setting"),
        config.get("num_sliding_attention_heads"),
    )
    heads = query_heads(config)
    if not isinstance(other, dict) and isinstance(n_sliding, int):
        heads = query_heads(
            {**config, "attention_other_setting": {"num_attention_heads": n_sliding}}
        )
    own = {
        usual: config.get(theirs, config.get(usual))
        for usual, theirs in (
            ("num_key_value_heads", "num_attention_groups"),
            ("n_routed_experts", "moe_num_experts"),
            ("num_experts_per_tok", "moe_top_k"),
        )
    }
    return fill_unknown(config) | heads | own


def fill_step3(config: Config) -> dict[str, object]:
    """Step 3: its class's layers with experts, if the file does not list them."""
    return fill_unknown({"moe_layers_enum": list(range(4, 60)), **config})


def fill_inkling(config: Config) -> dict[str, object]:
    """Inkling: which layers have a window or experts, by the published names or by transformers'."""
    n_layers, kinds = config.get("num_hidden_layers", 66), config.get("layer_types")
    local, n_dense = config.get("local_layer_ids"), config.get("dense_mlp_idx", 0)
    experts = config.get("mlp_layer_types")
    sliding: list[bool] = []
    if isinstance(kinds, list):
        sliding = [str(one).endswith("sliding") for one in kinds]
    elif isinstance(n_layers, int) and 0 < n_layers <= MOST_LISTED_LAYERS:
        listed = {str(one) for one in local} if isinstance(local, list) else None
        sliding = [(n + 1) % 6 > 0 if listed is None else str(n) in listed for n in range(n_layers)]
    if not isinstance(experts, list) and isinstance(n_dense, int):
        experts = ["dense" if n < n_dense else "sparse" for n in range(len(sliding))]
    size, own = config.get("intermediate_size"), config.get("dense_intermediate_size")
    return {
        "window_kinds": ["sliding_attention" if one else "full_attention" for one in sliding],
        "mlp_layer_types": experts,
        "dense_size": size if own is None else own,
        "expert_size": config.get("moe_intermediate_size") if own is None else size,
        "context_tokens": config.get("model_max_length", config.get("max_position_embeddings")),
        "relative_conv_kernel": config.get("sconv_kernel_size", config.get("conv_kernel_size", 4)),
        # The router also weights the shared experts.
        "n_sinks": config.get("n_shared_experts", 2) if config.get("shared_expert_sink") else 0,
    }


def fill_grok(config: Config) -> dict[str, object]:
    """Grok 2 has an MLP beside the experts of each layer; Grok 1's experts are as wide as stated."""
    n_layers, size = config.get("num_hidden_layers"), config.get("moe_intermediate_size")
    filled: dict[str, object] = {
        "expert_size": config.get("intermediate_size") if size is None else size
    }
    has_both = config.get("residual_moe") is True
    if has_both and isinstance(n_layers, int) and 0 < n_layers <= MOST_LISTED_LAYERS:
        filled |= {
            "n_feed_forward_blocks": 2 * n_layers,
            "mlp_layer_types": ["dense"] * n_layers,
        }
    return filled


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
    "exaone_moe": replace(
        UNBIASED,
        class_name="ExaoneMoeForCausalLM",
        names={"n_shared_experts": "num_shared_experts", "sliding_window_pattern": "full_every"},
        fill=fill_exaone4,
        qk_norm=True,
        window="pattern",
        experts="num_experts",
        router_bias=True,
    ),
    "grok": replace(
        UNBIASED,
        class_name="Grok1ForCausalLM",
        fill=fill_grok,
        norms_per_layer=4,
        experts="num_local_experts",
        expert_size="expert_size",
        blocks="beside",
    ),
    "hunyuan_v1_dense": replace(PLAIN, class_name="HunYuanDenseV1ForCausalLM", qk_norm=True),
    "hunyuan_v1_moe": replace(
        PLAIN,
        class_name="HunYuanMoEV1ForCausalLM",
        names={"num_experts_per_tok": "moe_topk", "n_shared_experts": "num_shared_expert"},
        qk_norm=Flag(name="use_qk_norm", default=True),
        experts="num_experts",
    ),
    "hy_v3": replace(
        PLAIN,
        class_name="HYV3ForCausalLM",
        names={"n_shared_experts": "num_shared_experts"},
        qk_norm=True,
        experts="num_experts",
        router_bias=True,
        defaults={"first_k_dense_replace": 1},
    ),
    # Its router's factor for all experts, a number of each layer, is not counted.
    "inkling_text": replace(
        UNBIASED,
        class_name="InklingForCausalLM",
        names={
            "max_position_embeddings": "context_tokens",
            "intermediate_size": "dense_size",
            "moe_intermediate_size": "expert_size",
            "sliding_window": "sliding_window_size",
            "num_key_value_heads": "swa_num_key_value_heads",
            "head_dim": "swa_head_dim",
            "full_key_value_heads": "num_key_value_heads",
            "full_head_dim": "head_dim",
            "layer_types": "window_kinds",
            "zero_expert_num": "n_sinks",
            "full_value_head_dim": "head_dim",
        },
        fill=fill_inkling,
        has_embedding_norm=True,
        qk_norm=True,
        window="pattern",
        experts="n_routed_experts",
        router_bias=True,
        read_fields=frozenset(("local_layer_ids", "use_sconv")),
        note="the states of its short convolutions are not counted",
    ),
    "internlm2": replace(_INTERNLM, class_name="InternLM2ForCausalLM"),
    "internlm3": replace(_INTERNLM, class_name="InternLM3ForCausalLM"),
    "kolibri1": replace(
        PLAIN,
        class_name="Kolibri1ForCausalLM",
        norms_per_layer=4,
        qk_norm=True,
        window="pattern",
        experts="num_experts",
        router_bias=True,
    ),
    "laguna": replace(
        PLAIN,
        class_name="LagunaForCausalLM",
        fill=fill_laguna,
        qk_norm=True,
        output_gate=Flag(name="has_channel_gate", default=False),
        head_gate=Flag(name="has_head_gate", default=True),
        window="pattern",
        experts="num_experts",
        router_bias=True,
    ),
    "mellum": replace(
        PLAIN, class_name="MellumForCausalLM", qk_norm=True, window="pattern", experts="num_experts"
    ),
    "minicpm": replace(UNBIASED, class_name="MiniCPMForCausalLM", ties_by_default=True),
    # Its layers that attend to images are memory (``model_config``).
    "mllama_text_model": replace(
        UNBIASED,
        class_name="MllamaForCausalLM",
        note="vLLM runs it up to 0.10.2",
    ),
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
    # Its layers differ (``layer_groups``): some have no attention, and MLPs are of different widths.
    "nemotron-nas": replace(LLAMA, class_name="DeciLMForCausalLM", window="all"),
    "phimoe": replace(
        PLAIN,
        class_name="PhimoeForCausalLM",
        norm="layernorm",
        norm_has_bias=True,
        experts="num_local_experts",
        expert_size="intermediate_size",
    ),
    # Its norms of a layer are three; two gates of the residual are as large.
    "muse_spark_text": replace(
        PLAIN,
        class_name="MuseSparkForConditionalGeneration",
        names={"moe_latent_size": "moe_hidden_size"},
        norms_per_layer=5,
        output_gate=True,
        window="pattern",
        experts="num_local_experts",
        router_bias=True,
        has_latent_norms=True,
    ),
    "nanbeige": replace(LLAMA, class_name="NanbeigeForCausalLM", names={"n_loops": "num_loops"}),
    # Its gate, which may leave the loop early, has a number for each channel: not counted.
    "ouro": replace(
        UNBIASED,
        class_name="OuroForCausalLM",
        names={"n_loops": "total_ut_steps"},
        norms_per_layer=4,
        window="switch",
        note="each token passes all layers in each loop, without an early exit",
    ),
    "phi3small": replace(
        PLAIN,
        class_name="Phi3SmallForCausalLM",
        names={"intermediate_size": "ff_intermediate_size"},
        ties_by_default=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm="layernorm",
        norm_has_bias=True,
        read_fields=frozenset(("blocksparse_block_size",)),
        note="every layer is counted as if it attended to all tokens; every second one leaves blocks"
        " out, which reads less of a long context (vLLM runs it up to 0.9.2)",
    ),
    "seed_oss": replace(
        PLAIN,
        class_name="SeedOssForCausalLM",
        defaults={"head_dim": 128},
        qkv_bias=Flag(name="attention_bias", default=True),
        out_bias=Flag(name="attention_out_bias", default=False),
        mlp_bias=Flag(name="mlp_bias", default=False),
    ),
    "step3_text": replace(
        UNBIASED,
        class_name="Step3TextForCausalLM",
        names={
            "num_key_value_heads": "num_attention_groups",
            "max_position_embeddings": "max_seq_len",
            "query_rank": "share_q_dim",
            "num_experts_per_tok": "moe_top_k",
            "shared_expert_intermediate_size": "share_expert_dim",
        },
        fill=fill_step3,
        defaults={"num_key_value_heads": 1, "head_dim": 256, "query_rank": 2048},
        experts="moe_num_experts",
    ),
    "step3p5": replace(
        UNBIASED,
        class_name="Step3p7ForConditionalGeneration",
        names={"shared_expert_intermediate_size": "share_expert_dim"},
        fill=fill_step,
        qk_norm=True,
        head_gate=Flag(name="use_head_wise_attn_gate", default=True),
        window="pattern",
        defaults={"head_dim": 128},
        experts="n_routed_experts",
        router_bias=True,
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
