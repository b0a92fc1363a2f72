"""What does a family of models fix, as far as its configuration files and its shapes go?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from inferometer.inputs.types import RecurrentKind

Config: TypeAlias = Mapping[str, object]

WindowRule: TypeAlias = Literal["none", "all", "switch", "pattern"]
"""Which layers slide: none; all where ``sliding_window`` is set; those from
``max_window_layers`` on where ``use_sliding_window``; all but every N-th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A yes or no that the file may say under ``name``."""

    name: str
    default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a ``model_type`` fixes. Defaults are those of Llama."""

    class_name: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """What transformers' class assumes where published files say nothing."""
    fill: Callable[[Config], dict[str, object]] | None = None
    """Usual fields that follow from the family's own; its own, where it overrules the file."""
    ties_by_default: bool = False
    qkv_bias: bool | Flag = False
    out_bias: bool | Flag = False
    qk_norm: bool | Flag = False
    has_full_width_qk_norm: bool = False
    output_gate: bool | Flag = False
    has_sinks: bool = False
    is_gated: bool = True
    mlp_bias: bool | Flag = False
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_has_bias: bool = False
    norms_per_layer: int = 2
    has_final_norm: bool = True
    position: Literal["rope", "learned", "alibi"] = "rope"
    n_extra_positions: int = 0
    has_head_bias: bool = False
    window: WindowRule = "none"
    full_attention_every: int = 1
    experts: str | None = None
    """The field that counts experts."""
    expert_size: str = "moe_intermediate_size"
    expert_bias: bool = False
    router_bias: bool | Flag = False
    has_shared_expert_gate: bool = False
    has_only_experts_quantised: bool = False
    has_latent_attention: bool = False
    recurrent: RecurrentKind = "delta"
    """The kind of its layers with a state."""
    is_hybrid: bool = False
    """Whether its ``fill`` reads the fields of layers that not every class has."""
    conv_bias: bool | Flag = False
    projection_bias: bool | Flag = False
    state_norm: bool | Flag = True
    blocks: Literal["pairs", "alone", "beside"] = "pairs"
    """Whether a layer is a mixer and a feed-forward block, one alone, or has two mixers."""
