"""Requests of any workload: classes, a trace, or ServeGen's clients."""

from dataclasses import replace
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import arrivals, distributions, reading, servegen
from inferometer.inputs.workload.arrivals import uniforms
from inferometer.inputs.workload.distributions import Floats
from inferometer.inputs.workload.drawing import (
    MAX_REQUESTS,
    RecordedArrivals,
    draw_classes,
    no_duration,
)
from inferometer.inputs.workload.plan import (
    I64,
    MOST_NS,
    NONE,
    DrawnWorkload,
    RequestPlan,
    check_plan,
    first_requests,
    request_plan,
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


def draw_workload(spec: WorkloadSpec, *, has_beams: bool = False) -> DrawnWorkload:
    """The requests of a workload, the same for the same specification and files on every machine.

    ``has_beams``: expand beam searches to the one-token requests that a server makes of them.

    Raises
    ------
    SpecError
        The specification, or a file that it refers to, is invalid; or a class has beams without
        ``has_beams``.
    """
    checked = reading.checked_workload(spec)
    if isinstance(checked.replay, ServeGenSource):
        return servegen.draw_servegen(checked, checked.replay)
    ready = _with_tables(checked)
    recorded = _recorded(ready.arrivals) if isinstance(ready.arrivals, TraceArrivals) else None
    if isinstance(ready.replay, TraceSource):
        return _with_rate(_replayed(ready, ready.replay, recorded), ready)
    searching = [one.name for one in ready.classes if one.beams is not None]
    if searching and not has_beams:
        raise SpecError(
            f"class {searching[0]!r} has beams",
            where=_WHERE,
            allowed="classes without [classes.beams]; simulate alone makes the requests that a"
            " server makes of a beam search, and nothing here sends use_beam_search",
            try_="the same file without [classes.beams], or "
            + suggestions.command("simulate", "llama-3.1-8b", "--workload", spec.name),
        )
    drawn = draw_classes(ready, recorded)
    if searching:
        drawn = _with_beams(drawn, ready)
    return _with_rate(drawn, ready)


def _with_rate(drawn: DrawnWorkload, spec: WorkloadSpec) -> DrawnWorkload:
    """With the steady rate that was requested, if one was, also in place of a trace's times."""
    if isinstance(spec.arrivals, OpenArrivals) and spec.arrivals.profile is None:
        return replace(drawn, asked_rate_per_s=spec.arrivals.rate_per_s)
    return drawn


def _with_tables(spec: WorkloadSpec) -> WorkloadSpec:
    """The workload with distributions from traces replaced by tables."""

    def ready(value: object) -> object:
        if isinstance(value, list | tuple):
            return [ready(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("kind") == "trace" and "column" in value:
            of_values = TraceSource(path=value["path"], format=value["format"])
            plan = read_trace(of_values, needs_instants=False).workload.plan
            values, weights = np.unique(getattr(plan, value["column"]), return_counts=True)
            return {"kind": "table", "values": values.tolist(), "weights": weights.tolist()}
        return {key: ready(item) for key, item in value.items()}

    return msgspec.convert(ready(msgspec.to_builtins(spec)), WorkloadSpec)


def _recorded(instants: TraceArrivals) -> RecordedArrivals:
    ratio = instants.speed_up_ratio
    trace = read_trace(
        TraceSource(path=instants.path, format=instants.format, speed_up_ratio=ratio)
    )
    if not trace.has_instants:
        raise SpecError(
            f"a {trace.format} trace has no instants",
            where=instants.path,
            allowed="a trace with arrivals",
            try_="its texts and lengths at a rate of your own: "
            + suggestions.flags("--workload", instants.path, "--rate", 1),
        )
    at_ns = trace.workload.plan.arrival_ns
    return RecordedArrivals(at_ns=_sped_up(at_ns[at_ns != NONE].astype(np.float64), ratio))


def _replayed(
    spec: WorkloadSpec, source: TraceSource, recorded: RecordedArrivals | None
) -> DrawnWorkload:
    trace = read_trace(source, needs_instants=spec.arrivals is None)
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
    users = spec.arrivals.concurrency if isinstance(spec.arrivals, ClosedArrivals) else None
    return replace(
        trace.workload,
        name=spec.name,
        plan=plan,
        cautions=cautions,
        n_users=users,
        most_requests=trace.workload.plan.n_requests,
    )


def _paced(plan: RequestPlan, spec: WorkloadSpec, source: TraceSource) -> RequestPlan:
    """Think times of followers, where the source sets them."""
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
    """The trace's own arrivals, spread and sped up; or the workload's."""
    firsts = np.flatnonzero(plan.follows == NONE)
    arrival_ns = plan.arrival_ns.copy()
    follows = plan.follows.astype(np.int64)
    think_ns = plan.think_ns.copy()
    if spec.arrivals is None:
        spread_ns = np.floor(
            uniforms(spec.seed, "jitter", len(firsts)) * (source.jitter_s * NS_PER_S)
        )
        # Sorted again: requests with equal times are spread over the interval in file order.
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
        sessions = arrivals.Rows(firsts, _lasts(plan)[firsts], plan.class_index[firsts])
        lengths = arrivals.Lengths(plan.prompt_tokens, plan.output_tokens)
        arrivals.close_loop(
            spec.arrivals, spec.seed, sessions, (None,), lengths, follows=follows, think_ns=think_ns
        )
    return plan._replace(
        arrival_ns=np.where(follows == NONE, arrival_ns, NONE),
        follows=follows.astype(np.int32),
        think_ns=think_ns,
    )


def _drawn(asked: Arrivals, seed: int, n_requests: int, n_firsts: int) -> I64:
    return arrivals.session_arrivals(asked, seed, n_firsts, turns_ratio=n_requests / n_firsts)


def _lasts(plan: RequestPlan) -> I64:
    """Last direct or indirect follower of each request; itself without any."""
    last = list(range(plan.n_requests))
    for row, leader in reversed(list(enumerate(plan.follows.tolist()))):
        if leader != NONE:
            last[leader] = max(last[leader], last[row])
    return np.array(last, np.int64)


def _late_cut(plan: RequestPlan, spec: WorkloadSpec) -> RequestPlan:
    """Requests before the first that arrives after ``duration_s``."""
    if spec.duration_s is None:
        return plan
    if isinstance(spec.arrivals, ClosedArrivals):
        raise no_duration(spec.duration_s)
    late = np.flatnonzero(plan.arrival_ns > round(spec.duration_s * NS_PER_S))
    return first_requests(plan, int(late[0])) if late.size else plan


class _Searches(NamedTuple):
    """N requests, each replaced by the R requests of a beam search, or unchanged."""

    width: I64
    """(N) Beam width; 0 for requests without beams."""
    root: I64
    """(N) Its first row."""
    last: I64
    """(N) The first row of its last step."""
    whose: I64
    """(R) The original request of each row."""
    step: I64
    """(R) From 0."""
    beam: I64
    """(R) From 0."""
    is_last: NDArray[np.bool_]
    """(R) Is it a request of the last step?"""
    think_ns: I64
    """(R) Think time of later steps: since the end of the step before."""


def _with_beams(drawn: DrawnWorkload, spec: WorkloadSpec) -> DrawnWorkload:
    """The requests, with those of classes with beams replaced by their beams' requests.

    Step t of a search of width w has w requests of one token (the first step has one), whose prompts
    are t tokens longer than the search's. All wait for the whole step before. Each continues one of
    that step's requests, its parent, drawn with equal probability: the first child of a parent has
    the parent's own token, other children a different one.
    """
    plan, these = drawn.plan, _searches(drawn.plan, spec)
    whose, is_later = these.whose, these.step > 0
    links = _links_of_beams(plan, these)
    first = np.where(these.step > 1, links["follows"], these.root[whose])
    chance = uniforms(spec.seed, "beams", len(whose)) * these.width[whose]
    parent = np.where(is_later, first + np.where(these.step > 1, chance.astype(np.int64), 0), NONE)
    goes_on_first = np.zeros(len(whose), np.bool_)
    goes_on_first[np.unique(parent, return_index=True)[1]] = True
    columns = {name: getattr(plan, name)[whose] for name in RequestPlan._fields} | links
    prompt, is_searched = columns["prompt_tokens"] + these.step, these.width[whose] > 0
    columns |= {
        "arrival_ns": np.where(is_later, NONE, columns["arrival_ns"]),
        "think_ns": np.where(is_later, these.think_ns, columns["think_ns"]),
        "prompt_tokens": prompt,
        "output_tokens": np.where(is_searched, 1, columns["output_tokens"]),
        "max_tokens": np.where(is_searched, 1, columns["max_tokens"]),
        "prefix_request": np.where(is_later, parent, links["prefix_request"]),
        "prefix_tokens": np.where(is_later, prompt - ~goes_on_first, columns["prefix_tokens"]),
    }
    caution = _beams_caution(int((these.width > 0).sum()), int(is_searched.sum()))
    plan = request_plan(_WHERE, "request {}".format, **columns)
    return replace(drawn, plan=plan, cautions=(*drawn.cautions, caution))


def _searches(plan: RequestPlan, spec: WorkloadSpec) -> _Searches:
    width, think_s, apart_s = np.array(
        [
            (0, 0, 0)
            if (beams := one.beams) is None
            else (beams.width, beams.think_s, beams.apart_s)
            for one in spec.classes
        ]
    ).T[:, plan.class_index]
    width = width.astype(np.int64)
    n_steps = np.where(width > 0, plan.output_tokens.astype(np.int64), 1)
    n_rows = 1 + width * (n_steps - 1)
    if n_rows.sum() > MAX_REQUESTS:
        raise SpecError(
            f"{n_rows.sum():,} requests of one token for {plan.n_requests:,} beam searches",
            where=_WHERE,
            allowed=f"{MAX_REQUESTS:,}",
            try_="fewer requests, or shorter outputs",
        )
    root = np.cumsum(n_rows) - n_rows
    whose = np.repeat(np.arange(plan.n_requests), n_rows)
    place = np.arange(len(whose)) - root[whose]
    later, beam = np.divmod(place - 1, np.maximum(width[whose], 1))
    beam = np.where(place > 0, beam, 0)
    return _Searches(
        width=width,
        root=root,
        last=root + n_rows - np.where(n_steps > 1, width, 1),
        whose=whose,
        step=later + 1,
        beam=beam,
        is_last=later + 1 == n_steps[whose] - 1,
        think_ns=np.rint((think_s[whose] + beam * apart_s[whose]) * NS_PER_S).astype(np.int64),
    )


def _links_of_beams(plan: RequestPlan, these: _Searches) -> dict[str, I64]:
    """Links of each row; requests that followed a search wait for its whole last step."""
    whose, row, width = these.whose, np.arange(len(these.whose)), these.width[these.whose]
    is_later, is_beside = these.step > 0, these.beam > 0
    links = dict[str, I64]()
    for name, place in (
        ("follows", these.last),
        ("joins", these.root),
        ("accompanies", these.root),
        ("prefix_request", these.last),
    ):
        to = getattr(plan, name).astype(np.int64)
        links[name] = np.where(is_later, NONE, np.where(to == NONE, NONE, place[to])[whose])
    lead = row - these.beam
    before = np.where(these.step > 1, lead - width, these.root[whose])
    links["follows"] = np.where(is_later, before, links["follows"])
    links["accompanies"] = np.where(is_beside, lead, links["accompanies"])
    waits = np.full(plan.n_requests, NONE)
    """For each search, the first row of the request that follows it."""
    after = np.flatnonzero((plan.follows != NONE) & (these.width[plan.follows] > 0))
    waits[plan.follows[after]] = these.root[after]
    joined = np.where(these.is_last, waits[whose], lead + width)
    links["joins"] = np.where(is_beside, joined, links["joins"])
    return links


def _beams_caution(n_searches: int, n_requests: int) -> Caution:
    return Caution(
        code="beams",
        text=(
            f"{n_searches:,} beam searches are {n_requests:,} requests of one token each, as vLLM's"
            " server sends them: TTFT and E2E are those of one token of one beam, TPOT is of none of"
            " them, and workflow is a whole search; which beams go on is drawn with equal chances;"
            " network and HTTP front end count once a search, in that of its first token"
        ),
        remedy="read workflow for the time of a search, E2E for that of one of its tokens",
    )
