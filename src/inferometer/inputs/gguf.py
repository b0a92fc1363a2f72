"""Reader of models in GGUF files.

The file's metadata are converted to the fields of a Hugging Face configuration, which is then read
like any other.
"""

import hashlib
import math
import mmap
import struct
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.errors import SpecError
from inferometer.inputs.config_families import FAMILIES
from inferometer.inputs.family import Flag
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.model_config import model_from_config
from inferometer.inputs.types import DType, ModelSpec, Source

# The header of a GGUF file: its metadata, and the names, shapes and formats of its tensors.
# Read without the ``gguf`` package, which needs a network library; no weight is read.
# Source: the GGUF specification, version 3 (ggml, docs/gguf.md).


_DOOR: Final = Door(noun="GGUF file", allowed="a whole GGUF file", try_="download it again")
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_SCALARS: Final = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING: Final = 8
_ARRAY: Final = 9
_MAX_KEPT_ITEMS: Final = 1024
"""Longer arrays (vocabularies) are skipped."""
_MOST_DEPTH: Final = 8
_MOST_DIMS: Final = 8
"""ggml has 4."""


class GgufFormat(NamedTuple):
    """A tensor format: name, weights per block, bytes per block (scales included)."""

    name: str
    block_weights: int
    block_bytes: int


GGUF_FORMATS: Final = {
    0: GgufFormat("F32", 1, 4),
    1: GgufFormat("F16", 1, 2),
    2: GgufFormat("Q4_0", 32, 18),
    3: GgufFormat("Q4_1", 32, 20),
    6: GgufFormat("Q5_0", 32, 22),
    7: GgufFormat("Q5_1", 32, 24),
    8: GgufFormat("Q8_0", 32, 34),
    10: GgufFormat("Q2_K", 256, 84),
    11: GgufFormat("Q3_K", 256, 110),
    12: GgufFormat("Q4_K", 256, 144),
    13: GgufFormat("Q5_K", 256, 176),
    14: GgufFormat("Q6_K", 256, 210),
    15: GgufFormat("Q8_K", 256, 292),
    30: GgufFormat("BF16", 1, 2),
    39: GgufFormat("MXFP4", 32, 17),
}
"""The tensor formats of ggml (ggml.h, ggml_type; ggml-common.h, block_*)."""
_BY_NAME: Final = {known.name: known for known in GGUF_FORMATS.values()}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One tensor: its name, its shape in GGUF's order (rows last) and its format."""

    name: str
    shape: tuple[int, ...]
    format: str

    @property
    def n_elements(self) -> int:
        """The number of weights in it."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int | None:
        """Bytes of the weights; None for an unknown format."""
        known = _BY_NAME.get(self.format)
        return None if known is None else self.n_elements // known.block_weights * known.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """The head of a file. ``metadata`` holds numbers, texts, flags and short lists."""

    metadata: dict[str, object]
    tensors: tuple[GgufTensor, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """The metadata and the tensor list of a GGUF file.

    Raises
    ------
    SpecError
        The file cannot be read, is not a GGUF file, or is truncated.
    """
    with _DOOR.mapped(path) as content:
        return _header(_Cursor(content), path)


class _Cursor:
    """A position in the file that advances while reading."""

    __slots__ = ("content", "offset")

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.offset = 0

    def scalar(self, kind: int) -> int | float | bool:
        layout = _SCALARS[kind]
        value: int | float | bool = struct.unpack_from(layout, self.content, self.offset)[0]
        self.offset += struct.calcsize(layout)
        return value

    def count(self) -> int:
        """An unsigned 64-bit number that cannot be larger than the file."""
        value = int(self.scalar(10))
        if value > len(self.content):
            raise ValueError(f"it claims {value} items or bytes, more than it has")
        return value

    def text(self) -> str:
        n_bytes = self.count()
        start, self.offset = self.offset, self.offset + n_bytes
        if self.offset > len(self.content):
            raise ValueError("it ends within a text")
        return self.content[start : self.offset].decode("utf-8")

    def skip_text(self) -> None:
        n_bytes = self.count()
        self.offset += n_bytes

    def value(self, kind: int, depth: int = 0) -> object:
        if kind == _STRING:
            return self.text()
        return self.array(depth + 1) if kind == _ARRAY else self.scalar(kind)

    def array(self, depth: int) -> object:
        if depth > _MOST_DEPTH:
            raise ValueError(f"arrays are nested more than {_MOST_DEPTH} deep")
        kind, n_items = int(self.scalar(4)), self.count()
        if n_items <= _MAX_KEPT_ITEMS or kind == _ARRAY:
            items = [self.value(kind, depth) for _ in range(n_items)]
            return items if n_items <= _MAX_KEPT_ITEMS else None
        if kind == _STRING:
            for _ in range(n_items):
                self.skip_text()
        else:
            self.offset += n_items * struct.calcsize(_SCALARS[kind])
        return None


def _header(cursor: _Cursor, path: Path) -> GgufHeader:
    if cursor.content[:4] != _MAGIC:
        raise SpecError(
            f"{path.name} is no GGUF file",
            where=str(path),
            allowed="a file that begins with the bytes GGUF",
            try_="download it again: a page of an error or a pointer of Git LFS is short",
        )
    cursor.offset = 4
    version = int(cursor.scalar(4))
    if version not in _VERSIONS:
        raise SpecError(
            f"{path.name} is GGUF version {version}",
            where=str(path),
            allowed="version 2 or 3, little-endian",
            try_="a newer file of the model, or one converted anew by llama.cpp",
        )
    n_tensors, n_values = cursor.count(), cursor.count()
    metadata: dict[str, object] = {}
    for _ in range(n_values):
        name, kind = cursor.text(), int(cursor.scalar(4))
        value = cursor.value(kind)
        if value is not None:
            metadata[name] = value
    return GgufHeader(metadata=metadata, tensors=tuple(_tensor(cursor) for _ in range(n_tensors)))


def _tensor(cursor: _Cursor) -> GgufTensor:
    name, n_dims = cursor.text(), int(cursor.scalar(4))
    if n_dims > _MOST_DIMS:
        raise ValueError(f"tensor {name[:60]!r} has {n_dims} dimensions, more than {_MOST_DIMS}")
    shape = tuple(int(cursor.scalar(10)) for _ in range(n_dims))
    code = int(cursor.scalar(4))
    cursor.scalar(10)  # offset of its data
    return GgufTensor(
        name=name,
        shape=shape,
        format=GGUF_FORMATS[code].name if code in GGUF_FORMATS else f"type {code}",
    )


_MODEL_TYPES: Final = {
    "command-r": "cohere",
    "cohere2": "cohere2",
    "deepseek2": "deepseek_v3",
    "falcon": "falcon",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "gpt-oss": "gpt_oss",
    "gpt2": "gpt2",
    "gptj": "gptj",
    "gptneox": "gpt_neox",
    "granite": "granite",
    "llama": "llama",
    "mpt": "mpt",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmoe": "olmoe",
    "phi2": "phi",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "smollm3": "smollm3",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
}
"""Architectures of llama.cpp (llama-arch.cpp) and the model types of Hugging Face with the same
shape."""

_FIELDS: Final = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
}
_STORED: Final[dict[str, DType]] = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "Q8_0": "int8",
    "Q4_0": "int4",
    "Q4_1": "int4",
    "Q4_K": "int4",
    "MXFP4": "float4",
}


def read_gguf_model(path: Path) -> ModelSpec:
    """The model in a GGUF file; its ``checkpoint_dtype`` is the format of most of its weights.

    Raises
    ------
    SpecError
        The file is damaged, or its architecture is unknown.
    """
    header = read_gguf_header(path)
    config = _config(header, where=str(path))
    model = model_from_config(config, where=str(path), model_id=path.stem)
    return replace(model, source=Source(kind="config", where=path.name))


def _config(header: GgufHeader, *, where: str) -> dict[str, object]:
    architecture = header.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _MODEL_TYPES:
        raise SpecError(
            f"general.architecture = {architecture!r}",
            where=where,
            allowed=f"one of {', '.join(_MODEL_TYPES)}",
            try_="the model's own folder",
        )
    said = {
        field: _single(header.metadata.get(f"{architecture}.{name}"))
        for field, name in _FIELDS.items()
    }
    n_experts = _single(header.metadata.get(f"{architecture}.expert_count"))
    model_type = _MODEL_TYPES[architecture]
    if model_type == "llama" and n_experts:
        model_type = "mixtral"
    family = FAMILIES[model_type]
    names = {tensor.name for tensor in header.tensors}
    config = {
        family.names.get(field, field): value for field, value in said.items() if value is not None
    }
    config |= {
        "model_type": model_type,
        "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": _n_tokens(header, where=where),
    }
    if family.experts is not None and n_experts:
        config[family.experts] = n_experts
    if family.has_latent_attention:
        config |= _latent_dims(header, architecture, config)
    if family.window == "switch":
        config["use_sliding_window"] = False
    for what, tensor in (
        (family.mlp_bias, "ffn_up.bias"),
        (family.out_bias, "attn_output.bias"),
        (family.qkv_bias, "attn_q.bias"),
    ):
        if isinstance(what, Flag):
            config[what.name] = f"blk.0.{tensor}" in names or (
                tensor == "attn_q.bias" and "blk.0.attn_qkv.bias" in names
            )
    if isinstance(family.qk_norm, Flag):
        config[family.qk_norm.name] = "blk.0.attn_q_norm.weight" in names
    return config | _stored_format(header)


def _single(value: object) -> object:
    """A per-layer list whose values all agree, as one number."""
    if isinstance(value, list):
        distinct = {item for item in value if isinstance(item, int)}
        return distinct.pop() if len(distinct) == 1 else None
    return value


def _n_tokens(header: GgufHeader, *, where: str) -> int:
    shape = next(
        (tensor.shape for tensor in header.tensors if tensor.name == "token_embd.weight"), None
    )
    if shape is None or len(shape) != 2:
        raise SpecError(
            "tensor 'token_embd.weight' is missing",
            where=where,
            allowed="a GGUF file with the whole model",
            try_="its first part",
        )
    return shape[1]


def _latent_dims(
    header: GgufHeader, architecture: str, config: dict[str, object]
) -> dict[str, object]:
    def number(name: str) -> object:
        metadata = header.metadata
        return metadata.get(
            f"{architecture}.attention.{name}_mla", metadata.get(f"{architecture}.attention.{name}")
        )

    query = number("key_length")
    value = number("value_length")
    rotary = config.get("qk_rope_head_dim")
    if not (isinstance(query, int) and isinstance(rotary, int)):
        return {}
    return {"qk_nope_head_dim": query - rotary, "v_head_dim": value}


def _stored_format(header: GgufHeader) -> dict[str, object]:
    weights: Counter[str] = Counter()
    for tensor in header.tensors:
        if tensor.name.startswith("blk."):
            weights[tensor.format] += tensor.n_elements
    main = weights.most_common(1)[0][0] if weights else ""
    dtype = _STORED.get(main)
    if dtype in {"int4", "int8"}:
        return {
            "quantization_config": {"quant_method": "gguf", "bits": 4 if dtype == "int4" else 8}
        }
    if dtype == "float4":
        return {"quantization_config": {"quant_method": "mxfp4"}}
    return {} if dtype is None else {"dtype": dtype}


# The contents of a GGUF file: totals over its tensors, and its digest.


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufContent:
    """Totals over the tensors of a file."""

    n_parameters: int
    weight_bytes: int | None
    """Bytes with scales and zero points; None if a tensor's format is unknown."""
    formats: tuple[tuple[str, int], ...]
    """(format, parameters stored in it), most first."""


def read_gguf(path: Path) -> GgufContent:
    """Read the tensors and metadata of this file.

    Raises
    ------
    SpecError
        The file is no GGUF file of a known version.
    """
    parameters, weight_bytes = Counter[str](), list[int | None]()
    for tensor in read_gguf_header(path).tensors:
        parameters[tensor.format] += tensor.n_elements
        weight_bytes.append(tensor.n_bytes)
    known = [n_bytes for n_bytes in weight_bytes if n_bytes is not None]
    return GgufContent(
        n_parameters=parameters.total(),
        weight_bytes=sum(known) if len(known) == len(weight_bytes) else None,
        formats=tuple(parameters.most_common()),
    )


def hash_file(path: Path) -> str:
    """The SHA-256 of a file's content.

    Raises
    ------
    SpecError
        The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise SpecError(
            f"the file cannot be read: {error.strerror}",
            where=str(path),
            allowed="a GGUF file",
            try_="check the rights to read it",
        ) from error
