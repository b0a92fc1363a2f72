"""The type of a model family: the properties that a ``model_type`` of Hugging Face fixes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from inferometer.inputs.model_parts import RecurrentKind

Config: TypeAlias = Mapping[str, object]

MOST_LISTED_LAYERS: Final = 10_000
"""Lists of layers are not made for more, whatever number a file states."""

WindowRule: TypeAlias = Literal["none", "all", "switch", "pattern"]
"""Which layers have a sliding window. "none"; "all" (if ``sliding_window`` is set); "switch": those
from ``max_window_layers`` on, if ``use_sliding_window``; "pattern": all but every N-th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A property that the boolean field ``name`` of the file states; without it, ``default``."""

    name: str
    default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The properties that a ``model_type`` fixes. Defaults are those of Llama."""

    class_name: str
    """The class in transformers."""
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    """The family's name of a usual field, if it differs."""
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """Values that transformers' class assumes for fields that published files omit."""
    fill: Callable[[Config], dict[str, object]] | None = None
    """Computes usual fields from the family's own ones (``family_fields``)."""
    ties_by_default: bool = False
    qkv_bias: bool | Flag = False
    out_bias: bool | Flag = False
    qk_norm: bool | Flag = False
    has_full_width_qk_norm: bool = False
    output_gate: bool | Flag = False
    head_gate: bool | Flag = False
    has_sinks: bool = False
    is_gated: bool = True
    mlp_bias: bool | Flag = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_has_bias: bool = False
    norms_per_layer: int = 2
    has_final_norm: bool = True
    has_embedding_norm: bool = False
    position: Literal["rope", "learned", "alibi"] = "rope"
    n_extra_positions: int = 0
    has_head_bias: bool = False
    window: WindowRule = "none"
    full_attention_every: int = 1
    experts: str | None = None
    """Name of the field with the number of experts; None: any usual name."""
    expert_size: str = "moe_intermediate_size"
    expert_bias: bool = False
    router_bias: bool | Flag = False
    has_shared_expert_gate: bool = False
    has_only_experts_quantised: bool = False
    has_latent_norms: bool = False
    has_latent_attention: bool = False
    recurrent: RecurrentKind = "delta"
    """The kind of recurrence in its layers with a state."""
    is_hybrid: bool = False
    """Does ``fill`` read which layers attend and which have a recurrent state?"""
    attends: bool = True
    """False: no layer attends, in any model of the family."""
    conv_bias: bool | Flag = False
    projection_bias: bool | Flag = False
    state_norm: bool | Flag = True
    note: str | None = None
    """A sentence for the user about all models of the family."""
    read_fields: frozenset[str] = frozenset()
    """Fields of kinds of layers that are unknown in other families, and that this one reads."""
    blocks: Literal["pairs", "alone", "beside"] = "pairs"
    """What a layer consists of. "pairs": a mixer (such as attention) and a feed-forward block;
    "alone": one of them; "beside": two mixers side by side, and a feed-forward block, or as many
    blocks of attention and of feed-forward as ``fill`` counts in all layers."""


ATTENTION_BIAS: Final = Flag(name="attention_bias", default=False)
LLAMA: Final = Family(
    class_name="LlamaForCausalLM",
    qkv_bias=ATTENTION_BIAS,
    out_bias=ATTENTION_BIAS,
    mlp_bias=Flag(name="mlp_bias", default=False),
)
PLAIN: Final = replace(LLAMA, mlp_bias=False)
"""Llama without biases in the MLP."""
UNBIASED: Final = replace(PLAIN, qkv_bias=False, out_bias=False)
"""Llama without any biases."""
BIASED: Final = Family(
    class_name="GPT2LMHeadModel",
    qkv_bias=True,
    out_bias=True,
    is_gated=False,
    mlp_bias=True,
    norm="layernorm",
    norm_has_bias=True,
)
"""GPT-2's blocks: biases everywhere, layer norms, an MLP without a gate."""
GPT_NAMES: Final = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
"""GPT-2's names of the fields."""
