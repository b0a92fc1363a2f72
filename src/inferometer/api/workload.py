"""Which requests are sent to a server, of which lengths, when, and was their rate offered?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec.structs import replace as replace_fields

from inferometer import suggestions
from inferometer.api.question import DURATION, option, refuse_unused
from inferometer.errors import SpecError
from inferometer.inputs.objectives import (
    ObjectiveSpec,
    check_second_tokens,
    check_workflows,
    loosest_of,
    parse_objective,
)
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import reading, types
from inferometer.inputs.workload.distributions import Constant, Uniform
from inferometer.inputs.workload.plan import (
    I64,
    NONE,
    DrawnWorkload,
    first_of_each,
    has_workflows,
)
from inferometer.inputs.workload.replay import draw_workload
from inferometer.records.columns import F64
from inferometer.records.types import ABSENT, RequestTable, Run
from inferometer.records.user_spans import user_spans_ns
from inferometer.units import NS_PER_S, format_duration, format_number

N_REQUESTS: Final = 2000
"""Default number, enough for a 99th percentile of independent requests."""
_WAVES: Final = 10
"""Requests of each user of a closed loop, at least: the first ones all come at once, and the last
ones end alone. InferenceX sends as many; with 4 the throughput of 512 users is 4 % too low."""
_OF_TRACES: Final = {
    "trace_format": "format",
    "speed_up": "speed_up_ratio",
    "output_tokens": "output_tokens",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Options of the traffic."""

    workload: str = option(
        "chat",
        "A preset, lengths (1024x256), a workload file, or a trace.",
        "Workload",
        is_axis=True,
        is_common=True,
    )
    rate: float | None = option(
        None,
        "Requests per second, sent whether or not earlier ones are done (open loop).",
        "Workload",
        is_common=True,
        least=0,
        is_open=True,
    )
    concurrency: int | None = option(
        None,
        "Users who each wait for an answer before they send the next request (closed loop).",
        "Workload",
        is_common=True,
        least=1,
    )
    burstiness: float | None = option(
        None,
        "Shape of gamma arrivals; 1 is Poisson, smaller is burstier.",
        "Workload",
        least=0,
        is_open=True,
    )
    requests: int | None = option(
        None,
        f"Number of requests. [{N_REQUESTS} where nothing else ends it; more where an SLO"
        " needs them]",
        "Workload",
        is_common=True,
        least=1,
    )
    duration: float | None = option(
        None,
        "End with the last request that arrives within this time: 60s, 10min.",
        "Workload",
        is_common=True,
        flags=("--for",),
        least=0,
        is_open=True,
        metavar="DURATION",
        parse=DURATION,
    )
    seed: int | None = option(
        None, "Seed of the random numbers. [the workload's]", "Workload", least=0
    )
    trace_format: types.TraceFormat | None = option(
        None, "Format of a trace. [detected from its content]", "Workload"
    )
    speed_up: float | None = option(
        None,
        "Replay a trace faster by this factor; of ServeGen's clients, their rates.",
        "Workload",
        least=0,
        is_open=True,
    )
    output_tokens: int | None = option(
        None, "Output tokens of requests whose trace has none.", "Workload", least=1
    )

    @property
    def has_end(self) -> bool:
        """Was the number of requests, or the end, given?"""
        return self.requests is not None or self.duration is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Arrivals that a load test takes from elsewhere, and its cap of concurrent requests."""

    has_trace: bool = False
    has_ramp: bool = False
    max_concurrency: int | None = None


_NOTHING_REPLAYED: Final = Replayed()


_OF_TRAFFIC: Final = (
    *("workload", "rate", "concurrency", "burstiness"),
    *("trace_format", "speed_up", "output_tokens"),
)


def traffic_flags(options: Workload) -> tuple[object, ...]:
    """The flags of the same traffic, for another command: as they were given, without an end or a seed."""
    return tuple(
        word
        for name in _OF_TRAFFIC
        if (value := getattr(options, name)) is not None
        for word in (f"--{name.replace('_', '-')}", value)
    )


def replay_changes(options: Workload) -> dict[str, Any]:
    """How to read a trace: the keys that its three options change."""
    return {
        key: value
        for name, key in _OF_TRACES.items()
        if (value := getattr(options, name)) is not None
    }


def workload_of(options: Workload, replayed: Replayed = _NOTHING_REPLAYED) -> types.WorkloadSpec:
    """The workload of these options.

    Raises
    ------
    SpecError
        The file cannot be read, or two options exclude one another.
    """
    spec = reading.resolve_workload(options.workload)
    changes: dict[str, Any] = {}
    concurrency = _concurrency(spec, options, replayed)
    if options.rate is not None and concurrency is not None:
        raise SpecError(
            "both a rate and a concurrency",
            where="--rate, --concurrency",
            allowed="one of them: an open loop or a closed one",
            try_="the same command without --concurrency",
        )
    if isinstance(spec.replay, types.ServeGenSource):
        return _of_clients(spec, options)
    is_closed = options.rate is None and isinstance(spec.arrivals, types.ClosedArrivals)
    if concurrency is not None or (is_closed and not replayed.has_ramp):
        refuse_unused(
            options,
            ("burstiness",),
            "a closed loop, whose requests come after answers",
            allowed="an open loop: --rate",
            try_="the same command without --burstiness",
        )
    if options.rate is not None or options.burstiness is not None:
        changes["arrivals"] = _open(options)
    if concurrency is not None:
        changes["arrivals"] = {"kind": "closed", "concurrency": concurrency}
    replay = replay_changes(options)
    if replay and not replayed.has_trace:
        if not isinstance(spec.replay, types.TraceSource):
            where = "--trace-format, --speed-up, --output-tokens"
            raise SpecError(
                f"workload {spec.name!r} replays no trace", where=where, try_="--workload TRACE"
            )
        changes["replay"] = replay
    changes |= _end_and_seed(options)
    is_endless = spec.classes and spec.n_requests is None and spec.duration_s is None
    if is_endless and not {"n_requests", "duration_s"} & set(changes):
        changes["n_requests"] = max(N_REQUESTS, _WAVES * (concurrency or 0))
    return reading.with_changes(spec, changes, where="the command line") if changes else spec


def _concurrency(spec: types.WorkloadSpec, options: Workload, replayed: Replayed) -> int | None:
    """The users of a closed loop; None: an open one.

    ``--max-concurrency`` of ``vllm bench serve`` is one too where no arrivals are given: there
    every request is due at once unless a rate is given (its default is ``inf``), so that the cap
    alone decides.
    """
    cap = replayed.max_concurrency
    if cap is not None and options.concurrency is not None:
        raise SpecError(
            "both a concurrency and a cap of it",
            where="--concurrency, --max-concurrency",
            allowed="one of them",
            try_="the same command without --max-concurrency",
        )
    arrives_by_itself = options.rate is not None or replayed.has_trace or replayed.has_ramp
    if cap is None or arrives_by_itself or spec.replay is not None:
        return options.concurrency
    return cap


def _of_clients(spec: types.WorkloadSpec, options: Workload) -> types.WorkloadSpec:
    """A workload of ServeGen's clients with their own rates."""
    other = [
        f"--{name.replace('_', '-')}"
        for name in ("rate", "concurrency", "burstiness", "trace_format", "output_tokens")
        if getattr(options, name)
    ]
    if other:
        what = (
            f"{' and '.join(other)} of ServeGen's clients, who come at rates and lengths of"
            " their own"
        )
        raise SpecError(
            what,
            where="the command line",
            allowed="--for, --requests, --seed, --speed-up",
            try_="--speed-up 0.1",
        )
    changes = _end_and_seed(options) | (
        {} if options.speed_up is None else {"replay": {"rate_ratio": options.speed_up}}
    )
    return reading.with_changes(spec, changes, where="the command line") if changes else spec


def _end_and_seed(options: Workload) -> dict[str, Any]:
    given = {"n_requests": options.requests, "seed": options.seed}
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if options.duration is not None:
        changes |= {"duration_s": options.duration, "n_requests": options.requests}
    return changes


def _open(options: Workload) -> dict[str, Any]:
    opened: dict[str, Any] = {"kind": "open"}
    if options.rate is not None:
        opened["rate_per_s"] = options.rate
    if options.burstiness is not None:
        opened |= {"process": "gamma", "burstiness_ratio": options.burstiness}
    return opened


def objective_for(slo: str, spec: types.WorkloadSpec) -> ObjectiveSpec:
    """The SLO of this traffic, which may have limits for its workflows.

    Raises
    ------
    SpecError
        It is no SLO, or has a limit for workflows, and the traffic has none.
    """
    objective = parse_objective(slo, where="--slo", has_workflows=True)
    if any(one.metric == "workflow" for one in objective.thresholds):
        fans_out = any(one.fan_out is not None for one in spec.classes)
        is_known = fans_out or (spec.replay is not None and has_workflows(draw_workload(spec).plan))
        check_workflows(objective, has_workflows=is_known)
    return objective


def required_slo(slo: str | None, spec: types.WorkloadSpec) -> str:
    """``--slo``; without it the loosest limits of the classes' own SLOs.

    Raises
    ------
    SpecError
        There is none, and classes without one or with no latency in common.
    """
    if slo is not None:
        return slo
    own = [one.objective for one in spec.class_objectives]
    common = loosest_of(own) if own and len(own) == len(spec.classes) else None
    if common is None:
        raise SpecError(
            "--slo is missing",
            where="--slo",
            allowed="the SLO of all requests; none where each class of --workload FILE has an slo of"
            " its own, and all limit one latency at a percentile; of a job for which nobody waits,"
            " any that a growing queue breaks: --rate 1M/8h --slo 'e2e:p95<1h'",
            try_="--slo 'ttft:p95<500ms, tpot:p95<50ms'",
        )
    return common.text


def check_answers(objective: ObjectiveSpec | None, drawn: DrawnWorkload) -> None:
    """Refuse limits on TPOT, classes' own too, where no request has a second token."""
    has_second = drawn.plan.output_tokens > 1
    if objective is not None:
        check_second_tokens(objective, has_second=bool(has_second.any()))
    for name, promised, index in drawn.class_objectives:
        own = has_second[drawn.plan.class_index == index]
        if own.size:
            where = f"slo of class {name}"
            check_second_tokens(promised, has_second=bool(own.any()), where=where)


_HELD_RATIO: Final = 0.9
"""Below it the difference is more than the scatter of a few hundred random arrivals."""


def held_back(workload: DrawnWorkload, offered_per_s: float | None) -> tuple[Caution, ...]:
    """A caution where later turns of sessions reduced the offered rate below ``--rate``."""
    plan, asked_per_s = workload.plan, workload.asked_rate_per_s
    n_later = int(np.count_nonzero(plan.follows != NONE))
    if (
        asked_per_s is None
        or not n_later
        or not offered_per_s
        or offered_per_s >= _HELD_RATIO * asked_per_s
    ):
        return ()
    spread = format_duration((plan.n_requests - 1) / offered_per_s)
    who = (
        "wait for the ends of others, or for their user"
        if (plan.joins != NONE).any()
        else "are later turns, which wait for an answer and for their user"
    )
    return (
        Caution(
            code="HELD_RATE",
            text=(
                f"{format_number(offered_per_s)} requests/s were offered of"
                f" {format_number(asked_per_s)} asked for: {n_later:,} of {plan.n_requests:,}"
                f" requests {who}, so that all took {spread}"
            ),
            remedy=(
                "more --requests, until the run is long beside the users' pauses, or a longer --for"
            ),
        ),
    )


_AT_WORK_RATIO: Final = 0.9
_AT_WORK_GOAL_RATIO: Final = 0.95


def left_alone(workload: DrawnWorkload, requests: RequestTable) -> tuple[Caution, ...]:
    """A caution where the users of a closed loop were done long before the last of them.

    Throughput counts the time until the last one is done, while fewer and fewer send.
    """
    ended = requests.finished_ns != ABSENT
    if workload.n_users is None or workload.n_users < 2 or not ended.any():
        return ()
    end_ns = int(requests.finished_ns.max())
    first_ns, last_ns = user_spans_ns(requests, workload.plan)
    worked = np.flatnonzero(last_ns != ABSENT)
    shares = (last_ns - first_ns)[worked] / np.maximum(end_ns - first_ns[worked], 1)
    n_at_work = float(shares.sum())
    missing = 1 - n_at_work / workload.n_users
    if missing <= 1 - _AT_WORK_RATIO:
        return ()
    more = len(requests.status) * missing / (1 - missing) / (1 / _AT_WORK_GOAL_RATIO - 1)
    step = 10 ** math.floor(math.log10(more))
    n_requests = math.ceil(more / step) * step
    return (
        Caution(
            code="LEFT_ALONE",
            text=(
                f"{n_at_work:.1f} of {workload.n_users} users were at work on average: the last"
                " ones were alone for long, and throughput is that of fewer users"
            ),
            remedy=_shared_anew(workload, worked, shares) or _more_requests(workload, n_requests),
        ),
    )


def _more_requests(workload: DrawnWorkload, n_requests: int) -> str:
    """The cure of a closed loop that is too short for its users, as far as a trace has so much."""
    most = workload.most_requests
    if most is None or n_requests <= most:
        return f"more requests: {suggestions.flags('--requests', n_requests)}"
    n_users = max(int((workload.n_users or 1) * most / n_requests), 1)
    fewer = f"fewer users: {suggestions.flags('--concurrency', n_users)}"
    if workload.plan.n_requests >= most:
        return f"{fewer}, or a longer trace"
    return f"all of the trace: {suggestions.flags('--requests', most)}; or {fewer}"


def _shared_anew(workload: DrawnWorkload, users: I64, shares: F64) -> str | None:
    """A sentence where one class's users are done before another's: the requests that end together.

    ``users`` are their first requests, at work for these ``shares`` of the time. More requests in
    the same parts would leave the others alone for as large a part of a longer time.
    """
    plan, n_classes = workload.plan, len(workload.class_names)
    of_user = plan.class_index[users]
    is_own = (plan.class_index == plan.class_index[first_of_each(plan.follows)]).all()
    n_users = np.bincount(of_user, minlength=n_classes)
    if n_classes < 2 or not is_own or plan.n_requests < 2 * len(users) or not n_users.all():
        return None
    at_work = np.bincount(of_user, weights=shares, minlength=n_classes) / n_users
    if at_work.min() > _AT_WORK_RATIO * at_work.max():
        return None
    begins = plan.session_index == NONE
    begins[np.unique(plan.session_index, return_index=True)[1]] = True
    parts = np.bincount(plan.class_index[begins], minlength=n_classes) / at_work
    words = ", ".join(
        f"{name} {format_number(part)}"
        for name, part in zip(workload.class_names, (parts / parts.min()).tolist(), strict=True)
    )
    return f"another weight_ratio of the classes in the workload's file, about: {words}"


_LEAST_ALONE_FRACTION: Final = 0.01
"""Share of the requests from which on their waiting decides a 99th percentile."""


def alone_in_a_step(step_tokens: int, remedy: str, requests: RequestTable) -> tuple[Caution, ...]:
    """A caution where whole prompts fill a step, beside the tokens of those that generate.

    ``remedy``: of an engine that computes whole prompts in steps of ``step_tokens``.
    """
    generated = (requests.first_token_ns != ABSENT) & (requests.finished_ns != ABSENT)
    if not generated.any():
        return ()
    # one token a step of each request that generates, on average
    generating_ns = (requests.finished_ns - requests.first_token_ns)[generated].sum()
    lasted_ns = requests.finished_ns[generated].max() - requests.intended_send_ns.min()
    n_generating = max(1, round(float(generating_ns) / max(int(lasted_ns), 1)))
    prompts = requests.prompt_tokens
    is_alone = (prompts > step_tokens - n_generating) & (prompts <= step_tokens)
    if is_alone.mean() < _LEAST_ALONE_FRACTION:
        return ()
    text = (
        f"{int(is_alone.sum()):,} of {len(prompts):,} prompts fill a step of max_num_tokens ="
        f" {step_tokens:,}, so that each is computed only when hardly any request generates"
    )
    return (Caution(code="ALONE_IN_A_STEP", text=text, remedy=remedy),)


_TAIL_FRACTION: Final = 0.95
_BURST_RATIO: Final = 1.2
_ENOUGH_WAVES: Final = 40
"""First requests are then half of the 5 % beyond a 95th percentile."""


def begun_at_once(workload: DrawnWorkload, requests: RequestTable) -> tuple[Caution, ...]:
    """A caution where the users' first requests, which all come at once, decide the TTFT p95."""
    plan = workload.plan
    has_first = requests.first_token_ns != ABSENT
    is_later = has_first & (plan.follows[requests.request_index] != NONE)
    begins_ns = plan.arrival_ns[plan.follows == NONE]
    if workload.n_users is None or not is_later.any() or np.ptp(begins_ns):
        return ()
    ttft_s = (requests.first_token_ns - requests.intended_send_ns) / NS_PER_S
    all_s, later_s = (
        float(np.quantile(ttft_s[rows], _TAIL_FRACTION)) for rows in (has_first, is_later)
    )
    if all_s <= _BURST_RATIO * later_s:
        return ()
    more = _more_requests(workload, _ENOUGH_WAVES * workload.n_users)
    return (
        Caution(
            code="BEGUN_AT_ONCE",
            text=(
                f"the first requests of {workload.n_users:,} users come at once: without them TTFT"
                f" p95 is {format_duration(later_s)}"
            ),
            remedy=f"{more}; or start_over_s in a workload's file",
        ),
    )


def in_step(workload: DrawnWorkload, run: Run, varied: Run | None) -> tuple[Caution, ...]:
    """A caution where answers of one length keep users together, and that decides their TTFT.

    ``varied``: the run of the same users with answers of other lengths.
    """
    if varied is None:
        return ()
    exact_s, varied_s = (_median_ttft_s(one) for one in (run, varied))
    if exact_s is None or varied_s is None or exact_s <= _BURST_RATIO * varied_s:
        return ()
    prompt, output = int(workload.plan.prompt_tokens[0]), int(workload.plan.output_tokens[0])
    apart = f"TTFT p50 is {format_duration(varied_s)}, not {format_duration(exact_s)}"
    return (
        _in_step_caution(
            output,
            f"{apart}; intervals hold both",
            suggestions.flags("--workload", _varied_lengths(prompt, output)),
        ),
    )


def _varied(output: int) -> tuple[int, int]:
    return round(0.8 * output), round(1.2 * output)


def _varied_lengths(prompt: int, output: int) -> str:
    low, high = _varied(output)
    return f"prompt={prompt},output={low}..{high}"


def _in_step_caution(output: int, apart: str, remedy: str) -> Caution:
    return Caution(
        code="IN_STEP",
        text=(
            f"all answers have {output:,} tokens, so users stay in step and their prompts meet:"
            f" where models end answers themselves, at 80 to 120 %, {apart}"
        ),
        remedy=remedy,
    )


def users_in_step(
    options: Workload,
    capacity_users: float | None,
    capacity_of: Callable[[types.WorkloadSpec, float], float | None],
) -> tuple[Caution, ...]:
    """A caution where answers of one length keep users together, and that decides the capacity.

    ``capacity_of``: users of this workload that meet the SLO, looked for from a number on.
    """
    spec = workload_of(options)
    alike = _of_one_length(spec)
    is_closed = isinstance(spec.arrivals, types.ClosedArrivals)
    if alike is None or capacity_users is None or not is_closed:
        return ()
    output = alike.output_tokens
    low, high = _varied(output)
    varied = replace_fields(alike.one, output_tokens=Uniform(low=low, high=high))
    found = capacity_of(replace_fields(spec, classes=(varied,)), capacity_users)
    if found is None or found <= _BURST_RATIO * capacity_users:
        return ()
    apart = (
        f"about {int(float(f'{found:.1g}')):,} users meet the SLO at likely step times, not"
        f" {capacity_users:.0f}"
    )
    return (_in_step_caution(output, apart, varied_answers(options)),)


def varied_answers(options: Workload) -> str:
    """What keeps users of one length apart: answers of 80 to 120 % of it."""
    alike = _of_one_length(workload_of(options))
    if alike is None:
        return "a --workload whose lengths differ"
    low, high = _varied(alike.output_tokens)
    if reading.lengths_table(str(options.workload)) and alike.one.system_prompts is None:
        lengths = _varied_lengths(alike.prompt_tokens, alike.output_tokens)
        return suggestions.flags("--workload", lengths)
    return (
        f'output_tokens = {{ kind = "uniform", low = {low}, high = {high} }} in {options.workload}'
    )


class _Alike(NamedTuple):
    """A class whose requests are all of the same lengths."""

    one: types.RequestClass
    prompt_tokens: int
    output_tokens: int


def _of_one_length(spec: types.WorkloadSpec) -> _Alike | None:
    """The only class of a workload, where its answers are of one length and users do not pause."""
    if len(spec.classes) != 1 or spec.classes[0].sessions is not None:
        return None
    (one,) = spec.classes
    sides = one.prompt_tokens, one.output_tokens
    prompt, output = (side.value if isinstance(side, Constant) else 0.0 for side in sides)
    return _Alike(one, round(prompt), round(output)) if prompt and output >= 2 else None


def _median_ttft_s(run: Run) -> float | None:
    requests = run.requests
    if requests is None or not (has_first := requests.first_token_ns != ABSENT).any():
        return None
    ttft_ns = (requests.first_token_ns - requests.intended_send_ns)[has_first]
    return float(np.median(ttft_ns)) / NS_PER_S
