"""Which flags say where work is done that falls into parts, the same for every verb that has such work?"""

import functools
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Literal, NamedTuple, get_args

import click

from inferometer.cli.progress import shown_parts
from inferometer.cli.ray_address import RAY_ADDRESS
from inferometer.measure.executors import local, on_ray, parts, ray_cluster

Kind = Literal["processes", "inline", "ray"]

_JOBS: Final = click.option("--jobs", type=click.IntRange(min=1), help="Processes. [all cores]")


class ExecutorChoice(NamedTuple):
    """Where somebody wants the work to be done."""

    kind: Kind
    n_processes: int | None
    ray_address: str | None


def takes_executor(default: Kind) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the flags that say where work is done; the command gets ``where: ExecutorChoice``."""
    kind = click.option(
        "--executor",
        "kind",
        type=click.Choice(get_args(Kind)),
        default=default,
        show_default=True,
        help="Where the parts of the work are done; the answer is the same.",
    )

    def with_flags(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_executor(**flags: Any) -> None:
            command(
                where=ExecutorChoice(
                    flags.pop("kind"), flags.pop("jobs"), flags.pop("ray_address")
                ),
                **flags,
            )

        return kind(_JOBS(RAY_ADDRESS(with_executor)))

    return with_flags


def share_of_part(where: ExecutorChoice, n_parts: int) -> float:
    """Of a time limit, for each part of the work: parts that are done side by side have it all."""
    n_at_once = {"inline": 1, "processes": where.n_processes or local.n_cores(), "ray": n_parts}[
        where.kind
    ]
    return min(1.0, n_at_once / max(n_parts, 1))


@contextmanager
def opened(where: ExecutorChoice, what: str) -> Generator[parts.Executor]:
    """The executor that was chosen; how many of ``what`` are done is shown on stderr.

    Raises
    ------
    SpecError
        Ray is asked for and not installed.
    MeasureError
        The Ray cluster cannot be joined.
    """
    with ExitStack() as stack:
        cluster = (
            stack.enter_context(ray_cluster.joined(where.ray_address))
            if where.kind == "ray"
            else None
        )
        on_done = stack.enter_context(shown_parts(what))
        if cluster is not None:
            yield on_ray.OnRay(cluster, on_done)
        elif where.kind == "processes":
            yield local.Processes(where.n_processes or local.n_cores(), on_done)
        else:
            yield local.Inline(on_done)
