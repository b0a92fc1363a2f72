"""What is in a GGUF file: how many parameters, in how many bytes, in which formats?

Source: the GGUF specification, version 3 (ggml, docs/gguf.md) and ggml's block formats (ggml-common.h). Read without
the ``gguf`` package, which the OpenVINO environment does not have.
"""

import hashlib
import math
import struct
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from inferometer.errors import SpecError

_MAGIC: Final = b"GGUF"
_SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Metadata value types of fixed size; 8 is a string, 9 an array."""
_STRING: Final = 8
_ARRAY: Final = 9

_FORMATS: Final = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
"""Tensor type -> (name, weights in a block, bytes of a block)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufContent:
    """The tensors of a file, added up."""

    n_parameters: int
    weight_bytes: int
    """Scales and zero points included."""
    formats: tuple[tuple[str, int], ...]
    """(format, parameters stored in it), most first."""


def read_gguf(path: Path) -> GgufContent:
    """Which tensors does this file hold?

    Raises
    ------
    SpecError
        It is no GGUF file that we can read.
    """
    try:
        with path.open("rb") as file:
            return _read(file)
    except (OSError, struct.error, KeyError, OverflowError, MemoryError) as error:
        raise SpecError(f"{path.name} cannot be read as a GGUF file: {error}", where=str(path), allowed="GGUF version 2 or 3") from error


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
        raise SpecError(f"the file cannot be read: {error.strerror}", where=str(path), allowed="a GGUF file") from error


def _read(file: BinaryIO) -> GgufContent:
    if file.read(4) != _MAGIC:
        raise KeyError("it does not begin with GGUF")
    _version, n_tensors, n_values = _unpack(file, "<IQQ")
    for _ in range(n_values):
        _skip_string(file)
        _skip_value(file, _unpack(file, "<I")[0])
    weight_bytes, parameters = 0, Counter[str]()
    for _ in range(n_tensors):
        _skip_string(file)
        (n_dimensions,) = _unpack(file, "<I")
        n_weights = math.prod(_unpack(file, f"<{n_dimensions}Q"))
        kind, _offset = _unpack(file, "<IQ")
        name, block_weights, block_bytes = _FORMATS[kind]
        weight_bytes += n_weights // block_weights * block_bytes
        parameters[name] += n_weights
    return GgufContent(n_parameters=parameters.total(), weight_bytes=weight_bytes, formats=tuple(parameters.most_common()))


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _skip_string(file)
    elif kind == _ARRAY:
        element_kind, n_elements = _unpack(file, "<IQ")
        if element_kind in _SCALAR_BYTES:
            file.seek(_SCALAR_BYTES[element_kind] * n_elements, 1)
        else:
            for _ in range(n_elements):
                _skip_value(file, element_kind)
    else:
        file.seek(_SCALAR_BYTES[kind], 1)


def _skip_string(file: BinaryIO) -> None:
    file.seek(_unpack(file, "<Q")[0], 1)


def _unpack(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


__all__ = ["GgufContent", "hash_file", "read_gguf"]
