"""What would happen? The compiled simulator, from columns of requests to tables of what became of them."""

from typing import Final

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.kernel_config import Kind
from inferometer.simulate.kernel_loop import loop_of
from inferometer.simulate.kernel_state import State, new_state
from inferometer.simulate.outcome import FAR_NS, Outcome, PartLog, RequestFacts, Simulation, StepLog, new_log, new_part_log, simulation

_LOG_ROWS: Final = 1 << 16
_PART_LOG_ROWS: Final = 1 << 18


def simulate(
    requests: Demand,
    config: EngineConfig,
    cost: StepTimeArrays,
    *,
    until_ns: int | None = None,
    record_steps: bool = True,
    record_parts: bool = False,
) -> Simulation:
    """What becomes of these requests on one replica with this scheduler and these step times?

    Same inputs, same outputs, to the nanosecond, as ``reference_run.simulate_plainly``. ``until_ns`` ends it there: what was
    computed by then is delivered, requests still there are unfinished. ``record_steps`` keeps a row for each step, which in a long and
    quiet run take more memory than the requests; ``record_parts`` also keeps who did what in each of them.
    """
    requests = contents_checked(requests, config)
    state = new_state(requests, config)
    run = loop_of(Kind(int(state.config["kind"][0])))
    n_part_rows = max(_PART_LOG_ROWS, config.max_num_active) if record_parts else 0
    logs, part_logs, outcome = list[StepLog](), list[PartLog](), Outcome.LOG_FULL
    while outcome is Outcome.LOG_FULL:
        if record_steps or record_parts or not logs:
            logs.append(new_log(_LOG_ROWS))
        logs[-1].n_filled[0] = 0
        part_logs.append(new_part_log(n_part_rows))
        outcome = Outcome(run(state, cost, logs[-1], part_logs[-1], FAR_NS if until_ns is None else until_ns))
    end_ns = until_ns if outcome is Outcome.HORIZON and until_ns is not None else int(state.counters["now_ns"][0])
    kept_logs = logs if record_steps or record_parts else None
    return simulation(requests, _facts(state), kept_logs, part_logs if record_parts else None, outcome=outcome, end_ns=end_ns)


def _facts(state: State) -> RequestFacts:
    return RequestFacts(**{name: state.requests[name].copy() for name in RequestFacts._fields})


__all__ = ["simulate"]
