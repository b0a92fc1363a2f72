"""Bytes that a device sends in a step because the model is spread over several, and their time.

Bytes are those that one device sends, with the best known algorithms; times add a latency for
each message.
"""

from dataclasses import dataclass

from inferometer.errors import SpecError
from inferometer.inputs.types import DTYPE_BITS, DType, EngineSpec, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """How the model is spread over devices: the group has tensor · pipeline · sharing devices.

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
        """Devices of the whole group: the only place that multiplies these."""
        return self.n_tensor * self.n_pipeline * self.n_sharing

    def stage_fraction(self, n_layers: int) -> float:
        """Share of the layers in the largest stage; as in vLLM, some stages take one layer more."""
        return -(-n_layers // self.n_pipeline) / n_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes and messages that one device sends."""

    sent_bytes: float
    n_messages: int

    def plus(self, other: "Traffic") -> "Traffic":
        """Both, one after the other."""
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
    """What one device sends in a step of ``n_rows`` new tokens.

    Tensor parallel (arXiv 1909.08053): two all-reduces of the hidden states in each layer, one
    after the split embedding, and a gather of the logits. Expert parallel: the all-reduce after
    an expert layer becomes two all-to-alls. Replicas that share experts: there the rows of all are
    gathered, and the results scattered back. Pipeline parallel: the hidden states go to the next
    stage.
    """
    hidden_bytes = n_rows * model.hidden_size * DTYPE_BITS[dtype] / 8
    traffic = NO_TRAFFIC
    n_sparse = 0 if model.moe is None else model.n_layers - model.moe.n_dense_layers
    if plan.n_sharing > 1:
        gathered = all_gather(hidden_bytes * plan.n_sharing / plan.n_tensor, plan.n_sharing)
        traffic = repeated(gathered, 2 * n_sparse)
    if plan.n_tensor > 1:
        n_exchanges = n_sparse if plan.has_expert_parallelism else 0
        n_reductions = 2 * model.n_layers - n_exchanges + 1
        per_reduction = all_reduce(
            hidden_bytes, plan.n_tensor, is_split=plan.has_sequence_parallelism
        )
        logits_bytes = n_logit_positions * model.vocab_size * DTYPE_BITS[dtype] / 8
        traffic = traffic.plus(repeated(per_reduction, n_reductions)).plus(
            all_gather(logits_bytes, plan.n_tensor)
        )
        if n_exchanges and model.moe is not None:
            routed_bytes = hidden_bytes * model.moe.n_experts_per_token / plan.n_tensor
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
    """The same traffic ``n_times`` over."""
    return Traffic(sent_bytes=traffic.sent_bytes * n_times, n_messages=traffic.n_messages * n_times)
