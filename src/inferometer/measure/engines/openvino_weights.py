"""How are the weights of a model in OpenVINO packed into 8 or 4 bits when it is loaded?

As ``nncf.compress_weights`` and ``optimum-cli export openvino --weight-format`` do without data:
integers with a scale and a zero point for each row (int8) or each group of a row (int4, where
embeddings and the last layer have int8), which the CPU plugin multiplies as they are. Rounding is
to nearest. The packed graph is written to a folder for the pipeline to read, since it takes no
graph, and a GGUF file's graph is what the pipeline itself makes of it.

Source: the graphs that nncf writes (``INT8_ASYM``, ``INT4_ASYM``): Constant, Convert, Subtract,
Multiply, Reshape.
"""

import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from inferometer.errors import SpecError
from inferometer.inputs.types import DType

Node: TypeAlias = Any
"""``openvino.Node``, whose type only its own environment has."""
GRAPH: Final = "openvino_model.xml"
GROUP_SIZE: Final = 64
"""Weights of a row that share a scale in int4; a layer whose rows are no multiple has int8."""
_PLAIN: Final = frozenset({"f32", "f16", "bf16"})
_MOST_CODE: Final[dict[DType, int]] = {"int8": 255, "int4": 15}
_SCALE_BYTES: Final = 2


class PackedWeights(NamedTuple):
    """Result of packing weights."""

    n_bytes: int
    """Bytes of integers, scales and zero points."""
    formats: tuple[tuple[str, int], ...]
    """(format, weights in it), most first."""


@contextmanager
def packed(location: Path, quantization: DType) -> Generator[tuple[Path, PackedWeights]]:
    """A folder with the packed model, which may go when the pipeline is there.

    Raises
    ------
    SpecError
        It has no weights in 16 or 32 bits.
    RuntimeError, OSError
        OpenVINO cannot read or write it.
    """
    with tempfile.TemporaryDirectory(prefix="inferometer-openvino-") as name:
        folder = Path(name)
        source = _graph_of(location, folder / "plain") if location.is_file() else location
        target = folder / "packed"
        target.mkdir()
        done = _pack(source / GRAPH, target / GRAPH, quantization)
        if not done.formats:
            raise SpecError(
                f"no weights of {location.name} are in 16 or 32 bits",
                where=f"--quantization {quantization}",
                allowed="none: weights stored in fewer bits are left unchanged",
            )
        for one in source.iterdir():
            if one.stem != Path(GRAPH).stem:
                (target / one.name).symlink_to(one.resolve())
        yield target, done


def _graph_of(gguf: Path, folder: Path) -> Path:
    """Folder of the graph and tokenizer that the pipeline makes from a GGUF file."""
    from openvino_genai import LLMPipeline  # only its own environment has it

    folder.mkdir()
    link = folder / gguf.name
    link.symlink_to(gguf.resolve())
    LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    link.unlink()
    return folder


def _pack(source: Path, target: Path, quantization: DType) -> PackedWeights:
    """Read the graph, pack its weights, write it."""
    import openvino  # only its own environment has it

    model, n_bytes = openvino.Core().read_model(source), 0
    n_weights = Counter[str]()
    found = list(_weights(model.get_ordered_ops()))
    last = max((one.place for one in found), default=0)
    for one in found:
        constant = _constant(one.wide)
        if constant is None:
            continue
        rows = np.asarray(constant.get_data(dtype=np.float32))
        is_outer = one.is_table or one.place == last
        has_groups = quantization == "int4" and not is_outer and not rows.shape[1] % GROUP_SIZE
        bits: DType = "int4" if has_groups else "int8"
        small, n_taken = _packed_node(rows, bits, one.wide)
        n_weights[bits] += rows.size
        n_bytes += n_taken
        for use in list(one.wide.output(0).get_target_inputs()):
            use.replace_source_output(small.output(0))
    openvino.save_model(model, str(target), compress_to_fp16=False)
    return PackedWeights(n_bytes, tuple(n_weights.most_common()))


class _Weight(NamedTuple):
    """A matrix of 16 or 32 bits whose rows are a product's outputs, or a table's entries."""

    wide: Node
    """Node with the numbers as used."""
    place: int
    """Position of its last product in the order of operations."""
    is_table: bool


def _weights(operations: list[Node]) -> Iterator[_Weight]:
    place = {one.get_friendly_name(): index for index, one in enumerate(operations)}
    for wide in operations:
        uses = list(wide.output(0).get_target_inputs()) if len(wide.outputs()) == 1 else []
        if not uses or not all(map(_is_weight, uses)):
            continue
        constant = _constant(wide)
        if constant is not None and len(constant.get_output_shape(0)) == 2:
            nodes = [one.get_node() for one in uses]
            yield _Weight(
                wide,
                max(place[one.get_friendly_name()] for one in nodes),
                any(one.get_type_name() == "Gather" for one in nodes),
            )


def _constant(node: Node) -> Node | None:
    """The constant that this node is, or converts; None for other nodes and packed constants."""
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    is_plain = node.get_type_name() == "Constant" and node.get_element_type().to_string() in _PLAIN
    return node if is_plain else None


def _is_weight(use: Node) -> bool:
    """Is it the second factor of a matrix product, or the table of a lookup?"""
    node, index = use.get_node(), use.get_index()
    if node.get_type_name() == "Gather":
        return bool(index == 0)
    is_product = node.get_type_name() == "MatMul" and index == 1
    return bool(is_product and node.get_attributes()["transpose_b"])


def _packed_node(rows: NDArray[np.float32], bits: DType, wide: Node) -> tuple[Node, int]:
    """Node of packed (outputs, inputs) weights with its conversion; and their bytes."""
    from openvino import opset13  # only its own environment has it

    n_rows, n_columns = rows.shape
    groups = rows.reshape(n_rows, -1, GROUP_SIZE if bits == "int4" else n_columns)
    codes, scales, zeros = rounded(groups, _MOST_CODE[bits])
    if bits == "int8":
        codes, scales, zeros = codes[:, 0], scales[:, 0], zeros[:, 0]
    whole, offset = (opset13.convert(_integers(one, bits), "f16") for one in (codes, zeros))
    node = opset13.multiply(opset13.subtract(whole, offset), opset13.constant(scales))
    if bits == "int4":
        node = opset13.reshape(node, np.array(rows.shape, dtype=np.int64), special_zero=False)
    per_byte = 2 if bits == "int4" else 1
    n_bytes = (codes.size + zeros.size) // per_byte + scales.size * _SCALE_BYTES
    return opset13.convert(node, wide.get_output_element_type(0).to_string()), n_bytes


def rounded(
    groups: NDArray[np.float32], most: int
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.uint8]]:
    """Codes from 0 to ``most``, and of each group (last axis, which stays with length 1) scale and zero point.

    A weight is about (code - zero point) times the scale.

    Example
    -------
    >>> codes, scales, zeros = rounded(np.array([[-1.0, 0.0, 2.0]], np.float32), 15)
    >>> codes.tolist(), scales.tolist(), zeros.tolist()
    ([[0, 5, 15]], [[0.199951171875]], [[5]])
    """
    low = np.minimum(groups.min(axis=-1, keepdims=True), 0.0)
    high = np.maximum(groups.max(axis=-1, keepdims=True), 0.0)
    scales = ((high - low) / most).astype(np.float16)
    scales[scales == 0] = 1.0
    wide = scales.astype(np.float32)
    zeros = np.clip(np.round(-low / wide), 0, most)
    codes = np.clip(np.round(groups / wide) + zeros, 0, most)
    return codes.astype(np.uint8), scales, zeros.astype(np.uint8)


def _integers(values: NDArray[np.uint8], bits: DType) -> Node:
    """A constant of these integers; 4-bit ones are stored two in a byte, low half first."""
    from openvino import Shape, Tensor, Type, op  # only its own environment has it

    if bits == "int8":
        return op.Constant(np.ascontiguousarray(values))
    flat = values.ravel()
    flat = np.append(flat, np.zeros(flat.size % 2, dtype=np.uint8))
    pairs = np.ascontiguousarray(flat[::2] | (flat[1::2] << 4))
    return op.Constant(Tensor(pairs, Shape(list(values.shape)), Type.u4), shared_memory=False)
