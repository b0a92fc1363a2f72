"""Models that are refused: encoders, and decoders with layers that are not modelled."""

import re
from collections.abc import Mapping
from typing import Final

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.config_families import FAMILIES
from inferometer.inputs.config_layers import LAYER_KINDS
from inferometer.inputs.family import Family

_NOT_DECODERS: Final = frozenset((
    "albert", "bert", "camembert", "clip", "deberta", "deberta-v2", "distilbert", "electra", "esm",
    "blip_text_model", "clip_text_model", "dinov2", "eurobert", "modernbert", "mpnet", "roberta",
    "siglip", "siglip2", "siglip_text_model", "vit", "wav2vec2", "xlm-roberta",
))  # fmt: skip
"""``model_type`` of encoders, which generate no tokens; others are recognised by ``architectures``.
"""

_DECODING_CLASSES: Final = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Endings of class names of decoders, even if the file has ``is_decoder: false``."""

_NOT_ATTENTION_FIELDS: Final = (
    "ssm_cfg",
    "ssm_state_size",
    "hybrid_override_pattern",
    "attn_layer_period",
    "mixer_types",
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
    "altup_num_inputs",
    "num_mem_blocks",
    "H_cycles",
    "loop_num",
    "ngram_vocab_size_ratio",
    "ple_layer_ids",
    "engram_config",
    "engram_layer_ids",
    "kv_source_layer_ids",
    "indexer_budget",
    "mova_num_experts",
    "local_layer_ids",
    "use_sconv",
    "blocksparse_block_size",
)
"""Fields of a config.json that are understood only in known families: of state-space models,
convolutions, block-sparse attention, layers that run several times or share their weights, and tables
of n-grams."""

_REFUSED: Final = {
    **dict.fromkeys(("rwkv", "rwkv5", "rwkv6", "rwkv7"), "RWKV's time mixing, without attention"),
    "bert-generation": "BERT's layers with a decoder's mask",
    "biogpt": "OPT's layers under other names",
    **dict.fromkeys(("blt", "csm", "moshi"), "one decoder inside another"),
    "deepseek_v41": "tables of n-grams, and keys and values of other layers",
    "doge": "a dynamic mask and experts of one channel",
    "git": "BERT's layers over an image",
    "jetmoe": "experts in attention",
    "reformer": "hashed attention",
    "xlnet": "two streams of attention",
    "xlstm": "mLSTM's matrix memory, without attention",
    "zamba": "Mamba with several heads, and attention blocks that layers share",
}
"""``model_type`` of decoders whose layers are not modelled, and what they have."""

_DIFFUSION: Final = re.compile(r"diffusion_gemma.*|diffullama|dream|llada.*|sdar.*", re.IGNORECASE)
"""``model_type`` of models that fill in a whole block of tokens in several steps."""


def check_decodes(config: Mapping[str, object], model_type: str, *, where: str) -> None:
    """Refuse encoders, encoder-decoder models and models that do not decode token by token."""
    kind = None
    if _is_encoder(config, model_type):
        kind = "an encoder"
    elif config.get("is_encoder_decoder") is True:
        kind = "an encoder-decoder model"
    elif _DIFFUSION.fullmatch(model_type):
        kind = "a diffusion model, whose steps each fill in many tokens"
    if kind is not None:
        raise SpecError(
            f"model_type {model_type!r} is {kind}",
            where=where,
            allowed="a decoder-only language model",
            try_=suggestions.command("catalog", "models"),
        )


def check_layers(
    config: Mapping[str, object], family: Family | None, model_type: str, *, where: str
) -> None:
    """Refuse models with layers that are not modelled."""
    if family is None and (has := _REFUSED.get(model_type.lower())) is not None:
        raise not_known(
            f"model_type {model_type!r} has layers of a kind that is not known here ({has})",
            where=where,
        )
    if alien := _alien_fields(config, family):
        raise not_known(
            f"model_type {model_type!r} has layers of a kind that is not known here (field"
            f" {alien[0]!r})",
            where=where,
        )


def not_known(what: str, *, where: str) -> SpecError:
    """The error about layers that are not modelled."""
    hybrids = ", ".join(name for name, family in FAMILIES.items() if family.is_hybrid)
    return SpecError(
        what,
        where=where,
        allowed="full, sliding, latent, top-k or linear attention; Mamba or convolutions beside"
        f" attention in the families {hybrids}",
        try_="measure a server that runs it, which needs no file of the model: "
        + suggestions.command("load", "URL", "--model", "MODEL", "--concurrency", "8"),
    )


def _is_encoder(config: Mapping[str, object], model_type: str) -> bool:
    """Whether its name, its segments of BERT, or the classes that the file names are an encoder's."""
    listed = config.get("architectures")
    classes = [str(one) for one in listed] if isinstance(listed, list) else []
    decodes = any(one.endswith(_DECODING_CLASSES) for one in classes)
    is_masked = any(one.endswith("ForMaskedLM") for one in classes)
    is_plain = bool(classes) and config.get("is_decoder") is False
    return (
        model_type in _NOT_DECODERS
        or config.get("type_vocab_size") is not None
        or ((is_masked or is_plain) and not decodes)
    )


def _alien_fields(config: Mapping[str, object], family: Family | None) -> list[str]:
    """Fields of layers that are not understood here."""
    listed = config.get("layer_types")
    kinds = {str(kind) for kind in listed} if isinstance(listed, list) else set[str]()
    if family is not None and family.is_hybrid:  # its own function reads them
        return []
    has_states = family is not None and family.recurrent == "lightning"
    read = frozenset[str]() if family is None else family.read_fields
    alien = [
        one
        for one in _NOT_ATTENTION_FIELDS
        if config.get(one) not in (None, 0, []) and one not in read
    ]
    linear = {"linear_attention"} if config.get("linear_num_value_heads") else set[str]()
    slides = "sliding_attention" in kinds and config.get("kv_lora_rank") is not None
    chooses = "indexed_attention" in kinds and config.get("index_topk") is None
    if family is None and (slides or chooses or not kinds <= LAYER_KINDS | linear):
        alien.append("layer_types")
    attends, group = config.get("attn_type_list"), config.get("layer_group_size")
    if isinstance(attends, list) and any(one != 1 for one in attends) and not has_states:
        alien.append("attn_type_list")  # linear layers, whose sizes only MiniMax's class fixes
    if group is not None and group != 1:
        alien.append("layer_group_size")  # Ring's: linear layers but for the last of each group
    return alien
