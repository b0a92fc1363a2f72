"""How are parts done on this machine: one after the other, or in processes on all cores?

``Executor`` is the contract of work that falls into parts, wherever it is done: the same answers in
the same order, the same first error.
"""

import os
import signal
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from inferometer.errors import MeasureError
from inferometer.measure import child_processes

T = TypeVar("T")
R = TypeVar("R")

TRIES: Final = 3
"""A part whose worker died is done again; after this number of deaths it is not bad luck."""

OnDone: TypeAlias = Callable[[int, int], None]
"""(parts that are done, parts in all)"""


class Executor(Protocol):
    """Computes the parts of some work."""

    def map(self, function: Callable[[T], R], parts: Iterable[T]) -> tuple[R, ...]:
        """Results of the function for each part, in the order of the parts.

        The error of the first part that fails is raised, as a loop would raise it. A part whose
        worker dies is done again.
        """
        ...


class Answers(Generic[R]):
    """Results of the parts so far, in any order."""

    def __init__(self, n_parts: int, on_done: OnDone) -> None:
        self._n_parts = n_parts
        self._on_done = on_done
        self._answers: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}

    @property
    def missing(self) -> list[int]:
        """Parts without a result."""
        return [
            index
            for index in range(self._n_parts)
            if index not in self._answers and index not in self._errors
        ]

    def take(self, index: int, answer: R) -> None:
        """A part is done."""
        self._answers[index] = answer
        self._on_done(len(self._answers), self._n_parts)
        self._raise_first()

    def fail(self, index: int, error: BaseException) -> None:
        """A part ended in an error, which is raised once no earlier part can end in another."""
        self._errors[index] = error
        self._raise_first()

    def in_order(self) -> tuple[R, ...]:
        """The answers of all parts."""
        return tuple(self._answers[index] for index in range(self._n_parts))

    def _raise_first(self) -> None:
        if self._errors:
            first = min(self._errors)
            if all(index in self._answers for index in range(first)):
                raise self._errors[first]


def in_silence(n_done: int, n_parts: int) -> None:
    """A progress callback that does nothing."""
    del n_done, n_parts


class Inline:
    """One part after the other, here."""

    def __init__(self, on_done: OnDone = in_silence) -> None:
        self._on_done = on_done

    def map(self, function: Callable[[T], R], parts: Iterable[T]) -> tuple[R, ...]:
        """Results of the function for each part."""
        listed = tuple(parts)
        answers = Answers[R](len(listed), self._on_done)
        for index, part in enumerate(listed):
            answers.take(index, function(part))
        return answers.in_order()


class Processes:
    """Computes parts in this number of processes that share nothing with this one."""

    def __init__(self, n_processes: int, on_done: OnDone = in_silence) -> None:
        self._n_processes = n_processes
        self._on_done = on_done

    def map(self, function: Callable[[T], R], parts: Iterable[T]) -> tuple[R, ...]:
        """Results of the function for each part; parts of a process that dies are repeated.

        Raises
        ------
        MeasureError
            Processes died again and again.
        """
        listed = tuple(parts)
        if min(self._n_processes, len(listed)) <= 1:
            return Inline(self._on_done).map(function, listed)
        answers = Answers[R](len(listed), self._on_done)
        for _ in range(TRIES):
            self._once(function, listed, answers)
            if not answers.missing:
                return answers.in_order()
        raise MeasureError(
            f"processes died {TRIES} times; {len(answers.missing)} of {len(listed)} parts are not"
            " done",
            where="--executor processes",
            try_="fewer --jobs, if memory is short",
        )

    def _once(self, function: Callable[[T], R], parts: Sequence[T], answers: Answers[R]) -> None:
        with _pool(min(self._n_processes, len(answers.missing))) as pool:
            with _deaf_to_interrupts(), child_processes.without_script():
                parts_of: dict[Future[R], int] = {
                    pool.submit(function, parts[index]): index for index in answers.missing
                }
            for future in as_completed(parts_of):
                error = future.exception()
                if error is None:
                    answers.take(parts_of[future], future.result())
                elif not isinstance(error, BrokenProcessPool):
                    answers.fail(parts_of[future], error)


@contextmanager
def _pool(n_processes: int) -> Generator[ProcessPoolExecutor]:
    """A pool that ends with the block, at once after an error or Ctrl-C."""
    before = set(active_children())
    pool = ProcessPoolExecutor(
        n_processes,
        mp_context=get_context("spawn"),
        initializer=child_processes.hold_in_pool,
        initargs=(child_processes.starts_in_main_thread(),),
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        children = set(active_children()) - before
        for child in children:
            child.terminate()
        for child in children:
            child.join()
        raise
    finally:
        pool.shutdown()


@contextmanager
def _deaf_to_interrupts() -> Generator[None]:
    """Processes started in the block ignore the terminal's Ctrl-C; this process ends them."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def n_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
