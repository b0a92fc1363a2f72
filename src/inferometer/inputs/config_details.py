"""Fields of ``config.json`` that differ between model families or tools.

Of families: which usual fields follow from their own. Of quantised checkpoints: in which format
each matrix is stored, by ``quantization_config``: compressed-tensors and ModelOpt write groups with
targets, AWQ, GPTQ and AutoRound bits, bitsandbytes switches, Quark the name of a type. What a tool
left in 16 bit stands in a list of names, patterns or regular expressions.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Final, NamedTuple, TypeAlias

from inferometer.inputs.foreign_bytes import format_notes, shortened
from inferometer.inputs.types import AskedFormat, DType, ModelSpec

_WEIGHT_WORDS: Final[dict[str, DType]] = {
    "fp4": "float4", "int4": "int4", "w4": "int4", "fp8": "float8", "int8": "int8", "w8": "int8",
}  # fmt: skip
_IGNORING: Final = (
    "ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude",
    "llm_int8_skip_modules",
)  # fmt: skip
"""Where compressed-tensors, transformers, vLLM, ModelOpt, Quark and bitsandbytes list what stays."""


Config: TypeAlias = Mapping[str, object]
Modules: TypeAlias = tuple[tuple[str, ...], ...]
"""The modules of a layer that make one matrix, each with its names in different checkpoints."""

_FUSED: Final = ("self_attn.qkv_proj", "attn.fused_wqa_wkv")
_ATTENTION: Final[dict[str, Modules]] = {
    "query": (("self_attn.q_proj", *_FUSED),),
    "query_down": (("self_attn.q_a_proj", *_FUSED),),
    "query_up": (("self_attn.q_b_proj", "attn.wq_b"),),
    "key_value": (("self_attn.k_proj", *_FUSED), ("self_attn.v_proj", *_FUSED)),
    "key_value_down": (("self_attn.kv_a_proj_with_mqa",),),
    "key_value_up": (("self_attn.kv_b_proj",),),
    "compress_fine": (("self_attn.compressor.kv_proj", "attn.compressor.wkv"),),
    "compress_coarse": (("self_attn.compressor.kv_proj", "attn.compressor.wkv"),),
    "attention_out_grouped": (("self_attn.o_a_proj", "attn.wo_a"),),
    "attention_out": (("self_attn.o_proj", "self_attn.o_b_proj", "attn.wo_b"),),
    "index_query": (("self_attn.indexer.wq_b", "attn.indexer.wq_b"),),
    "index_key": (("self_attn.indexer.wk", "attn.indexer.compressor.wkv"),),
}
_LINEAR: Final[dict[str, Modules]] = {
    "linear_in": (("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv"),),
    "linear_out": (("linear_attn.out_proj",),),
}


def _feed_forward(part: str, inner: str = "", mixtral: tuple[str, ...] = ()) -> dict[str, Modules]:
    """Gate and up in one, and down, in the words of most checkpoints, Llama 4, DeepSeek-V4, Mixtral."""
    inners = inner.split()
    named = {
        name: tuple(f"{owner}.{one}{name}_proj" for owner in _OWNERS for one in inners or [""])
        for name in ("gate", "up", "gate_up", "down")
    }
    w1, w3, w2 = mixtral or ("", "", "")
    fused = named["gate_up"]
    return {
        f"{part}_up": ((*named["gate"], *fused, w1), (*named["up"], *fused, w3)),
        f"{part}_down": ((*named["down"], w2),),
    }


_OWNERS: Final = ("mlp", "feed_forward", "ffn")
_MIXTRAL: Final = tuple(f"block_sparse_moe.experts.0.w{number}" for number in (1, 3, 2))
_DENSE: Final = _feed_forward("mlp")
_EXPERTS: Final = _feed_forward("experts", "experts.0. experts.", _MIXTRAL)
_SHARED: Final = _feed_forward("shared", "shared_experts. shared_expert.")
"""The matrices of ``perfmodel.weights``: modules of a layer, each with its names in checkpoints."""

_PREFIXES: Final = ("model.", "language_model.model.", "model.language_model.")
_CLASS_NAME: Final = re.compile(r"[A-Z]\w*")
_NESTED_REPEAT: Final = re.compile(r"[*+}][^()]*\)+[*+{]")
"""A repetition in a repeated group: to find that it does not match may take for ever."""
_WITHOUT_CONFIG: Final = (
    " without a quantization_config: weights are taken as of 16 bits (--quantization states theirs)"
)
_BY_WIDTH: Final[tuple[AskedFormat, ...]] = ("none", "float8", "int8", "float4", "int4")
_MOST_LETTERS: Final = 1000
_MOST_PATTERNS: Final = 2000
_MOST_LAYERS: Final = 512
"""Of further ones the first are representative."""


class StoredFormats(NamedTuple):
    """The format of most weights (None: not known), of matrices in another, and what to say of it."""

    whole: DType | None
    apart: tuple[tuple[str, AskedFormat], ...] = ()
    notes: tuple[str, ...] = ()


class _Names(NamedTuple):
    """Which modules a list means: by whole parts of their names, or by patterns."""

    parts: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    unread: tuple[str, ...]
    names_layers: bool
    """Whether a name has a digit; without, all layers are alike."""

    def has(self, module: str) -> bool:
        pieces = module.split(".")
        ends = range(1, len(pieces) + 1)
        return any(
            ".".join(pieces[first:end]) in self.parts for end in ends for first in range(end)
        ) or any(one.match(before + module) for one in self.patterns for before in _PREFIXES)


class _Group(NamedTuple):
    format: AskedFormat
    names: _Names
    holds_rest: bool


def quantisation(config: Mapping[str, object]) -> Mapping[str, object] | None:
    """What the file says of its quantisation; vLLM falls back to the older ``compression_config``."""
    found = config.get("quantization_config")
    if found is None:
        found = config.get("compression_config")
    return {str(key): one for key, one in found.items()} if isinstance(found, dict) else None


def stored_formats(config: Mapping[str, object], model: ModelSpec) -> StoredFormats:
    """The formats of a checkpoint's matrices, each by the group whose targets match its name.

    A matrix of many layers counts in the format of most of them, and a note names the others.
    """
    quantised, experts = quantisation(config), config.get("expert_dtype")
    if quantised is None:
        plain = "" if experts is None else f"expert_dtype = {shortened(experts)}{_WITHOUT_CONFIG}"
        return StoredFormats(model.checkpoint_dtype, notes=(plain,) if plain else ())
    whole = quantised_format(quantised)
    notes = format_notes(quantised, is_known=whole is not None)
    if whole is None:
        return StoredFormats(None, notes=notes)
    groups, ignored = _groups(quantised, whole), _names(_ignored(quantised))
    stored = cache(partial(_stored, groups=groups, ignored=ignored))
    names_layers = any(one.names_layers for one in (ignored, *(group.names for group in groups)))
    counted: dict[str, Counter[AskedFormat]] = {
        part: Counter[AskedFormat](map(stored, modules))
        for part, modules in _modules(config, model, names_layers=names_layers).items()
    }
    most: dict[str, AskedFormat] = {part: _most(found) for part, found in counted.items()}
    # The largest matrices stand for the whole.
    order = ("experts_up" if "experts_up" in most else "mlp_up", *most)
    quantised_ones: list[AskedFormat] = [
        most[part] for part in order if most.get(part, "none") != "none"
    ]
    if not quantised_ones:
        unknown = f"targets of quantization_config are not known here: all is counted as {whole}"
        return StoredFormats(whole, notes=(*notes, unknown))
    main = quantised_ones[0]
    stated, unread = _stated_experts(config, model, main)
    apart: dict[str, AskedFormat] = {part: one for part, one in most.items() if one != main}
    apart |= stated
    notes += unread + _deviations(counted, most) + _unread(groups, ignored)
    return StoredFormats(None if main == "none" else main, tuple(sorted(apart.items())), notes)


def _widest(formats: Collection[AskedFormat]) -> AskedFormat:
    """An upper figure, which does not depend on the order."""
    for one in _BY_WIDTH:
        if one in formats:
            return one
    return "none"


def _most(found: Counter[AskedFormat]) -> AskedFormat:
    return _widest({one: count for one, count in found.items() if count == max(found.values())})


def _stored(module: tuple[str, ...], groups: Sequence[_Group], ignored: _Names) -> AskedFormat:
    """Of one module, by its names: those that a group names come before the rest, as in vLLM."""
    if any(ignored.has(name) for name in module):
        return "none"
    named = [one for one in groups if any(one.names.has(name) for name in module)]
    rest = [one for one in groups if one.holds_rest]
    return _widest({one.format: one for one in named or rest})


def _modules(
    config: Mapping[str, object], model: ModelSpec, *, names_layers: bool
) -> dict[str, list[tuple[str, ...]]]:
    """The modules of each matrix of the model, in all layers that have it, each by its names."""
    layers, kinds = range(min(model.n_layers, _MOST_LAYERS)), config.get("layer_types")
    every = model.n_layers // max(model.n_attention_layers, 1)
    attending = [
        index
        for index in layers
        if (
            kinds[index] != "linear_attention"
            if isinstance(kinds, list) and index < len(kinds)
            else (index + 1) % every == 0
        )
    ]
    own = {name: one for name, one in _ATTENTION.items() if name not in _foreign(model)}
    n_dense = len(layers) if model.moe is None else model.moe.n_dense_layers
    has_shared = model.moe is not None and model.moe.n_shared_experts > 0
    recurrent = sorted({*layers} - {*attending}) if model.recurrent is not None else []
    wanted: list[tuple[dict[str, Modules], Sequence[int]]] = [
        (own, attending),
        (_LINEAR, recurrent),
        (_DENSE, layers[:n_dense]),
        (_EXPERTS, layers[n_dense:]),
        (_SHARED, layers[n_dense:] if has_shared else ()),
    ]
    return {
        part: _in_layers(modules, indices if names_layers else [indices[0]] * len(indices))
        for parts, indices in wanted
        for part, modules in parts.items()
        if indices
    }


def _in_layers(modules: Modules, indices: Sequence[int]) -> list[tuple[str, ...]]:
    named = {
        index: [tuple(f"layers.{index}.{name}" for name in names) for names in modules]
        for index in {*indices}
    }
    return [names for index in indices for names in named[index]]


def _foreign(model: ModelSpec) -> set[str]:
    """Matrices that attention of this model's kind does not have."""
    mla, compressed = model.mla, model.compressed
    rank = mla.q_lora_rank if mla is not None else compressed and compressed.q_lora_rank
    foreign = {"query_down", "query_up"} if rank is None else {"query"}
    foreign |= {"key_value_down", "key_value_up"} if mla is None else {"key_value"}
    foreign |= {"index_query", "index_key"} if model.indexer is None else set()
    own = {"compress_fine", "compress_coarse", "attention_out_grouped"}
    return foreign | own if compressed is None else foreign


def _groups(quantised: Mapping[str, object], whole: DType) -> list[_Group]:
    """The groups of compressed-tensors and ModelOpt, GPTQ's exceptions, or one of all matrices."""
    nested, dynamic = _tables(quantised.get("config_groups")), _tables(quantised.get("dynamic"))
    groups = list[_Group]()
    for group in nested.values():
        listed, weights = group.get("targets"), group.get("weights")
        targets = [str(one) for one in listed] if isinstance(listed, list) else []
        classes = [one for one in targets if _CLASS_NAME.fullmatch(one)]
        stored, names = _format_of(weights), _names(one for one in targets if one not in classes)
        if stored is None and isinstance(weights, dict):
            unread = f"weights of {shortened(weights.get('num_bits'))} bits"
            names = names._replace(unread=(*names.unread, unread))
        groups.append(
            _Group(
                format=stored or "none",
                names=names,
                holds_rest=not targets or bool(classes),
            )
        )
    groups = groups or [_Group(whole, _names(()), holds_rest=True)]
    return groups + [
        _Group(
            _of_bits(one.get("bits"), "int") or "none",
            _names([f"re:{name.removeprefix('+:')}"]),
            holds_rest=False,
        )
        for name, one in dynamic.items()
        if not name.startswith("-:") and "bits" in one
    ]


def _tables(found: object) -> dict[str, dict[str, object]]:
    """A table of tables, without anything else that it holds."""
    if not isinstance(found, dict):
        return {}
    return {
        str(name): {str(key): value for key, value in one.items()}
        for name, one in found.items()
        if isinstance(one, dict)
    }


def _ignored(quantised: Mapping[str, object]) -> list[str]:
    listed = [quantised.get(name) for name in _IGNORING]
    names = [str(one) for part in listed if isinstance(part, list) for one in part]
    dynamic = quantised.get("dynamic")  # of GPTQModel: expressions; -: leaves modules out
    left_out = [str(one) for one in dynamic] if isinstance(dynamic, dict) else []
    return names + [f"re:{one[2:]}" for one in left_out if one.startswith("-:")]


def _names(listed: Iterable[str]) -> _Names:
    parts, patterns, unread = set[str](), list[re.Pattern[str]](), list[str]()
    for text in listed:
        is_expression, is_pattern = text.startswith("re:"), "*" in text
        if not (is_expression or is_pattern):
            parts.add(text[max(text.find("layers."), 0) :])
            continue
        usual = f"{fnmatch.translate(text)}|{fnmatch.translate(text + '.*')}"
        pattern = _compiled(text[3:] if is_expression else usual, is_own=not is_expression)
        if pattern is None or len(patterns) >= _MOST_PATTERNS:
            unread.append(text)
        else:
            patterns.append(pattern)
    texts = [*parts, *(one.pattern for one in patterns)]
    has_digit = any(map(str.isdigit, "".join(texts)))
    return _Names(frozenset(parts), tuple(patterns), tuple(unread), has_digit)


def _compiled(text: str, *, is_own: bool) -> re.Pattern[str] | None:
    """None where it is no regular expression, or one that may take for ever."""
    if len(text) > _MOST_LETTERS or not (is_own or _NESTED_REPEAT.search(text) is None):
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None


def _stated_experts(
    config: Mapping[str, object], model: ModelSpec, whole: AskedFormat
) -> tuple[dict[str, AskedFormat], tuple[str, ...]]:
    """DeepSeek-V4 states the format of its routed experts apart, beside that of the whole."""
    stated = config.get("expert_dtype")
    if stated is None or model.moe is None:
        return {}, ()
    found = _in_words(str(stated))
    if found is None:
        return {}, (f"expert_dtype = {shortened(stated)} is not known here: counted as {whole}",)
    return ({} if found == whole else dict.fromkeys(_EXPERTS, found)), ()


def _deviations(
    counted: Mapping[str, Counter[AskedFormat]], most: Mapping[str, AskedFormat]
) -> tuple[str, ...]:
    words: dict[AskedFormat, str] = {"none": "16 bit"}
    return tuple(
        f"{found[one]} of {found.total()} matrices of {part.replace('_', ' ')} are in"
        f" {words.get(one, one)} in the checkpoint: counted as in {words.get(most[part], most[part])}"
        for part, found in counted.items()
        for one in sorted(found)
        if one != most[part]
    )


def _unread(groups: Iterable[_Group], ignored: _Names) -> tuple[str, ...]:
    unread = [text for names in (ignored, *(one.names for one in groups)) for text in names.unread]
    if not unread:
        return ()
    return (f"not read in quantization_config: {shortened(unread)}",)


def quantised_format(config: Mapping[str, object]) -> DType | None:
    """The format of the weights, the widest of several groups; None where it is not known here.

    Example
    -------
    >>> quantised_format({"quant_method": "awq", "bits": 4})
    'int4'
    >>> quantised_format({"quant_method": "modelopt", "quant_algo": "NVFP4"})
    'float4'
    >>> quantised_format({"quant_method": "gptq", "bits": 3}) is None
    True
    """
    method, nested = str(config.get("quant_method")), _tables(config.get("config_groups"))
    if "fp8" in method:
        return "float8"
    formats: list[DType | None] = [_format_of(one.get("weights")) for one in nested.values()]
    if not nested:
        formats.append(_of_bits(config.get("bits"), "int"))
    known: list[AskedFormat] = [one for one in formats if one is not None]
    if (widest := _widest(known)) != "none":
        return widest
    if config.get("load_in_4bit") or config.get("load_in_8bit"):
        return "int4" if config.get("load_in_4bit") else "int8"
    return _in_words(" ".join((method, str(config.get("quant_algo")), _of_quark(config))))


def _format_of(weights: object) -> DType | None:
    """Of a group's weights, as compressed-tensors and ModelOpt write them."""
    if not isinstance(weights, dict):
        return None
    return _of_bits(weights.get("num_bits"), weights.get("type"))


def _of_bits(bits: object, kind: object) -> DType | None:
    if bits not in (4, 8):
        return None
    if kind == "float":
        return "float4" if bits == 4 else "float8"
    return "int4" if bits == 4 else "int8"


def _in_words(words: str) -> DType | None:
    """The weights' format in names such as ModelOpt's `NVFP4` and `W4A8_AWQ` or Quark's `fp8_e4m3`."""
    found = re.search("|".join(_WEIGHT_WORDS), words.lower())
    return None if found is None else _WEIGHT_WORDS[found[0]]


def _of_quark(config: Mapping[str, object]) -> str:
    """Quark's name of the weights' format; '' of other tools."""
    whole = config.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, dict) else None
    return str(weight.get("dtype")) if isinstance(weight, dict) else ""


# Which usual fields follow from a family's own, where its classes or files write them otherwise?

_COMPRESSED_KINDS: Final = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_MOST_LISTED_LAYERS: Final = 10_000
_MINIMAX_KINDS: Final = {"0": "linear_attention", "1": "full_attention"}


def fill_nothing(_config: Config) -> dict[str, object]:
    """Nothing: the family writes the usual fields."""
    return {}


def fill_gpt2(config: Config) -> dict[str, object]:
    """The MLP is four times as wide as the hidden states."""
    width = config.get("n_embd")
    return {"intermediate_size": 4 * width} if isinstance(width, int) else {}


def fill_bigcode(config: Config) -> dict[str, object]:
    """As GPT-2, with one KV head unless the file says otherwise."""
    return fill_gpt2(config) | (
        {"num_key_value_heads": 1} if config.get("multi_query", True) else {}
    )


def fill_mpt(config: Config) -> dict[str, object]:
    """The MLP is a ratio wider than the hidden states."""
    width, ratio = config.get("d_model"), config.get("expansion_ratio", 4)
    return (
        {"intermediate_size": ratio * width}
        if isinstance(width, int) and isinstance(ratio, int)
        else {}
    )


def fill_falcon(config: Config) -> dict[str, object]:
    """Its MLP, its KV heads, its norms and its positions, by the architecture that the file names."""
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


def fill_stablelm(config: Config) -> dict[str, object]:
    """One norm for each layer where attention and MLP are parallel."""
    return {"norms_per_layer": 1 if config.get("use_parallel_residual") else 2}


def fill_opt(config: Config) -> dict[str, object]:
    """The width of the embedding, and whether a norm comes last."""
    has_final = config.get("do_layer_norm_before", True) and not config.get(
        "_remove_final_layer_norm", False
    )
    return {"embedding_size": config.get("word_embed_proj_dim"), "has_final_norm": bool(has_final)}


def fill_llama4(config: Config) -> dict[str, object]:
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


def fill_deepseek_v4(config: Config) -> dict[str, object]:
    """What transformers writes by layer where the published files have a number for each layer."""
    kinds, experts = config.get("layer_types"), config.get("mlp_layer_types")
    filled = dict[str, object]()
    if isinstance(kinds, list) and {*map(str, kinds)} <= _COMPRESSED_KINDS.keys():
        filled["compress_ratios"] = [_COMPRESSED_KINDS[str(kind)] for kind in kinds]
    if isinstance(experts, list):
        filled["num_hash_layers"] = experts.count("hash_moe")
    return filled


def fill_gemma4(config: Config) -> dict[str, object]:
    """The kinds of layers, the heads of full ones, and what stands beside attention and MLP."""
    filled, n_layers = dict[str, object](), config.get("num_hidden_layers", 30)
    if isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS:
        is_full = [not index % 6 or index == n_layers for index in range(1, n_layers + 1)]
        filled["layer_types"] = [
            "full_attention" if one else "sliding_attention" for one in is_full
        ]
    by_layer = config.get("per_layer_config")  # as transformers writes it since version 5
    first = next(iter(by_layer.values()), None) if isinstance(by_layer, dict) else None
    if isinstance(first, dict):
        filled["full_head_dim"] = first.get("head_dim")
        filled["full_key_value_heads"] = first.get("num_key_value_heads")
    has_experts = config.get("enable_moe_block") is True
    if has_experts:  # beside the MLP, which every token passes like a shared expert
        filled["shared_expert_intermediate_size"] = config.get("intermediate_size", 9216)
    has_inputs = bool(config.get("hidden_size_per_layer_input", 256))
    # Three norms more with experts, and a scale of the router's input.
    return filled | {"norms_per_layer": 4 + has_inputs + 4 * has_experts}


def fill_mimo_v2(config: Config) -> dict[str, object]:
    """Which layers slide and have experts; transformers' class knows no fields of sliding heads."""
    n_layers, n_kv_heads = config.get("num_hidden_layers", 48), config.get("num_key_value_heads", 4)
    filled: dict[str, object] = {
        "swa_head_dim": config.get("swa_head_dim") or config.get("head_dim", 192),
        "swa_v_head_dim": config.get("swa_v_head_dim") or config.get("v_head_dim", 128),
        "swa_num_key_value_heads": config.get("swa_num_key_value_heads"),
    }
    if isinstance(n_kv_heads, int) and config.get("swa_num_key_value_heads") is None:
        filled["swa_num_key_value_heads"] = 2 * n_kv_heads
    sliding, sparse = config.get("hybrid_layer_pattern"), config.get("moe_layer_freq")
    if isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS:
        if not isinstance(sliding, list):
            sliding = [index > 0 and (index + 1) % 6 > 0 for index in range(n_layers)]
        if not isinstance(sparse, list):
            sparse = [index > 0 for index in range(n_layers)]
        filled["layer_types"] = [
            "sliding_attention" if one else "full_attention" for one in sliding
        ]
        filled["mlp_layer_types"] = ["sparse" if one else "dense" for one in sparse]
    return filled | {"sliding_window": config.get("sliding_window_size") or 129}


def fill_minimax(config: Config) -> dict[str, object]:
    """Lightning attention in the words of linear attention: a state for each head, of its width.

    The published files list layers as 0 (linear) and 1 (full), transformers' class by their names.
    """
    n_heads, head_dim = config.get("num_attention_heads", 32), config.get("head_dim")
    width, n_layers = config.get("hidden_size", 4096), config.get("num_hidden_layers", 32)
    if head_dim is None and isinstance(width, int) and isinstance(n_heads, int) and n_heads > 0:
        head_dim = width // n_heads
    listed = config.get("attn_type_list")
    kinds: object = None
    if isinstance(listed, list):
        kinds = [_MINIMAX_KINDS.get(str(one), str(one)) for one in listed]
    elif isinstance(n_layers, int) and n_layers <= _MOST_LISTED_LAYERS:
        kinds = [_MINIMAX_KINDS[str((index + 1) % 2)] for index in range(n_layers)]
    return {
        "layer_types": kinds,
        "linear_num_key_heads": n_heads,
        "linear_num_value_heads": n_heads,
        "linear_key_head_dim": head_dim,
        "linear_value_head_dim": head_dim,
        "linear_conv_kernel_dim": 1,
        # vLLM 0.32.0 and transformers 5.23 keep the state in the model's own format.
        "mamba_ssm_dtype": config.get("dtype") or config.get("torch_dtype") or "bfloat16",
    }


def fill_granite_hybrid(config: Config) -> dict[str, object]:
    """Without experts, what is elsewhere the shared expert is the MLP."""
    return {"enable_moe_block": bool(config.get("num_local_experts", 8))}
