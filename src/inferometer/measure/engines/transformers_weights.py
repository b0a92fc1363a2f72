"""How are the weights of a model in transformers held in 8 or 4 bits, and multiplied so?

Weight-only: activations keep their format. Rounding is to nearest without calibration, on the
symmetric grids of ``inferometer quality``; embeddings and the last layer stay. The products are
torch's own CPU kernels (``_weight_int8pack_mm``, ``_weight_int4pack_mm_for_cpu``).
"""

from typing import Final

import torch
from torch import Tensor
from torch.nn import Linear, Module

from inferometer.errors import SpecError
from inferometer.inputs.types import DType, EngineSpec
from inferometer.measure.engines.transformers_loading import HfModel

GROUP_SIZE: Final = 64
"""Weights of a row that share a scale in int4; a layer whose rows are no multiple stays as it is."""
_INT4_ROWS: Final = 16
"""The int4 kernel takes a multiple of this number of rows."""
_FORMATS: Final[tuple[DType, ...]] = ("int8", "int4")
_INT8_MOST, _INT4_MOST = 127, 7
_INT4_ZERO: Final = 8


def check_weights(spec: EngineSpec) -> None:
    """Refuse a weight format without kernels."""
    if spec.quantization is None:
        return
    if spec.quantization not in _FORMATS or spec.device != "cpu" or spec.tensor_parallel_size > 1:
        where = f"{spec.device}, --tp {spec.tensor_parallel_size}"
        raise SpecError(
            f"quantization {spec.quantization!r} is not run by the transformers engine on {where}",
            where="--quantization",
            allowed="int8 and int4 on the CPU of one process; a GGUF file is unpacked to --dtype",
            try_="--engine openvino, which keeps a GGUF's 4-bit weights",
        )


class PackedLinear(Module):  # type: ignore[misc]  # torch has no types here
    """A linear layer whose weights are integers, with a scale for each row or group."""

    packed: Tensor
    scales: Tensor

    def __init__(self, linear: Linear, quantization: DType) -> None:
        super().__init__()
        self.n_weights = linear.weight.numel()
        self.is_int8 = quantization == "int8"
        weight = linear.weight.detach().float()
        packed, scales = _int8(weight) if self.is_int8 else _int4(weight)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales.to(linear.weight.dtype))
        self.bias: Tensor | None = linear.bias

    @property
    def held_bytes(self) -> int:
        """Bytes of the packed weights and their scales."""
        return int(self.packed.nbytes + self.scales.nbytes)

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) to (…, outputs)."""
        rows = x.reshape(-1, x.shape[-1])
        if self.is_int8:
            out = torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scales)  # noqa: SLF001
        else:
            out = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001
                rows, self.packed, GROUP_SIZE, self.scales
            )
        out = out.reshape(*x.shape[:-1], out.shape[-1])
        return out if self.bias is None else out + self.bias


def pack_weights(model: HfModel, quantization: DType | None) -> HfModel:
    """The model with packed linear layers (in place); unchanged without a format."""
    if quantization is None:
        return model
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            is_plain = isinstance(child, Linear) and child is not head
            if is_plain and (quantization == "int8" or _fits_int4(child)):
                setattr(parent, name, PackedLinear(child, quantization))
    return model


def packed_sizes(model: HfModel) -> tuple[int, int]:
    """Bytes and number of packed weights, which no longer count as parameters."""
    packed = [one for one in model.modules() if isinstance(one, PackedLinear)]
    return sum(one.held_bytes for one in packed), sum(one.n_weights for one in packed)


def _fits_int4(linear: Linear) -> bool:
    return not linear.in_features % GROUP_SIZE and not linear.out_features % _INT4_ROWS


def _int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(outputs, inputs) integers, (outputs,) scales."""
    scales = weight.abs().amax(-1).clamp_min(1e-12) / _INT8_MOST
    return (weight / scales[:, None]).round().to(torch.int8), scales


def _int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's own layout of integers; (groups, outputs, 2) scales and offsets, which are 0."""
    n_outputs = weight.shape[0]
    groups = weight.reshape(n_outputs, -1, GROUP_SIZE)
    scales = groups.abs().amax(-1).clamp_min(1e-12) / _INT4_MOST
    codes = (groups / scales[..., None]).round().to(torch.int32) + _INT4_ZERO
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(  # noqa: SLF001
        codes.reshape(n_outputs, -1), 1
    )
    pairs = torch.stack([scales.T, torch.zeros_like(scales.T)], dim=-1)
    return packed, pairs.contiguous()
