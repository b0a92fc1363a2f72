"""Where does a compiled loop, which allocates nothing, write what happens?

Into one log after the other, as long as it asks for more.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from inferometer.simulate.cancelling import check_poll
from inferometer.simulate.kernel.state import State
from inferometer.simulate.outcome import (
    Outcome,
    PartLog,
    RequestFacts,
    StepLog,
    new_log,
    new_part_log,
)
from inferometer.simulate.pointers import pointed

_ROWS: Final = 1 << 16
"""Of the first log; each further one has twice as many, up to 16 times."""
_PART_ROWS: Final = 1 << 18


class Wanted(NamedTuple):
    """What is to be kept, and how many rows may come at one instant."""

    steps: bool
    parts: bool
    n_rows_at_once: int
    n_parts_at_once: int
    holes: bool
    swaps: bool


class Logged(NamedTuple):
    """How the run ended, and the logs that were asked for."""

    outcome: Outcome
    steps: list[StepLog] | None
    parts: list[PartLog] | None


def run_logged(
    run: Callable[..., int], tables: tuple[object, ...], wanted: Wanted, *, until_ns: int
) -> Logged:
    """Call the loop on handles of these tables, with new logs, until it has come to an end.

    Before each log it may be given up: see ``simulate.cancelling``.
    """
    n_part_rows = max(_PART_ROWS, wanted.n_parts_at_once) if wanted.parts else 0
    keeps_steps = wanted.steps or wanted.parts
    logs, part_logs, outcome = list[StepLog](), list[PartLog](), Outcome.LOG_FULL
    while outcome is Outcome.LOG_FULL:
        if keeps_steps or not logs:
            n_rows = max(_ROWS << min(len(logs), 4), wanted.n_rows_at_once)
            logs.append(new_log(n_rows, has_holes=wanted.holes, has_swaps=wanted.swaps))
            part_logs.append(new_part_log(n_part_rows))
        check_poll()
        logs[-1].n_filled[0] = 0
        outcome = Outcome(run(*tables, pointed(logs[-1]), pointed(part_logs[-1]), until_ns))
    return Logged(outcome, logs if keeps_steps else None, part_logs if wanted.parts else None)


def facts_of(state: State) -> RequestFacts:
    """What became of the requests of a simulation that is over?"""
    columns = {"arrival_ns": "sent_ns", "arrived_ns": "arrival_ns"}
    return RequestFacts(
        **{name: state.requests[columns.get(name, name)].copy() for name in RequestFacts._fields}
    )
