"""Where is work done that falls into parts: here, one part after the other, or in processes on all cores?"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_processes(function: Callable[[T], R], parts: Iterable[T], *, n_processes: int) -> tuple[R, ...]:
    """What the function says of each part, in their order, whichever was done first. An error of a part is raised."""
    listed = tuple(parts)
    n_used = min(n_processes, len(listed))
    if n_used <= 1:
        return tuple(map(function, listed))
    with ProcessPoolExecutor(n_used, mp_context=get_context("spawn")) as pool:
        return tuple(pool.map(function, listed))


def on_processes(n_processes: int) -> Callable[[Callable[[T], R], Iterable[T]], tuple[R, ...]]:
    """A ``map`` that uses so many processes."""
    return partial(in_processes, n_processes=n_processes)


def n_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["in_processes", "n_cores", "on_processes"]
