"""What does a GGUF file hold: its header, its own tokenizer, its digest?

Imports no engine: environments without torch read GGUF files too.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from inferometer.errors import SpecError
from inferometer.inputs.gguf import read_gguf_header


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufContent:
    """The tensors of a file, added up."""

    n_parameters: int
    weight_bytes: int | None
    """Scales and zero points included; None where a tensor's format is not known here."""
    formats: tuple[tuple[str, int], ...]
    """(format, parameters stored in it), most first."""


def read_gguf(path: Path) -> GgufContent:
    """Which tensors does this file hold?

    Raises
    ------
    SpecError
        It is no GGUF file that we can read.
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
            f"the file cannot be read: {error.strerror}", where=str(path), allowed="a GGUF file"
        ) from error
