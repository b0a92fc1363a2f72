"""How are parts done on a Ray cluster?"""

from collections.abc import Callable, Iterable
from typing import TypeVar

from inferometer.errors import MeasureError
from inferometer.measure.executors.parts import TRIES, Answers, OnDone, in_silence
from inferometer.measure.executors.ray_cluster import (
    OwnCode,
    RayCluster,
    own_code,
    require_same_code,
)

T = TypeVar("T")
R = TypeVar("R")


class OnRay:
    """A part on each free core of a cluster."""

    def __init__(self, cluster: RayCluster, on_done: OnDone = in_silence) -> None:
        self._ray = cluster.ray
        self._on_done = on_done

    def map(self, function: Callable[[T], R], parts: Iterable[T]) -> tuple[R, ...]:
        """What the function says of each part; one whose worker or host died is done again elsewhere.

        Raises
        ------
        MeasureError
            The workers of a part died again and again, or a host runs other code.
        """
        listed = tuple(parts)
        answers = Answers[R](len(listed), self._on_done)
        remote = self._ray.remote(num_cpus=1, max_retries=TRIES - 1)(_there)
        asked = {
            remote.remote(function, part, own_code()): index for index, part in enumerate(listed)
        }
        waiting = list(asked)
        try:
            while waiting:
                done, waiting = self._ray.wait(waiting, num_returns=1)
                for reference in done:
                    self._take(answers, asked[reference], reference)
        except BaseException:
            for reference in waiting:
                self._ray.cancel(reference, force=True)
            raise
        return answers.in_order()

    def _take(self, answers: Answers[R], index: int, reference: object) -> None:
        failures = self._ray.exceptions
        try:
            answer = self._ray.get(reference)
        except failures.RayTaskError as error:
            answers.fail(index, error.cause)
        except failures.RayError as error:
            why = (str(error) or type(error).__name__).splitlines()[0]
            text = f"the workers of part {index + 1} died {TRIES} times: {why}"
            answers.fail(
                index,
                MeasureError(
                    text,
                    where="--executor ray",
                    try_="inferometer with --executor processes, to see why",
                ),
            )
        else:
            answers.take(index, answer)


def _there(function: Callable[[T], R], part: T, asked: OwnCode) -> R:
    """On a host of the cluster."""
    require_same_code(asked)
    return function(part)
