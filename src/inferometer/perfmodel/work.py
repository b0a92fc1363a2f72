"""Work of a step: FLOP, bytes of weights, KV cache and activations, and bytes over links.

A multiplication and an addition are two FLOP. Counted are matrix products and attention; norms,
activation functions, softmax and sampling are left out (below 1 % of the FLOP of any model of
the catalogue).
"""

from dataclasses import dataclass

from inferometer.errors import SpecError
from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, ModelSpec
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
from inferometer.perfmodel.types import BatchShape, StepWork
from inferometer.perfmodel.weights import checked_tensor_parallel, head_elements, step_weight_bytes

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
    n_kv, n_requests = (
        n_kv_shards(model, engine),
        shape.n_prefill_requests + shape.n_decode_requests,
    )
    states = 2 * n_requests * state_bytes(model, engine.dtype) / n_devices  # read and written
    traffic = step_traffic(
        model, engine.dtype, plan, n_rows=shape.n_rows, n_logit_positions=shape.n_logit_positions
    )
    return StepWork(
        matmul_flop=matmul_flop_per_row(model, n_devices) * shape.n_rows,
        attention_flop=attention_flop(model, shape) / n_devices,
        logits_flop=2.0 * head_elements(model) * shape.n_logit_positions / n_devices,
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
        / n_shards(part, model, n_devices)
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
        * (part.n_in + part.n_out / n_shards(part, model, n_devices))
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
