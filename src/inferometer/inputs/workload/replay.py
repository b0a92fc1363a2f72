"""Which requests does a workload ask, whatever it is made of: classes, a trace, ServeGen's clients?"""

from dataclasses import replace
from typing import Final

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.workload import arrivals, distributions, reading, servegen
from inferometer.inputs.workload.arrivals import uniforms
from inferometer.inputs.workload.distributions import Floats
from inferometer.inputs.workload.drawing import RecordedArrivals, draw_classes
from inferometer.inputs.workload.plan import (
    I64,
    MOST_NS,
    NONE,
    DrawnWorkload,
    RequestPlan,
    check_plan,
    first_requests,
)
from inferometer.inputs.workload.traces import read_trace
from inferometer.inputs.workload.types import (
    Arrivals,
    ClosedArrivals,
    OpenArrivals,
    ServeGenSource,
    TraceArrivals,
    TraceSource,
    WorkloadSpec,
)
from inferometer.units import NS_PER_S

_WHERE: Final = "the workload"


def draw_workload(spec: WorkloadSpec) -> DrawnWorkload:
    """The requests of a workload, the same for the same specification and files on every machine.

    Raises
    ------
    SpecError
        The specification or a file that it points to says what cannot be.
    """
    checked = reading.checked_workload(spec)
    if isinstance(checked.replay, ServeGenSource):
        return servegen.draw_servegen(checked, checked.replay)
    ready = _with_tables(checked)
    recorded = _recorded(ready.arrivals) if isinstance(ready.arrivals, TraceArrivals) else None
    if isinstance(ready.replay, TraceSource):
        return _replayed(ready, ready.replay, recorded)
    drawn = draw_classes(ready, recorded)
    if isinstance(ready.arrivals, OpenArrivals) and ready.arrivals.profile is None:
        return replace(drawn, asked_rate_per_s=ready.arrivals.rate_per_s)
    return drawn


def _with_tables(spec: WorkloadSpec) -> WorkloadSpec:
    """The same workload, distributions that point to traces replaced by tables of what is there."""

    def ready(value: object) -> object:
        if isinstance(value, list | tuple):
            return [ready(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("kind") == "trace" and "column" in value:
            plan = read_trace(TraceSource(path=value["path"], format=value["format"])).workload.plan
            values, weights = np.unique(getattr(plan, value["column"]), return_counts=True)
            return {"kind": "table", "values": values.tolist(), "weights": weights.tolist()}
        return {key: ready(item) for key, item in value.items()}

    return msgspec.convert(ready(msgspec.to_builtins(spec)), WorkloadSpec)


def _recorded(instants: TraceArrivals) -> RecordedArrivals:
    trace = read_trace(TraceSource(path=instants.path, format=instants.format))
    if not trace.has_instants:
        raise SpecError(
            f"a {trace.format} trace has no instants",
            where=instants.path,
            allowed="a trace with arrivals",
            try_="its texts and lengths at a rate of your own: "
            + suggestions.flags("--workload", instants.path, "--rate", 1),
        )
    at_ns = trace.workload.plan.arrival_ns
    return RecordedArrivals(
        at_ns=_sped_up(at_ns[at_ns != NONE].astype(np.float64), instants.speed_up_ratio)
    )


def _replayed(
    spec: WorkloadSpec, source: TraceSource, recorded: RecordedArrivals | None
) -> DrawnWorkload:
    trace = read_trace(source)
    if spec.arrivals is None and not trace.has_instants:
        raise SpecError(
            f"a {trace.format} trace has no instants",
            where=source.path,
            allowed="arrivals of the workload's own",
            try_="--rate, or [arrivals]",
        )
    plan = trace.workload.plan
    if spec.n_requests is not None and spec.n_requests > plan.n_requests:
        what = f"the trace has {plan.n_requests} requests, not {spec.n_requests}"
        raise SpecError(what, where=source.path, allowed=f"n_requests up to {plan.n_requests}")
    plan = first_requests(plan, spec.n_requests)
    plan = _late_cut(_timed(_paced(plan, spec, source), spec, source, recorded), spec)
    check_plan(plan, source.path)
    has_own_instants = spec.arrivals is not None
    cautions = tuple(
        one
        for one in trace.workload.cautions
        if not (has_own_instants and one.code == "instants_are_coarse")
    )
    return replace(trace.workload, name=spec.name, plan=plan, cautions=cautions)


def _paced(plan: RequestPlan, spec: WorkloadSpec, source: TraceSource) -> RequestPlan:
    """Think times of followers as the source says, where it says."""
    if source.think_s is None:
        return plan
    think_ns = distributions.seconds_to_ns(
        distributions.sampled(source.think_s), uniforms(spec.seed, "think", plan.n_requests)
    )
    return plan._replace(think_ns=np.where(plan.follows == NONE, NONE, think_ns))


def _sped_up(at_ns: Floats, speed_up_ratio: float) -> I64:
    faster_ns = at_ns / speed_up_ratio
    if faster_ns.max(initial=0) > MOST_NS:
        raise SpecError(
            f"speed_up_ratio = {speed_up_ratio}",
            where=_WHERE,
            allowed=f"instants up to {MOST_NS} ns",
            try_="a larger ratio",
        )
    return np.rint(faster_ns).astype(np.int64)


def _timed(
    plan: RequestPlan, spec: WorkloadSpec, source: TraceSource, recorded: RecordedArrivals | None
) -> RequestPlan:
    """The trace's own instants, spread and sped up; or those of the workload's arrivals."""
    firsts = np.flatnonzero(plan.follows == NONE)
    arrival_ns, follows, think_ns = (
        plan.arrival_ns.copy(),
        plan.follows.astype(np.int64),
        plan.think_ns.copy(),
    )
    if spec.arrivals is None:
        spread_ns = np.floor(
            uniforms(spec.seed, "jitter", len(firsts)) * (source.jitter_s * NS_PER_S)
        )
        # Sorted again: requests of one instant are spread over it in the order in which they stand.
        arrival_ns[firsts] = _sped_up(
            np.sort(arrival_ns[firsts] + spread_ns).astype(np.float64), source.speed_up_ratio
        )
        return plan._replace(arrival_ns=arrival_ns)
    new_ns = (
        recorded.at_ns
        if recorded is not None
        else _drawn(spec.arrivals, spec.seed, plan.n_requests, len(firsts))
    )
    if len(new_ns) < len(firsts):
        try_ = f"n_requests = {len(new_ns)}" if len(new_ns) else "a higher rate_per_s"
        raise SpecError(
            f"{len(new_ns)} arrivals for {len(firsts)} requests", where=_WHERE, try_=try_
        )
    arrival_ns[firsts] = new_ns[: len(firsts)]
    if isinstance(spec.arrivals, ClosedArrivals):
        arrivals.close_loop(
            spec.arrivals,
            spec.seed,
            firsts=firsts,
            lasts=_lasts(plan)[firsts],
            follows=follows,
            think_ns=think_ns,
        )
    return plan._replace(
        arrival_ns=np.where(follows == NONE, arrival_ns, NONE),
        follows=follows.astype(np.int32),
        think_ns=think_ns,
    )


def _drawn(asked: Arrivals, seed: int, n_requests: int, n_firsts: int) -> I64:
    return arrivals.session_arrivals(asked, seed, n_firsts, turns_ratio=n_requests / n_firsts)


def _lasts(plan: RequestPlan) -> I64:
    """For each request, the last of those that follow it, directly or not; itself where none does."""
    last = list(range(plan.n_requests))
    for row, leader in reversed(list(enumerate(plan.follows.tolist()))):
        if leader != NONE:
            last[leader] = max(last[leader], last[row])
    return np.array(last, np.int64)


def _late_cut(plan: RequestPlan, spec: WorkloadSpec) -> RequestPlan:
    """The requests before the first that comes after ``duration_s``."""
    if spec.duration_s is None:
        return plan
    if isinstance(spec.arrivals, ClosedArrivals):
        raise SpecError(
            "duration_s of a closed loop depends on the server", where=_WHERE, allowed="n_requests"
        )
    late = np.flatnonzero(plan.arrival_ns > round(spec.duration_s * NS_PER_S))
    return first_requests(plan, int(late[0])) if late.size else plan
