"""Families with multi-head latent attention: DeepSeek, GLM-5, Kimi Linear, Ling since 2.5, LongCat.

Some of them have layers with a state beside it, or an indexer that chooses tokens.
"""

from dataclasses import replace
from typing import Final

from inferometer.inputs.family import Family, Flag
from inferometer.inputs.family_fields import (
    fill_bailing_hybrid,
    fill_glm5_next,
    fill_hy_v4,
    fill_kimi_linear,
)
from inferometer.inputs.ngram_families import fill_longcat

_KINDS: Final = {"layer_types": "block_kinds"}
_DEEPSEEK: Final = Family(
    class_name="DeepseekV2ForCausalLM", has_latent_attention=True, experts="n_routed_experts"
)

LATENT_FAMILIES: Final[dict[str, Family]] = {
    "bailing_hybrid": replace(
        _DEEPSEEK,
        class_name="BailingHybridForCausalLM",
        names=_KINDS
        | {"n_shared_experts": "num_shared_experts", "num_experts_per_tok": "n_chosen_experts"},
        output_gate=Flag(name="has_channel_gate", default=False),
        head_gate=Flag(name="has_head_gate", default=True),
        fill=fill_bailing_hybrid,
        router_bias=True,
        experts="num_experts",
        recurrent="kda",
        is_hybrid=True,
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": replace(_DEEPSEEK, class_name="DeepseekV3ForCausalLM", router_bias=True),
    "deepseek_v32": replace(_DEEPSEEK, class_name="DeepseekV32ForCausalLM", router_bias=True),
    "glm4_moe_lite": replace(
        _DEEPSEEK,
        class_name="Glm4MoeLiteForCausalLM",
        router_bias=True,
        defaults={"first_k_dense_replace": 1},
    ),
    "glm5_next_text": replace(
        _DEEPSEEK,
        class_name="Glm5NextForConditionalGeneration",
        names=_KINDS | {"indexer_types": "indexer_kinds"},
        fill=fill_glm5_next,
        router_bias=True,
        recurrent="kda",
        is_hybrid=True,
    ),
    "glm_moe_dsa": replace(_DEEPSEEK, class_name="GlmMoeDsaForCausalLM", router_bias=True),
    "hy_v4": replace(
        _DEEPSEEK,
        class_name="HYV4ForCausalLM",
        fill=fill_hy_v4,
        router_bias=True,
        output_gate=Flag(name="has_channel_gate", default=True),
        head_gate=Flag(name="has_head_gate", default=False),
    ),
    "kimi_linear": replace(
        _DEEPSEEK,
        class_name="KimiLinearForCausalLM",
        names=_KINDS
        | {
            "num_experts_per_tok": "num_experts_per_token",
            "n_shared_experts": "num_shared_experts",
            "moe_latent_size": "routed_expert_hidden_size",
        },
        output_gate=Flag(name="mla_use_output_gate", default=False),
        fill=fill_kimi_linear,
        router_bias=True,
        experts="num_experts",
        recurrent="kda",
        is_hybrid=True,
    ),
    "longcat_flash": replace(
        _DEEPSEEK,
        class_name="LongcatFlashForCausalLM",
        names={
            "num_hidden_layers": "n_halves",
            "intermediate_size": "ffn_hidden_size",
            "moe_intermediate_size": "expert_ffn_hidden_size",
            "num_experts_per_tok": "moe_topk",
        },
        fill=fill_longcat,
        router_bias=True,
        read_fields=frozenset(("ngram_vocab_size_ratio",)),
        blocks="beside",
        note="some experts of a token have no weights: the mean number of the others is counted",
    ),
    "minicpm3": replace(
        _DEEPSEEK, class_name="MiniCPM3ForCausalLM", ties_by_default=True, experts=None
    ),
}
