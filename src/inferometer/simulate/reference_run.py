"""What would happen? The plain simulator, to be read and to hold the compiled one to."""

import numpy as np

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.demand import Demand, contents_checked
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.outcome import FAR_NS, Outcome, PartLog, RequestFacts, Simulation, StepLog, simulation
from inferometer.simulate.reference_engine import Engine
from inferometer.simulate.reference_request import Request, Status


def simulate_plainly(
    requests: Demand, config: EngineConfig, cost: StepTimeArrays, *, until_ns: int | None = None, record_parts: bool = False
) -> Simulation:
    """What becomes of these requests? The same as ``kernel.simulate``, some hundred times slower."""
    requests = contents_checked(requests, config)
    engine = Engine(requests, _requests(requests), config, cost, FAR_NS if until_ns is None else until_ns)
    outcome = engine.run()
    facts = RequestFacts(
        status=_column([request.status for request in engine.requests]),
        arrival_ns=_column([request.arrival_ns for request in engine.requests]),
        admitted_ns=_column(engine.admitted_ns),
        first_token_ns=_column(engine.first_token_ns),
        finished_ns=_column(engine.finished_ns),
        num_tokens=_column([request.num_tokens for request in engine.requests]),
        num_cached_tokens=_column([request.num_cached_tokens for request in engine.requests]),
        num_preemptions=_column([request.num_preemptions for request in engine.requests]),
    )
    rows = np.array(engine.log, dtype=np.int64).reshape(len(engine.log), len(StepLog._fields) - 1)
    log = StepLog._make([*rows.T, _column([len(rows)])])
    end_ns = until_ns if outcome is Outcome.HORIZON and until_ns is not None else engine.now_ns
    return simulation(requests, facts, [log], [_part_log(engine.part_log)] if record_parts else None, outcome=outcome, end_ns=end_ns)


def _part_log(rows: list[tuple[int, ...]]) -> PartLog:
    columns = np.array(rows, dtype=np.int64).reshape(len(rows), len(PartLog._fields) - 1).T
    step_index, request_index, seat, kind, n_computed, n_delivered = columns.astype(np.int32)
    return PartLog(step_index, request_index, seat, kind.astype(np.int8), n_computed, n_delivered, _column([len(rows)]))


def _requests(demand: Demand) -> list[Request]:
    start, contents = demand.content_start.tolist(), demand.contents.tolist()
    columns = zip(
        np.where(demand.follows < 0, demand.arrival_ns, FAR_NS).tolist(),
        demand.prompt_tokens.tolist(),
        demand.output_tokens.tolist(),
        demand.max_tokens.tolist(),
        demand.priority.tolist(),
        strict=True,
    )
    return [
        Request(
            i, arrival_ns=arrival, prompt=prompt, stop=stop, max_tokens=most, priority=priority, contents=contents[start[i] : start[i + 1]]
        )
        for i, (arrival, prompt, stop, most, priority) in enumerate(columns)
    ]


def _column(values: list[int] | list[Status]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


__all__ = ["simulate_plainly"]
