"""Roofline bounds of a step on a device, utilisation, and the cost of a token."""

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Final, Literal

from inferometer.errors import SpecError
from inferometer.inputs.types import DType, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.matrices import linears
from inferometer.perfmodel.types import StepBound, StepWork
from inferometer.perfmodel.weights import stored_weight_bits
from inferometer.stats.estimate import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Peak rates of one device, and the number format that it computes in."""

    flop_per_s: float
    memory_bytes_per_s: float
    kv_bytes_per_s: float
    """Rate at which attention reads the KV cache: the memory bandwidth, or a kernel's own rate."""
    link_bytes_per_s: float | None
    is_host_link: bool = False
    """Does PCIe carry the traffic between devices?"""
    message_latency_s: float = 0.0
    compute_dtype: DType


def compute_dtype(engine: EngineSpec) -> DType:
    """The number format in which the engine multiplies matrices.

    float8 and int8 weights meet activations of the same format (W8A8). 4-bit weights are widened
    and multiplied in ``engine.dtype`` (weight-only quantisation).
    """
    return engine.quantization if engine.quantization in {"float8", "int8"} else engine.dtype


def peaks_of(hardware: HardwareSpec, engine: EngineSpec) -> Peaks:
    """Datasheet peaks of a device, for this engine's number formats.

    If devices have no link between them, PCIe carries the traffic. NVIDIA devices that do not
    compute in float8 widen float8 weights, as all do 4-bit weights (vLLM's FP8 Marlin kernels for
    Ampere and older). int8 weights are widened if int8 products are slower (V100, B300): vLLM's
    W8A8 kernels are for Turing to Hopper (vllm-project/vllm#25935).

    Raises
    ------
    SpecError
        The device does not compute in the format.
    """
    dtype = compute_dtype(engine)
    peak, wide = hardware.peak_flop_per_s(dtype), hardware.peak_flop_per_s(engine.dtype)
    if dtype == "int8" and peak is not None and wide is not None and peak.value < wide.value:
        dtype, peak = engine.dtype, wide
    if peak is None and hardware.vendor == "nvidia" and engine.quantization == "float8":
        dtype, peak = engine.dtype, wide
    if peak is None:
        raise SpecError(
            f"{hardware.name} has no known rate in {dtype}",
            where="--dtype" if engine.quantization is None else "--quantization",
            allowed=", ".join(part.dtype for part in hardware.peaks),
        )
    link = hardware.link_bytes_per_s or hardware.pcie_bytes_per_s
    return Peaks(
        flop_per_s=peak.value,
        memory_bytes_per_s=hardware.memory_bytes_per_s.value,
        kv_bytes_per_s=hardware.memory_bytes_per_s.value,
        link_bytes_per_s=None if link is None else link.value,
        is_host_link=hardware.link_bytes_per_s is None,
        compute_dtype=dtype,
    )


def bound_peaks(hardware: HardwareSpec, engine: EngineSpec) -> Peaks:
    """Rates that no kernel exceeds: as ``peaks_of``, but with the 4-bit peak for 4-bit weights.

    Kernels for Blackwell multiply 4-bit weights by activations of 4 or 8 bits, where others widen
    them (b200_sxm's ``kernels``: dense NVFP4 at 3,431 TFLOP/s, bfloat16's peak being 2,250).
    """
    peaks = peaks_of(hardware, engine)
    narrow = hardware.peak_flop_per_s("float4") if engine.quantization == "float4" else None
    return peaks if narrow is None else replace(peaks, flop_per_s=narrow.value)


WITHIN_LINK: Final = "--link RATE or --all-reduce-us N states it; or --pp N between such groups"


def beyond_link(hardware: HardwareSpec, n_tensor: int) -> str | None:
    """A caution if the tensor-parallel group is larger than the group of linked devices, else None.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware
    >>> beyond_link(find_hardware("h100_sxm"), 8) is None
    True
    """
    joined = hardware.linked_devices
    if joined is None or n_tensor <= joined.value:
        return None
    return (
        f"the link of {hardware.name} joins {joined.value:g} devices: what joins the {n_tensor} of"
        f" --tp {n_tensor} is slower, and is not in these times"
    )


def step_bound(work: StepWork, peaks: Peaks) -> StepBound:
    """Times of compute, memory and link traffic at the peak rates; the longest bounds the step.

    Raises
    ------
    SpecError
        The step sends data, and no link is known.

    Source
    ------
    Williams, Waterman and Patterson, Roofline, CACM 52 (2009); both bounds as in "How to
    scale your model" (2025), part 1.

    Example
    -------
    >>> from inferometer.perfmodel.types import decode_shape
    >>> from inferometer.perfmodel.work import step_work
    >>> from inferometer.inputs.catalog import find_hardware, find_model
    >>> engine = EngineSpec(dtype="bfloat16")
    >>> work = step_work(find_model("llama-2-7b"), engine, decode_shape(batch_size=1, context_tokens=512))
    >>> step_bound(work, peaks_of(find_hardware("a100_80gb_sxm"), engine)).bound_by
    'memory'
    """
    if work.link_bytes > 0 and peaks.link_bytes_per_s is None:
        raise SpecError(
            "no link between devices is known",
            where="--hardware",
            allowed="one device",
            try_="--tp 1",
        )
    link_s = 0.0 if peaks.link_bytes_per_s is None else work.link_bytes / peaks.link_bytes_per_s
    link_s += work.n_link_messages * peaks.message_latency_s
    compute_s = work.total_flop / peaks.flop_per_s
    memory_s = (
        work.memory_bytes - work.kv_read_bytes
    ) / peaks.memory_bytes_per_s + work.kv_read_bytes / peaks.kv_bytes_per_s
    longest_s = max(compute_s, memory_s, link_s)
    bound_by: Literal["compute", "memory", "link"] = "link"
    if longest_s in {memory_s, compute_s}:
        bound_by = "memory" if memory_s == longest_s else "compute"
    return StepBound(compute_s=compute_s, memory_s=memory_s, link_s=link_s, bound_by=bound_by)


def intensity_flop_per_byte(work: StepWork) -> float:
    """Arithmetic intensity: FLOP of the step per byte of memory traffic."""
    return work.total_flop / work.memory_bytes


def ridge_flop_per_byte(peaks: Peaks) -> float:
    """Arithmetic intensity at which compute and memory take the same time (the ridge point)."""
    return peaks.flop_per_s / peaks.memory_bytes_per_s


def critical_batch_size(model: ModelSpec, engine: EngineSpec, peaks: Peaks) -> int:
    """Batch size from which a decode step's matrices take longer to multiply than to read.

    A weight is read once (its stored bytes) and multiplied once per row (2 FLOP), so that
    n = (bytes per weight / 2) · peak FLOP/s / bandwidth. For a mixture of experts, multiply it by
    all weights / the weights that a token uses. KV cache and attention are left out.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware, find_model
    >>> engine = EngineSpec(dtype="bfloat16")
    >>> critical_batch_size(find_model("llama-2-7b"), engine, peaks_of(find_hardware("h100_sxm"), engine))
    296
    """
    weights = sum(part.n_weights for part in linears(model))
    active = sum(part.n_weights * part.n_active_copies / part.n_copies for part in linears(model))
    return ceil(stored_weight_bits(engine) / 8 / 2 * ridge_flop_per_byte(peaks) * weights / active)


# Utilisation: MBU and MFU are the step's bytes and FLOP / its time / the peak rate. The peak is the
# datasheet's, or was measured on the machine just before and after the step; they are never mixed.


_S_PER_HOUR: Final = 3600.0


def mbu_fraction(step_s: Estimate, work: StepWork, ceiling_bytes_per_s: Estimate) -> Estimate:
    """Model bandwidth utilisation: (weight bytes + KV bytes read) / time / bandwidth.

    Source
    ------
    Model bandwidth utilisation as defined by Databricks, "LLM Inference Performance
    Engineering: Best Practices" (2023): a 7B model in 16 bit at 14 ms per token moves 1 TB/s, 50 %
    of 2 TB/s.
    """
    return _utilisation(step_s, work.weight_bytes + work.kv_read_bytes, ceiling_bytes_per_s)


def mfu_fraction(step_s: Estimate, work: StepWork, ceiling_flop_per_s: Estimate) -> Estimate:
    """Model FLOP utilisation: FLOP / time / dense peak of the number format computed in.

    Source
    ------
    Chowdhery et al., "PaLM" (arXiv 2204.02311), appendix B, applied to inference: FLOP of
    the step / time / peak.
    """
    return _utilisation(step_s, work.total_flop, ceiling_flop_per_s)


def exact(value: float, *, method: str = "datasheet") -> Estimate:
    """A constant as an estimate without an interval, because it was not measured here."""
    return Estimate(
        value=value, low=None, high=None, confidence_fraction=0.95, n_samples=1, method=method
    )


def usd_per_million_tokens(tokens_per_s: Estimate, *, usd_per_hour: float) -> Estimate:
    """Cost of a million tokens: ($/h / 3600) · 10^6 / (tok/s).

    Example
    -------
    >>> round(usd_per_million_tokens(exact(1000.0), usd_per_hour=3.6).value, 6)
    1.0
    """
    return tokens_per_s.inverted(usd_per_hour / _S_PER_HOUR * 1e6)


def joule_per_million_tokens(tokens_per_s: Estimate, *, power_watt: float) -> Estimate:
    """Energy of a million tokens: watts · 10^6 / (tok/s)."""
    return tokens_per_s.inverted(power_watt * 1e6)


def _utilisation(step_s: Estimate, amount: float, ceiling_per_s: Estimate) -> Estimate:
    """Utilisation: amount / time / ceiling, with an interval.

    Relative half widths of time and ceiling are added in quadrature: they were measured
    independently.
    """
    value = amount / step_s.value / ceiling_per_s.value
    widths = [_relative_half_width(step_s), _relative_half_width(ceiling_per_s) or 0.0]
    relative = (
        None
        if widths[0] is None
        else sqrt(sum(width * width for width in widths if width is not None))
    )
    return Estimate(
        value=value,
        low=None if relative is None else value / (1 + relative),
        high=None if relative is None else value * (1 + relative),
        confidence_fraction=step_s.confidence_fraction,
        n_samples=step_s.n_samples,
        method=f"{step_s.method}; ceiling: {ceiling_per_s.method}",
    )


def _relative_half_width(estimate: Estimate) -> float | None:
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.high - estimate.low) / 2 / estimate.value
