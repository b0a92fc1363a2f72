"""In which layers does a model differ from its others, as its ``config.json`` lists it?

Three ways of writing are read: ``block_configs`` (Nemotron's pruned models), ``per_layer_config``
(transformers since 5), and counts that are lists with a number for each layer.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.family import MOST_LISTED_LAYERS, Config
from inferometer.inputs.foreign_bytes import ConfigFields, shortened
from inferometer.inputs.model_parts import BlockCounts
from inferometer.inputs.types import LayerGroup, ModelSpec

_LISTED: Final = (
    "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "moe_intermediate_size", "num_experts_per_tok",
)  # fmt: skip
"""Counts that a file may list for each layer."""
_BY_INDEX: Final = (
    "block_configs", "per_layer_config", "mtp_block_configs", "first_k_dense_replace",
    "mlp_only_layers", "moe_layers_enum", "moe_layer_freq", "decoder_sparse_step",
)  # fmt: skip
"""Fields that count layers from the first one, and so are no fields of a group of layers."""
_BLOCK_KINDS: Final = "layers_block_type"
"""Nemotron-H's list of the kinds of its layers. Each layer is a single block."""
_UNIT: Final = 256
"""Widths of Nemotron's pruned MLPs are multiples of it (vLLM 0.32.0, ``nemotron_nas.py``)."""
_SKIPPED: Final = {"attention": "has_attention", "self_attn": "has_attention", "mlp": "has_mlp"}
"""Parts that a layer of ``per_layer_config`` may skip."""
_NO_LAYER: Final = {"has_attention": False, "has_mlp": False}


def differing_layers(fields: ConfigFields) -> list[dict[str, object]]:
    """For each layer the fields in which it differs from the others; an empty list: in none.

    Raises
    ------
    SpecError
        A list has another length than the model has layers, or an entry has another form.
    """
    blocks, apart = fields.value("block_configs"), fields.value("per_layer_config")
    n_layers = fields.optional_count("num_hidden_layers") or 0
    if isinstance(blocks, list) and blocks:
        if len(blocks) > MOST_LISTED_LAYERS or n_layers not in {0, len(blocks)}:
            raise SpecError(
                f"block_configs has {len(blocks)} entries for {n_layers} layers",
                where=fields.where,
                allowed="one for each layer",
            )
        return [_of_block(one, fields) for one in blocks]
    # Of these families the heads of full layers are read from fields of their own.
    has_own_heads = fields.value("full_head_dim") is not None
    if isinstance(apart, dict) and apart and not has_own_heads and n_layers <= MOST_LISTED_LAYERS:
        return [_of_layer(_own_fields(apart.get(str(n))), fields) for n in range(n_layers)]
    lists = {fields.own_name(name): fields.value(name) for name in _LISTED}
    differing = {
        name: one
        for name, one in lists.items()
        if isinstance(one, list) and 0 < len(one) == n_layers > one.count(one[0])
    }
    return [
        {name: one[index] for name, one in differing.items()}
        for index in range(n_layers if differing else 0)
    ]


def read_groups(
    layers: list[dict[str, object]], fields: ConfigFields, read: Callable[[Config], ModelSpec]
) -> ModelSpec:
    """The model whose layers differ so: each group of equal ones is read as a model of its own.

    Lists with an entry for each layer are cut to those of the group.
    """
    kinds = _feeding_kinds(fields, len(layers))
    whole: dict[str, object] = {
        name: one for name, one in fields.config.items() if name not in _BY_INDEX
    } | ({"mlp_layer_types": kinds} if kinds else {})
    members: dict[str, list[int]] = {}
    for index, one in enumerate(layers):
        members.setdefault(repr(sorted(one.items())), []).append(index)
    groups = list[LayerGroup]()
    for indices in members.values():
        own = dict(layers[indices[0]])
        attends, feeds = (own.pop(name, True) is True for name in _NO_LAYER)
        if not attends and not feeds:
            continue
        config: dict[str, object] = {
            name: [one[index] for index in indices]
            if isinstance(one, list) and len(one) == len(layers)
            else one
            for name, one in whole.items()
        }
        config |= {fields.own_name("num_hidden_layers"): len(indices)} | own
        if (kind := own.get(_BLOCK_KINDS)) is not None:
            config[_BLOCK_KINDS] = [kind] * len(indices)
        groups.append(_group(read(config), attends=attends, feeds=feeds))
    if not groups:
        raise _not_understood(layers[0], fields)
    own = {name: one for layer in reversed(layers) for name, one in layer.items()}
    if _BLOCK_KINDS in own:
        own[_BLOCK_KINDS] = [one.get(_BLOCK_KINDS) for one in layers]
    return _with_groups(read(whole | own), tuple(groups))


def _feeding_kinds(fields: ConfigFields, n_layers: int) -> list[str] | None:
    """Which layers have experts, as a list that can be cut; None: no field says so."""
    kinds = fields.value("mlp_layer_types")
    if isinstance(kinds, list) and len(kinds) == n_layers:
        return [str(one) for one in kinds]
    n_first = fields.optional_count("first_k_dense_replace", minimum=0)
    if n_first is None:
        return None
    return ["dense" if index < n_first else "sparse" for index in range(n_layers)]


def _with_groups(model: ModelSpec, groups: tuple[LayerGroup, ...]) -> ModelSpec:
    """The model with these groups; its own shape is that of the largest layers."""
    attending = [one for one in groups if one.blocks.n_attention] or list(groups)
    feeding = [one for one in groups if one.blocks.n_feed_forward] or list(groups)
    sparse = [one for one in groups if one.moe is not None]
    n_feed_forward = sum(one.blocks.n_feed_forward for one in groups)
    moe = max(
        (one.moe for one in sparse if one.moe is not None),
        key=lambda one: one.intermediate_size * one.n_experts_per_token,
        default=None,
    )
    if moe is not None:
        n_expert = sum(
            one.blocks.n_feed_forward - one.moe.n_dense_layers for one in sparse if one.moe
        )
        moe = replace(moe, n_dense_layers=n_feed_forward - n_expert)
    return replace(
        model,
        groups=groups,
        attention=max(attending, key=lambda one: one.blocks.n_attention).attention,
        mlp=max(feeding, key=lambda one: one.mlp.intermediate_size).mlp,
        moe=moe,
        blocks=BlockCounts(
            n_attention=sum(one.blocks.n_attention for one in groups), n_feed_forward=n_feed_forward
        ),
    )


def _group(model: ModelSpec, *, attends: bool, feeds: bool) -> LayerGroup:
    n_norms = model.norms_per_layer * (attends + feeds) // 2
    return LayerGroup(
        n_layers=model.n_layers,
        attention=model.attention,
        mlp=model.mlp,
        moe=model.moe if feeds else None,
        recurrent=model.recurrent if attends else None,
        blocks=BlockCounts(
            n_attention=model.n_attention_layers * attends,
            n_feed_forward=model.n_feed_forward_layers * feeds,
        ),
        norms_per_layer=n_norms,
    )


def _own_fields(entry: object) -> dict[str, object]:
    return {str(name): one for name, one in entry.items()} if isinstance(entry, dict) else {}


def _of_layer(own: dict[str, object], fields: ConfigFields) -> dict[str, object]:
    """An entry of ``per_layer_config``, with what its ``skip`` leaves out."""
    skipped = own.pop("skip", None) or []
    names = [str(one) for one in skipped] if isinstance(skipped, list) else [str(skipped)]
    if not {*names} <= _SKIPPED.keys():
        raise SpecError(
            f"per_layer_config has a layer with skip = {shortened(skipped)}",
            where=fields.where,
            allowed=f"a list of {', '.join(_SKIPPED)}",
        )
    return own | {_SKIPPED[name]: False for name in names}


def _of_block(block: object, fields: ConfigFields) -> dict[str, object]:
    """The usual fields of an entry of ``block_configs``: a pruned Llama's, or Nemotron-H's."""
    own = _own_fields(block)
    if "attention" not in own or "ffn" not in own:
        kind = own.pop("block_type", None)
        if not isinstance(kind, str):
            raise _not_understood(block, fields)
        return own | {_BLOCK_KINDS: kind}
    attention, mlp = _own_fields(own["attention"]), _own_fields(own["ffn"])
    if any(one.get("replace_with_linear") or one.get("sparsify") for one in (attention, mlp)):
        raise _not_understood(block, fields)
    found = dict(_NO_LAYER)
    result: dict[str, object] = {}
    if not attention.get("no_op"):
        n_heads, n_sharing = fields.count("num_attention_heads"), attention.get("n_heads_in_group")
        if not isinstance(n_sharing, int) or n_sharing < 1 or n_heads % n_sharing:
            raise _not_understood(block, fields)
        found["has_attention"] = True
        result["num_key_value_heads"] = n_heads // n_sharing
        result["sliding_window"] = attention.get("window_length")
    if not mlp.get("no_op"):
        found["has_mlp"] = True
        result["intermediate_size"] = _width_of(mlp, fields, block)
    return result | found


def _width_of(mlp: Mapping[str, object], fields: ConfigFields, block: object) -> int:
    """The width of a pruned MLP: stated, or two thirds of a multiple of the model's."""
    size, ratio = mlp.get("intermediate_size"), mlp.get("ffn_mult")
    if isinstance(ratio, int | float) and 0 < ratio < MOST_LISTED_LAYERS:
        size = -(-int(2 * ratio * fields.count("hidden_size") / 3) // _UNIT) * _UNIT
    if not isinstance(size, int) or size < 1:
        raise _not_understood(block, fields)
    return size


def _not_understood(block: object, fields: ConfigFields) -> SpecError:
    return SpecError(
        f"block_configs has an entry {shortened(block)}",
        where=fields.where,
        allowed="attention and ffn (n_heads_in_group, ffn_mult or intermediate_size, no_op), or the"
        " fields in which a layer differs",
        try_="measure a server that runs it, which needs no file of the model",
    )
