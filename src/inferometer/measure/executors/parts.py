"""What is promised of work that falls into parts, wherever it is done.

The same answers in the same order, the same first error.
"""

from collections.abc import Callable, Iterable
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

T = TypeVar("T")
R = TypeVar("R")

TRIES: Final = 3
"""A part whose worker died is done again; after so many deaths it is not bad luck."""

OnDone: TypeAlias = Callable[[int, int], None]
"""(parts that are done, parts in all)"""


class Executor(Protocol):
    """Does the parts of some work."""

    def map(self, function: Callable[[T], R], parts: Iterable[T]) -> tuple[R, ...]:
        """What the function says of each part, in their order, whichever was done first.

        The error of the first part that fails is raised, as a loop would raise it. A part whose
        worker dies is done again.
        """
        ...


class Answers(Generic[R]):
    """What came of the parts so far, in whichever order it came."""

    def __init__(self, n_parts: int, on_done: OnDone) -> None:
        self._n_parts = n_parts
        self._on_done = on_done
        self._answers: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}

    @property
    def missing(self) -> list[int]:
        """The parts of which nothing is known."""
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
    """Tell nobody."""
    del n_done, n_parts
