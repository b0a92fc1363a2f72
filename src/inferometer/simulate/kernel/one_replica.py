"""The compiled event loop of one replica.

Its clock counts nanoseconds. ``kernel/steps.py`` has the actions of the replica; this module orders
the events. Events at the same time are processed in this order: disconnections; tokens of the
completed step, in batch order; arrivals, by index (including followers of requests that just
ended); then ``schedule``. Events during a step are processed at its end, in order of time.
"""

from inferometer.perfmodel.steptime_terms import StepTimeArrays
from inferometer.simulate.compiling import compiled, entry
from inferometer.simulate.kernel import requests, steps
from inferometer.simulate.kernel.state import State
from inferometer.simulate.outcome import FAR_NS, Outcome, PartLog, Status, StepLog

_UNSEEN, _ABORTED = int(Status.UNSEEN), int(Status.ABORTED)
_LOG_FULL, _FINISHED, _HORIZON = int(Outcome.LOG_FULL), int(Outcome.FINISHED), int(Outcome.HORIZON)
_STUCK, _LIVELOCK = int(Outcome.STUCK), int(Outcome.LIVELOCK)


@entry
def run(state: State, cost: StepTimeArrays, log: StepLog, part_log: PartLog, until_ns: int) -> int:
    """Process events until no request is left, ``until_ns``, a deadlock, or a full log.

    Returns the ``Outcome``. A further call with a later ``until_ns`` continues the run; requests
    that were added in between are processed as if known from the start (used by the emulator).
    """
    counters = state.counters[0]
    while steps.has_room(state, log, part_log, 1):
        if not counters.is_decided:
            _catch_up(state, counters.now_ns)
            steps.take_decodes(state, cost, log, part_log, until_ns)
            steps.fill(state, cost, log)
            counters.is_decided = 1
        if counters.n_in_flight == 0:
            when_ns = _next_event_ns(state)
            if when_ns == FAR_NS or when_ns > until_ns:
                steps.settle(state)
                return _end_of_run(state)
            counters.now_ns = max(counters.now_ns, when_ns)
            counters.is_decided = 0
            continue
        ready_ns = steps.ready_ns(state)
        if ready_ns > until_ns:
            counters.now_ns = until_ns
            _catch_up(state, until_ns)
            steps.settle(state)
            return _HORIZON
        counters.now_ns = max(counters.now_ns, ready_ns)
        _catch_up(state, counters.now_ns - 1)
        counters.is_decided = 0
        if not steps.complete_oldest(state, part_log):
            steps.settle(state)
            return _LIVELOCK
    return _LOG_FULL


@compiled
def _catch_up(state: State, until_ns: int) -> None:
    """Process arrivals up to ``until_ns`` and disconnections up to now in order of time.

    At the same time disconnections come first.
    """
    now_ns = state.counters[0].now_ns
    while True:
        comes_ns, goes_ns = requests.next_ns(state), requests.next_abort_ns(state)
        if goes_ns <= min(comes_ns, now_ns):
            _drop(state, requests.take_next_abort(state))
        elif comes_ns <= until_ns:
            index = requests.take_next(state)
            # a request in another status was aborted: its client disconnects at the same time
            if state.requests[index].status == _UNSEEN:
                steps.take(state, index)
        else:
            return


@compiled
def _drop(state: State, index: int) -> None:
    """Abort a request whose client disconnects, whether or not it has arrived."""
    if state.requests[index].status == _UNSEEN:
        requests.end_outside(state, index, _ABORTED, state.arrivals.abort_ns[index])
    else:
        steps.drop(state, index)


@compiled
def _next_event_ns(state: State) -> int:
    """Time of the next arrival, disconnection or end of the scheduler's wait."""
    when_ns: int = min(
        state.counters[0].wake_ns, requests.next_ns(state), requests.next_abort_ns(state)
    )
    return when_ns


@compiled
def _end_of_run(state: State) -> int:
    """The ``Outcome`` of a simulation that has no further event before its time limit."""
    counters = state.counters[0]
    if counters.n_running + counters.n_waiting > 0:
        return _STUCK if _next_event_ns(state) == FAR_NS else _HORIZON
    return _FINISHED if requests.next_ns(state) == FAR_NS else _HORIZON
