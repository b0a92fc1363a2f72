"""Number formats of the matrices of a quantised checkpoint, by its ``quantization_config``.

The tools that quantise write it in different ways. compressed-tensors and ModelOpt list groups of
modules with a format each; AWQ, GPTQ and AutoRound state a number of bits; bitsandbytes has
switches; Quark names a format. Modules that stay in 16 bits are in a list of names, patterns or
regular expressions.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Final, NamedTuple, TypeAlias

from inferometer.inputs.foreign_bytes import format_notes, shortened
from inferometer.inputs.types import DTYPE_BITS, AskedFormat, DType, ModelSpec

_WEIGHT_WORDS: Final[dict[str, DType]] = {
    "fp4": "float4", "int4": "int4", "w4": "int4", "fp8": "float8", "int8": "int8", "w8": "int8",
}  # fmt: skip
_IGNORING: Final = (
    "ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "exclude",
    "llm_int8_skip_modules",
)  # fmt: skip
"""Fields that list the modules left in 16 bits: compressed-tensors, transformers, vLLM, ModelOpt,
Quark, bitsandbytes."""


Config: TypeAlias = Mapping[str, object]
Modules: TypeAlias = tuple[tuple[str, ...], ...]
"""The modules of a layer that together are one matrix, each with its names in checkpoints."""

_FUSED: Final = ("self_attn.qkv_proj", "attn.fused_wqa_wkv")
_ATTENTION: Final[dict[str, Modules]] = {
    "query": (("self_attn.q_proj", "mixer.q_proj", *_FUSED),),
    "query_down": (("self_attn.q_a_proj", *_FUSED),),
    "query_up": (("self_attn.q_b_proj", "attn.wq_b"),),
    "key_value": (
        ("self_attn.k_proj", "mixer.k_proj", *_FUSED),
        ("self_attn.v_proj", "mixer.v_proj", *_FUSED),
    ),
    "key_value_down": (("self_attn.kv_a_proj_with_mqa",),),
    "key_value_up": (("self_attn.kv_b_proj",),),
    "compress_fine": (("self_attn.compressor.kv_proj", "attn.compressor.wkv"),),
    "compress_coarse": (("self_attn.compressor.kv_proj", "attn.compressor.wkv"),),
    "attention_out_grouped": (("self_attn.o_a_proj", "attn.wo_a"),),
    "attention_out": (("self_attn.o_proj", "mixer.o_proj", "self_attn.o_b_proj", "attn.wo_b"),),
    "index_query": (("self_attn.indexer.wq_b", "attn.indexer.wq_b"),),
    "index_key": (("self_attn.indexer.wk", "attn.indexer.compressor.wkv"),),
}
_LINEAR: Final[dict[str, Modules]] = {
    "linear_in": (
        ("linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "mamba.in_proj", "mixer.in_proj",
         "conv.in_proj"),
    ),
    "linear_out": (("linear_attn.out_proj", "mamba.out_proj", "mixer.out_proj", "conv.out_proj"),),
}  # fmt: skip
_LATENT: Final[dict[str, Modules]] = {
    "experts_latent_in": (("mixer.fc1_latent_proj",),),
    "experts_latent_out": (("mixer.fc2_latent_proj",),),
}


_OWNERS: Final = "mlp feed_forward ffn mixer block_sparse_moe"


def _feed_forward(
    part: str, inner: str = "", mixtral: tuple[str, ...] = (), owners: str = _OWNERS
) -> dict[str, Modules]:
    """The modules of an MLP's or an expert's matrices: gate and up as one matrix, and down.

    The names are those of most checkpoints, Llama 4 and DeepSeek-V4; ``mixtral``: Mixtral's names.
    """
    before = [f"{owner}." for owner in owners.split()] or [""]
    named = {
        name: tuple(f"{owner}{one}{name}_proj" for owner in before for one in inner.split() or [""])
        for name in ("gate", "up", "gate_up", "down")
    }
    w1, w3, w2 = mixtral or ("", "", "")
    fused = named["gate_up"]
    return {
        f"{part}_up": ((*named["gate"], *fused, w1), (*named["up"], *fused, w3)),
        f"{part}_down": ((*named["down"], w2),),
    }


_MIXTRAL: Final = tuple(f"block_sparse_moe.experts.0.w{number}" for number in (1, 3, 2))
_EXPERT_NAMES: Final = "experts.0. experts."
_DENSE: Final = _feed_forward("mlp")
_EXPERTS: Final = _feed_forward("experts", _EXPERT_NAMES, _MIXTRAL)
_SHARED: Final = _feed_forward("shared", "shared_experts. shared_expert.")
"""Modules of the matrices of ``perfmodel.matrices``, by the matrix's name (as the dicts above)."""
_OF_ARCHITECTURE: Final[dict[str, dict[str, Modules]]] = {
    # Experts beside the MLP; the MLP, which every token passes, counts as a shared expert.
    "gemma4_text": _feed_forward("experts", _EXPERT_NAMES, owners="") | _feed_forward("shared"),
    "kimi_linear": {
        "linear_in": (("self_attn.q_proj",),),
        "linear_out": (("self_attn.o_proj",),),
    },
    "granitemoehybrid": {
        f"{part}_{end}": ((f"{owner}.{side}_linear",),)
        for part, owner in (
            ("mlp", "shared_mlp"),
            ("shared", "shared_mlp"),
            ("experts", "block_sparse_moe"),
        )
        for end, side in (("up", "input"), ("down", "output"))
    },
}
"""Modules of matrices that have other names in the checkpoints of an architecture."""

_UPS: Final = ("mlp_up", "experts_up", "shared_up")
_PREFIXES: Final = ("model.", "backbone.", "language_model.model.", "model.language_model.")
_CLASS_NAME: Final = re.compile(r"[A-Z]\w*")
_NESTED_REPEAT: Final = re.compile(r"[*+}][^()]*\)+[*+{]")
"""A regular expression with nested repetition, whose matching may take exponential time."""
_WITHOUT_CONFIG: Final = (
    " without a quantization_config: weights are taken as of 16 bits (--quantization states theirs)"
)
_BY_WIDTH: Final[tuple[AskedFormat, ...]] = ("none", "float8", "int8", "float4", "int4")
_GROUP_SIZES: Final = ("group_size", "q_group_size")
_SCALE_BITS: Final[dict[DType, int]] = {"int4": 16, "int8": 16, "float4": 8}
_MOST_LETTERS: Final = 1000
_MOST_PATTERNS: Final = 2000
_MOST_LAYERS: Final = 512
"""More layers are not looked at: the first ones represent them."""


class StoredFormats(NamedTuple):
    """The number formats in which a checkpoint stores its matrices."""

    whole: DType | None
    """Format of most weights; None: not known."""
    apart: tuple[tuple[str, AskedFormat], ...] = ()
    """Matrices in another format, by name."""
    notes: tuple[str, ...] = ()
    """Sentences for the user: what was not understood or simplified."""
    bits: tuple[tuple[DType, float], ...] = ()
    """Bits of a weight in a format, scales included, if the file states how many share a scale."""


class _Names(NamedTuple):
    """A list of modules, given by whole parts of their names or by patterns."""

    parts: frozenset[str]
    patterns: tuple[re.Pattern[str], ...]
    unread: tuple[str, ...]
    names_layers: bool
    """Does any name have a digit? If not, the list treats all layers alike."""

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
    """The file's ``quantization_config``, or (as in vLLM) the older ``compression_config``."""
    found = config.get("quantization_config")
    if found is None:
        found = config.get("compression_config")
    return {str(key): one for key, one in found.items()} if isinstance(found, dict) else None


def stored_formats(
    config: Mapping[str, object], model: ModelSpec, kinds: Sequence[str] | None = None
) -> StoredFormats:
    """The number formats of a checkpoint's matrices, by the groups whose targets match their names.

    If a matrix has different formats in different layers, the most frequent one counts for all of
    them, and a note names the others. ``kinds``: the kind of each layer, if the file lists them.
    """
    quantised, experts = _in_groups(quantisation(config)), config.get("expert_dtype")
    if quantised is None:
        plain = "" if experts is None else f"expert_dtype = {shortened(experts)}{_WITHOUT_CONFIG}"
        return StoredFormats(model.checkpoint_dtype, notes=(plain,) if plain else ())
    experts = quantised.get("moe_quant_algo") or experts
    whole = quantised_format(quantised)
    notes = format_notes(quantised, is_known=whole is not None)
    if whole is None:
        return StoredFormats(None, notes=notes)
    groups, ignored = _groups(quantised, whole), _names(_ignored(quantised))
    stored = cache(partial(_stored, groups=groups, ignored=ignored))
    names_layers = any(one.names_layers for one in (ignored, *(group.names for group in groups)))
    counted: dict[str, Counter[AskedFormat]] = {
        part: Counter[AskedFormat](map(stored, modules))
        for part, modules in _modules(kinds, model, names_layers=names_layers).items()
    }
    most: dict[str, AskedFormat] = {part: _most(found) for part, found in counted.items()}
    # The format of the largest matrices (experts or MLP) counts as that of the whole.
    order = ("experts_up" if "experts_up" in most else "mlp_up", *most)
    quantised_ones: list[AskedFormat] = [
        most[part] for part in order if most.get(part, "none") != "none"
    ]
    if not quantised_ones:
        unknown = f"targets of quantization_config are not known here: all is counted as {whole}"
        return StoredFormats(whole, notes=(*notes, unknown))
    main = quantised_ones[0]
    stated, unread = _stated_experts(experts, model, main)
    apart: dict[str, AskedFormat] = {part: one for part, one in most.items() if one != main}
    apart |= _head(quantised, groups, ignored) | stated
    notes += unread + _deviations(counted, most) + _unread(groups, ignored)
    return StoredFormats(
        whole=None if main == "none" else main,
        apart=tuple(sorted(apart.items())),
        notes=notes,
        bits=_weight_bits(quantised),
    )


def _in_groups(quantised: Config | None) -> Config | None:
    """ModelOpt's list of single layers, rewritten as groups with targets.

    With ``moe_quant_algo`` the experts are in NVFP4 and all else in the format of ``quant_method``,
    as in vLLM: group size and exceptions in such a file are those of the experts.
    """
    if quantised is None:
        return None
    if quantised.get("moe_quant_algo") and "fp8" in str(quantised.get("quant_method")):
        names = ("quant_method", "moe_quant_algo", "group_size", "modules_to_not_convert")
        return {name: quantised[name] for name in names if name in quantised}
    layers = _tables(quantised.get("quantized_layers"))
    if not layers or quantised.get("config_groups"):
        return quantised
    groups = dict[str, dict[str, object]]()
    for name, one in layers.items():
        algorithm = str(one.get("quant_algo"))
        stored = _in_words(algorithm)
        if stored is not None:
            weights = {
                "num_bits": 4 if "4" in stored else 8,
                "type": "float" if "float" in stored else "int",
                "group_size": one.get("group_size"),
            }
            group = groups.setdefault(algorithm, {"weights": weights, "targets": []})
            targets = group["targets"]
            if isinstance(targets, list):
                targets.append(name)
    return {**quantised, "config_groups": groups}


def _head(quantised: Config, groups: Sequence[_Group], ignored: _Names) -> dict[str, AskedFormat]:
    """The format of the output head (``lm_head``), if the file states that it is quantised."""
    named: dict[AskedFormat, None] = {
        one.format: None for one in groups if one.names.has("lm_head") and one.format != "none"
    }
    if not named and quantised.get("lm_head") is True:
        named = {one.format: None for one in groups if one.holds_rest}
    return {"head": _widest(named)} if named and not ignored.has("lm_head") else {}


def _weight_bits(quantised: Config) -> tuple[tuple[DType, float], ...]:
    """Bits of a weight in each format, its share of scale and zero point included.

    Source: a scale has 16 bits, and 8 for 4-bit floats; AWQ and GPTQ store a zero point beside it,
    compressed-tensors does if weights are not symmetric. bitsandbytes: arXiv 2305.14314, section 3.
    """
    found = dict[DType, float]()
    for one in _tables(quantised.get("config_groups")).values():
        weights, stored = one.get("weights"), _format_of(one.get("weights"))
        if isinstance(weights, dict) and stored is not None:
            is_whole = weights.get("strategy") in {"channel", "tensor"}
            size = -1 if is_whole else weights.get("group_size")
            bits = _with_scales(stored, size, has_zeros=weights.get("symmetric") is False)
            if bits is not None:
                found[stored] = max(bits, found.get(stored, 0.0))
    plain = None if quantised.get("config_groups") else quantised_format(quantised)
    words = f"{quantised.get('quant_algo')} {quantised.get('moe_quant_algo')}"
    is_nvfp4 = "NVFP4" in words.upper()
    size = next((quantised[name] for name in _GROUP_SIZES if quantised.get(name) is not None), None)
    if quantised.get("load_in_4bit"):
        found["int4"] = 4.127 if quantised.get("bnb_4bit_use_double_quant") else 4.5
    elif is_nvfp4 and not found:
        found["float4"] = _with_scales("float4", size or 16, has_zeros=False) or 4.5
    elif plain is not None and (bits := _with_scales(plain, size, has_zeros=True)) is not None:
        found[plain] = bits
    return tuple(sorted(found.items()))


def _with_scales(stored: DType, group_size: object, *, has_zeros: bool) -> float | None:
    """Bits of a weight with its share of the scale (and zero point) of its group.

    A negative ``group_size``: one scale for a whole row, not counted. None if the file states no
    group size, or the format has no scales of groups.
    """
    if stored not in _SCALE_BITS or not isinstance(group_size, int) or group_size == 0:
        return None
    bits = DTYPE_BITS[stored]
    shared = _SCALE_BITS[stored] + (bits if has_zeros and stored != "float4" else 0)
    return float(bits) if group_size < 0 else bits + shared / group_size


def _widest(formats: Collection[AskedFormat]) -> AskedFormat:
    """The format with most bits, so that bytes are not underestimated; "none": 16 bits."""
    for one in _BY_WIDTH:
        if one in formats:
            return one
    return "none"


def _most(found: Counter[AskedFormat]) -> AskedFormat:
    """The most frequent format; of equally frequent ones that with most bits."""
    return _widest({one: count for one, count in found.items() if count == max(found.values())})


def _stored(module: tuple[str, ...], groups: Sequence[_Group], ignored: _Names) -> AskedFormat:
    """The format of one module, given by its possible names.

    As in vLLM, a group that names the module comes before groups of all remaining modules.
    """
    if any(ignored.has(name) for name in module):
        return "none"
    named = [one for one in groups if any(one.names.has(name) for name in module)]
    rest = [one for one in groups if one.holds_rest]
    return _widest({one.format: one for one in named or rest})


def _modules(
    kinds: Sequence[str] | None, model: ModelSpec, *, names_layers: bool
) -> dict[str, list[tuple[str, ...]]]:
    """The modules of each of the model's matrices in all layers, by their possible names."""
    own = {name: one for name, one in _ATTENTION.items() if name not in _foreign(model)}
    indices = _layers_with(kinds, model)
    has_shared = model.moe is not None and model.moe.n_shared_experts > 0
    has_latent = model.moe is not None and model.moe.latent_size is not None
    wanted: list[tuple[dict[str, Modules], Sequence[int]]] = [
        (own, indices.attending),
        (_LINEAR, indices.recurrent),
        (_DENSE, indices.dense),
        (_EXPERTS, indices.expert),
        (_SHARED, indices.expert if has_shared else ()),
        (_LATENT, indices.expert if has_latent else ()),
    ]
    other = _OF_ARCHITECTURE.get(model.architecture, {})
    n_up = 0 if model.mlp.is_gated else 1  # without a gate there is only the second module (up)
    return {
        part: _in_layers(
            other.get(part, modules)[n_up * (part in _UPS) :],
            layers if names_layers else [layers[0]] * len(layers),
        )
        for parts, layers in wanted
        for part, modules in parts.items()
        if layers
    }


class _Layers(NamedTuple):
    """Indices of the layers with attention, recurrent states, a dense MLP, and experts."""

    attending: Sequence[int]
    recurrent: Sequence[int]
    dense: Sequence[int]
    expert: Sequence[int]


def _layers_with(kinds: Sequence[str] | None, model: ModelSpec) -> _Layers:
    """Which layers have which matrices: by ``kinds`` if listed, else by the model's counts."""
    layers = range(min(model.n_layers, _MOST_LAYERS))
    n_dense = model.n_feed_forward_layers - model.n_expert_layers
    if model.blocks is not None and kinds is not None:
        named = [
            [index for index in layers if kinds[index] == kind]
            for kind in ("full_attention", "linear_attention", "mlp", "moe")
        ]
        return _Layers(*named)
    every = model.n_layers // max(model.n_attention_layers, 1)
    attending: Sequence[int] = [
        index
        for index in layers
        if (
            kinds[index] != "linear_attention"
            if kinds is not None and index < len(kinds)
            else (index + 1) % every == 0
        )
    ]
    recurrent: Sequence[int] = sorted({*layers} - {*attending})
    if model.blocks is not None:
        attending = recurrent = layers
    return _Layers(
        attending,
        recurrent if model.recurrent is not None else [],
        layers[:n_dense],
        layers[n_dense:],
    )


def _in_layers(modules: Modules, indices: Sequence[int]) -> list[tuple[str, ...]]:
    named = {
        index: [tuple(f"layers.{index}.{name}" for name in names) for names in modules]
        for index in {*indices}
    }
    return [names for index in indices for names in named[index]]


def _foreign(model: ModelSpec) -> set[str]:
    """Names of attention matrices that this model does not have."""
    mla, compressed = model.mla, model.compressed
    rank = mla.q_lora_rank if mla is not None else compressed and compressed.q_lora_rank
    foreign = {"query_down", "query_up"} if rank is None else {"query"}
    foreign |= {"key_value_down", "key_value_up"} if mla is None else {"key_value"}
    foreign |= {"index_query", "index_key"} if model.indexer is None else set()
    own = {"compress_fine", "compress_coarse", "attention_out_grouped"}
    return foreign | own if compressed is None else foreign


def _groups(quantised: Mapping[str, object], whole: DType) -> list[_Group]:
    """Groups of modules with a common format: the file's own, else one group of all modules.

    GPTQModel's exceptions (``dynamic``) are further groups.
    """
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
    """The values of a dict that are dicts themselves, by key; empty for anything but a dict."""
    if not isinstance(found, dict):
        return {}
    return {
        str(name): {str(key): value for key, value in one.items()}
        for name, one in found.items()
        if isinstance(one, dict)
    }


def _ignored(quantised: Mapping[str, object]) -> list[str]:
    """Names and expressions ("re:...") of the modules that are left in 16 bits."""
    listed = [quantised.get(name) for name in _IGNORING]
    names = [str(one) for part in listed if isinstance(part, list) for one in part]
    dynamic = quantised.get("dynamic")  # GPTQModel: regular expressions; "-:" leaves modules out
    left_out = [str(one) for one in dynamic] if isinstance(dynamic, dict) else []
    return names + [f"re:{one[2:]}" for one in left_out if one.startswith("-:")]


def _names(listed: Iterable[str]) -> _Names:
    """Parse a list of modules: names, patterns with "*", and regular expressions ("re:...")."""
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
    """The compiled regular expression; None if it is invalid or may take exponential time.

    ``is_own``: it was made here from a pattern, and is safe.
    """
    if len(text) > _MOST_LETTERS or not (is_own or _NESTED_REPEAT.search(text) is None):
        return None
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError):
        return None


def _stated_experts(
    stated: object, model: ModelSpec, whole: AskedFormat
) -> tuple[dict[str, AskedFormat], tuple[str, ...]]:
    """The format of the experts by ``expert_dtype`` (DeepSeek-V4), if it differs; and notes."""
    if stated is None or model.moe is None:
        return {}, ()
    found = _in_words(str(stated))
    if found is None:
        return {}, (f"expert_dtype = {shortened(stated)} is not known here: counted as {whole}",)
    return ({} if found == whole else dict.fromkeys(_EXPERTS, found)), ()


def _deviations(
    counted: Mapping[str, Counter[AskedFormat]], most: Mapping[str, AskedFormat]
) -> tuple[str, ...]:
    """Notes on matrices whose format in some layers is not the most frequent one."""
    words: dict[AskedFormat, str] = {"none": "16 bit"}
    return tuple(
        f"{found[one]} of {found.total()} matrices of {part.replace('_', ' ')} are in"
        f" {words.get(one, one)} in the checkpoint: counted as in {words.get(most[part], most[part])}"
        for part, found in counted.items()
        for one in sorted(found)
        if one != most[part]
    )


def _unread(groups: Iterable[_Group], ignored: _Names) -> tuple[str, ...]:
    """A note on patterns and formats in the file that were not understood, if there are any."""
    unread = [text for names in (ignored, *(one.names for one in groups)) for text in names.unread]
    if not unread:
        return ()
    return (f"not read in quantization_config: {shortened(unread)}",)


def quantised_format(config: Mapping[str, object]) -> DType | None:
    """The format of the weights, the one with most bits of several groups; None: not known.

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
    """The format of a group's ``weights``, as compressed-tensors and ModelOpt write them."""
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
    plain = words.lower()  # in the order of _WEIGHT_WORDS, so that W4A16_NVFP4 is float4, not int4
    return next((stored for word, stored in _WEIGHT_WORDS.items() if word in plain), None)


def _of_quark(config: Mapping[str, object]) -> str:
    """Quark's name of the weights' format; '' for other tools."""
    whole = config.get("global_quant_config")
    weight = whole.get("weight") if isinstance(whole, dict) else None
    return str(weight.get("dtype")) if isinstance(weight, dict) else ""
