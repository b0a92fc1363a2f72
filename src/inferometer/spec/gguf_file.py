"""What does the head of a GGUF file say: its metadata, and the names, shapes and formats of its tensors?

Read without the ``gguf`` package, which would bring a network library; no weight is touched.

Source: the GGUF specification, version 3 (ggml, docs/gguf.md).
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.errors import SpecError
from inferometer.spec.foreign_bytes import Door

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
    """A tensor format: its name, and how many weights a block of how many bytes holds, scales and zero points included."""

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
        """How many weights it holds."""
        return math.prod(self.shape)

    @property
    def n_bytes(self) -> int | None:
        """How many bytes they take; None in a format that is not known here."""
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
        The file cannot be read, is no GGUF file, or ends too early.
    """
    with _DOOR.mapped(path) as content:
        return _header(_Cursor(content), path)


class _Cursor:
    """A place in the file that moves as it is read."""

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
        )
    cursor.offset = 4
    version = int(cursor.scalar(4))
    if version not in _VERSIONS:
        raise SpecError(
            f"{path.name} is GGUF version {version}",
            where=str(path),
            allowed="version 2 or 3, little-endian",
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
    cursor.scalar(10)  # where its data begin
    return GgufTensor(
        name=name,
        shape=shape,
        format=GGUF_FORMATS[code].name if code in GGUF_FORMATS else f"type {code}",
    )
