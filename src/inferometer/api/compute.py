"""Where are the parts of a search computed, for how long at most, and is there enough memory?

What a search has not reached when its time ends, the answer names. The clock counts the CPU time
of this process: on a machine that others use too, the answer is the same, only later.
"""

import math
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from inferometer.api.progress import PartsDone, talk
from inferometer.api.question import DURATION, Option, option, refuse_unused
from inferometer.errors import SpecError
from inferometer.inputs.workload import drawing, servegen
from inferometer.inputs.workload.plan import RequestPlan
from inferometer.inputs.workload.types import ServeGenSource, WorkloadSpec
from inferometer.measure.child_processes import available_bytes
from inferometer.measure.executors import local, ray_cluster
from inferometer.simulate import hooks
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

    ``n_kv_blocks`` of each replica are there from the start.

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
    n_tokens = int(plan.prompt_tokens.sum(dtype="int64") + plan.output_tokens.sum(dtype="int64"))
    least_bytes = least_memory_bytes(
        n_requests=plan.n_requests,
        n_blocks=n_tokens // config.block_size if config.enable_prefix_caching else 0,
        n_output_tokens=int(plan.output_tokens.sum(dtype="int64")) if record_steps else 0,
        max_num_active=config.max_num_active * n_replicas,
        n_replicas=n_replicas,
        n_kv_blocks=config.n_kv_blocks,
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


Kind = Literal["processes", "inline", "ray"]
RAY_ADDRESS_OPTION = Option(
    "Address of the Ray cluster. [RAY_ADDRESS, else a temporary one on this machine]",
    heading="Limits",
    metavar="HOST:PORT",
    envvar="RAY_ADDRESS",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Where the parts of the work are computed; the answer is the same."""

    executor: Kind | None = option(
        None,
        "Where the parts of the work are done; the answer is the same. [processes with --jobs"
        " and for size without groups, else inline]",
        "Limits",
    )
    jobs: int | None = option(None, "Number of processes. [all cores]", "Limits", least=1)
    ray_address: Annotated[str | None, RAY_ADDRESS_OPTION] = None

    @property
    def kind(self) -> Kind:
        """The executor that was chosen, or that a number of processes implies."""
        return self.executor or ("processes" if self.jobs else "inline")


def share_of_part(where: Executor, n_parts: int) -> float:
    """Share of a time limit for each part; parts computed side by side each have all of it.

    Three parts on two processes take two rounds: each has half.
    """
    return 1 / max(math.ceil(n_parts / n_at_once(where, n_parts)), 1)


def n_at_once(where: Executor, n_parts: int) -> int:
    """How many of these parts are done side by side?"""
    return {"inline": 1, "processes": where.jobs or local.n_cores(), "ray": n_parts}[where.kind]


@contextmanager
def opened(where: Executor, what: str) -> Generator[local.Executor]:
    """The chosen executor; shows on stderr how many of ``what`` are done.

    Raises
    ------
    SpecError
        Ray is wanted and not installed, or an option is another executor's.
    MeasureError
        The Ray cluster cannot be joined.
    """
    for executor, name, chosen in (
        ("processes", "jobs", "--executor processes"),
        ("ray", "ray_address", "--executor ray"),
    ):
        if where.kind != executor:
            refuse_unused(
                where,
                (name,),
                f"--executor {where.kind}, which has no use for it",
                allowed=executor,
                try_=chosen,
            )
    with ExitStack() as stack:
        cluster = (
            stack.enter_context(ray_cluster.joined(where.ray_address))
            if where.kind == "ray"
            else None
        )

        def on_done(n_done: int, n_parts: int) -> None:
            talk(PartsDone(what, n_done, n_parts))

        if cluster is not None:
            yield ray_cluster.OnRay(cluster, on_done)
        elif where.kind == "processes":
            yield local.Processes(where.jobs or local.n_cores(), on_done)
        else:
            yield local.Inline(on_done)


class _Clock:
    """CPU seconds of this process, without compiling the simulator."""

    def __init__(self) -> None:
        self._compiling_s, self._began_s = 0.0, 0.0
        hooks.around_compiling(self._stop, self._go_on)

    def __call__(self) -> float:
        return time.process_time() - self._compiling_s

    def _stop(self) -> None:
        self._began_s = time.process_time()

    def _go_on(self) -> None:
        self._compiling_s += time.process_time() - self._began_s


computing_s = _Clock()


@dataclass(frozen=True, slots=True)
class Deadline:
    """A deadline on this process's clock, which stops while the simulator compiles."""

    at_s: float

    def __call__(self) -> float:
        """Seconds left; negative after the deadline."""
        return self.at_s - computing_s()


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Seconds of computing, which begin where the work begins."""

    limit_s: float

    def __call__(self) -> Deadline:
        """Start the time limit now."""
        return Deadline(computing_s() + self.limit_s)

    def share(self, fraction: float) -> "TimeLimit":
        """A part of it."""
        return TimeLimit(self.limit_s * fraction)


def time_limit_field(default: str) -> Option:
    """The option ``--time-limit`` of a search with this default."""
    return Option(
        "Limit on computing time: the search ends then, and names what it did not examine."
        f" [{default}]",
        heading="Limits",
        is_common=True,
        metavar="DURATION",
        shows_default=False,
        parse=DURATION,
    )
