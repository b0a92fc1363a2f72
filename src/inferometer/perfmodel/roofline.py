"""Work of a step, its roofline bounds on a device, utilisation, and the cost of a token.

A multiplication and an addition are two FLOP. Counted are matrix products and attention; norms,
activation functions, softmax and sampling are left out (below 1 % of the FLOP of any model of
the catalogue).
"""

from dataclasses import dataclass, replace
from math import ceil, sqrt
from typing import Final, Literal

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.kv_cache import (
    cache_rows,
    decode_pairs,
    kv_bytes_per_token,
    kv_read_bytes,
    n_kv_shards,
    prefill_pairs,
    state_bytes,
)
from inferometer.perfmodel.matrices import linears, n_shards
from inferometer.perfmodel.types import BatchShape, StepBound, StepWork
from inferometer.perfmodel.weights import (
    checked_tensor_parallel,
    embedding_elements,
    step_weight_bytes,
    stored_weight_bits,
)
from inferometer.stats.estimate import Estimate

# Traffic between devices: the bytes that one device sends in a step, with the best known
# algorithms, and their time, which includes a latency for each message.


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """How the model is divided over n_tensor · n_pipeline · n_sharing devices.

    ``has_expert_parallelism``: each expert lives whole on one device of the tensor group (vLLM's
    --enable-expert-parallel), and tokens travel to it. ``has_sequence_parallelism``: norms work
    on a share of the tokens (arXiv 2205.05198), so that an all-reduce becomes a reduce-scatter
    and an all-gather. ``n_sharing`` replicas of the attention, each of n_tensor devices, take every
    step together and share the experts (vLLM's --data-parallel-size with --enable-expert-parallel,
    SGLang's and TensorRT-LLM's attention data parallelism): a step's shape is then one replica's.
    """

    n_tensor: int = 1
    n_pipeline: int = 1
    n_sharing: int = 1
    has_expert_parallelism: bool = False
    has_sequence_parallelism: bool = False

    def __post_init__(self) -> None:
        if min(self.n_tensor, self.n_pipeline, self.n_sharing) < 1:
            raise SpecError(
                f"tensor parallel {self.n_tensor}, pipeline parallel {self.n_pipeline}, replicas"
                f" {self.n_sharing}",
                where="--tp, --pp",
                allowed="1 or more",
            )

    @property
    def n_devices(self) -> int:
        """The number of devices of the whole group."""
        return self.n_tensor * self.n_pipeline * self.n_sharing

    def stage_fraction(self, n_layers: int) -> float:
        """Share of the layers in the largest pipeline stage.

        As in vLLM, some stages have one layer more than others if layers do not divide evenly.
        """
        return -(-n_layers // self.n_pipeline) / n_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes and messages that one device sends."""

    sent_bytes: float
    n_messages: int

    def plus(self, other: "Traffic") -> "Traffic":
        """The sum of both, one after the other."""
        return Traffic(
            sent_bytes=self.sent_bytes + other.sent_bytes,
            n_messages=self.n_messages + other.n_messages,
        )

    def duration_s(self, *, link_bytes_per_s: float, message_latency_s: float = 0.0) -> float:
        """Duration over a link of this bandwidth (one direction) and latency per message."""
        return self.sent_bytes / link_bytes_per_s + self.n_messages * message_latency_s


NO_TRAFFIC = Traffic(sent_bytes=0.0, n_messages=0)


def plan_of(engine: EngineSpec) -> ParallelPlan:
    """The plan that an engine's settings describe."""
    return ParallelPlan(n_tensor=engine.tensor_parallel_size)


def step_traffic(
    model: ModelSpec, dtype: DType, plan: ParallelPlan, *, n_rows: int, n_logit_positions: int
) -> Traffic:
    """Bytes that one device sends in a step of ``n_rows`` new tokens.

    Tensor parallel (arXiv 1909.08053): two all-reduces of the hidden states in each layer, one
    after the split embedding, and a gather of the logits. Expert parallel: the all-reduce after
    an expert layer becomes two all-to-alls. Replicas that share experts: before an expert layer the
    rows of all replicas are gathered, and after it the results are scattered back. Pipeline
    parallel: the hidden states are sent to the next stage.
    """
    hidden_bytes = n_rows * model.hidden_size * DTYPE_BITS[dtype] / 8
    traffic = NO_TRAFFIC
    n_sparse = model.n_expert_layers
    if plan.n_sharing > 1:
        gathered = all_gather(hidden_bytes * plan.n_sharing / plan.n_tensor, plan.n_sharing)
        traffic = repeated(gathered, 2 * n_sparse)
    if plan.n_tensor > 1:
        n_exchanges = n_sparse if plan.has_expert_parallelism else 0
        n_reductions = model.n_blocks - n_exchanges + 1
        per_reduction = all_reduce(
            hidden_bytes, plan.n_tensor, is_split=plan.has_sequence_parallelism
        )
        logits_bytes = n_logit_positions * model.vocab_size * DTYPE_BITS[dtype] / 8
        traffic = traffic.plus(repeated(per_reduction, n_reductions)).plus(
            all_gather(logits_bytes, plan.n_tensor)
        )
        if n_exchanges and model.moe is not None:
            share = (model.moe.latent_size or model.hidden_size) / model.hidden_size
            routed_bytes = hidden_bytes * share * model.moe.n_experts_per_token / plan.n_tensor
            traffic = traffic.plus(
                repeated(all_to_all(routed_bytes, plan.n_tensor), 2 * n_exchanges)
            )
    hops = plan.n_pipeline - 1
    return traffic.plus(Traffic(sent_bytes=hops * hidden_bytes, n_messages=hops))


def all_reduce(size_bytes: float, n_devices: int, *, is_split: bool = False) -> Traffic:
    """Ring all-reduce: each device sends 2·(n - 1)/n of the data.

    Split in reduce-scatter and all-gather it is two messages.

    Source
    ------
    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations,
    JPDC 69 (2009).

    Example
    -------
    >>> all_reduce(8e6, 4).sent_bytes
    12000000.0
    """
    sent_bytes = 2 * (n_devices - 1) / n_devices * size_bytes
    return (
        Traffic(sent_bytes=sent_bytes, n_messages=2 if is_split else 1)
        if n_devices > 1
        else NO_TRAFFIC
    )


def all_gather(size_bytes: float, n_devices: int) -> Traffic:
    """Ring all-gather of a result of ``size_bytes``: each device sends (n - 1)/n of it."""
    return (
        Traffic(sent_bytes=(n_devices - 1) / n_devices * size_bytes, n_messages=1)
        if n_devices > 1
        else NO_TRAFFIC
    )


def all_to_all(held_bytes: float, n_devices: int) -> Traffic:
    """All-to-all of ``held_bytes`` on each device, evenly addressed: it sends (n - 1)/n of them."""
    return (
        Traffic(sent_bytes=(n_devices - 1) / n_devices * held_bytes, n_messages=1)
        if n_devices > 1
        else NO_TRAFFIC
    )


def repeated(traffic: Traffic, n_times: int) -> Traffic:
    """The traffic, ``n_times`` times."""
    return Traffic(sent_bytes=traffic.sent_bytes * n_times, n_messages=traffic.n_messages * n_times)


def step_work(
    model: ModelSpec, engine: EngineSpec, shape: BatchShape, *, plan: ParallelPlan | None = None
) -> StepWork:
    """Work of one device of the tensor-parallel group in this step.

    With pipeline parallelism the stages follow one another: the work of a step is that of one
    device after the other, so it does not shrink; only the transfers between stages are added.

    Example
    -------
    >>> from inferometer.perfmodel.types import decode_shape
    >>> from inferometer.inputs.catalog import find_model
    >>> shape = decode_shape(batch_size=1, context_tokens=512)
    >>> work = step_work(find_model("qwen2.5-3b"), EngineSpec(dtype="bfloat16"), shape)
    >>> work.kv_read_bytes / 512
    36864.0
    """
    plan = plan or plan_of(engine)
    n_devices = checked_tensor_parallel(model, engine)
    n_kv = n_kv_shards(model, engine)
    n_requests = shape.n_prefill_requests + shape.n_decode_requests
    states = 2 * n_requests * state_bytes(model, engine.dtype) / n_devices  # read and written
    traffic = step_traffic(
        model, engine.dtype, plan, n_rows=shape.n_rows, n_logit_positions=shape.n_logit_positions
    )
    return StepWork(
        matmul_flop=matmul_flop_per_row(model, n_devices) * shape.n_rows,
        attention_flop=attention_flop(model, shape) / n_devices,
        logits_flop=2.0 * embedding_elements(model) * shape.n_logit_positions / n_devices,
        weight_bytes=step_weight_bytes(
            model,
            engine,
            n_rows=shape.n_rows,
            n_logit_positions=shape.n_logit_positions,
            n_sharing=plan.n_sharing,
        ),
        kv_read_bytes=kv_read_bytes(model, kv_dtype(engine), shape) / n_kv + states,
        kv_write_bytes=shape.n_rows * kv_bytes_per_token(model, kv_dtype(engine)) / n_kv,
        activation_bytes=activation_bytes(model, engine, shape),
        link_bytes=traffic.sent_bytes,
        n_link_messages=traffic.n_messages,
    )


def matmul_flop_per_row(model: ModelSpec, n_devices: int = 1) -> float:
    """FLOP of the layers' matrices for one new token on one device: 2 per weight that it uses.

    Also those of recurrent states: a token decays the state, adds an outer product and reads the
    state with its query, which is 5 FLOP per element (arXiv 2405.21060, equation 2); with a delta
    rule it also reads the state with its key: 7 FLOP (arXiv 2412.06464, equation 10). Chunks of a
    prompt take about the same.
    """
    linear, state = model.recurrent, 0.0
    if linear is not None:
        per_element = 7.0 if linear.kind in {"delta", "kda"} else 5.0
        state = per_element * linear.n_layers * linear.state_elements / n_devices
    return state + sum(
        2.0
        * part.n_in
        * part.n_out
        * part.n_active_copies
        * part.n_layers
        * part.n_runs
        / n_shards(part, n_devices)
        for part in linears(model)
    )


def attention_flop(model: ModelSpec, shape: BatchShape) -> float:
    """FLOP of attention scores and weighted sums of values (causal), on all devices together."""
    return sum(
        rows.prefill_flop * prefill_pairs(rows, shape)
        + rows.decode_flop * decode_pairs(rows, shape)
        for rows in cache_rows(model)
    )


def activation_bytes(model: ModelSpec, engine: EngineSpec, shape: BatchShape) -> float:
    """Bytes of activations on one device: each matrix loads its input and stores its output once.

    Counting loads and stores of each operator is the method of arXiv 2402.16363 (LLM-Viewer).
    Fused kernels move less, unfused norms and activation functions more. Logits are stored once.
    """
    n_devices = checked_tensor_parallel(model, engine)
    per_row = sum(
        part.n_active_copies
        * part.n_layers
        * part.n_runs
        * (part.n_in + part.n_out / n_shards(part, n_devices))
        for part in linears(model)
    )
    logits = shape.n_logit_positions * model.vocab_size / n_devices
    return (shape.n_rows * per_row + logits) * DTYPE_BITS[engine.dtype] / 8


def logits_bytes(model: ModelSpec, dtype: DType, *, batch_size: int, n_positions: int) -> int:
    """Bytes of the logits of ``n_positions`` positions of each of ``batch_size`` sequences.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_model
    >>> round(logits_bytes(find_model("qwen2.5-3b"), "bfloat16", batch_size=128, n_positions=256) / 2**30, 2)
    9.27
    """
    return batch_size * n_positions * model.vocab_size * DTYPE_BITS[dtype] // 8


def kv_dtype(engine: EngineSpec) -> DType:
    """The number format of the KV cache: ``kv_cache_dtype``, or else that of the activations."""
    return engine.kv_cache_dtype or engine.dtype


def usual_kv_dtype(policy: str, quantization: DType | None) -> DType | None:
    """The number format of an engine's KV cache where none is named; None: that of the activations.

    TensorRT-LLM takes the one that NVIDIA's checkpoints of 8 and 4 bit floats state
    (``kv_cache_quant_algo`` FP8 in their ``hf_quant_config.json``).

    Example
    -------
    >>> usual_kv_dtype("trtllm", "float4"), usual_kv_dtype("vllm", "float4")
    ('float8', None)
    """
    return "float8" if policy == "trtllm" and quantization in {"float8", "float4"} else None


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


def _no_rate(hardware: HardwareSpec, engine: EngineSpec, dtype: DType) -> SpecError:
    """The error for a format in which the device does not compute, with the nearest that it runs."""
    known = [part.dtype for part in hardware.peaks]
    what = f"{hardware.name} has no known rate in {dtype}"
    if dtype == engine.dtype:
        wide = next((one for one in ("bfloat16", "float16") if one in known), "float32")
        is_widened = dtype in {"int4", "float4"} or (hardware.vendor, dtype) == ("nvidia", "float8")
        flag, other = ("--quantization", dtype) if is_widened else ("--dtype", wide)
        return SpecError(
            what, where="--dtype", allowed=", ".join(known), try_=suggestions.flags(flag, other)
        )
    widened = [one for one in ("int8", "int4", "float4") if one not in known]
    return SpecError(
        what,
        where="--quantization",
        allowed=", ".join([*known, *widened]),
        try_="--quantization int8",
    )


def peaks_of(hardware: HardwareSpec, engine: EngineSpec) -> Peaks:
    """Datasheet peaks of a device, for this engine's number formats.

    If devices have no link between them, PCIe carries the traffic. NVIDIA devices that do not
    compute in float8 widen float8 weights, as all do 4-bit weights (vLLM's FP8 Marlin kernels for
    Ampere and older). int8 weights are widened if int8 products are slower (V100, B300): vLLM's
    W8A8 kernels are for Turing to Hopper (vllm-project/vllm#25935); or if the device has none, as
    llama.cpp does with Q8_0 on Apple's GPUs.

    Raises
    ------
    SpecError
        The device does not compute in the format.
    """
    dtype = compute_dtype(engine)
    peak, wide = hardware.peak_flop_per_s(dtype), hardware.peak_flop_per_s(engine.dtype)
    if dtype == "int8" and peak is not None and wide is not None and peak.value < wide.value:
        dtype, peak = engine.dtype, wide
    is_widened = engine.quantization == "int8" or (
        engine.quantization == "float8" and hardware.vendor == "nvidia"
    )
    if peak is None and is_widened:
        dtype, peak = engine.dtype, wide
    if peak is None:
        raise _no_rate(hardware, engine, dtype)
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


STATED_LINK: Final = "--link RATE or --all-reduce-us N states it"
WITHIN_LINK: Final = f"{STATED_LINK}; or --pp N between such groups"


def beyond_link(hardware: HardwareSpec, n_tensor: int, n_sharing: int = 1) -> str | None:
    """A caution if ranks, or replicas that share experts, are more than the link joins, else None.

    Example
    -------
    >>> from inferometer.inputs.catalog import find_hardware
    >>> beyond_link(find_hardware("h100_sxm"), 8) is None
    True
    """
    joined = hardware.linked_devices
    n_devices = n_tensor * n_sharing
    if joined is None or n_devices <= joined.value:
        return None
    flags = [f"--tp {n_tensor}"] if n_tensor > 1 else []
    flags += [f"--data-parallel-size {n_sharing}"] if n_sharing > 1 else []
    return (
        f"the link of {hardware.name} joins {joined.value:g} devices: what joins the {n_devices} of"
        f" {' '.join(flags)} is slower, and is not in these times"
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
    >>> from inferometer.perfmodel.roofline import step_work
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
