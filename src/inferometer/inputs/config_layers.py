"""Of which kind is each layer that a ``config.json`` describes: sliding, linear, dense, shared?"""

from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.config_families import Family
from inferometer.inputs.foreign_bytes import ConfigFields, shortened
from inferometer.inputs.types import DType, KvSharing, RecurrentSpec

PLAIN_DTYPES: Final[dict[str, DType]] = {
    "float32": "float32", "float16": "float16", "bfloat16": "bfloat16"
}  # fmt: skip
LAYER_KINDS: Final = frozenset(
    ("full_attention", "sliding_attention", "chunked_attention", "indexed_attention")
)
"""What ``layer_types`` of an unknown ``model_type`` may say, and ``linear_attention``."""


def window_of_layers(
    fields: ConfigFields, family: Family
) -> tuple[int | None, int | None, int | None]:
    """The window, every how many layers are full, and how many are where there is no such pattern."""
    window_tokens = fields.optional_count("sliding_window", minimum=0) or None  # 0: turned off
    n_layers = fields.count("num_hidden_layers")
    is_off = family.window == "switch" and not fields.flag("use_sliding_window", default=False)
    if family.window == "none" or window_tokens is None or is_off:
        return None, 1, None
    kinds = fields.texts("layer_types")
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


def shared_layers(fields: ConfigFields) -> KvSharing | None:
    """The last layers, where they read the keys and values of earlier ones."""
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


def recurrent_layers(fields: ConfigFields, family: Family) -> RecurrentSpec | None:
    """The layers of linear attention, where ``linear_num_value_heads`` is stated."""
    n_value_heads = fields.optional_count("linear_num_value_heads")
    if n_value_heads is None:
        return None
    n_layers, types = fields.count("num_hidden_layers"), fields.texts("layer_types")
    allowed = LAYER_KINDS | {"linear_attention"}
    if types is not None and (len(types) != n_layers or not set(types) <= allowed):
        listed = "attn_type_list" if fields.value("attn_type_list") is not None else "layer_types"
        found = shortened(sorted(set(types)))
        raise SpecError(
            f"{listed} has {len(types)} entries of {found} for {n_layers} layers",
            where=fields.where,
            allowed="for each layer one of full and linear attention",
        )
    n_linear = (
        n_layers - n_layers // fields.count("full_attention_interval")
        if types is None
        else types.count("linear_attention")
    )
    if n_linear == 0:
        return None
    return RecurrentSpec(
        n_layers=n_linear,
        n_key_heads=fields.count("linear_num_key_heads"),
        n_value_heads=n_value_heads,
        key_head_dim=fields.count("linear_key_head_dim"),
        value_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
        # Where the file does not say it, vLLM 0.32.0 keeps it in the model's own format.
        state_dtype=PLAIN_DTYPES.get(fields.text("mamba_ssm_dtype") or "bfloat16", "bfloat16"),
        has_decay_gates=family.has_decay_gates,
    )


def n_dense_layers(fields: ConfigFields) -> int:
    """Layers without experts of a model that has some."""
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
