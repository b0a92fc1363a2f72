"""Where are the parts of a search computed, and for how long at most?

What a search has not reached when its time ends, the answer names. The clock counts the CPU time
of this process: on a machine that others use too, the answer is the same, only later.
"""

import math
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated, Literal

from inferometer.api.progress import PartsDone, talk
from inferometer.api.question import Option, duration_flag, option, refuse_unused
from inferometer.measure.executors import local, ray_cluster
from inferometer.simulate import hooks

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
    words = "Limit on computing time: the search ends then, and names what it did not examine."
    return duration_flag(f"{words} [{default}]", is_common=True)
