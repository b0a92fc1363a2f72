"""How do the families of models differ, as far as their configuration files and their shapes go?

A family is one ``model_type`` of Hugging Face. What its class fixes (biases, norms, which layers
slide) stands here; what its files say is read from them. Checked against the classes of
transformers 5.23 by building each on the meta device.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias

from inferometer.inputs.types import DType

Config: TypeAlias = Mapping[str, object]
WindowRule: TypeAlias = Literal["none", "all", "switch", "pattern"]
"""Which layers slide: none; all where ``sliding_window`` is set; those from
``max_window_layers`` on where ``use_sliding_window``; all but every N-th."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """A yes or no that the file may say under ``name``."""

    name: str
    default: bool


def _nothing(_config: Config) -> dict[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What a ``model_type`` fixes. Defaults are those of Llama."""

    class_name: str
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    defaults: Mapping[str, object] = field(default_factory=dict[str, object])
    """What transformers' class assumes where published files say nothing."""
    fill: Callable[[Config], dict[str, object]] = _nothing
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
    router_bias: bool = False
    has_shared_expert_gate: bool = False
    has_only_experts_quantised: bool = False
    has_latent_attention: bool = False


def _fill_gpt2(config: Config) -> dict[str, object]:
    width = config.get("n_embd")
    return {"intermediate_size": 4 * width} if isinstance(width, int) else {}


def _fill_bigcode(config: Config) -> dict[str, object]:
    return _fill_gpt2(config) | (
        {"num_key_value_heads": 1} if config.get("multi_query", True) else {}
    )


def _fill_mpt(config: Config) -> dict[str, object]:
    width, ratio = config.get("d_model"), config.get("expansion_ratio", 4)
    return (
        {"intermediate_size": ratio * width}
        if isinstance(width, int) and isinstance(ratio, int)
        else {}
    )


def _fill_falcon(config: Config) -> dict[str, object]:
    width = config.get("hidden_size")
    filled: dict[str, object] = {"intermediate_size": 4 * width} if isinstance(width, int) else {}
    is_new, n_parallel_norms = (
        bool(config.get("new_decoder_architecture")),
        config.get("num_ln_in_parallel_attn"),
    )
    # The old architecture's class has one such head, whatever the file says of `num_kv_heads`.
    if not is_new and config.get("multi_query", True):
        filled["num_kv_heads"] = 1
    has_two_norms = (
        n_parallel_norms in {None, 2} if is_new else not config.get("parallel_attn", True)
    )
    return filled | {
        "norms_per_layer": 2 if has_two_norms else 1,
        "position": "alibi" if config.get("alibi") else "rope",
    }


def _fill_stablelm(config: Config) -> dict[str, object]:
    return {"norms_per_layer": 1 if config.get("use_parallel_residual") else 2}


def _fill_opt(config: Config) -> dict[str, object]:
    has_final = config.get("do_layer_norm_before", True) and not config.get(
        "_remove_final_layer_norm", False
    )
    return {"embedding_size": config.get("word_embed_proj_dim"), "has_final_norm": bool(has_final)}


def _fill_llama4(config: Config) -> dict[str, object]:
    """Layers with positions attend to chunks of the context, those without to all of it.

    A chunk is read as a window of its length, which is twice what it holds in the mean.
    """
    n_layers, listed = config.get("num_hidden_layers"), config.get("moe_layers")
    filled: dict[str, object] = {}
    if isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS and isinstance(listed, list):
        filled["mlp_only_layers"] = [index for index in range(n_layers) if index not in listed]
    with_positions = config.get("no_rope_layers")
    if isinstance(with_positions, list) and with_positions:
        filled["layer_types"] = [
            "sliding_attention" if one else "full_attention" for one in with_positions
        ]
    return filled


def _fill_deepseek_v4(config: Config) -> dict[str, object]:
    """What transformers writes by layer where the published files have a number for each layer."""
    kinds, experts = config.get("layer_types"), config.get("mlp_layer_types")
    filled = dict[str, object]()
    if isinstance(kinds, list) and {*map(str, kinds)} <= _COMPRESSED_KINDS.keys():
        filled["compress_ratios"] = [_COMPRESSED_KINDS[str(kind)] for kind in kinds]
    if isinstance(experts, list):
        filled["num_hash_layers"] = experts.count("hash_moe")
    return filled


_COMPRESSED_KINDS: Final = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_MOST_LISTED_LAYERS: Final = 10_000
_ATTENTION_BIAS: Final = Flag(name="attention_bias", default=False)
_MLP_BIAS: Final = Flag(name="mlp_bias", default=False)
_USE_BIAS: Final = Flag(name="use_bias", default=True)
_ENABLE_BIAS: Final = Flag(name="enable_bias", default=True)
_GPT_NAMES: Final = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
}
_LLAMA: Final = Family(
    class_name="LlamaForCausalLM",
    qkv_bias=_ATTENTION_BIAS,
    out_bias=_ATTENTION_BIAS,
    mlp_bias=_MLP_BIAS,
)
_PLAIN: Final = replace(_LLAMA, mlp_bias=False)
_QWEN3: Final = replace(
    _PLAIN, class_name="Qwen3ForCausalLM", qk_norm=True, window="switch", defaults={"head_dim": 128}
)
_GEMMA: Final = replace(
    _PLAIN, class_name="GemmaForCausalLM", ties_by_default=True, defaults={"head_dim": 256}
)
_GEMMA3_DEFAULTS: Final = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
}
_OLMO2: Final = replace(
    _PLAIN, class_name="Olmo2ForCausalLM", qk_norm=True, has_full_width_qk_norm=True
)
_COHERE: Final = replace(
    _PLAIN,
    class_name="CohereForCausalLM",
    ties_by_default=True,
    norm="layernorm",
    norms_per_layer=1,
    qk_norm=Flag(name="use_qk_norm", default=False),
    has_full_width_qk_norm=True,
)
_MIXTRAL: Final = Family(
    class_name="MixtralForCausalLM",
    window="all",
    experts="num_local_experts",
    expert_size="intermediate_size",
)
_DEEPSEEK: Final = Family(
    class_name="DeepseekV2ForCausalLM", has_latent_attention=True, experts="n_routed_experts"
)
_QWEN3_NEXT: Final = replace(
    _PLAIN,
    class_name="Qwen3NextForCausalLM",
    qk_norm=True,
    output_gate=True,
    experts="num_experts",
    has_shared_expert_gate=True,
    defaults={"full_attention_interval": 4, "head_dim": 256},
)
_GLM: Final = replace(
    _PLAIN,
    class_name="GlmForCausalLM",
    qkv_bias=Flag(name="attention_bias", default=True),
    out_bias=False,
    defaults={"head_dim": 128},
)
_BIASED: Final = Family(
    class_name="GPT2LMHeadModel",
    qkv_bias=True,
    out_bias=True,
    is_gated=False,
    mlp_bias=True,
    norm="layernorm",
    norm_has_bias=True,
)
_GPT2: Final = replace(
    _BIASED, names=_GPT_NAMES, fill=_fill_gpt2, ties_by_default=True, position="learned"
)

FAMILIES: Final[dict[str, Family]] = {
    "cohere": _COHERE,
    "cohere2": replace(
        _COHERE,
        class_name="Cohere2ForCausalLM",
        qk_norm=False,
        window="pattern",
        full_attention_every=4,
    ),
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": replace(_DEEPSEEK, class_name="DeepseekV3ForCausalLM", router_bias=True),
    "deepseek_v32": replace(_DEEPSEEK, class_name="DeepseekV32ForCausalLM", router_bias=True),
    "deepseek_v4": Family(
        class_name="DeepseekV4ForCausalLM",
        experts="n_routed_experts",
        router_bias=True,
        has_sinks=True,
        window="all",
        fill=_fill_deepseek_v4,
        defaults={"num_key_value_heads": 1, "head_dim": 512, "n_shared_experts": 1, "hc_mult": 4},
    ),
    "falcon": Family(
        class_name="FalconForCausalLM",
        names={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
        defaults={"max_position_embeddings": 2048},
        fill=_fill_falcon,
        ties_by_default=True,
        qkv_bias=Flag(name="bias", default=False),
        out_bias=Flag(name="bias", default=False),
        is_gated=False,
        mlp_bias=Flag(name="bias", default=False),
        norm="layernorm",
        norm_has_bias=True,
    ),
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
    "glm": _GLM,
    "glm4": replace(_GLM, class_name="Glm4ForCausalLM", norms_per_layer=4),
    "glm4_moe": replace(
        _PLAIN,
        class_name="Glm4MoeForCausalLM",
        out_bias=False,
        qk_norm=Flag(name="use_qk_norm", default=False),
        experts="n_routed_experts",
        router_bias=True,
    ),
    "glm_moe_dsa": replace(_DEEPSEEK, class_name="GlmMoeDsaForCausalLM", router_bias=True),
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, class_name="GPTBigCodeForCausalLM", fill=_fill_bigcode),
    "gpt_neox": replace(
        _BIASED,
        class_name="GPTNeoXForCausalLM",
        qkv_bias=Flag(name="attention_bias", default=True),
        out_bias=Flag(name="attention_bias", default=True),
    ),
    "gpt_oss": replace(
        _PLAIN,
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
    "granite": replace(_LLAMA, class_name="GraniteForCausalLM"),
    "granitemoe": replace(
        _PLAIN,
        class_name="GraniteMoeForCausalLM",
        experts="num_local_experts",
        expert_size="intermediate_size",
    ),
    "llama": _LLAMA,
    "llama4_text": replace(
        _PLAIN,
        class_name="Llama4ForCausalLM",
        names={
            "intermediate_size": "intermediate_size_mlp",
            "moe_intermediate_size": "intermediate_size",
            "decoder_sparse_step": "interleave_moe_layer_step",
            "sliding_window": "attention_chunk_size",
        },
        defaults={"head_dim": 128, "sliding_window": 8192, "n_shared_experts": 1},
        fill=_fill_llama4,
        window="pattern",
        full_attention_every=4,
        experts="num_local_experts",
    ),
    "minimax_m2": replace(
        _PLAIN,
        class_name="MiniMaxM2ForCausalLM",
        qk_norm=True,
        has_full_width_qk_norm=True,
        experts="num_local_experts",
        expert_size="intermediate_size",
        router_bias=True,
        defaults={"head_dim": 128},
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
        fill=_fill_mpt,
        ties_by_default=True,
        is_gated=False,
        norm="layernorm",
        position="alibi",
    ),
    "olmo": replace(
        _PLAIN,
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
        _BIASED,
        class_name="OPTForCausalLM",
        names={"intermediate_size": "ffn_dim"},
        fill=_fill_opt,
        ties_by_default=True,
        qkv_bias=_ENABLE_BIAS,
        out_bias=_ENABLE_BIAS,
        mlp_bias=_ENABLE_BIAS,
        position="learned",
        n_extra_positions=2,
    ),
    "phi": replace(_BIASED, class_name="PhiForCausalLM", norms_per_layer=1, has_head_bias=True),
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
    "smollm3": replace(
        _LLAMA, class_name="SmolLM3ForCausalLM", ties_by_default=True, window="switch"
    ),
    "stablelm": Family(
        class_name="StableLmForCausalLM",
        fill=_fill_stablelm,
        qkv_bias=Flag(name="use_qkv_bias", default=False),
        qk_norm=Flag(name="qk_layernorm", default=False),
        has_full_width_qk_norm=True,
        norm="layernorm",
        norm_has_bias=True,
    ),
    "starcoder2": replace(
        _BIASED,
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
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "kimi_k2": "deepseek_v3",
    "code_llama": "llama",
    "ministral": "mistral",
}
"""Other names of the same shapes."""

LLAMA_LIKE: Final = _LLAMA
"""What an unknown ``model_type`` is read as."""

NOT_DECODERS: Final = frozenset((
    "albert", "bert", "camembert", "clip", "deberta", "deberta-v2", "distilbert", "electra",
    "modernbert", "mpnet", "roberta", "siglip", "vit", "xlm-roberta",
))  # fmt: skip
"""Encoders, which decode nothing."""

NOT_ATTENTION_FIELDS: Final = (
    "ssm_cfg",
    "state_size",
    "mamba_d_state",
    "mamba_n_heads",
    "mamba_num_heads",
    "linear_attn_config",
    "layers_block_type",
    "sparse_attention_config",
    "conv_L_cache",
    "lru_width",
    "rwkv_hidden_size",
    "block_configs",
)
"""Fields of layers that are not understood here: state-space models, block-sparse and compressed
attention, layers that each have a shape of their own. Linear attention
(``linear_num_value_heads``) and top-k attention (``index_topk``) are."""

LAYER_KINDS: Final = frozenset(
    ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")
)
"""What ``layer_types`` of an unknown ``model_type`` may say, and ``linear_attention``."""

OTHER_NAMES: Final = {
    "num_experts_per_tok": ("moe_k", "moe_topk", "top_k_experts"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts"),
    "first_k_dense_replace": ("moe_layer_start_index", "num_dense_layers"),
}
"""Of an unknown ``model_type``, as ERNIE, EXAONE and AFMoE write them."""

UNREAD_FIELDS: Final = re.compile(
    r"(swa|num_swa|num_global|global)_.*(heads?|dim)|.*_per_layer(_config|_input)?|per_layer_config"
    r"|num_kv_shared_layers|cross_attention_layers"
)
"""Fields that give some layers another shape, which is not counted here."""

UNGATED_ACTIVATIONS: Final = frozenset(("relu", "relu2", "xielu"))
"""An MLP with one of these has no gate: Nemotron, Arcee, Apertus."""


# In which format are the weights of a quantised checkpoint, by its `quantization_config`?
# Each tool writes it in its own way: compressed-tensors and ModelOpt in groups, AWQ, GPTQ and
# AutoRound as bits, bitsandbytes as switches, Quark as the name of a type.

_FORMATS: Final[dict[str, DType]] = {
    "fp4": "float4", "int4": "int4", "w4": "int4", "fp8": "float8", "int8": "int8", "w8": "int8",
}  # fmt: skip


def quantised_format(config: Mapping[str, object]) -> DType | None:
    """The format of the weights; None where it is not known here.

    Example
    -------
    >>> quantised_format({"quant_method": "awq", "bits": 4})
    'int4'
    >>> quantised_format({"quant_method": "modelopt", "quant_algo": "NVFP4"})
    'float4'
    >>> quantised_format({"quant_method": "gptq", "bits": 3}) is None
    True
    """
    method, (bits, kind) = str(config.get("quant_method")), _bits_of_groups(config)
    if "fp8" in method or (bits, kind) == (8, "float"):
        return "float8"
    if (bits, kind) == (4, "float"):
        return "float4"
    if bits in (4, 8) or config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "int4" if bits == 4 or config.get("load_in_4bit") else "int8"
    return _in_words(" ".join((method, str(config.get("quant_algo")), _of_quark(config))))


def format_notes(config: object) -> tuple[str, ...]:
    """Notes on a quantised checkpoint: weights of a format that is not known, a KV cache of 8 bits."""
    if not isinstance(config, dict):
        return ()
    method, bits = config.get("quant_method"), config.get("bits")
    of_bits = "" if bits is None else f" of {bits!r} bits"
    unknown = (
        f"quantization_config of method {method!r}{of_bits} is not known here: weights are taken as"
        " of 16 bits (--quantization states theirs)"
    )
    cache = str(config.get("kv_cache_scheme") or config.get("kv_cache_quant_algo")).lower()
    of_8_bits = (
        "the checkpoint's KV cache is of 8 bits, which vLLM takes by default; here --kv-dtype float8"
        " counts it so"
    )
    is_of_8 = "fp8" in cache or ("'num_bits': 8" in cache and "float" in cache)
    is_known = quantised_format(config) is not None
    return (() if is_known else (unknown,)) + ((of_8_bits,) if is_of_8 else ())


def _in_words(words: str) -> DType | None:
    """The weights' format in names such as ModelOpt's `NVFP4` and `W4A8_AWQ` or Quark's `fp8_e4m3`."""
    found = re.search("|".join(_FORMATS), words.lower())
    return None if found is None else _FORMATS[found[0]]


def _of_quark(config: Mapping[str, object]) -> str:
    """Quark's name of the weights' format; '' of other tools."""
    whole = config.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, dict) else None
    return str(weight.get("dtype")) if isinstance(weight, dict) else ""


def _bits_of_groups(quantised: Mapping[str, object]) -> tuple[object, object]:
    """Bits and kind of the weights, as compressed-tensors and modelopt nest them, or AWQ's bits."""
    groups = quantised.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return quantised.get("bits"), "int"
    return weights.get("num_bits"), weights.get("type")
