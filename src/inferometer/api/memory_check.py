"""Is there memory for what is asked to be simulated?"""

from typing import Final

from inferometer.api.progress import talk
from inferometer.errors import SpecError
from inferometer.inputs.workload import drawing, servegen
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.types import ServeGenSource, WorkloadSpec
from inferometer.measure.resident import available_bytes
from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.memory_need import MemoryNeed, memory_need
from inferometer.units import format_bytes

_WORTH_SAYING_BYTES: Final = 2**30


def check_before_drawing(workload: WorkloadSpec) -> None:
    """Say what many requests take, and refuse those that alone do not fit.

    How many a trace has is not known before it is read.

    Raises
    ------
    SpecError
        They do not; the message says how much they would take.
    """
    expected = expected_requests(workload)
    if expected is not None:
        need, free_bytes = memory_need(n_requests=expected), available_bytes()
        if free_bytes is not None and need.least_bytes > _WORTH_SAYING_BYTES:
            talk(
                f"{expected:,} requests take {format_bytes(need.least_bytes)} or more of"
                f" {format_bytes(free_bytes)} that are free"
            )
        _refuse_beyond(need, expected)


def expected_requests(workload: WorkloadSpec) -> int | None:
    """How many requests will a workload have? None where that is not known before it is drawn.

    Raises
    ------
    SpecError
        Its arrivals or its file of rates are impossible.
    """
    within_duration = None
    if isinstance(workload.replay, ServeGenSource):
        within_duration = servegen.expected_requests(workload, workload.replay)
    elif workload.classes:
        within_duration = drawing.expected_requests(workload)
    counts = [workload.n_requests, None if within_duration is None else round(within_duration)]
    return min((count for count in counts if count is not None), default=None)


def check_drawn(
    plan: RequestPlan, cluster: ClusterConfig, *, record_steps: bool, n_replicas: int
) -> None:
    """Refuse requests for whose simulation there is certainly too little memory.

    Raises
    ------
    SpecError
        There is; the message says how much it would take.
    """
    config = cluster.engine
    n_tokens = int(plan.prompt_tokens.sum(dtype="int64") + plan.output_tokens.sum(dtype="int64"))
    need = memory_need(
        n_requests=plan.n_requests,
        n_blocks=n_tokens // config.block_size if config.enable_prefix_caching else 0,
        n_output_tokens=int(plan.output_tokens.sum(dtype="int64")) if record_steps else 0,
        max_num_active=config.max_num_active * n_replicas,
        n_replicas=n_replicas,
        n_kv_blocks=config.n_kv_blocks,
    )
    _refuse_beyond(need, plan.n_requests)


def _refuse_beyond(need: MemoryNeed, n_requests: int) -> None:
    free_bytes = available_bytes()
    if free_bytes is not None and need.least_bytes > free_bytes:
        raise SpecError(
            f"simulating {n_requests:,} requests takes {format_bytes(need.least_bytes)} or more,"
            f" {format_bytes(free_bytes)} are free",
            where="--requests, --for, --num-blocks, --replicas",
            try_=(
                "fewer requests, KV blocks or replicas, --set enable_prefix_caching=false where"
                " prefixes do not matter, or no --out, which stores every step"
            ),
        )
