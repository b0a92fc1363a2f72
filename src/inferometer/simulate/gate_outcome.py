"""Whom did the gate turn away, and why?

Nobody is dropped silently: these words go into the run's cautions.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from inferometer.records.columns import I32
from inferometer.records.types import Caution
from inferometer.simulate.gate_config import Reason

_WORDS: Final = {
    Reason.QUEUE_FULL: "found the gate's queue full",
    Reason.CLASS_QUEUE_FULL: "found their class's queue full",
    Reason.TOKENS_FULL: "found too many tokens waiting",
    Reason.TOO_LARGE: "asked for more than their tenant's bucket holds",
    Reason.TOO_LATE: "could not meet their deadline any more",
    Reason.WAITED_TOO_LONG: "waited as long as they may",
}


class ShedCount(NamedTuple):
    """How many of a class were turned away for one reason?"""

    class_index: int
    reason: Reason
    n_requests: int


def shed_counts(reasons: I32, class_index: I32) -> tuple[ShedCount, ...]:
    """By class, then by reason; those who were turned away only.

    ``reasons`` has a ``Reason`` for each of the requests.
    """
    pairs, counts = np.unique(np.stack([class_index, reasons]), axis=1, return_counts=True)
    return tuple(
        ShedCount(class_index=which, reason=Reason(why), n_requests=n_requests)
        for which, why, n_requests in zip(*pairs.tolist(), counts.tolist(), strict=True)
        if why != Reason.NONE
    )


def shed_cautions(
    reasons: I32, class_index: I32, class_names: Sequence[str]
) -> tuple[Caution, ...]:
    """One caution for each class of which somebody was turned away."""
    n_of_class = np.bincount(class_index, minlength=len(class_names))
    counts = shed_counts(reasons, class_index)
    cautions = list[Caution]()
    for which, name in enumerate(class_names):
        of_class = [count for count in counts if count.class_index == which]
        n_shed = sum(count.n_requests for count in of_class)
        why = ", ".join(f"{count.n_requests} {_WORDS[count.reason]}" for count in of_class)
        if n_shed:
            text = f"the gate turned away {n_shed} of {n_of_class[which]} requests of {name}: {why}"
            remedy = (
                "a lower rate, more replicas, or a gate that lets more wait; latencies are of those"
                " who were let in"
            )
            cautions.append(Caution(code="shed", text=text, remedy=remedy))
    return tuple(cautions)
