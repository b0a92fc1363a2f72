"""How many requests does a simulation need until noise leaves no verdict open?"""

from typing import Final

import msgspec

from inferometer.api.cluster import Servers
from inferometer.api.simulation import SimulateAnswer
from inferometer.decide.traffic import Traffic
from inferometer.inputs.workload import replay, types
from inferometer.inputs.workload.plan import DrawnWorkload

_LONGER_RATIO: Final = 4


def may_go_on(workload: types.WorkloadSpec, *, has_end: bool) -> bool:
    """Was it left open when the requests end? Those of a trace end with it."""
    return (
        not has_end
        and workload.replay is None
        and workload.duration_s is None
        and workload.n_requests is not None
    )


def is_noise(answer: SimulateAnswer) -> bool:
    """Would more requests decide what is open: the verdict at likely step times, or that of all?"""
    verdicts = [level.judgement.verdict for level in answer.levels if level.judgement is not None]
    return "undecided" in verdicts and (
        verdicts[0] == "undecided" or not {"met", "missed"} <= set(verdicts)
    )


def longer(
    workload: types.WorkloadSpec, drawn: DrawnWorkload, servers: Servers
) -> DrawnWorkload | None:
    """The same traffic for longer; None where it is as long as is computed in reasonable time."""
    most = Traffic(spec=workload).most_requests // max(1, len(servers.deployment.cases) - 2)
    n_requests = min(_LONGER_RATIO * drawn.plan.n_requests, most)
    if n_requests <= drawn.plan.n_requests:
        return None
    return replay.draw_workload(msgspec.structs.replace(workload, n_requests=n_requests))
