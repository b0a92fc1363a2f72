"""What would happen? The compiled simulator, from columns of requests to tables of what became of them."""

from typing import Final

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.kernel_run import run
from inferometer.simulate.kernel_state import State, new_state
from inferometer.simulate.outcome import FAR_NS, Outcome, RequestFacts, Simulation, StepLog, new_log, simulation

_LOG_ROWS: Final = 1 << 16


def simulate(requests: Demand, config: EngineConfig, cost: StepTimeArrays, *, until_ns: int | None = None) -> Simulation:
    """What becomes of these requests on one replica with this scheduler and these step times?

    Same inputs, same outputs, to the nanosecond, as ``reference_run.simulate_plainly``. ``until_ns`` ends it there: what was
    computed by then is delivered, requests still there are unfinished.
    """
    requests = contents_checked(requests, config)
    state = new_state(requests, config)
    logs, outcome = list[StepLog](), Outcome.LOG_FULL
    while outcome is Outcome.LOG_FULL:
        logs.append(new_log(_LOG_ROWS))
        outcome = Outcome(run(state, cost, logs[-1], FAR_NS if until_ns is None else until_ns))
    end_ns = until_ns if outcome is Outcome.HORIZON and until_ns is not None else int(state.counters["now_ns"][0])
    return simulation(requests, _facts(state), logs, outcome=outcome, end_ns=end_ns)


def _facts(state: State) -> RequestFacts:
    return RequestFacts(**{name: state.requests[name].copy() for name in RequestFacts._fields})


__all__ = ["simulate"]
