"""Reads the parts of a ``config.json`` that only some models have.

Latent, sparse, compressed and linear attention, experts, and layers that share keys and values.
``model_config`` calls these functions.
"""

from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.family import Family, Flag
from inferometer.inputs.foreign_bytes import ConfigFields, shortened
from inferometer.inputs.model_parts import (
    BlockCounts,
    CompressedSpec,
    IndexerSpec,
    NgramSpec,
    PerLayerInputSpec,
    RecurrentKind,
    RecurrentSpec,
    RelativeSpec,
    SharedSpec,
    StateDType,
    StreamsSpec,
)
from inferometer.inputs.types import KvSharing, MlaSpec, MoeSpec

PLAIN_DTYPES: Final[dict[str, StateDType]] = {
    "float32": "float32", "float16": "float16", "bfloat16": "bfloat16"
}  # fmt: skip
LAYER_KINDS: Final = frozenset(
    ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")
)
"""Values of ``layer_types`` that are understood for any ``model_type``."""
_KINDS_IN_FILES: Final[dict[str, RecurrentKind]] = {"kda": "kda", "lightning": "lightning"}
"""Kinds of recurrence that differ within a family (Ling)."""
_BLOCKS_ALONE: Final = frozenset(("mlp", "moe"))
_LISTS_OF_KINDS: Final = (
    "attn_type_list",
    "hybrid_override_pattern",
    "layers_block_type",
    "block_types",
)
_COMPRESSED: Final = (0, 4, 128)
"""Tokens that a layer of DeepSeek-V4 compresses into a KV row: none, few (fine), many (coarse).

Of fine rows attention reads only those that its indexer chooses."""
EXPERT_COUNTS: Final = (
    "n_routed_experts", "num_routed_experts", "num_local_experts", "num_experts", "moe_num_experts"
)  # fmt: skip


def read_sharing(fields: ConfigFields) -> KvSharing | None:
    """How many of the last layers read the keys and values of earlier ones; None: no layer does."""
    n_shared = fields.optional_count("num_kv_shared_layers", minimum=0) or 0
    kinds, n_layers = fields.texts("layer_types"), fields.count("num_hidden_layers")
    if n_shared == 0:
        return None
    own = () if kinds is None else kinds[: n_layers - n_shared]
    if n_shared >= n_layers or set(own) != set(kinds or ()):
        raise SpecError(
            f"num_kv_shared_layers = {n_shared}",
            where=fields.where,
            allowed=f"such that the others of the {n_layers} layers have one of each kind",
        )
    return KvSharing(
        n_layers=n_shared,
        n_full_layers=(kinds or ())[n_layers - n_shared :].count("full_attention"),
        has_double_mlp=fields.flag("use_double_wide_mlp", default=False),
    )


def read_recurrent(fields: ConfigFields, family: Family) -> RecurrentSpec | None:
    """The layers with a recurrent state (linear attention, Mamba); None if there are none."""
    n_linear = _n_recurrent(fields, family)
    if n_linear == 0:
        return None
    return RecurrentSpec(
        n_layers=n_linear,
        n_key_heads=fields.optional_count("linear_num_key_heads", minimum=0) or 0,
        n_value_heads=fields.count("linear_num_value_heads"),
        key_head_dim=fields.optional_count("linear_key_head_dim", minimum=0) or 0,
        value_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
        # If the file does not state it, vLLM 0.32.0 stores the state in the model's own format.
        state_dtype=PLAIN_DTYPES.get(fields.text("mamba_ssm_dtype") or "bfloat16", "bfloat16"),
        kind=_KINDS_IN_FILES.get(fields.text("recurrent_kind") or "", family.recurrent),
        has_conv_bias=flag_of(fields, family.conv_bias),
        has_projection_bias=flag_of(fields, family.projection_bias),
        has_norm=flag_of(fields, family.state_norm),
        has_wide_gate=fields.flag("use_full_rank_gate", default=False),
        has_wide_decays=fields.flag("no_kda_lora", default=False),
        has_qk_norm=fields.flag("has_state_qk_norm", default=False),
        step_rank=fields.optional_count("linear_step_rank"),
    )


def _n_recurrent(fields: ConfigFields, family: Family) -> int:
    n_layers, types = fields.count("num_hidden_layers"), fields.texts("layer_types")
    if family.blocks == "beside":
        return n_layers
    if types is None:
        if family.is_hybrid:
            raise SpecError(
                "no field says which layers attend and which keep a state",
                where=fields.where,
                allowed="layer_types, layers_block_type, hybrid_override_pattern or the family's own",
            )
        return n_layers - n_layers // fields.count("full_attention_interval")
    allowed = LAYER_KINDS | {"linear_attention"} | _BLOCKS_ALONE
    allowed -= set() if family.blocks == "alone" else _BLOCKS_ALONE
    if len(types) != n_layers or not set(types) <= allowed:
        stated = (name for name in _LISTS_OF_KINDS if fields.config.get(name) is not None)
        found = shortened(sorted(set(types)))
        raise SpecError(
            f"{next(stated, 'layer_types')} has {len(types)} entries of {found} for {n_layers} layers",
            where=fields.where,
            allowed="for each layer one of full and linear attention"
            + ", an MLP and experts" * (family.blocks == "alone"),
        )
    return types.count("linear_attention")


def read_blocks(fields: ConfigFields, family: Family) -> BlockCounts:
    """The number of attention and of feed-forward blocks.

    For families whose layers are not all pairs of one mixer (such as attention) and one MLP.
    """
    n_layers, types = fields.count("num_hidden_layers"), fields.texts("layer_types") or ()
    if family.blocks == "beside":
        return BlockCounts(
            n_attention=fields.count("n_attention_blocks", n_layers),
            n_feed_forward=fields.count("n_feed_forward_blocks", n_layers),
        )
    return BlockCounts(
        n_attention=types.count("full_attention"),
        n_feed_forward=sum(kind in _BLOCKS_ALONE for kind in types),
    )


def read_shared(fields: ConfigFields) -> SharedSpec:
    """The blocks that several layers share."""
    return SharedSpec(
        n_stored=fields.count("num_mem_blocks"),
        adapter_rank=fields.count("adapter_rank", 128),
        has_attention_adapters=fields.flag("use_shared_attention_adapter", default=False),
    )


def read_streams(fields: ConfigFields) -> StreamsSpec:
    """Residual streams, and how they are mixed."""
    return StreamsSpec(
        n_streams=fields.count("hc_count"),
        rank=fields.optional_count("hc_lowrank"),
        n_numbers=fields.optional_count("hc_numbers", minimum=0) or 0,
        n_scales=fields.optional_count("hc_scales", minimum=0) or 0,
        has_head=fields.flag("has_hc_head", default=False),
    )


def read_relative(fields: ConfigFields) -> RelativeSpec:
    """Learned relative positions and short convolutions."""
    return RelativeSpec(
        dim=fields.count("d_rel"),
        extent=fields.count("rel_extent", 1024),
        conv_kernel=fields.count("relative_conv_kernel", 4),
    )


def read_ngrams(fields: ConfigFields) -> NgramSpec:
    """Tables of n-grams, with the fields that the family's function has computed."""
    return NgramSpec(
        n_rows=fields.count("ngram_rows"),
        width=fields.count("ngram_width"),
        n_projections=fields.count("ngram_projections"),
        n_in=fields.count("ngram_in"),
        n_out=fields.count("ngram_out"),
        n_vector_elements=fields.optional_count("ngram_vectors", minimum=0) or 0,
    )


def flag_of(fields: ConfigFields, what: bool | Flag) -> bool:  # noqa: FBT001 -- fixed, or a field
    """The value of a property: fixed by the family, or read from the file's field."""
    return fields.flag(what.name, default=what.default) if isinstance(what, Flag) else what


def n_dense_layers(fields: ConfigFields) -> int:
    """The number of layers with a dense MLP in a mixture-of-experts model."""
    n_layers = fields.count("num_hidden_layers")
    n_first = min(fields.optional_count("first_k_dense_replace", minimum=0) or 0, n_layers)
    listed = fields.value("mlp_only_layers")
    dense = (
        {index for index in listed if isinstance(index, int) and index < n_layers}
        if isinstance(listed, list)
        else set[int]()
    )
    every = fields.count("decoder_sparse_step", 1)
    dense |= {index for index in range(n_layers) if (index + 1) % every}
    if (kinds := fields.texts("mlp_layer_types")) is not None:
        dense |= {index for index, kind in enumerate(kinds) if kind == "dense"}
    return max(n_first, len(dense))


def read_latent(fields: ConfigFields) -> MlaSpec:
    """The ranks and head sizes of multi-head latent attention."""
    return MlaSpec(
        q_lora_rank=fields.optional_count("q_lora_rank"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        qk_rope_head_dim=fields.optional_count("qk_rope_head_dim", minimum=0) or 0,
        v_head_dim=fields.count("v_head_dim"),
    )


def read_indexer(fields: ConfigFields) -> IndexerSpec | None:
    """The indexer, which chooses the tokens of sparse attention; None without ``index_topk``."""
    top_k_tokens = fields.optional_count("index_topk")
    n_layers, types = fields.count("num_hidden_layers"), fields.texts("indexer_types")
    if top_k_tokens is None or (types is not None and "full" not in types):
        return None
    compressed = None if fields.value("compress_ratios") is None else read_compressed(fields)
    if compressed is not None:
        n_layers = compressed.n_fine_layers
        top_k_tokens = top_k_tokens * compressed.fine_tokens
    return IndexerSpec(
        n_heads=fields.count("index_n_heads"),
        head_dim=fields.count("index_head_dim"),
        top_k_tokens=top_k_tokens,
        n_layers=n_layers if types is None else types.count("full"),
        chooses_blocks=fields.value("index_block_size") is not None,
        key_tokens=fields.count("index_key_tokens", 1),
        has_key_gate=fields.flag("index_kpool_compress", default=False),
    )


def read_compressed(fields: ConfigFields) -> CompressedSpec | None:
    """DeepSeek-V4's compressed attention; None without ``compress_ratios``."""
    ratios = fields.value("compress_ratios")
    if ratios is None:
        return None
    n_layers = fields.count("num_hidden_layers")
    known = [one for one in ratios if one in _COMPRESSED] if isinstance(ratios, list) else []
    if not isinstance(ratios, list) or len(known) != len(ratios) or len(ratios) < n_layers:
        raise SpecError(
            f"compress_ratios = {shortened(ratios)}",
            where=fields.where,
            allowed=f"one of {', '.join(map(str, _COMPRESSED))} for each layer",
        )
    used = ratios[:n_layers]  # a further entry is for the multi-token-prediction module
    return CompressedSpec(
        q_lora_rank=fields.count("q_lora_rank"),
        n_output_groups=fields.count("o_groups"),
        output_lora_rank=fields.count("o_lora_rank"),
        fine_tokens=_COMPRESSED[1],
        n_fine_layers=used.count(_COMPRESSED[1]),
        coarse_tokens=_COMPRESSED[2],
        n_coarse_layers=used.count(_COMPRESSED[2]),
        n_streams=fields.count("hc_mult"),
    )


def read_mixture(fields: ConfigFields, family: Family) -> MoeSpec:
    """The number, sizes and routing of a model's experts."""
    name = next(
        (key for key in (family.experts, *EXPERT_COUNTS) if key and fields.value(key) is not None),
        family.experts or "num_experts",
    )
    n_experts, n_chosen = fields.count(name), fields.count("num_experts_per_tok")
    n_empty = fields.optional_count("zero_expert_num", minimum=0) or 0
    n_chosen = max(round(n_chosen * n_experts / (n_experts + n_empty)), 1)
    if n_chosen > n_experts:
        raise SpecError(
            f"num_experts_per_tok = {n_chosen}",
            where=fields.where,
            allowed=f"at most {name} = {n_experts}",
        )
    size = fields.count(family.expert_size)
    shared_size = fields.optional_count("shared_expert_intermediate_size", minimum=0) or 0
    if shared_size % size:
        raise SpecError(
            f"shared_expert_intermediate_size = {shared_size}",
            where=fields.where,
            allowed=f"a multiple of {size}",
        )
    return MoeSpec(
        n_experts=n_experts,
        n_experts_per_token=n_chosen,
        intermediate_size=size,
        n_shared_experts=fields.optional_count("n_shared_experts", minimum=0)
        or shared_size // size,
        n_dense_layers=n_dense_layers(fields),
        has_bias=family.expert_bias,
        has_router_bias=flag_of(fields, family.router_bias),
        n_hashed_layers=fields.optional_count("num_hash_layers", minimum=0) or 0,
        has_shared_expert_gate=family.has_shared_expert_gate,
        has_only_experts_quantised=family.has_only_experts_quantised,
        n_empty_experts=n_empty,
        latent_size=fields.optional_count("moe_latent_size"),
    )


def read_per_layer_inputs(fields: ConfigFields) -> PerLayerInputSpec | None:
    """The additional embedding for each layer of Gemma 4 and 3n; None if there is none."""
    size = fields.optional_count("hidden_size_per_layer_input", minimum=0)
    vocab_size = fields.optional_count("vocab_size_per_layer_input")
    if not size or vocab_size is None:
        return None
    return PerLayerInputSpec(
        size=size,
        vocab_size=vocab_size,
        n_streams=fields.count("altup_num_inputs", 1),
        laurel_rank=fields.optional_count("laurel_rank"),
    )
