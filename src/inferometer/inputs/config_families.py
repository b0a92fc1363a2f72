"""Model families: the properties that a ``model_type`` of Hugging Face fixes.

The table has what the class in transformers fixes (biases, norms, which layers have a sliding
window) and the names and defaults of the family's fields; everything else is read from
``config.json``. Checked against the classes of transformers 5.23 by building each on the meta
device.
"""

from dataclasses import replace
from typing import Final

from inferometer.inputs.family import BIASED, GPT_NAMES, LLAMA, PLAIN, Family, Flag
from inferometer.inputs.family_fields import (
    fill_bamba,
    fill_bigcode,
    fill_deepseek_v4,
    fill_falcon,
    fill_falcon_h1,
    fill_gpt2,
    fill_granite_hybrid,
    fill_jamba,
    fill_lfm2,
    fill_lfm2_moe,
    fill_lfm3,
    fill_llama4,
    fill_mimo_v2,
    fill_minimax,
    fill_minimax_m3,
    fill_mpt,
    fill_nemotron_h,
    fill_opt,
    fill_stablelm,
)
from inferometer.inputs.gemma_families import GEMMA_FAMILIES
from inferometer.inputs.latent_families import LATENT_FAMILIES
from inferometer.inputs.newer_families import NEWER_FAMILIES
from inferometer.inputs.ngram_families import fill_qwen4
from inferometer.inputs.older_families import OLDER_FAMILIES
from inferometer.inputs.state_families import STATE_FAMILIES

_USE_BIAS: Final = Flag(name="use_bias", default=True)
_ENABLE_BIAS: Final = Flag(name="enable_bias", default=True)
_QWEN3: Final = replace(
    PLAIN, class_name="Qwen3ForCausalLM", qk_norm=True, window="switch", defaults={"head_dim": 128}
)
_MIMO_V2_DEFAULTS: Final = {
    "num_hidden_layers": 48,
    "hidden_size": 4096,
    "num_attention_heads": 64,
    "intermediate_size": 16_384,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "vocab_size": 152_576,
    "max_position_embeddings": 131_072,
    "full_key_value_heads": 4,
    "full_head_dim": 192,
    "full_value_head_dim": 128,
}
_MINIMAX_M3_DEFAULTS: Final = {
    "num_hidden_layers": 60,
    "hidden_size": 6144,
    "dense_intermediate_size": 12_288,  # by the file's name, as "intermediate_size" is another
    "moe_intermediate_size": 3072,
    "num_attention_heads": 64,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "vocab_size": 200_064,
    "max_position_embeddings": 524_288,
}
_OLMO2: Final = replace(
    PLAIN, class_name="Olmo2ForCausalLM", qk_norm=True, has_full_width_qk_norm=True
)
_COHERE: Final = replace(
    PLAIN,
    class_name="CohereForCausalLM",
    ties_by_default=True,
    norm="layernorm",
    norms_per_layer=1,
    qk_norm=Flag(name="use_qk_norm", default=False),
    has_full_width_qk_norm=True,
)
_COHERE2: Final = replace(
    _COHERE,
    class_name="Cohere2ForCausalLM",
    qk_norm=False,
    window="pattern",
    full_attention_every=4,
)
_MIXTRAL: Final = Family(
    class_name="MixtralForCausalLM",
    window="all",
    experts="num_local_experts",
    expert_size="intermediate_size",
)
_QWEN3_NEXT: Final = replace(
    PLAIN,
    class_name="Qwen3NextForCausalLM",
    qk_norm=True,
    output_gate=True,
    experts="num_experts",
    has_shared_expert_gate=True,
    defaults={"full_attention_interval": 4, "head_dim": 256},
)
_KINDS: Final = {"layer_types": "block_kinds"}
_BAMBA: Final = replace(
    LLAMA,
    class_name="BambaForCausalLM",
    names=_KINDS,
    fill=fill_bamba,
    recurrent="mamba2",
    is_hybrid=True,
    conv_bias=Flag(name="mamba_conv_bias", default=True),
    projection_bias=Flag(name="mamba_proj_bias", default=False),
)
_LFM2: Final = replace(
    PLAIN,
    class_name="Lfm2ForCausalLM",
    names=_KINDS | {"intermediate_size": "mlp_size"},
    fill=fill_lfm2,
    qkv_bias=False,
    out_bias=False,
    qk_norm=True,
    recurrent="convolution",
    is_hybrid=True,
    conv_bias=Flag(name="mamba_conv_bias", default=False),
    projection_bias=Flag(name="mamba_proj_bias", default=False),
)
_GLM: Final = replace(
    PLAIN,
    class_name="GlmForCausalLM",
    qkv_bias=Flag(name="attention_bias", default=True),
    out_bias=False,
    defaults={"head_dim": 128},
)
_GPT2: Final = replace(
    BIASED, names=GPT_NAMES, fill=fill_gpt2, ties_by_default=True, position="learned"
)

FAMILIES: Final[dict[str, Family]] = {
    **GEMMA_FAMILIES,
    **LATENT_FAMILIES,
    **NEWER_FAMILIES,
    **OLDER_FAMILIES,
    **STATE_FAMILIES,
    "bamba": _BAMBA,
    "cohere": _COHERE,
    "cohere2": _COHERE2,
    "cohere2_moe": replace(
        _COHERE2,
        class_name="Cohere2MoeForCausalLM",
        names={
            "intermediate_size": "prefix_dense_intermediate_size",
            "moe_intermediate_size": "intermediate_size",
            "n_shared_experts": "num_shared_experts",
        },
        defaults={"head_dim": 128},
        experts="num_experts",
    ),
    "deepseek_v4": Family(
        class_name="DeepseekV4ForCausalLM",
        experts="n_routed_experts",
        router_bias=True,
        has_sinks=True,
        window="all",
        fill=fill_deepseek_v4,
        defaults={"num_key_value_heads": 1, "head_dim": 512, "n_shared_experts": 1, "hc_mult": 4},
    ),
    "falcon_h1": replace(
        _BAMBA,
        class_name="FalconH1ForCausalLM",
        names={},
        fill=fill_falcon_h1,
        blocks="beside",
        state_norm=Flag(name="mamba_rms_norm", default=False),
    ),
    "falcon": Family(
        class_name="FalconForCausalLM",
        names={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        defaults={"max_position_embeddings": 2048},
        fill=fill_falcon,
        ties_by_default=True,
        qkv_bias=Flag(name="bias", default=False),
        out_bias=Flag(name="bias", default=False),
        is_gated=False,
        mlp_bias=Flag(name="bias", default=False),
        norm="layernorm",
        norm_has_bias=True,
    ),
    "glm": _GLM,
    "glm4": replace(_GLM, class_name="Glm4ForCausalLM", norms_per_layer=4),
    "glm4_moe": replace(
        PLAIN,
        class_name="Glm4MoeForCausalLM",
        out_bias=False,
        qk_norm=Flag(name="use_qk_norm", default=False),
        experts="n_routed_experts",
        router_bias=True,
    ),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, class_name="GPTBigCodeForCausalLM", fill=fill_bigcode),
    "gpt_neox": replace(
        BIASED,
        class_name="GPTNeoXForCausalLM",
        qkv_bias=Flag(name="attention_bias", default=True),
        out_bias=Flag(name="attention_bias", default=True),
    ),
    "gpt_oss": replace(
        PLAIN,
        class_name="GptOssForCausalLM",
        qkv_bias=Flag(name="attention_bias", default=True),
        out_bias=Flag(name="attention_bias", default=True),
        has_sinks=True,
        window="pattern",
        full_attention_every=2,
        experts="num_local_experts",
        expert_size="intermediate_size",
        expert_bias=True,
        has_only_experts_quantised=True,
        defaults={"head_dim": 64},
    ),
    "gptj": replace(
        _GPT2,
        class_name="GPTJForCausalLM",
        ties_by_default=False,
        position="rope",
        norms_per_layer=1,
        has_head_bias=True,
        qkv_bias=False,
        out_bias=False,
    ),
    "granite": replace(LLAMA, class_name="GraniteForCausalLM"),
    "granitemoe": replace(
        PLAIN,
        class_name="GraniteMoeForCausalLM",
        experts="num_local_experts",
        expert_size="intermediate_size",
    ),
    "granitemoehybrid": replace(
        _BAMBA,
        class_name="GraniteMoeHybridForCausalLM",
        mlp_bias=False,
        names=_KINDS
        | {
            "intermediate_size": "shared_intermediate_size",
            "moe_intermediate_size": "intermediate_size",
            "shared_expert_intermediate_size": "shared_intermediate_size",
        },
        fill=fill_granite_hybrid,
        experts="num_local_experts",
    ),
    "jamba": replace(
        _BAMBA,
        class_name="JambaForCausalLM",
        fill=fill_jamba,
        qkv_bias=False,
        out_bias=False,
        mlp_bias=False,
        recurrent="mamba1",
        experts="num_experts",
        expert_size="intermediate_size",
    ),
    "lfm2": _LFM2,
    "lfm3": replace(
        _LFM2,
        class_name="Lfm3ForCausalLM",
        fill=fill_lfm3,
        norms_per_layer=4,
        head_gate=Flag(name="use_attention_gate", default=True),
        window="pattern",
    ),
    "lfm2_moe": replace(
        _LFM2,
        class_name="Lfm2MoeForCausalLM",
        names={**_LFM2.names, "first_k_dense_replace": "num_dense_layers"},
        fill=fill_lfm2_moe,
        experts="num_experts",
        router_bias=Flag(name="use_expert_bias", default=True),
    ),
    "llama": LLAMA,
    "llama4_text": replace(
        PLAIN,
        class_name="Llama4ForCausalLM",
        names={
            "intermediate_size": "intermediate_size_mlp",
            "moe_intermediate_size": "intermediate_size",
            "decoder_sparse_step": "interleave_moe_layer_step",
            "sliding_window": "attention_chunk_size",
        },
        defaults={"head_dim": 128, "sliding_window": 8192, "n_shared_experts": 1},
        fill=fill_llama4,
        window="pattern",
        full_attention_every=4,
        experts="num_local_experts",
    ),
    "mimo_v2_flash": replace(
        PLAIN,
        class_name="MiMoV2FlashForCausalLM",
        names={
            "num_key_value_heads": "swa_num_key_value_heads",
            "head_dim": "swa_head_dim",
            "value_head_dim": "swa_v_head_dim",
            "full_key_value_heads": "num_key_value_heads",
            "full_head_dim": "head_dim",
            "full_value_head_dim": "v_head_dim",
        },
        out_bias=False,
        has_sinks=True,
        window="pattern",
        experts="n_routed_experts",
        router_bias=True,
        fill=fill_mimo_v2,
        defaults=_MIMO_V2_DEFAULTS,
    ),
    "minimax": replace(
        _MIXTRAL,
        class_name="MiniMaxForCausalLM",
        names={"shared_expert_intermediate_size": "shared_intermediate_size"},
        fill=fill_minimax,
        window="none",
        recurrent="lightning",
    ),
    "minimax_m2": replace(
        PLAIN,
        class_name="MiniMaxM2ForCausalLM",
        qk_norm=True,
        has_full_width_qk_norm=True,
        experts="num_local_experts",
        expert_size="intermediate_size",
        router_bias=True,
        defaults={"head_dim": 128},
    ),
    "minimax_m3_vl_text": replace(
        PLAIN,
        class_name="MiniMaxM3VLForCausalLM",
        names={
            "intermediate_size": "dense_intermediate_size",
            "moe_intermediate_size": "intermediate_size",
            "shared_expert_intermediate_size": "all_shared_experts_size",
        },
        qk_norm=True,
        fill=fill_minimax_m3,
        read_fields=frozenset(("sparse_attention_config",)),
        experts="num_local_experts",
        router_bias=True,
        defaults=_MINIMAX_M3_DEFAULTS,
    ),
    "ministral3": Family(
        class_name="Ministral3ForCausalLM",
        window="all",
        defaults={"head_dim": 128, "num_key_value_heads": 8},
    ),
    "mistral": Family(
        class_name="MistralForCausalLM",
        window="all",
        defaults={"sliding_window": 4096, "num_key_value_heads": 8},
    ),
    "mixtral": _MIXTRAL,
    "mpt": Family(
        class_name="MptForCausalLM",
        names={
            "num_hidden_layers": "n_layers",
            "hidden_size": "d_model",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        fill=fill_mpt,
        ties_by_default=True,
        is_gated=False,
        norm="layernorm",
        position="alibi",
    ),
    "nemotron_h": replace(
        _BAMBA,
        class_name="NemotronHForCausalLM",
        names=_KINDS
        | {
            "shared_expert_intermediate_size": "all_shared_experts_size",
            "n_shared_experts": "shared_experts_by_size",
        },
        fill=fill_nemotron_h,
        is_gated=False,
        norms_per_layer=1,
        experts="n_routed_experts",
        router_bias=True,
        blocks="alone",
    ),
    "olmo": replace(
        PLAIN,
        class_name="OlmoForCausalLM",
        norm="layernorm",
        norms_per_layer=0,
        has_final_norm=False,
    ),
    "olmo2": _OLMO2,
    "olmo3": replace(
        _OLMO2,
        class_name="Olmo3ForCausalLM",
        window="pattern",
        full_attention_every=4,
        defaults={"sliding_window": 4096},
    ),
    "olmoe": replace(
        _OLMO2,
        class_name="OlmoeForCausalLM",
        experts="num_experts",
        expert_size="intermediate_size",
    ),
    "opt": replace(
        BIASED,
        class_name="OPTForCausalLM",
        names={"intermediate_size": "ffn_dim"},
        fill=fill_opt,
        ties_by_default=True,
        qkv_bias=_ENABLE_BIAS,
        out_bias=_ENABLE_BIAS,
        mlp_bias=_ENABLE_BIAS,
        position="learned",
        n_extra_positions=2,
    ),
    "phi": replace(BIASED, class_name="PhiForCausalLM", norms_per_layer=1, has_head_bias=True),
    "phi3": Family(class_name="Phi3ForCausalLM", window="all"),
    "qwen2": Family(class_name="Qwen2ForCausalLM", qkv_bias=True, window="switch"),
    "qwen2_moe": Family(
        class_name="Qwen2MoeForCausalLM",
        qkv_bias=Flag(name="qkv_bias", default=True),
        window="switch",
        experts="num_experts",
        has_shared_expert_gate=True,
    ),
    "qwen3": _QWEN3,
    "qwen3_moe": replace(
        _QWEN3, class_name="Qwen3MoeForCausalLM", experts="num_experts", window="none", defaults={}
    ),
    "qwen3_5_moe_text": replace(_QWEN3_NEXT, class_name="Qwen3_5MoeForCausalLM"),
    "qwen3_5_text": replace(
        _QWEN3_NEXT, class_name="Qwen3_5ForCausalLM", experts=None, has_shared_expert_gate=False
    ),
    "qwen3_next": _QWEN3_NEXT,
    "qwen4_exp_text": replace(
        _QWEN3_NEXT,
        class_name="Qwen4ExpForCausalLM",
        names={"layer_types": "block_kinds"},
        fill=fill_qwen4,
        norms_per_layer=0,
        has_final_norm=False,
        read_fields=frozenset(("indexer_budget", "ple_layer_ids")),
        note="tables of n-grams are counted in the devices' memory; vLLM can keep them on the host",
    ),
    "smollm3": replace(
        LLAMA, class_name="SmolLM3ForCausalLM", ties_by_default=True, window="switch"
    ),
    "stablelm": Family(
        class_name="StableLmForCausalLM",
        fill=fill_stablelm,
        qkv_bias=Flag(name="use_qkv_bias", default=False),
        qk_norm=Flag(name="qk_layernorm", default=False),
        has_full_width_qk_norm=True,
        norm="layernorm",
        norm_has_bias=True,
    ),
    "starcoder2": replace(
        BIASED,
        class_name="Starcoder2ForCausalLM",
        ties_by_default=True,
        qkv_bias=_USE_BIAS,
        out_bias=_USE_BIAS,
        mlp_bias=_USE_BIAS,
        window="all",
    ),
}

ALIASES: Final = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    "inkling_mm_model": "inkling_text",
    "qwen3_5": "qwen3_5_text",
    "qwen4_exp": "qwen4_exp_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k2": "deepseek_v3",
    "mimo_v2": "mimo_v2_flash",
    "code_llama": "llama",
    "minimax_m1": "minimax",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_m3_text": "minimax_m3_vl_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "minimax_text_01": "minimax",
    "nemotron_h_puzzle": "nemotron_h",
    "ministral": "mistral",
    "muse_glimmer": "muse_glimmer_text",
    "deepseek_ref": "deepseek_v4",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "glm5_next": "glm5_next_text",
    "mistral4": "deepseek_v2",
    "grok-1": "grok",
    "mllama": "mllama_text_model",
    "step3p7": "step3p5",
    "step3_vl": "step3_text",
    "solar_open": "glm4_moe",
    "dots_ocr": "qwen2",
    "qwen2_5_omni_text": "qwen2",
    "qwen3_asr_text": "qwen3",
    "qwen3_omni_moe_text": "qwen3_moe",
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), "qwen2"),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_text"), "qwen3"),
    **dict.fromkeys(("qwen3_vl_moe", "qwen3_vl_moe_text"), "qwen3_moe"),
}
"""Other ``model_type`` values of models with the same shapes, by their family here."""

CLASSES: Final = {"Grok1ForCausalLM": "grok", "LongcatFlashNgramForCausalLM": "longcat_flash"}
"""Families of classes whose files state the ``model_type`` of another model: Grok 2 has "git"."""

LLAMA_LIKE: Final = LLAMA
"""The family as which an unknown ``model_type`` is read."""

_LLAMA_SIZES: Final = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "intermediate_size": 11_008,
    "vocab_size": 32_000,
    "max_position_embeddings": 2048,
}
NESTED_DEFAULTS: Final = {
    "llama": _LLAMA_SIZES,
    "mistral": _LLAMA_SIZES | {"intermediate_size": 14_336, "max_position_embeddings": 131_072},
}
"""Sizes that multimodal files (LLaVA) omit, since the class of their language model has them.

A file of the language model alone must state them."""
