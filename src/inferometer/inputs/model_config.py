"""Which model does a Hugging Face ``config.json`` describe?

Of any decoder-only model of a known family; one whose fields are Llama's is read so, with a note.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from inferometer.errors import SpecError
from inferometer.inputs.config_details import quantisation, stored_formats
from inferometer.inputs.config_families import (
    ALIASES,
    CLASSES,
    FAMILIES,
    LLAMA_LIKE,
    NESTED_DEFAULTS,
)
from inferometer.inputs.config_layers import (
    EXPERT_COUNTS,
    PLAIN_DTYPES,
    flag_of,
    read_blocks,
    read_compressed,
    read_indexer,
    read_latent,
    read_mixture,
    read_ngrams,
    read_per_layer_inputs,
    read_recurrent,
    read_relative,
    read_shared,
    read_sharing,
    read_streams,
)
from inferometer.inputs.family import Config, Family, Flag, WindowRule
from inferometer.inputs.family_fields import OF_QUERY_HEADS, fill_unknown, query_heads
from inferometer.inputs.foreign_bytes import ConfigFields, Door
from inferometer.inputs.layer_groups import differing_layers, read_groups
from inferometer.inputs.refusals import check_decodes, check_layers, not_known
from inferometer.inputs.types import (
    AttentionSpec,
    DType,
    FullHeads,
    MlaSpec,
    MlpSpec,
    ModelSpec,
    Source,
)

_DOOR: Final = Door(
    noun="configuration",
    allowed="a JSON object, below 10 MB",
    try_="a folder with a config.json",
    max_bytes=10_000_000,
)
_STATING_FORMATS: Final = frozenset(("quantization_config", "compression_config", "expert_dtype"))
_MOST_STRETCHED: Final = 1024
_LANGUAGE_MODELS: Final = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal files have the configuration of their language model.

Qwen's Omni models have it in that of the thinker, which vLLM serves without the talker.
"""
_TOWER_WIDTHS: Final = ("embed_dim", "hidden_size", "d_model", "hidden_dim", "width")
_TOWER_DEPTHS: Final = ("depth", "num_hidden_layers", "n_layers", "encoder_layers", "layers")
_GATED_TOWERS: Final = frozenset(("pixtral", "gemma4_vision"))
"""``model_type`` of towers whose MLPs have a gate, though they do not say silu."""
_NO_TOWERS: Final = re.compile(r".*(quantization|compression|generation|rope|attn|ffn|sparse).*")
_FORMATS_BESIDE: Final = "hf_quant_config.json"
_OTHER_NAMES: Final = {
    "max_position_embeddings": (
        "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
        "max_seq_length", "seq_len",
    ),
    "num_key_value_heads": (
        "num_attention_groups", "multi_query_group_num", "num_query_groups", "num_kv_heads",
        "n_kv_heads", "n_head_kv", "num_key_value_heads_per_layer",
    ),
    "q_lora_rank": ("attention_q_lora_dim",),
    "kv_lora_rank": ("attention_kv_lora_dim",),
    "qk_nope_head_dim": ("attention_qk_dim",),
    "qk_rope_head_dim": ("attention_qk_rope_dim",),
    "v_head_dim": ("attention_v_dim",),
    "moe_intermediate_size": ("moe_expert_inner_dim", "expert_ffn_hidden_size"),
    "shared_expert_intermediate_size": ("share_expert_dim",),
    "moe_latent_size": ("moe_hidden_size", "latent_moe_hidden_size", "routed_expert_hidden_size"),
    "query_rank": ("share_q_dim",),
    "n_loops": ("total_ut_steps", "num_loops"),
    "num_experts_per_tok": ("moe_k", "moe_topk", "moe_top_k", "top_k_experts", "moe_experts_per_token"),
    "n_shared_experts": ("num_shared_experts", "moe_num_shared_experts", "num_shared_expert"),
    "first_k_dense_replace": ("moe_layer_start_index", "num_dense_layers", "moe_start_layer"),
}  # fmt: skip
"""Of an unknown ``model_type``: of the longest context in vLLM's order, others as ERNIE, EXAONE,
Step, Moondream and Pangu write them."""

_SHARED_FIELDS: Final = (
    "tie_word_embeddings", "torch_dtype", "dtype", "quantization_config", "compression_config",
    "expert_dtype",
)  # fmt: skip
"""Fields of a multimodal file that are also those of its language model."""

_UNREAD_FIELDS: Final = re.compile(
    r"(swa|num_swa|num_global|global)_.*(heads?|dim)|.*_per_layer(_input)?"
    r"|num_kv_shared_layers|hc_(mult|count)|gated_norm_rank|gating"
    r"|attention_other_setting|use_cla"
)
"""Fields that give some layers another shape, which is not counted here."""

_FULL_EVERY: Final = ("sliding_window_pattern", "global_attn_every_n_layers")
"""Fields of N where every N-th layer attends to everything."""

_LISTS_OF_HEADS: Final = ("num_attention_heads_per_layer", "num_key_value_heads_per_layer")
_OUTPUT_GATES: Final = ("attn_output_gate", "use_attn_output_gate", "attention_output_gate")
_UNGATED_ACTIVATIONS: Final = frozenset(("relu", "relu2", "xielu"))
"""An MLP with one of these has no gate: Nemotron, Arcee, Apertus."""


def read_model_config(path: Path) -> ModelSpec:
    """The model that a ``config.json``, or the one in a folder, describes.

    Raises
    ------
    SpecError
        The file cannot be read, is not a configuration, or is that of a model that cannot be asked
        about.
    """
    file = path / "config.json" if path.is_dir() else path
    where = str(file)
    written = _DOOR.loose_json(_DOOR.text_of(file), where=where)  # some have an Infinity
    config = _DOOR.convert(written, dict[str, object], where=where)
    config = _with_formats_beside(config, file)
    folder = file.resolve().parent.name
    name = folder if folder and file.name == "config.json" else file.stem
    model = model_from_config(config, where=where, model_id=name)
    # The source travels in records: it names the file, not where this machine keeps it.
    return replace(model, source=Source(kind="config", where=f"{name}/{file.name}"))


def _with_formats_beside(config: dict[str, object], file: Path) -> dict[str, object]:
    """ModelOpt before 0.31 wrote its formats into a file beside, which vLLM reads too."""
    beside, nested = file.with_name(_FORMATS_BESIDE), map(config.get, _LANGUAGE_MODELS)
    own = [config, *(one for one in nested if isinstance(one, dict))]
    if any(quantisation(one) is not None for one in own) or not beside.is_file():
        return config
    where = str(beside)
    written = _DOOR.convert(
        _DOOR.loose_json(_DOOR.text_of(beside), where=where), dict[str, object], where=where
    )
    formats = written.get("quantization")
    if not isinstance(formats, dict):
        return config
    return config | {"quantization_config": {"quant_method": "modelopt", **formats}}


def model_from_config(config: Mapping[str, object], *, where: str, model_id: str) -> ModelSpec:
    """The model that a decoded configuration describes; the language model of a multimodal one.

    Raises
    ------
    SpecError
        A field is missing or impossible, or the model is no decoder-only attention model.

    Example
    -------
    >>> config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
    ...           "intermediate_size": 128, "vocab_size": 1000, "max_position_embeddings": 512}
    >>> model_from_config(config, where="here", model_id="tiny").attention.head_dim
    16
    """
    names = (name for name in _LANGUAGE_MODELS if isinstance(config.get(name), dict))
    nested = config.get(next(names, ""))
    if isinstance(nested, dict):
        check_decodes(config, str(config.get("model_type")), where=where)
        shared = {name: config[name] for name in _SHARED_FIELDS if name in config}
        text_config: dict[str, object] = {str(name): value for name, value in nested.items()}
        text_config.setdefault("model_type", config.get("model_type"))
        shared = NESTED_DEFAULTS.get(str(text_config["model_type"]), {}) | shared
        model = model_from_config(shared | text_config, where=where, model_id=model_id)
        return _with_towers(model, config)
    family, model_type, note = _family(config, where=where)
    fields = _fields(config, family, where=where)

    def read(own: Config) -> ModelSpec:
        own_fields = _fields(own, family, where=where)
        return _model(own_fields, family, model_type=model_type, model_id=model_id)

    layers = differing_layers(fields)
    model = read_groups(layers, fields, read) if layers else read(config)
    if model.n_attention_layers < 1 and family.attends:
        raise not_known(f"model_type {model_type!r} has no layer that attends", where=where)
    model = _with_towers(replace(model, note=note), config)
    model = _without_cross_attention(model, config)
    if not _STATING_FORMATS & config.keys():
        return model
    stored = stored_formats(config, model, fields.texts("layer_types"))
    return replace(
        model,
        checkpoint_dtype=stored.whole,
        stored_apart=stored.apart,
        stored_bits=stored.bits,
        note="; ".join(filter(None, (model.note, *stored.notes))) or None,
    )


def _fields(config: Config, family: Family, *, where: str) -> ConfigFields:
    """The file's fields under their usual names, with what the family's class assumes."""
    # A null that the file says overrules the class's default: Mistral 0.2 turns its window off so.
    silent = {
        name: value
        for name, value in family.defaults.items()
        if family.names.get(name, name) not in config
    }
    config = _without_drafts(config)
    filled = silent | ({} if family.fill is None else family.fill(config))
    return ConfigFields(config=config, where=where, names=family.names, filled=filled)


def _without_drafts(config: Config) -> Config:
    """Lists of layers without the entries for the layers of multi-token prediction (Step 3.5)."""
    n_layers, n_more = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if not isinstance(n_layers, int) or not isinstance(n_more, int) or n_more < 1:
        return config
    return {
        name: one[:n_layers] if isinstance(one, list) and len(one) == n_layers + n_more else one
        for name, one in config.items()
    }


def _with_towers(model: ModelSpec, config: Mapping[str, object]) -> ModelSpec:
    """The model with the weights of other parts (vision, audio, speech), which are memory alone."""
    towers = {
        name: one
        for name, one in config.items()
        if isinstance(one, dict)
        and name.endswith("_config")
        and {*_TOWER_WIDTHS, *_TOWER_DEPTHS, "text_config"} & one.keys()
        and name not in _LANGUAGE_MODELS
        and not _NO_TOWERS.fullmatch(name)
    }
    counts = {name: _tower_weights(one, model.hidden_size) for name, one in towers.items()}
    notes = (
        f"{name} is in memory alone, with about {count / 1e9:.2g}B weights; images and sound are not"
        " computed"
        if count
        else f"{name} is not counted: its weights come on top"
        for name, count in counts.items()
    )
    return replace(
        model,
        n_tower_weights=model.n_tower_weights + sum(counts.values()),
        note="; ".join(filter(None, (*notes, model.note))) or None,
    )


def _without_cross_attention(model: ModelSpec, config: Mapping[str, object]) -> ModelSpec:
    """The model without the layers that attend to images alone, whose weights are memory.

    A request without images passes them by (Llama 3.2 Vision).
    """
    listed = config.get("cross_attention_layers")
    n_cross = len(listed) if isinstance(listed, list) else 0
    if not 0 < n_cross < model.n_layers:
        return model
    heads = model.attention
    width = (
        heads.n_heads + heads.n_kv_heads
    ) * 2 * heads.head_dim + 3 * model.mlp.intermediate_size
    n_weights = n_cross * (model.hidden_size * (width + model.norms_per_layer) + 2 * heads.head_dim)
    note = f"{n_cross} layers attend to images alone: they are in memory, and no text passes them"
    return replace(
        model,
        n_layers=model.n_layers - n_cross,
        n_tower_weights=model.n_tower_weights + n_weights,
        note="; ".join(filter(None, (note, model.note))),
    )


def _tower_weights(tower: Mapping[str, object], model_width: int) -> int:
    """About how many weights a transformer over patches has, with its projectors; 0: it is another.

    Within 12 % of what transformers counts for Gemma 3, Mistral 3, Qwen2.5-VL to Qwen3.5 and
    Kimi-K2.5. Qwen2-VL calls the width ``embed_dim``, and what is projected to ``hidden_size``.
    GLM-4V's ``intermediate_size`` is that of its projector, so that its tower is not counted.
    """

    def stated(*names: str) -> int:
        values = (tower.get(name) for name in names)
        return next((one for one in values if isinstance(one, int) and one > 0), 0)

    n_layers, width = stated(*_TOWER_DEPTHS), stated(*_TOWER_WIDTHS)
    ratio = tower.get("mlp_ratio")
    usual = round(width * (ratio if isinstance(ratio, int | float) else 4))
    inner = stated("intermediate_size", "mlp_dim", "encoder_ffn_dim") or usual
    kind = str(tower.get("model_type"))
    n_inner = 3 if kind in _GATED_TOWERS or tower.get("hidden_act") == "silu" else 2
    merged = width * (stated("spatial_merge_size") or 1) ** 2
    projected = stated("out_hidden_size") or model_width
    stacked = tower.get("deepstack_visual_indexes")
    n_projectors = 1 + (len(stacked) if isinstance(stacked, list) else 0)
    layers = n_layers * width * (4 * width + n_inner * inner) * (not kind.startswith("glm4v"))
    return layers and layers + n_projectors * merged * (merged + projected)


def _family(config: Mapping[str, object], *, where: str) -> tuple[Family, str, str | None]:
    fields = ConfigFields(config=config, where=where)
    model_type = _of_class(config) or fields.text("model_type")
    if model_type is None:
        raise SpecError(
            "field 'model_type' is missing",
            where=where,
            allowed=f"one of {', '.join(FAMILIES)}, or a Llama-like one",
            try_='add "model_type": "llama" to a copy of the file, if its layers are Llama\'s',
        )
    family = FAMILIES.get(ALIASES.get(model_type, model_type))
    check_decodes(config, model_type, where=where)
    check_layers(config, family, model_type, where=where)
    if family is not None:
        return family, ALIASES.get(model_type, model_type), family.note
    likeness, found = _likeness(config)
    note = (
        f"model_type {model_type!r} is not known here: read as if it were Llama"
        f"{found and f' with {found}'}; counts may be off"
    )
    is_read = (*_LISTS_OF_HEADS, *(OF_QUERY_HEADS if query_heads(config) else ()))
    unread = [name for name, one in config.items() if one and _UNREAD_FIELDS.fullmatch(name)]
    if unread := [name for name in unread if name not in is_read]:
        note += f", for these fields are not read: {', '.join(unread[:6])}"
    return likeness, model_type, note


def _of_class(config: Mapping[str, object]) -> str | None:
    """The family of a class whose files have another model's ``model_type``; None: it has its own."""
    listed = config.get("architectures")
    names = [str(one) for one in listed] if isinstance(listed, list) else []
    return next((CLASSES[name] for name in names if name in CLASSES), None)


def _likeness(config: Mapping[str, object]) -> tuple[Family, str]:
    """Llama with what the fields of an unknown ``model_type`` state, and that in words."""
    experts = next((name for name in EXPERT_COUNTS if config.get(name) not in (None, 0)), None)
    named = {
        usual: next((name for name in names if config.get(name) is not None), usual)
        for usual, names in _OTHER_NAMES.items()
        if config.get(usual) is None
    }
    of_queries = _LISTS_OF_HEADS[0]
    if isinstance(config.get(of_queries), list) and not query_heads(config):
        named["num_attention_heads"] = of_queries
    activation = str(config.get("hidden_act") or config.get("hidden_activation"))
    size = "moe_intermediate_size"
    size = "intermediate_size" if config.get(named.get(size, size)) is None else size
    gate = next((name for name in _OUTPUT_GATES if config.get(name) is not None), _OUTPUT_GATES[0])
    has_linear = config.get("linear_num_value_heads") is not None
    likeness = replace(
        LLAMA_LIKE,
        names=named,
        is_gated=activation not in _UNGATED_ACTIVATIONS or config.get("model_type") == "bitnet",
        experts=experts,
        expert_size=size,
        has_latent_attention=config.get(named.get("kv_lora_rank", "kv_lora_rank")) is not None,
        output_gate=Flag(name=gate, default=False),
        head_gate=Flag(name="use_head_wise_attn_gate", default=False),
        window="none" if has_linear else _window_rule(config, named),
        defaults={"full_attention_interval": 4} if has_linear else {},
        fill=fill_unknown,
    )
    states_layers = {"layer_types", "full_attention_interval"} & config.keys()
    kinds = {
        "a plain MLP": not likeness.is_gated,
        "latent": likeness.has_latent_attention,
        "top-k": config.get("index_topk") is not None,
        "gated linear": has_linear,
        "three such layers to one full (assumed)": has_linear and not states_layers,
        "a mixture of experts": experts is not None,
    }
    found = ", ".join(name for name, is_so in kinds.items() if is_so)
    return likeness, found


def _window_rule(config: Mapping[str, object], named: dict[str, str]) -> WindowRule:
    """Which layers of an unknown ``model_type`` have its window, where none lists them.

    Names the field of a pattern in ``named``.
    """
    if "use_sliding_window" in config:
        return "switch"
    every = next((name for name in _FULL_EVERY if isinstance(config.get(name), int)), None)
    if every is None:
        return "all"
    named["sliding_window_pattern"] = every
    return "pattern"


def _model(fields: ConfigFields, family: Family, *, model_type: str, model_id: str) -> ModelSpec:
    max_position_tokens = _max_positions(fields, model_type)
    position = family.position if fields.text("position") is None else fields.text("position")
    mla = read_latent(fields) if family.has_latent_attention else None
    has_experts = family.experts is not None and fields.flag("enable_moe_block", default=True)
    moe = read_mixture(fields, family) if has_experts else None
    norms_per_layer = fields.optional_count("norms_per_layer", minimum=0)
    # Where every layer has experts, files may state no width of dense layers.
    dense_size = None if moe is None or moe.n_dense_layers else moe.intermediate_size
    return ModelSpec(
        model_id=model_id,
        architecture=model_type,
        n_layers=fields.count("num_hidden_layers"),
        hidden_size=fields.count("hidden_size"),
        vocab_size=fields.count("vocab_size"),
        max_position_tokens=max_position_tokens,
        attention=_attention(fields, family, mla),
        mlp=MlpSpec(
            intermediate_size=fields.count("intermediate_size", dense_size),
            is_gated=family.is_gated,
            has_bias=flag_of(fields, family.mlp_bias),
        ),
        source=Source(kind="config", where=fields.where),
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=family.ties_by_default),
        norm=family.norm,
        norm_has_bias=family.norm_has_bias,
        norms_per_layer=family.norms_per_layer if norms_per_layer is None else norms_per_layer,
        has_final_norm=fields.flag("has_final_norm", default=family.has_final_norm),
        has_embedding_norm=family.has_embedding_norm,
        position="alibi" if position == "alibi" else family.position,
        n_learned_positions=(
            max_position_tokens + family.n_extra_positions if family.position == "learned" else 0
        ),
        embedding_size=_embedding_size(fields),
        has_head_bias=family.has_head_bias,
        moe=moe,
        mla=mla,
        indexer=_stated(fields, "index_topk", read_indexer),
        recurrent=_stated(fields, "linear_num_value_heads", partial(read_recurrent, family=family)),
        blocks=read_blocks(fields, family) if family.blocks != "pairs" else None,
        compressed=_stated(fields, "compress_ratios", read_compressed),
        per_layer_inputs=_stated(fields, "hidden_size_per_layer_input", read_per_layer_inputs),
        shared=_stated(fields, "num_mem_blocks", read_shared),
        streams=_stated(fields, "hc_count", read_streams),
        relative=_stated(fields, "d_rel", read_relative),
        ngrams=_stated(fields, "ngram_rows", read_ngrams),
        n_loops=fields.count("n_loops", 1),
        hf_id=fields.text("_name_or_path") or None,
        checkpoint_dtype=_checkpoint_dtype(fields),
    )


def _max_positions(fields: ConfigFields, model_type: str) -> int:
    """The longest context, as vLLM 0.32.0 derives it: scaled where rotations are stretched.

    Other scalings (YaRN, Llama 3, LongRoPE) and Gemma 3's are in the number already.
    """
    n_tokens = fields.count("max_position_embeddings")
    scaling = fields.value("rope_scaling") or fields.value("rope_parameters")
    if not isinstance(scaling, dict) or "gemma3" in model_type:
        return n_tokens
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    if kind not in {"linear", "dynamic"} or not isinstance(factor, int | float):
        return n_tokens
    return int(n_tokens * min(max(factor, 1), _MOST_STRETCHED))


_Part = TypeVar("_Part")


def _stated(
    fields: ConfigFields, name: str, read: Callable[[ConfigFields], _Part | None]
) -> _Part | None:
    """A part that few models have, where the file states its first field."""
    return None if fields.value(name) is None else read(fields)


def _attention(fields: ConfigFields, family: Family, mla: MlaSpec | None) -> AttentionSpec:
    n_heads = fields.count("num_attention_heads")
    hidden_size = fields.count("hidden_size")
    if mla is not None:
        return AttentionSpec(
            n_heads=n_heads,
            n_kv_heads=n_heads,
            head_dim=mla.qk_nope_head_dim + mla.qk_rope_head_dim,
            has_output_gate=flag_of(fields, family.output_gate),
            has_head_gate=flag_of(fields, family.head_gate),
            has_sinks=fields.flag("learnable_sink", default=False),
        )
    head_dim = fields.optional_count("head_dim")
    if head_dim is None and hidden_size % n_heads:
        raise SpecError(
            f"{fields.own_name('hidden_size')} = {hidden_size} is no multiple of"
            f" {fields.own_name('num_attention_heads')} = {n_heads}",
            where=fields.where,
            allowed="as many channels for each head, or a field 'head_dim'",
        )
    window_tokens, every, n_full = _window(fields, family)
    has_qk_norm = flag_of(fields, family.qk_norm)
    # MiMo-V2's class of transformers has no other number in sliding layers, whatever its file says.
    has_two_counts = fields.value("full_attention_heads") is not None
    heads = AttentionSpec(
        n_heads=fields.count("swa_num_attention_heads") if has_two_counts else n_heads,
        n_kv_heads=fields.count("num_key_value_heads", n_heads),
        head_dim=head_dim or hidden_size // n_heads,
        has_qkv_bias=flag_of(fields, family.qkv_bias),
        has_out_bias=flag_of(fields, family.out_bias),
        has_qk_norm=has_qk_norm,
        has_sinks=fields.flag("add_swa_attention_sink_bias", default=family.has_sinks),
        sliding_window_tokens=window_tokens,
        full_attention_every=every,
        n_full_attention_layers=n_full,
        has_full_width_qk_norm=has_qk_norm and family.has_full_width_qk_norm,
        has_output_gate=flag_of(fields, family.output_gate),
        value_head_dim=fields.optional_count("value_head_dim"),
        kv_sharing=read_sharing(fields)
        if fields.value("num_kv_shared_layers") is not None
        else None,
        has_head_gate=flag_of(fields, family.head_gate),
        query_rank=fields.optional_count("query_rank"),
    )
    return replace(heads, full=_full_heads(fields, heads))


def _full_heads(fields: ConfigFields, heads: AttentionSpec) -> FullHeads | None:
    """The heads of layers of full attention; None where they are those of the others."""
    head_dim = fields.optional_count("full_head_dim")
    n_kv_heads = fields.optional_count("full_key_value_heads")
    if head_dim is None:
        return None
    n_full_heads = fields.optional_count("full_attention_heads")
    n_query_heads = fields.optional_count("swa_num_attention_heads") or heads.n_heads
    if n_query_heads != heads.n_heads:
        raise SpecError(
            f"swa_num_attention_heads = {n_query_heads}",
            where=fields.where,
            allowed=f"as many as num_attention_heads = {heads.n_heads}",
        )
    # Gemma 4's own number of KV heads counts only where keys are also values.
    is_key_value = fields.flag("attention_k_eq_v", default=False)
    counts = is_key_value or fields.value("full_value_head_dim") is not None
    full = FullHeads(
        n_kv_heads=n_kv_heads if n_kv_heads and counts else heads.n_kv_heads,
        head_dim=head_dim,
        value_head_dim=fields.optional_count("full_value_head_dim"),
        has_value_projection=not is_key_value,
        has_sinks=fields.flag("add_full_attention_sink_bias", default=False),
        n_heads=None if n_full_heads == heads.n_heads else n_full_heads,
    )
    plain = (heads.n_kv_heads, heads.head_dim, heads.value_head_dim, True, heads.has_sinks, None)
    return None if astuple(full) == plain else full


def _embedding_size(fields: ConfigFields) -> int | None:
    size = fields.optional_count("embedding_size")
    return None if size == fields.count("hidden_size") else size


def _checkpoint_dtype(fields: ConfigFields) -> DType | None:
    name = fields.value("dtype") or fields.value("torch_dtype")
    return PLAIN_DTYPES.get(name) if isinstance(name, str) else None


def _window(fields: ConfigFields, family: Family) -> tuple[int | None, int | None, int | None]:
    """The window, every how many layers are full, and how many are where there is no such pattern."""
    window_tokens = fields.optional_count("sliding_window", minimum=0) or None  # 0: turned off
    n_layers = fields.count("num_hidden_layers")
    is_off = family.window == "switch" and not fields.flag("use_sliding_window", default=False)
    if family.window == "none" or window_tokens is None or is_off:
        return None, 1, None
    kinds = fields.texts("layer_types")
    if family.is_hybrid:  # "all": every layer that attends
        is_listed = kinds is not None and family.window != "all"
        return window_tokens, None, kinds.count("full_attention") if kinds and is_listed else None
    if kinds is not None and fields.value("compress_ratios") is None:
        return _listed_window(kinds, window_tokens, n_layers, where=fields.where)
    if family.window == "all":
        return window_tokens, None, None
    if family.window == "switch":
        n_full = min(fields.optional_count("max_window_layers", minimum=0) or 0, n_layers)
        return (None, 1, None) if n_full == n_layers else (window_tokens, None, n_full)
    every = fields.count("sliding_window_pattern", family.full_attention_every)
    return window_tokens, every if every <= n_layers else None, None


def _listed_window(
    kinds: tuple[str, ...], window_tokens: int, n_layers: int, *, where: str
) -> tuple[int | None, int | None, int | None]:
    known = {"full_attention", "sliding_attention", "chunked_attention"}
    if len(kinds) != n_layers or not set(kinds) <= known:
        raise SpecError(
            f"layer_types has {len(kinds)} entries of {sorted(set(kinds))} for {n_layers} layers",
            where=where,
            allowed=f"one of {sorted(known)} for each layer",
        )
    full = [index + 1 for index, kind in enumerate(kinds) if kind == "full_attention"]
    if len(full) == n_layers:
        return None, 1, None
    if not full:
        return window_tokens, None, None
    every = full[0]
    is_regular = full == list(range(every, n_layers + 1, every))
    return window_tokens, every if is_regular else None, None if is_regular else len(full)
