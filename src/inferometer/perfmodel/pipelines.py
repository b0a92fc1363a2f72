"""How long does a step take that goes through the stages of a pipeline, one after the other?

As long as in one group of devices, and what goes from each stage to the next. The stage with the
most layers sets the pace of all: layers that do not divide evenly are reckoned as if every stage
had as many as that one.
"""

from dataclasses import replace
from typing import Final

from inferometer.errors import SpecError
from inferometer.perfmodel.communication import ParallelPlan, step_traffic
from inferometer.perfmodel.scenario import BEST, LIKELY, WORST, Efficiency
from inferometer.perfmodel.steptime_arrays import slowed
from inferometer.perfmodel.steptime_levels import StepTimes
from inferometer.spec.types import HardwareSpec, ModelSpec

_REACHED: Final[dict[str, Efficiency]] = {"fast": BEST, "likely": LIKELY, "slow": WORST}
"""Which share of the way's bandwidth is reached at each pace, and how long does a message take?"""


def through_stages(
    times: StepTimes, model: ModelSpec, hardware: HardwareSpec | None, n_stages: int
) -> StepTimes:
    """These step times on so many stages, all of them together.

    What goes between stages takes the way to the network, which is no faster than the host link.

    Raises
    ------
    SpecError
        More stages than layers, or step times that are those of another number of stages.
    """
    if n_stages == times.n_stages:
        return times
    if times.n_stages != 1 or n_stages > model.n_layers:
        what = f"{model.n_layers} layers of {model.model_id!r} on {n_stages} pipeline stages"
        raise SpecError(
            what,
            where="pipeline_parallel_size",
            allowed=f"1 to {model.n_layers}, the same for all pools",
        )
    plan = ParallelPlan(n_tensor=times.engine.tensor_parallel_size, n_pipeline=n_stages)
    uneven_ratio = n_stages * plan.stage_fraction(model.n_layers)
    paced = {name: slowed(getattr(times, name), uneven_ratio) for name in _REACHED}
    link = None if hardware is None else hardware.pcie_bytes_per_s or hardware.link_bytes_per_s
    if link is not None:
        hops = step_traffic(
            model, times.engine.dtype, replace(plan, n_tensor=1), n_rows=1, n_logit_positions=0
        )
        for name, reached in _REACHED.items():
            row_s = hops.sent_bytes / (link.value * reached.memory_fraction)
            message_s = hops.n_messages * reached.message_latency_s
            paced[name] = paced[name]._replace(
                message_s=paced[name].message_s + message_s,
                link_row_s=paced[name].link_row_s + row_s,
            )
    unpriced = (
        "" if link is not None else ", hand-overs between them not reckoned with (no link is known)"
    )
    origin = f"{times.origin}; {n_stages} pipeline stages{unpriced}"
    return replace(
        times,
        n_stages=n_stages,
        origin=origin,
        likely=paced["likely"],
        fast=paced["fast"],
        slow=paced["slow"],
    )
