"""Drawing the requests of a workload specification.

Every part draws from its own stream, by the index of the session or of the request: another rate,
length or class weight changes nothing else, and a larger number of requests begins with the same
ones. Letters of shapes: S sessions, N requests.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.workload.arrivals import (
    DEFAULT_ARRIVALS,
    Lengths,
    Rows,
    close_loop,
    profile_integral_s,
    session_arrivals,
    uniforms,
)
from inferometer.inputs.workload.distributions import (
    Constant,
    Distribution,
    Floats,
    Zipf,
    mean_of,
    normal_fraction,
    normal_quantile,
    quantile,
    sampled,
    seconds_to_ns,
)
from inferometer.inputs.workload.plan import I64, NONE, DrawnWorkload, RequestPlan, request_plan
from inferometer.inputs.workload.types import (
    Cap,
    ClosedArrivals,
    FanOut,
    Multiple,
    OpenArrivals,
    RequestClass,
    Sessions,
    WorkloadSpec,
)
from inferometer.units import MOST_S, NS_PER_S

_MAX_TOKENS: Final = 2**31 - 1
MAX_REQUESTS: Final = 100_000_000
_WHERE: Final = "the workload"
_ONE: Final = Constant(value=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedArrivals:
    """Arrival times from a trace (S, sorted)."""

    at_ns: I64


_OWN: Final = 0
"""A turn's only request, or the planner of its workflow."""
_SUBTASK: Final = 1
_SYNTHESIS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """Requests before they are cut, session after session, turn after turn (N rows).

    A turn is one row; if it fans out, its subtasks and its synthesis follow it.
    """

    session: I64
    turn: I64
    part: I64
    class_index: I64
    prompt_tokens: I64
    output_tokens: I64
    max_tokens: I64
    system_tokens: I64
    think_ns: I64
    abort_after_ns: I64


def draw_classes(spec: WorkloadSpec, recorded: RecordedArrivals | None = None) -> DrawnWorkload:
    """The requests of a workload of classes; ``recorded`` replaces its arrival times.

    No file is read.

    Raises
    ------
    SpecError
        It has no end, cannot reach ``n_requests``, or has an invalid value.
    """
    _check_end(spec, recorded)
    _check_size(spec)
    n_sessions = _first_guess(spec)
    while True:
        arrival_ns = _session_arrivals(spec, recorded, n_sessions)
        turns = _turns(spec, len(arrival_ns))
        n_requests = len(turns.session)
        in_time = (
            n_requests
            if spec.duration_s is None
            else int(_in_time(spec, arrival_ns)[turns.session].sum())
        )
        is_enough = spec.n_requests is not None and n_requests >= spec.n_requests
        is_over = in_time < n_requests
        if is_enough or is_over or len(arrival_ns) < n_sessions:
            break
        n_sessions *= 2
    n_kept = min(in_time, spec.n_requests or in_time)
    if spec.n_requests is not None and spec.duration_s is None and n_kept < spec.n_requests:
        try_ = f"n_requests = {n_kept}" if n_kept else "a higher rate_per_s"
        raise SpecError(
            f"only {n_kept} of {spec.n_requests} requests ever come",
            where=_WHERE,
            allowed=f"within {MOST_S:g} s",
            try_=try_,
        )
    if n_kept == 0:
        raise SpecError(
            "no request comes within duration_s",
            where=_WHERE,
            allowed="at least one",
            try_="a longer duration_s",
        )
    n_tenants = spec.tenants.n_tenants if spec.tenants is not None else 1
    return DrawnWorkload(
        name=spec.name,
        plan=_plan(spec, arrival_ns, turns, n_kept),
        class_names=tuple(one.name for one in spec.classes),
        class_slos=tuple(one.slo for one in spec.classes),
        tenant_names=tuple(f"tenant-{k}" for k in range(n_tenants)),
        n_users=spec.arrivals.concurrency if isinstance(spec.arrivals, ClosedArrivals) else None,
    )


def _check_end(spec: WorkloadSpec, recorded: RecordedArrivals | None) -> None:
    is_open = isinstance(spec.arrivals or DEFAULT_ARRIVALS, OpenArrivals)
    if spec.duration_s is not None and not is_open and recorded is None:
        raise no_duration(spec.duration_s)
    if spec.n_requests is None and not (
        recorded is not None or (is_open and spec.duration_s is not None)
    ):
        allowed = (
            "n_requests, duration_s or both"
            if is_open
            else "n_requests: how many come in a duration depends on the server"
        )
        raise SpecError(
            "the workload has no end", where=_WHERE, allowed=allowed, try_="n_requests = 1000"
        )


def no_duration(duration_s: float) -> SpecError:
    """Refuse a duration for loads whose requests depend on earlier answers."""
    return SpecError(
        f"how many requests come in {duration_s:g} s depends on the server, where they come after"
        " answers or all at once",
        where="--for, or duration_s of a workload's file",
        allowed="their number: --requests, or n_requests of the file",
        try_=f"{suggestions.flags('--requests', 1000)}, in place of --for",
    )


def _check_size(spec: WorkloadSpec) -> None:
    expected = expected_requests(spec) if spec.n_requests is None else None
    if expected is not None and expected > MAX_REQUESTS:
        raise SpecError(
            f"about {expected:.3g} requests come within duration_s",
            where=_WHERE,
            allowed=f"{MAX_REQUESTS:,}",
            try_="n_requests, or a lower rate",
        )


def expected_requests(spec: WorkloadSpec) -> float | None:
    """Expected requests within ``duration_s``; None unless arrivals are open with a duration.

    Raises
    ------
    SpecError
        The profile of the rate is impossible.
    """
    arrivals = spec.arrivals or DEFAULT_ARRIVALS
    if spec.duration_s is None or not isinstance(arrivals, OpenArrivals):
        return None
    if arrivals.profile is None:
        return arrivals.rate_per_s * spec.duration_s
    return arrivals.rate_per_s * profile_integral_s(arrivals.profile, spec.duration_s)


def _first_guess(spec: WorkloadSpec) -> int:
    wanted = float(spec.n_requests) if spec.n_requests is not None else float("inf")
    arrivals = spec.arrivals or DEFAULT_ARRIVALS
    if spec.duration_s is not None and isinstance(arrivals, OpenArrivals):
        wanted = min(wanted, arrivals.rate_per_s * spec.duration_s)
    return 64 + int(min(wanted, 1e9) / _mean_turns(spec) * 1.05) if np.isfinite(wanted) else 1 << 40


def _mean_turns(spec: WorkloadSpec) -> float:
    """Mean number of requests of a session, without those beyond ``max_context_tokens``."""
    weights = np.array([one.weight_ratio for one in spec.classes])
    turns = np.array(
        [
            (1.0 if one.sessions is None else mean_of(sampled(one.sessions.turns), at_least=1))
            * (
                1.0
                if one.fan_out is None
                else 2.0 + mean_of(sampled(one.fan_out.subtasks), at_least=1)
            )
            for one in spec.classes
        ]
    )
    return float(np.cumsum(weights * turns)[-1] / np.cumsum(weights)[-1])


def _session_arrivals(
    spec: WorkloadSpec, recorded: RecordedArrivals | None, n_sessions: int
) -> I64:
    if recorded is not None:
        return recorded.at_ns[:n_sessions]
    return session_arrivals(
        spec.arrivals or DEFAULT_ARRIVALS, spec.seed, n_sessions, turns_ratio=_mean_turns(spec)
    )


def _in_time(spec: WorkloadSpec, arrival_ns: I64) -> NDArray[np.bool_]:
    return arrival_ns <= round((spec.duration_s or 0.0) * NS_PER_S)


def _turns(spec: WorkloadSpec, n_sessions: int) -> _Turns:
    weights = np.cumsum([one.weight_ratio for one in spec.classes])
    class_of = np.searchsorted(
        weights, uniforms(spec.seed, "class", n_sessions) * weights[-1], side="right"
    )
    n_turns = np.ones(n_sessions, np.int64)
    u_turns = uniforms(spec.seed, "turns", n_sessions)
    for index, one in enumerate(spec.classes):
        mine = class_of == index
        if one.sessions is not None:
            n_turns[mine] = np.maximum(
                np.rint(quantile(sampled(one.sessions.turns), u_turns[mine])), 1
            )
    session = np.repeat(np.arange(n_sessions), n_turns)
    first = np.cumsum(n_turns) - n_turns
    turn = np.arange(len(session)) - first[session]
    return _grown(spec, session, turn, class_of[session])


def _grown(spec: WorkloadSpec, session: I64, turn: I64, class_index: I64) -> _Turns:
    """Lengths of every turn; prompts of later turns include the conversation so far."""
    n_rows = len(session)
    own = _drawn(spec, dict(enumerate(spec.classes)), class_index, "")
    fan_out = _fanned_out(spec, class_index)
    system, most_context = np.zeros(n_rows, np.int64), np.full(n_rows, _MAX_TOKENS, np.int64)
    for index, one in enumerate(spec.classes):
        mine = np.flatnonzero(class_index == index)
        if one.system_prompts is not None:
            system[mine] = _system_tokens(spec, index)[_system_prompt(spec, index, session[mine])]
        if one.sessions is not None:
            later = mine[turn[mine] > 0]
            if one.sessions.later_prompt_tokens is not None:
                u_prompt = uniforms(spec.seed, "prompt", n_rows)[later]
                own.new[later] = _tokens(one.sessions.later_prompt_tokens, u_prompt)
            most_context[mine] = one.sessions.max_context_tokens or _MAX_TOKENS
    is_first = turn == 0
    held = own.new + own.output + fan_out.joined
    said = np.cumsum(held) - held
    first = np.flatnonzero(is_first)
    n_turns = np.diff(np.append(first, n_rows))
    prompt = system + (said - np.repeat(said[first], n_turns)) + own.new
    longest = prompt + own.output + fan_out.joined
    np.maximum.at(longest, fan_out.turn, fan_out.subtask_context(prompt + own.output))
    n_too_long = np.cumsum(~is_first & (longest > most_context))
    stays = n_too_long == np.repeat(n_too_long[first], n_turns)
    rows = _Turns(
        session=session,
        turn=turn,
        part=np.full(n_rows, _OWN, np.int64),
        class_index=class_index,
        prompt_tokens=prompt,
        output_tokens=own.output,
        max_tokens=own.most,
        system_tokens=system,
        think_ns=np.where(is_first, NONE, own.think_ns),
        abort_after_ns=own.abort_ns,
    )
    return _with_parts(rows, fan_out, stays)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """New tokens of some requests, and think times."""

    new: I64
    output: I64
    most: I64
    think_ns: I64
    abort_ns: I64


def _drawn(
    spec: WorkloadSpec, classes: dict[int, RequestClass], class_index: I64, stream: str
) -> _Drawn:
    """Draw one request for each index of ``classes``; others have a length of 1 token."""
    n_rows = len(class_index)
    u = {
        name: uniforms(spec.seed, stream + name, n_rows)
        for name in ("prompt", "output", "think", "patience")
    }
    new, output, most = (np.ones(n_rows, np.int64) for _ in range(3))
    think_ns, abort_ns = (np.full(n_rows, NONE, np.int64) for _ in range(2))
    for index, one in classes.items():
        mine = np.flatnonzero(class_index == index)
        new[mine], output[mine], most[mine] = _lengths(one, u["prompt"][mine], u["output"][mine])
        if one.beams is not None:
            output[mine] = most[mine]
        if one.sessions is not None:
            think_ns[mine] = seconds_to_ns(sampled(one.sessions.think_s), u["think"][mine])
        if one.patience_s is not None:
            abort_ns[mine] = seconds_to_ns(sampled(one.patience_s), u["patience"][mine])
    return _Drawn(new=new, output=output, most=most, think_ns=think_ns, abort_ns=abort_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FannedOut:
    """Subtasks (B rows) and syntheses (a row for each of N turns; some turns have none)."""

    n_subtasks: I64
    """(N) 0 where the turn is one request."""
    turn: I64
    """(B) The row of each subtask's turn."""
    subtasks: _Drawn
    synthesis: _Drawn
    joined: I64
    """(N) Tokens that the synthesis adds to the conversation: its new prompt and its answer."""
    shares_prefix: NDArray[np.bool_]
    """(B)"""

    def subtask_context(self, planned: I64) -> I64:
        """(B) Prompt and answer of each subtask, given the contexts at the planners' ends (N)."""
        return self.subtasks.new + self.subtasks.output + self.shares_prefix * planned[self.turn]


def _fanned_out(spec: WorkloadSpec, class_index: I64) -> _FannedOut:
    n_rows = len(class_index)
    fans = {index: one.fan_out for index, one in enumerate(spec.classes) if one.fan_out is not None}
    n_subtasks = np.zeros(n_rows, np.int64)
    u_subtasks = uniforms(spec.seed, "subtasks", n_rows if fans else 0)
    for index, fan in fans.items():
        mine = np.flatnonzero(class_index == index)
        n_subtasks[mine] = np.maximum(np.rint(quantile(sampled(fan.subtasks), u_subtasks[mine])), 1)
    turn = np.repeat(np.arange(n_rows), n_subtasks)
    subtasks = _drawn(spec, _as_requests(spec, fans, _SUBTASK), class_index[turn], "subtask ")
    synthesis = _drawn(
        spec, _as_requests(spec, fans, _SYNTHESIS), class_index if fans else turn, "synthesis "
    )
    joined = np.zeros(n_rows, np.int64)
    if fans:
        takes_answers = np.array(
            [
                one.fan_out is not None and one.fan_out.synthesis_prompt_tokens is None
                for one in spec.classes
            ]
        )[class_index]
        answers = np.zeros(n_rows, np.int64)
        np.add.at(answers, turn, subtasks.output)
        np.copyto(synthesis.new, answers, where=takes_answers)
        joined = np.where(n_subtasks > 0, synthesis.new + synthesis.output, 0)
    shares = np.array(
        [one.fan_out is not None and one.fan_out.shares_prefix for one in spec.classes]
    )
    return _FannedOut(
        n_subtasks=n_subtasks,
        turn=turn,
        subtasks=subtasks,
        synthesis=synthesis,
        joined=joined,
        shares_prefix=shares[class_index[turn]],
    )


def _as_requests(spec: WorkloadSpec, fans: dict[int, FanOut], part: int) -> dict[int, RequestClass]:
    """The classes that fan out, with the lengths and pauses of their subtasks, or their syntheses."""
    found = dict[int, RequestClass]()
    for index, fan in fans.items():
        one = spec.classes[index]
        prompt, output = (
            (fan.prompt_tokens, fan.output_tokens)
            if part == _SUBTASK
            else (fan.synthesis_prompt_tokens, fan.synthesis_output_tokens)
        )
        pause = Sessions(turns=_ONE, think_s=fan.think_s or Constant(value=0))
        found[index] = RequestClass(
            name=one.name,
            prompt_tokens=prompt or _ONE,
            output_tokens=output or one.output_tokens,
            correlation_ratio=one.correlation_ratio,
            max_tokens=one.max_tokens,
            patience_s=one.patience_s,
            sessions=pause,
        )
    return found


def _with_parts(turns: _Turns, fan_out: _FannedOut, stays: NDArray[np.bool_]) -> _Turns:
    """The kept turns, each followed by its subtasks and synthesis if any."""
    n_parts = (1 + fan_out.n_subtasks + (fan_out.n_subtasks > 0))[stays]
    whose = np.repeat(np.flatnonzero(stays), n_parts)
    place = np.arange(len(whose)) - np.repeat(np.cumsum(n_parts) - n_parts, n_parts)
    is_synthesis = (place > 0) & (place > fan_out.n_subtasks[whose])
    is_subtask = (place > 0) & ~is_synthesis
    columns = {name: getattr(turns, name)[whose] for name in _Turns.__slots__}
    subtask, synthesis = stays[fan_out.turn], whose[is_synthesis]
    planned = turns.prompt_tokens + turns.output_tokens
    for is_part, part, drawn, rows in (
        (is_subtask, _SUBTASK, fan_out.subtasks, np.flatnonzero(subtask)),
        (is_synthesis, _SYNTHESIS, fan_out.synthesis, synthesis),
    ):
        columns["part"][is_part] = part
        columns["output_tokens"][is_part] = drawn.output[rows]
        columns["max_tokens"][is_part] = drawn.most[rows]
        columns["think_ns"][is_part] = drawn.think_ns[rows]
        columns["abort_after_ns"][is_part] = drawn.abort_ns[rows]
    columns["prompt_tokens"][is_subtask] = (
        fan_out.subtask_context(planned) - fan_out.subtasks.output
    )[subtask]
    columns["prompt_tokens"][is_synthesis] = planned[synthesis] + fan_out.synthesis.new[synthesis]
    return _Turns(**columns)


def _lengths(one: RequestClass, u_prompt: Floats, u_output: Floats) -> tuple[I64, I64, I64]:
    """New prompt tokens, output tokens and the client's limit."""
    rho = one.correlation_ratio
    if rho != 0:
        score = rho * normal_quantile(u_prompt) + np.sqrt(1 - rho * rho) * normal_quantile(u_output)
        u_output = normal_fraction(score)
    prompt, output = (
        _tokens(dist, u)
        for dist, u in ((one.prompt_tokens, u_prompt), (one.output_tokens, u_output))
    )
    match one.max_tokens:
        case Cap(tokens=tokens):
            return prompt, np.minimum(output, tokens), np.full(len(output), tokens, np.int64)
        case Multiple(ratio=ratio):
            return prompt, output, np.minimum(np.ceil(output * ratio), _MAX_TOKENS).astype(np.int64)
        case _:
            return prompt, output, output


def _tokens(distribution: Distribution, fractions: Floats) -> I64:
    return np.clip(np.rint(quantile(sampled(distribution), fractions)), 1, _MAX_TOKENS).astype(
        np.int64
    )


def _system_tokens(spec: WorkloadSpec, class_index: int) -> I64:
    one = spec.classes[class_index]
    assert one.system_prompts is not None  # noqa: S101 -- asked for only where it has some
    u = uniforms(spec.seed, f"system prompt/{one.name}/tokens", one.system_prompts.n_prompts)
    return _tokens(one.system_prompts.tokens, u)


def _system_prompt(spec: WorkloadSpec, class_index: int, session: I64) -> I64:
    """Index of the system prompt of each session within its class."""
    one = spec.classes[class_index]
    assert one.system_prompts is not None  # noqa: S101 -- asked for only where it has some
    popularity = Zipf(
        exponent=one.system_prompts.popularity_exponent, high=one.system_prompts.n_prompts
    )
    u = uniforms(spec.seed, f"system prompt/{one.name}", int(session.max(initial=-1)) + 1)
    return quantile(popularity, u[session]).astype(np.int64) - 1


def _plan(spec: WorkloadSpec, arrival_ns: I64, turns: _Turns, n_kept: int) -> RequestPlan:
    rows = _Turns(**{name: getattr(turns, name)[:n_kept] for name in _Turns.__slots__})
    leader = _leaders(rows)
    follows = np.where((rows.part != _OWN) | (rows.turn > 0), leader, NONE)
    think_ns = rows.think_ns.copy()
    if isinstance(spec.arrivals, ClosedArrivals):
        firsts = np.flatnonzero((rows.part == _OWN) & (rows.turn == 0))
        sessions = Rows(firsts, np.append(firsts[1:], n_kept) - 1, rows.class_index[firsts])
        users = tuple(one.concurrency for one in spec.classes)
        lengths = Lengths(rows.prompt_tokens, rows.output_tokens)
        close_loop(
            spec.arrivals, spec.seed, sessions, users, lengths, follows=follows, think_ns=think_ns
        )
    prefix_request, prefix_tokens = _prefixes(spec, rows, leader)
    tenant = np.zeros(n_kept, np.int64)
    if spec.tenants is not None:
        popularity = Zipf(exponent=spec.tenants.popularity_exponent, high=spec.tenants.n_tenants)
        tenant = (
            quantile(popularity, uniforms(spec.seed, "tenant", int(rows.session[-1]) + 1))[
                rows.session
            ].astype(np.int64)
            - 1
        )
    has_sessions = np.array(
        [
            any(part is not None for part in (one.sessions, one.fan_out, one.beams))
            for one in spec.classes
        ]
    )
    return request_plan(
        _WHERE,
        arrival_ns=np.where(follows == NONE, arrival_ns[rows.session], NONE),
        follows=follows,
        joins=_joins(rows),
        think_ns=think_ns,
        prompt_tokens=rows.prompt_tokens,
        output_tokens=rows.output_tokens,
        max_tokens=rows.max_tokens,
        class_index=rows.class_index,
        tenant_index=tenant,
        priority=np.array([one.priority for one in spec.classes])[rows.class_index],
        abort_after_ns=rows.abort_after_ns,
        session_index=np.where(has_sessions[rows.class_index], rows.session, NONE),
        prefix_request=prefix_request,
        prefix_tokens=prefix_tokens,
    )


def _leaders(rows: _Turns) -> I64:
    """The planner of each subtask and synthesis; for a turn, the previous turn's last request."""
    index = np.arange(len(rows.part))
    planner = np.maximum.accumulate(np.where(rows.part == _OWN, index, 0))
    return np.where(rows.part == _OWN, index - 1, planner)


def _joins(rows: _Turns) -> I64:
    """The synthesis of each subtask; NONE where it was cut off."""
    n_rows = len(rows.part)
    synthesis = np.where(rows.part == _SYNTHESIS, np.arange(n_rows), n_rows)
    after = np.minimum.accumulate(synthesis[::-1])[::-1]
    return np.where((rows.part == _SUBTASK) & (after < n_rows), after, NONE)


def _prefixes(spec: WorkloadSpec, rows: _Turns, leader: I64) -> tuple[I64, I64]:
    """Shared prefixes: the whole conversation for followers, the system prompt for first turns."""
    shares = np.array([one.fan_out is None or one.fan_out.shares_prefix for one in spec.classes])
    goes_on = np.where(
        rows.part == _OWN, rows.turn > 0, (rows.part == _SYNTHESIS) | shares[rows.class_index]
    )
    owner = np.where(goes_on, leader, NONE)
    n_tokens = np.where(goes_on, (rows.prompt_tokens + rows.output_tokens)[leader], 0)
    for index, one in enumerate(spec.classes):
        if one.system_prompts is None:
            continue
        is_first = (rows.part == _OWN) & (rows.turn == 0)
        firsts = np.flatnonzero(is_first & (rows.class_index == index))
        _, where_first, group = np.unique(
            _system_prompt(spec, index, rows.session[firsts]),
            return_index=True,
            return_inverse=True,
        )
        holder = firsts[where_first[group]]
        owner[firsts] = np.where(holder == firsts, NONE, holder)
        n_tokens[firsts] = np.where(holder == firsts, 0, rows.system_tokens[firsts])
    return owner, n_tokens
