"""Priors before any run is measured: of a device's step times, and of what the model misses.

A device's parameters start from what measured kernels reach on it. Where nobody measured, they
start from the share of the datasheet's peak that kernels of other devices reach. Two devices are
compared as distances from these means, so what kernels explain need not be learned again.
Letters of shapes: P unknowns, D devices, N and M loads.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from inferometer.fit.published.loads import PublishedLoad
from inferometer.fit.sweeps.priors import BLEND_OF_GPU, SMALL_KERNEL_S
from inferometer.inputs.catalog import load_hardware
from inferometer.inputs.types import (
    DType,
    EngineSpec,
    HardwareSpec,
    KernelRate,
    ModelSpec,
    WeightFormat,
)
from inferometer.perfmodel.roofline import Peaks, peaks_of
from inferometer.perfmodel.steptime_limits import peak_rates
from inferometer.perfmodel.steptime_terms import PARAMETERS
from inferometer.records.columns import F64

UNKNOWNS: Final = (*PARAMETERS, "front_end_s", "prompt_token_s")
"""Of a deployment: its step times; the time of a request outside of the scheduler; and the same for
each token of its prompt."""
HOST: Final = frozenset({"launch_s", "per_sequence_s", "prefill_ratio"})
"""Time of the engine's own code: no vendor's kernels."""

_BETWEEN: Final = 0.2
"""Standard deviation of one device around what devices share, in the prior's; chosen together with
the discrepancies. Without rates of kernels it had to be twice as large."""
_BETWEEN_VENDORS: Final = 0.5
"""Correlation of what devices of two vendors share, chosen together with the discrepancies:
different people write their kernels."""
_BETWEEN_MEMORIES: Final = 0.985
"""Correlation of two devices of one chip, such as B200 and B300: its kernels are the same, and a
faster memory is in the prior. With that of any two devices of a vendor, noise of their rows made B300
slower than B200 in one of four predictions of decode steps. Chosen after both halves had been seen."""
_KERNELS_OF_LAYER, _KERNELS_OF_EXPERTS, _KERNELS_OF_LATENT, _KERNELS_OF_INDEXER = 10, 6, 9, 10
"""Kernels of any layer; and further ones of experts (router, choice, order of tokens, format, second
product, sum), of latent attention (latents of queries and keys, their norms, query heads, absorbed
products before and behind the attention, rows of the cache) and of an indexer (queries, keys, norm,
rotation, format, weights, scores, choice, places), roughly as vLLM computes DeepSeek-V3.2. With ten for
every layer, models were predicted by the rows of others too fast where they have more of these parts,
and too slow where they have fewer."""
_KERNELS_OF_SHARED, _KERNELS_OF_SHARED_GATE = 3, 2
_KERNELS_OF_HEAD_NORMS, _KERNELS_OF_WIDE_NORMS = 2, 5
"""And of a shared expert (two products, activation; its gate: a product and a multiplication), of
norms of queries and keys in each head, and of such over all heads (MiniMax-M2), which need sums over
the tensor-parallel devices: two kernels and an all-reduce, which takes the time of three. As SGLang's
``minimax_m2.py`` and ``qwen3_next.py`` launch them."""
_ATTENTION_OF_PEAK: Final = 0.25
"""Share of the 16-bit peak, in which attention is computed whatever the weights' format."""
_NO_LINK_BYTES_PER_S: Final = 5e10
_FORMATS: Final[dict[DType, WeightFormat]] = {
    "float8": "float8",
    "float4": "nvfp4",
    "int4": "int4",
}
_DENSE_OF_PEAK: Final[dict[WeightFormat, float]] = {
    "bfloat16": 0.75,
    "float8": 0.45,
    "nvfp4": 0.38,
    "mxfp4": 0.55,
}
_EXPERTS_OF_PEAK: Final[dict[WeightFormat, float]] = {
    "bfloat16": 0.45,
    "float8": 0.26,
    "nvfp4": 0.32,
    "mxfp4": 0.55,
}
"""Share of the peak in the format of the product (mxfp4: of 16 bit) that kernels of H100, H200 and
B200 in the catalogue reach."""
_FLOP_PER_BYTE_OF_TIMED: Final = 295.0
"""16-bit FLOP/s for each byte/s of H100's memory, on which experts' kernels were timed."""
_EXPERTS_EXPONENT: Final = 0.9
_MOST_GAIN: Final = 2.0
"""Exponent by which experts' products reach more of the peak on NVIDIA devices with fewer FLOP per
byte than H100: few tokens come to each expert, so that products wait for weights. First tokens of
gpt-oss-20b and Qwen3-30B-A3B on RTX 3090, 4090, 5090 and A100 came 1.4 to 2.3 times sooner than by
the same share (``bench/results/published_unseen_2.csv``), on each by about the ratio of the bytes."""
_GEFORCE: Final = "GeForce"
_BEST_OF_PEAK: Final = 0.78
"""Share of the 16-bit peak that the best matrix product of these devices reaches; where another
device's is known, its kernels are scaled by it."""
_READ_OF_PEAK: Final = 0.82
_UNPACKED_BYTES_PER_FLOP: Final = 0.0031
"""Kernels that unpack 4-bit weights to 16 bit read them at this many bytes for each FLOP of the
best 16-bit product: H100 and H200 read those of gpt-oss at the same rate, whatever their memory
does."""
_UNPACKED_BYTES_PER_VECTOR_FLOP: Final = 0.038
"""The same of NVIDIA's float32 vector units, which do that work. Inference cards and GeForce have
more of them for their matrix units than H100 has: L40S reads as fast as its memory does."""
_READ_IN_A_STEP: Final = 0.73
"""Share of a kernel's rate alone at which weights are read in a step."""
_SENT_IN_A_STEP: Final = 0.65
_BETWEEN_LAYOUTS: Final = 2.0
"""Distance of another layout of the experts, as a reach of the discrepancies."""
_MESSAGE_IN_A_STEP: Final = 1.85
"""Time of all-reduces in a step, in those timed alone: devices wait for one another."""
_UNKNOWN_MESSAGE_S: Final = 1e-5
"""Time of all-reduces in a step where nobody timed those that the engines launch: H100's and H200's.
On Blackwell engines fuse the all-reduce with the norm behind it (FlashInfer; ``fuse_allreduce_rms`` in
InferenceX's scripts of vLLM). The all-reduce that the kernel tables time there, 8.1 µs on B200, is
vLLM's own without the fusion: expected with it, eight B200 were a fifth faster by rows of H100 and
H200 than expected, and one B200 was not."""
_BLEND_OF_DENSE: Final[dict[DType, float]] = {"bfloat16": 2.1, "float16": 2.1, "float8": 1.5}
_SAG_SD, _SAG_OF_EXPERTS_SD = 0.02, 0.1
"""Of dense matrices of 25 to 800 MB at 1 to 8,192 rows (aic-kernels: A100, H100, H200, B200, L40S, RTX
PRO 6000): reading and multiplying overlap with an exponent of 1.5 to 3.2 in 16 bit and 0.9 to 2.2 in 8,
more in larger ones, and the rate at many rows is that at 1,024 to an exponent of 0.01. With a sag of 0.1
free, published rows, hardly any of steps with 50 to 500 rows, made steps with short prompts a fifth too
slow: 16 requests/s of ShareGPT lengthened those of Qwen2.5-14B on H100 PCIe by 41 %, measured 12 %."""
_LAUNCH_S: Final = 1.2e-3
"""Whole steps of models of 0.5 to 1.2 billion weights take 1.2 ms on B200 and 2.0 to 2.4 ms on H100, H200
and RTX 5070 Ti (``bench/results/published_unseen_3.csv``, ``_4`` and ``_6``). With 3 ms the rows, whose
steps are longer, left 1.8 to 2.3 ms of it, and such models were a quarter to two thirds too slow."""
_SMALL_KERNELS_OF_RTX: Final = 0.6
"""Time of small kernels on one RTX card since Ada, in that on data-centre GPUs, whose clock is lower.
With the same time, one user's steps of models below 5 billion weights, or with so few active, took 0.80
of the expected in the median on RTX 40 and 50 cards (21 values, 18 sources), those of larger ones 0.93
(19 values, 13 sources; ``bench/results/published_*.csv``). Of cards that wait for one another it is
not so: 2, 4 and 8 RTX PRO 6000 took longer."""
_RTX: Final = "RTX"
_FRONT_END_S: Final = 4e-3
"""HTTP, tokenizing and queues between processes: 1 to 12 ms in others' load tests at one request at
a time (``bench/results/published_elsewhere.csv``), their geometric middle."""
_EAGER_LAYER_S, _EAGER_EXPERTS_S = 0.5e-3, 1.8e-3
"""Host time of a layer without a graph. SGLang computes prompts so: 1,024 tokens of DeepSeek in 4 bit
take 0.16 s on MI355X and on B200 (learned half), 61 layers' launches, whatever their FLOP; a dense
layer has a third of the kernels."""
_PAIR_OF_PCIE, _GROUP_OF_PCIE = 0.57, 0.45
_PCIE_HOP_S: Final = 3.9e-6
_PCIE_SD: Final = 0.5
"""All-reduces over PCIe by the kernels of L40S and RTX PRO 6000 (source aic-kernels): the share of
one direction's rate that two devices reach (0.59 and 0.56), and the time of a small one for each
other device (3.4 to 5.4 µs). Four or eight share 0.16, 0.40 and 0.37 of it there; with 0.29 whole
servers of four L40S, A100 PCIe and RTX 4090 came out 1.5 to 2 times too slow, with 0.45 they are
within a half (``bench/results/published_elsewhere.csv`` and ``published_unseen.csv``). How the
devices are joined differs from host to host: a standard deviation of half, of the logarithm."""


class DevicePrior(NamedTuple):
    """Means (P), logarithms but for the sag, standard deviations (P), and peaks as bounds (P)."""

    mean: F64
    sd: F64
    upper: F64


def device_prior(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, framework: str = "vllm"
) -> DevicePrior:
    """Prior of this model on this device, served by this engine.

    Raises
    ------
    SpecError
        The device does not compute in the format.
    """
    peaks, kernels = peaks_of(hardware, engine), hardware.kernels
    rates = _kernel_rates(model, engine, hardware, peaks)
    bounds = dict(peak_rates(hardware, engine))
    # In steps matrix products reach no more than the best one alone.
    best_flop_per_s = min(_best_share(hardware) * _BEST_OF_PEAK, 1.0) * bounds["matmul_flop_per_s"]
    bounds["matmul_flop_per_s"] = max(best_flop_per_s, rates.flop_per_s)
    link_bytes_per_s = 0.4 * (peaks.link_bytes_per_s or _NO_LINK_BYTES_PER_S)
    message_s = _UNKNOWN_MESSAGE_S
    link_sd = _PCIE_SD if peaks.is_host_link else 0.7
    if peaks.is_host_link and peaks.link_bytes_per_s is not None:
        n_others = max(engine.tensor_parallel_size - 1, 1)
        of_peak = _PAIR_OF_PCIE if n_others == 1 else _GROUP_OF_PCIE
        link_bytes_per_s = _SENT_IN_A_STEP * of_peak * peaks.link_bytes_per_s
        message_s = _MESSAGE_IN_A_STEP * _PCIE_HOP_S * n_others
    reduced = _reduced_bytes_per_s(hardware)
    if reduced is not None:
        link_bytes_per_s = _SENT_IN_A_STEP * reduced
    if kernels.message_s is not None and not hardware.is_blackwell:
        message_s = _MESSAGE_IN_A_STEP * kernels.message_s.value
    table = {
        "launch_s": (_LAUNCH_S, 0.7),
        "weight_bytes_per_s": (rates.read_bytes_per_s, 0.4),
        "kv_bytes_per_s": (0.5 * peaks.memory_bytes_per_s, 0.6),
        "matmul_flop_per_s": (rates.flop_per_s, 0.6),
        "attention_flop_per_s": (_attention_flop_per_s(hardware, peaks), 0.8),
        "per_sequence_s": (1e-5, 1.0),
        "link_bytes_per_s": (link_bytes_per_s, link_sd),
        "message_s": (message_s, link_sd),
        "floor_s": (_small_kernel_s(engine, hardware) * _n_small_kernels(model), 0.6),
        "prefill_ratio": (_prefill_ratio(model, framework), 0.5),
        "overlap_ratio": (4.0, 0.0),
        "blend_ratio": _blend(model, engine, hardware),
        "mixed_kv_ratio": (1.2, 0.3),
        "sag_ratio": (1.0, _SAG_SD if model.moe is None else _SAG_OF_EXPERTS_SD),
        "front_end_s": (_FRONT_END_S, 0.8),
        "prompt_token_s": (2e-6, 1.0),
    }
    return DevicePrior(
        mean=np.array([float(np.log(table[name][0])) for name in UNKNOWNS]),
        sd=np.array([table[name][1] for name in UNKNOWNS]),
        upper=np.log([bounds.get(name, np.inf) for name in UNKNOWNS]),
    )


def _blend(model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec) -> tuple[float, float]:
    """Mean, and standard deviation of the logarithm."""
    weights = engine.quantization or engine.dtype
    product = weights if hardware.peak_flop_per_s(weights) is not None else engine.dtype
    if model.moe is None and product in _BLEND_OF_DENSE:
        return _BLEND_OF_DENSE[product], 0.1
    return BLEND_OF_GPU, 0.15


def _small_kernel_s(engine: EngineSpec, hardware: HardwareSpec) -> float:
    is_fast = (
        _RTX in hardware.name
        and hardware.peak_flop_per_s("float8") is not None
        and engine.tensor_parallel_size == 1
    )
    return SMALL_KERNEL_S * (_SMALL_KERNELS_OF_RTX if is_fast else 1.0)


def _n_small_kernels(model: ModelSpec) -> int:
    """Kernels of a step that take the same time however little they do."""
    n_experts = model.n_expert_layers
    n_latent = 0 if model.mla is None else model.n_attention_layers
    n_indexers = 0 if model.indexer is None else model.indexer.n_layers
    return (
        _KERNELS_OF_LAYER * model.n_blocks // 2
        + _n_kernels_of_shared(model) * n_experts
        + _n_kernels_of_norms(model) * model.n_attention_layers
        + _KERNELS_OF_EXPERTS * n_experts
        + _KERNELS_OF_LATENT * n_latent
        + _KERNELS_OF_INDEXER * n_indexers
    )


def _n_kernels_of_shared(model: ModelSpec) -> int:
    if model.moe is None or not model.moe.n_shared_experts:
        return 0
    return _KERNELS_OF_SHARED + _KERNELS_OF_SHARED_GATE * model.moe.has_shared_expert_gate


def _n_kernels_of_norms(model: ModelSpec) -> int:
    attention = model.attention
    if attention.has_full_width_qk_norm:
        return _KERNELS_OF_WIDE_NORMS
    return _KERNELS_OF_HEAD_NORMS if attention.has_qk_norm else 0


def _attention_flop_per_s(hardware: HardwareSpec, peaks: Peaks) -> float:
    peak = hardware.peak_flop_per_s("bfloat16")
    return _ATTENTION_OF_PEAK * (peaks.flop_per_s if peak is None else peak.value)


def _prefill_ratio(model: ModelSpec, framework: str) -> float:
    """Host time of a step with prompts, in that of a decode step, whose launches are one graph."""
    if framework != "sglang":
        return 1.5
    layer_s = _EAGER_LAYER_S if model.moe is None else _EAGER_EXPERTS_S
    return model.n_blocks / 2 * layer_s / _LAUNCH_S


class _Rates(NamedTuple):
    flop_per_s: float
    read_bytes_per_s: float


def _kernel_rates(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, peaks: Peaks
) -> _Rates:
    """Rates of the matrix products that take most of a step.

    Kernels that were timed on a device of the same chip whose memory is no faster are known here
    too, so that more bandwidth never is slower.
    """
    weights = _weight_format(model, engine, hardware)
    found = [rate for rate in _timed(hardware, model) if rate.weights == weights]
    if not found and weights == "int4":
        weights = "bfloat16"  # nobody timed such kernels: as those of 16 bit
        found = [rate for rate in _timed(hardware, model) if rate.weights == weights]
    flop_per_s = (
        max(float(rate.flop_per_s.value) for rate in found)
        if found
        else _flop_per_s(weights, model, hardware, peaks)
    )
    reads = [rate.read_bytes_per_s.value for rate in found if rate.read_bytes_per_s is not None]
    if reads:
        return _Rates(flop_per_s, _READ_IN_A_STEP * max(reads))
    read_bytes_per_s = _READ_OF_PEAK * peaks.memory_bytes_per_s
    if weights == "mxfp4" and hardware.peak_flop_per_s("float4") is None:
        read_bytes_per_s = min(read_bytes_per_s, _unpacked_bytes_per_s(hardware, peaks))
    return _Rates(flop_per_s, _READ_IN_A_STEP * read_bytes_per_s)


def _unpacked_bytes_per_s(hardware: HardwareSpec, peaks: Peaks) -> float:
    best_flop_per_s = _best_share(hardware) * _BEST_OF_PEAK * peaks.flop_per_s
    vector = hardware.peak_flop_per_s("float32") if hardware.vendor == "nvidia" else None
    return max(
        _UNPACKED_BYTES_PER_FLOP * best_flop_per_s,
        0.0 if vector is None else _UNPACKED_BYTES_PER_VECTOR_FLOP * vector.value,
    )


def _timed(hardware: HardwareSpec, model: ModelSpec) -> list[KernelRate]:
    """Kernels of the matrices of this model that were timed on this chip."""
    return [
        rate
        for device in _of_chip(hardware)
        for rate in (device.kernels.dense if model.moe is None else device.kernels.experts)
    ]


def _reduced_bytes_per_s(hardware: HardwareSpec) -> float | None:
    """Bandwidth in timed all-reduces of this chip, where the link is no faster."""
    link = hardware.link_bytes_per_s
    return max(
        (
            one.kernels.reduce_bytes_per_s.value
            for one in _of_chip(hardware)
            if one.kernels.reduce_bytes_per_s is not None
            and (one == hardware or (link is not None and _is_linked(one, link.value)))
        ),
        default=None,
    )


def _is_linked(device: HardwareSpec, most_bytes_per_s: float) -> bool:
    link = device.link_bytes_per_s
    return link is not None and link.value <= most_bytes_per_s


@lru_cache(maxsize=64)
def _of_chip(hardware: HardwareSpec) -> tuple[HardwareSpec, ...]:
    """The device, and others of the catalogue with its chip and no faster a memory."""
    others = (
        one
        for one in load_hardware()
        if one.hardware_id != hardware.hardware_id
        and has_same_chip(one, hardware)
        and one.memory_bytes_per_s.value <= hardware.memory_bytes_per_s.value
    )
    return (hardware, *others)


def _weight_format(model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec) -> WeightFormat:
    """Format that kernels read; NVIDIA devices without 4-bit units widen weights as for mxfp4."""
    weights = _FORMATS.get(engine.quantization or engine.dtype, "bfloat16")
    if weights != "nvfp4":
        return weights
    is_checkpoint = model.moe is not None and model.checkpoint_dtype == "float4"
    is_widened = hardware.vendor == "nvidia" and hardware.peak_flop_per_s("float4") is None
    return "mxfp4" if is_checkpoint or is_widened else weights


def _flop_per_s(
    weights: WeightFormat, model: ModelSpec, hardware: HardwareSpec, peaks: Peaks
) -> float:
    """Without a measured kernel: other devices' share of the peak, scaled by the best product.

    Weights that are widened are multiplied as those of 16 bit.
    """
    native = hardware.peak_flop_per_s("float4") if weights == "nvfp4" else None
    of_peak = _DENSE_OF_PEAK if model.moe is None else _EXPERTS_OF_PEAK
    if native is None:
        is_widened = weights == "nvfp4" or (weights == "float8" != peaks.compute_dtype)
        kernels = of_peak["bfloat16" if is_widened else weights]
        gain = 1.0 if model.moe is None else _experts_gain(hardware)
        # No product reaches more of the peak than the best one.
        return _best_share(hardware) * min(gain * kernels, _BEST_OF_PEAK) * peaks.flop_per_s
    return _best_share(hardware) * of_peak[weights] * native.value


def _experts_gain(hardware: HardwareSpec) -> float:
    """Experts' share of this device's peak, in that of the devices on which they were timed."""
    peak = hardware.peak_flop_per_s("bfloat16")
    if hardware.vendor != "nvidia" or peak is None:
        return 1.0
    flop_per_byte = peak.value / hardware.memory_bytes_per_s.value
    gain = (_FLOP_PER_BYTE_OF_TIMED / flop_per_byte) ** _EXPERTS_EXPONENT
    return float(np.clip(gain, 1.0, _MOST_GAIN))


@lru_cache(maxsize=64)
def _best_share(hardware: HardwareSpec) -> float:
    """Share of the peak of the best 16-bit product, in that of others; 1 if not measured.

    GeForce cards that nobody measured are like those that somebody did: their matrix units run at
    half of their rate where sums are of 32 bit, and reach all of that.
    """
    shares = [one for device in _of_chip(hardware) for one in _measured_shares(device)]
    if shares:
        return max(shares)
    if _GEFORCE not in hardware.name:
        return 1.0
    alike = [device for device in load_hardware() if _GEFORCE in device.name]
    return float(np.median([one for device in alike for one in _measured_shares(device)]))


def _measured_shares(hardware: HardwareSpec) -> list[float]:
    peak = hardware.peak_flop_per_s("bfloat16")
    return [
        part.flop_per_s.value / peak.value / _BEST_OF_PEAK
        for part in hardware.measured_peaks
        if part.dtype == "bfloat16" and peak is not None
    ]


def likeness(one: HardwareSpec, other: HardwareSpec, *, is_host: bool = False) -> float:
    """Correlation of two devices' distances from the prior means; 1 of a device with itself.

    ``is_host`` for what no vendor's kernels do.
    """
    return device_likeness(
        is_same=one.hardware_id == other.hardware_id,
        is_same_vendor=one.vendor == other.vendor or is_host,
        is_same_chip=has_same_chip(one, other),
    )


def has_same_chip(one: HardwareSpec, other: HardwareSpec) -> bool:
    """Are both of one vendor with the same peaks in 16 bit and, where known of both, in 32 bit?"""
    half = [device.peak_flop_per_s("bfloat16") for device in (one, other)]
    single = [device.peak_flop_per_s("float32") for device in (one, other)]
    known = [peak.value for peak in single if peak is not None]
    return (
        one.vendor == other.vendor
        and half[0] is not None
        and half[1] is not None
        and half[0].value == half[1].value
        and len(set(known)) <= 1
    )


def device_likeness(*, is_same: bool, is_same_vendor: bool, is_same_chip: bool = False) -> float:
    """Correlation of two devices' distances from the prior means, where only this is known of them."""
    if is_same:
        return 1.0
    if is_same_chip:
        return _BETWEEN_MEMORIES
    return (1 - _BETWEEN**2) * (1.0 if is_same_vendor else _BETWEEN_VENDORS)


def joint_prior_covariance(sd: F64, vendors: Sequence[str]) -> F64:
    """(D·P, D·P) Covariance of the distances from the prior means.

    A sum of what all devices share, what those of one vendor share, and each one's own.
    """
    is_same = np.array([[one == other for other in vendors] for one in vendors])
    shared = (1 - _BETWEEN**2) * np.where(is_same, 1.0, _BETWEEN_VENDORS) + np.eye(
        len(vendors)
    ) * _BETWEEN**2
    return np.asarray(np.kron(shared, np.diag(sd**2)), dtype=np.float64)


class Discrepancy(NamedTuple):
    """Gaussian process of what the model misses: amplitudes as log latency, reaches in doublings.

    Errors of one sign extend over some doublings of devices, lengths and users, less far to
    another version or device. Amplitudes and reaches were learned on one half of the families of
    InferenceX's tables (engine, model, precision; halved in bench/published_tables.py), so that
    left-out loads, among them larger batches, other lengths and unseen devices, came as close as
    claimed; the other half tests how well that holds.
    """

    amplitude_ratio: float
    reaches_ratio: tuple[float, float, float, float, float]
    """Of devices, prompt tokens, output tokens, users; and the distance of another version."""
    between_devices_ratio: float
    """Correlation of two devices' discrepancies. What TTFT has beyond the steps, such as who waits for
    whom and what a table means by it, is as much the engine's as what TPOT has."""
    noise_ratio: float
    near_ratio: float
    """A load is near to measured ones if less than this share of the amplitude is left."""
    far_ratio: float
    """Standard deviation far from all measured loads, in the expected one, or that of the measured
    loads where larger."""


TPOT: Final = Discrepancy(
    amplitude_ratio=0.24,
    reaches_ratio=(3.9, 7.0, 5.4, 4.7, 0.6),
    between_devices_ratio=0.6,
    noise_ratio=0.0087,
    near_ratio=0.6,
    far_ratio=1.05,
)
TTFT: Final = Discrepancy(
    amplitude_ratio=0.78,
    reaches_ratio=(7.0, 4.6, 14.0, 4.2, 0.44),
    between_devices_ratio=0.6,
    noise_ratio=0.09,
    near_ratio=0.6,
    far_ratio=1.3,
)


_ELSEWHERE_OF: Final = {"vllm": (0.42, 0.33), "sglang": (0.74, 0.5)}
_ONE_SIDED: Final = 1.2816
"""Standard deviations from the mean to what nine of ten lie below."""


def _of_nine_in_ten_engines() -> tuple[float, float]:
    """Factors on TPOT and TTFT of an unknown engine that 90 % of engines do not exceed."""
    logs = np.log(list(_ELSEWHERE_OF.values()))
    beyond = _ONE_SIDED * np.std(logs, axis=0, ddof=1) * np.sqrt(1 + 1 / len(logs))
    of_tpot, of_ttft = np.exp(np.mean(logs, axis=0) + beyond).tolist()
    return of_tpot, of_ttft


_ELSEWHERE: Final = _of_nine_in_ten_engines()


def elsewhere_ratios(framework: str) -> tuple[float, float]:
    """Standard deviations of TPOT and TTFT on a device without loads, in the expected ones.

    Of one engine, set on the learned half, as the sizes above, by the rows that their own group
    does not contradict by more than a factor of two (SGLang's first tokens include whole waves of
    compilation in others, which no other device shares) and that are not at odds with their own chip.
    Of TensorRT-LLM that half has one device: its width is what nine of ten engines need. The learned
    half needs 0.36 of vLLM's TPOT, which would be narrower than with a few rows of the device itself.
    """
    return _ELSEWHERE_OF.get(framework, _ELSEWHERE)


class Places(NamedTuple):
    """Coordinates of N loads: doublings (N, 4), and names of versions, devices and layouts."""

    doublings: F64
    versions: tuple[str, ...]
    devices: tuple[str, ...]
    layouts: tuple[str, ...]
    """Experts split, whole on one device each, or shared by replicas; prefill apart or not."""


def places_of(loads: Sequence[PublishedLoad]) -> Places:
    """Coordinates of these loads."""
    counts = [
        (
            one.n_devices,
            one.load.prompt_tokens,
            one.load.output_tokens,
            one.load.concurrency,
        )
        for one in loads
    ]
    return Places(
        doublings=np.log2(np.array(counts, dtype=np.float64)).reshape(len(loads), 4),
        versions=tuple(one.framework_version for one in loads),
        devices=tuple(one.hardware.hardware_id for one in loads),
        layouts=tuple(
            f"{one.has_expert_parallelism} {one.plan.n_sharing > 1} {one.prefill is not None}"
            for one in loads
        ),
    )


def covariance(size: Discrepancy, here: Places, there: Places) -> F64:
    """(N, M) Covariance of the discrepancies, without noise: a Matérn kernel of smoothness 3/2.

    Source: Rasmussen and Williams 2006, section 4.2.1.
    """
    apart = here.doublings[:, None] - there.doublings[None]
    squares = np.sum((apart / np.array(size.reaches_ratio[:4])) ** 2, axis=-1)
    squares += _differ(here.versions, there.versions) / size.reaches_ratio[4] ** 2
    squares += _differ(here.layouts, there.layouts) / _BETWEEN_LAYOUTS**2
    far = np.sqrt(3.0 * squares)
    shared = np.where(_differ(here.devices, there.devices), size.between_devices_ratio, 1.0)
    return np.asarray(size.amplitude_ratio**2 * shared * (1 + far) * np.exp(-far), dtype=np.float64)


def _differ(here: Sequence[str], there: Sequence[str]) -> F64:
    return np.array([[float(one != other) for other in there] for one in here]).reshape(
        len(here), len(there)
    )
