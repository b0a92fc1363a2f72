"""Is there enough memory for the simulation?"""

from typing import Final

from inferometer.api.progress import talk
from inferometer.errors import SpecError
from inferometer.inputs.workload import drawing, servegen
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.types import ServeGenSource, WorkloadSpec
from inferometer.measure.child_processes import available_bytes
from inferometer.simulate.fleet import ClusterConfig
from inferometer.units import format_bytes

_REQUEST_BYTES: Final = 600
"""Plan, demand, state and table of a request; measured as the growth of the resident set with
100,000 to 300,000 requests: 300 to 560."""
_CONTENT_BYTES: Final = 12
"""Bytes of each full block of all prompts and outputs with prefix caching; measured: 9 to 12."""
_REPLICA_CONTENT_BYTES: Final = 9
"""Bytes of each such block on each further replica, by the size of the arrays."""
_KV_BLOCK_BYTES: Final = 24
"""``kernel.state.BLOCK``."""
_STEP_BYTES: Final = 190
"""A row of the log and of the table at once; measured."""


def least_memory_bytes(
    *,
    n_requests: int,
    n_blocks: int = 0,
    n_output_tokens: int = 0,
    max_num_active: int = 1,
    n_replicas: int = 1,
    n_kv_blocks: int = 0,
) -> int:
    """The least memory that ``n_requests`` take: full batches take the fewest steps.

    ``n_blocks`` where prefixes are cached, ``n_output_tokens`` where steps are recorded.

    ``n_kv_blocks`` of each replica, those that a request can take, are there from the start.

    Example
    -------
    >>> least_memory_bytes(n_requests=10_000_000) / 2**30 > 5
    True
    """
    content_bytes = _CONTENT_BYTES + (n_replicas - 1) * _REPLICA_CONTENT_BYTES
    fixed_bytes = (
        n_requests * _REQUEST_BYTES
        + n_blocks * content_bytes
        + n_kv_blocks * n_replicas * _KV_BLOCK_BYTES
    )
    return fixed_bytes + n_output_tokens // max(max_num_active, 1) * _STEP_BYTES


_WORTH_SAYING_BYTES: Final = 2**30


def check_before_drawing(workload: WorkloadSpec) -> None:
    """Report the memory of many requests; refuse those that cannot fit.

    How many a trace has is not known before it is read.

    Raises
    ------
    SpecError
        They do not; the message says how much they would take.
    """
    expected = expected_requests(workload)
    if expected is not None:
        least_bytes, free_bytes = least_memory_bytes(n_requests=expected), available_bytes()
        if free_bytes is not None and least_bytes > _WORTH_SAYING_BYTES:
            talk(
                f"{expected:,} requests take {format_bytes(least_bytes)} or more of"
                f" {format_bytes(free_bytes)} that are free"
            )
        _refuse_beyond(least_bytes, expected)


def expected_requests(workload: WorkloadSpec) -> int | None:
    """Expected number of requests; None where it is unknown before drawing.

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
    """Refuse requests whose simulation certainly exceeds the memory."""
    config = cluster.engine
    n_tokens = plan.prompt_tokens.astype("int64") + plan.output_tokens
    n_blocks = int(n_tokens.sum()) // config.block_size
    n_taken = int(n_tokens.clip(max=config.max_model_len).sum()) // config.block_size
    least_bytes = least_memory_bytes(
        n_requests=plan.n_requests,
        n_blocks=n_blocks if config.enable_prefix_caching else 0,
        n_output_tokens=int(plan.output_tokens.sum(dtype="int64")) if record_steps else 0,
        max_num_active=config.max_num_active * n_replicas,
        n_replicas=n_replicas,
        n_kv_blocks=min(config.n_kv_blocks, n_taken),
    )
    _refuse_beyond(least_bytes, plan.n_requests)


def _refuse_beyond(least_bytes: int, n_requests: int) -> None:
    free_bytes = available_bytes()
    if free_bytes is not None and least_bytes > free_bytes:
        raise SpecError(
            f"simulating {n_requests:,} requests takes {format_bytes(least_bytes)} or more,"
            f" {format_bytes(free_bytes)} are free",
            where="--requests, --for, --num-blocks, --replicas",
            try_=(
                "fewer requests, KV blocks or replicas, --set enable_prefix_caching=false where"
                " prefixes do not matter, or no --out, which stores every step"
            ),
        )
