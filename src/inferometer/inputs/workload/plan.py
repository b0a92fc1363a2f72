"""The table of requests: input of both the simulator and the load generator.

Letters of shapes: N requests, B full blocks of all requests.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferometer.errors import SpecError
from inferometer.inputs.objectives import ClassObjective, class_objectives
from inferometer.inputs.types import Caution

I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]

MOST_NS: Final = 2**62
"""The last instant, 146 years: sums of two fit into int64."""
NONE: Final = -1
"""No request, session or time: marks inapplicable values. NULL in files."""


class RequestPlan(NamedTuple):
    """N requests in order of arrival; followers come after what they follow.

    Made by ``request_plan``, which checks.

    Equal tokens are described by the tree of ``prefix_request`` and ``prefix_tokens``: a request's
    prompt begins with the first tokens of an earlier request's prompt and answer; its other tokens
    are unique. System prompts, turns of sessions and chained block hashes of traces are all
    represented exactly, for blocks of any size.
    """

    arrival_ns: I64
    """Arrival since the start; NONE for a request that follows another. The others are in order
    of arrival."""
    follows: I32
    """The request after whose end, in any status, this one is sent; NONE with ``arrival_ns``.
    Several may follow one (a fan-out)."""
    joins: I32
    """A later request that also waits for the end of this one, beside the one it follows: it is
    sent after the last of them. NONE without one."""
    accompanies: I32
    """An earlier request that follows the same one: this one also waits for what the earlier one
    waits for, and is sent ``think_ns`` after the last of these ends. NONE without one."""
    think_ns: I64
    """Time from the (last) awaited end to the send; NONE if it follows none."""
    prompt_tokens: I32
    output_tokens: I32
    """Tokens after which the model stops."""
    max_tokens: I32
    """The client's limit; engines know no more of the output length in advance."""
    class_index: I32
    tenant_index: I32
    priority: I32
    """The smaller, the more urgent."""
    abort_after_ns: I64
    """Time from the send until the client disconnects; NONE: never."""
    session_index: I32
    prefix_request: I32
    """The earlier request with whose tokens this prompt begins; NONE without a shared prefix."""
    prefix_tokens: I32
    """Tokens of the shared prefix; 0 without one."""

    @property
    def n_requests(self) -> int:
        """The number of requests."""
        return len(self.arrival_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnWorkload:
    """Requests, whether drawn or read from a trace, and the names of their classes and tenants."""

    name: str
    plan: RequestPlan
    class_names: tuple[str, ...]
    class_slos: tuple[str | None, ...]
    tenant_names: tuple[str, ...]
    cautions: tuple[Caution, ...] = ()
    asked_rate_per_s: float | None = None
    """Requested steady rate of open arrivals; None for others, and for varying rates."""
    n_users: int | None = None
    """Users of a closed loop; None of others."""
    most_requests: int | None = None
    """Requests of a trace; None for drawn requests."""

    @property
    def class_objectives(self) -> tuple[ClassObjective, ...]:
        """SLOs of the classes that have their own."""
        return class_objectives(zip(self.class_names, self.class_slos, strict=True))


_VARIED_RATIO: Final = 0.2
_INVERSE_GOLDEN_RATIO: Final = (5**0.5 - 1) / 2


def spread_places(n_requests: int, n_before: int = 0) -> NDArray[np.float64]:
    """(N) A place in [0, 1) of each of ``n_requests`` requests, after ``n_before`` earlier ones.

    That of request k is the fractional part of k times the inverse golden ratio (Weyl's sequence):
    even after any number of requests, and the first do not depend on how many follow.
    """
    order = np.arange(n_before, n_before + n_requests, dtype=np.float64)
    return (order * _INVERSE_GOLDEN_RATIO) % 1.0


def is_in_step(workload: DrawnWorkload) -> bool:
    """Do users of a closed loop stay together: equal prompts, equal answers, no pauses?"""
    plan = workload.plan
    columns = plan.prompt_tokens, plan.output_tokens, np.maximum(plan.think_ns, 0)
    return (
        workload.n_users is not None
        and 1 < workload.n_users < plan.n_requests
        and plan.output_tokens.min() > 1
        and not any(np.ptp(column) for column in columns)
    )


def with_varied_answers(workload: DrawnWorkload, most_tokens: int) -> DrawnWorkload:
    """The same requests, whose answers have 80 to 120 % of their tokens, evenly.

    As where models end answers themselves: users do not stay in step. ``most_tokens``: a request's
    most, of prompt and answer, where it has no more already.
    """
    plan = workload.plan
    ratio = 1 + _VARIED_RATIO * (2 * spread_places(plan.n_requests) - 1)
    most = np.maximum(most_tokens - plan.prompt_tokens, plan.output_tokens)
    output = np.clip(np.rint(plan.output_tokens * ratio), 1, most).astype(np.int32)
    varied = plan._replace(output_tokens=output, max_tokens=np.maximum(plan.max_tokens, output))
    return replace(workload, plan=varied)


def first_of_each(follows: I32 | I64) -> NDArray[np.intp]:
    """(N) The first request of each one's chain; itself if it follows none.

    Example
    -------
    >>> first_of_each(np.array([-1, -1, 0, 2, 1])).tolist()
    [0, 1, 0, 0, 1]
    """
    before = np.where(follows == NONE, np.arange(len(follows)), follows)
    while not np.array_equal(further := before[before], before):
        before = further
    return before


def first_requests(plan: RequestPlan, n_requests: int | None) -> RequestPlan:
    """The plan's first ``n_requests`` (None: all), which do not depend on later ones."""
    cut = RequestPlan._make(column[:n_requests] for column in plan)
    is_left_out = cut.joins >= cut.n_requests
    return cut._replace(joins=np.where(is_left_out, np.int32(NONE), cut.joins))


def only_requests(plan: RequestPlan, rows: NDArray[np.bool_]) -> RequestPlan:
    """Only these of N requests; links to others become NONE.

    Example
    -------
    >>> lengths = {"prompt_tokens": [8] * 3, "output_tokens": [2] * 3}
    >>> plan = request_plan("here", arrival_ns=[0, 1, -1], follows=[-1, -1, 1], think_ns=[-1, -1, 0], **lengths)
    >>> only_requests(plan, np.array([False, True, True])).follows.tolist()
    [-1, 0]
    """
    place_of = np.full(plan.n_requests + 1, NONE, np.int32)  # the last entry: for NONE
    place_of[:-1][rows] = np.arange(int(rows.sum()), dtype=np.int32)
    chosen = RequestPlan._make(column[rows] for column in plan)
    prefix_request = place_of[chosen.prefix_request]
    return chosen._replace(
        follows=place_of[chosen.follows],
        joins=place_of[chosen.joins],
        accompanies=place_of[chosen.accompanies],
        prefix_request=prefix_request,
        prefix_tokens=np.where(prefix_request == NONE, np.int32(0), chosen.prefix_tokens),
    )


def only_at(plan: RequestPlan, places: I32) -> RequestPlan:
    """Only the requests at these places of N; links to others become NONE."""
    rows = np.zeros(plan.n_requests, np.bool_)
    rows[places] = True
    return only_requests(plan, rows)


def has_workflows(plan: RequestPlan) -> bool:
    """Does a request wait for several others (subtasks, or beams of a search)?"""
    return bool(((plan.joins != NONE) | (plan.accompanies != NONE)).any())


def n_workflows(plan: RequestPlan) -> int:
    """The number of planners with subtasks that a synthesis waits for.

    Example
    -------
    >>> lengths = {"prompt_tokens": [8] * 4, "output_tokens": [2] * 4}
    >>> plan = request_plan(
    ...     "here", arrival_ns=[0, -1, -1, -1], follows=[-1, 0, 0, 0], think_ns=[-1, 0, 0, 0],
    ...     joins=[-1, 3, 3, -1], **lengths)
    >>> n_workflows(plan)
    1
    """
    return int((workflow_parts(plan) == Part.PLANNER).sum())


class Part(IntEnum):
    """Role of a request in a workflow."""

    NONE = 0
    PLANNER = 1
    SUBTASK = 2
    SYNTHESIS = 3


def workflow_parts(plan: RequestPlan) -> NDArray[np.int8]:
    """The ``Part`` of each request (N); 0 outside workflows, and for steps of beam searches.

    Example
    -------
    >>> lengths = {"prompt_tokens": [8] * 4, "output_tokens": [2] * 4}
    >>> plan = request_plan(
    ...     "here", arrival_ns=[0, -1, -1, -1], follows=[-1, 0, 0, 0], think_ns=[-1, 0, 0, 0],
    ...     joins=[-1, 3, 3, -1], **lengths)
    >>> workflow_parts(plan).tolist()
    [1, 2, 2, 3]
    """
    parts = np.zeros(plan.n_requests, np.int8)
    is_subtask = (plan.joins != NONE) & ~sent_by_server(plan.accompanies)
    syntheses = np.unique(plan.joins[is_subtask])
    parts[plan.follows[syntheses]] = Part.PLANNER
    parts[is_subtask] = Part.SUBTASK
    parts[syntheses] = Part.SYNTHESIS
    return parts


def sent_by_server(accompanies: I32) -> NDArray[np.bool_]:
    """(N) Does the server create it itself, like the later steps of a beam search?

    Example
    -------
    >>> sent_by_server(np.array([-1, -1, 1, -1], np.int32)).tolist()
    [False, True, True, False]
    """
    is_companion = np.asarray(accompanies != NONE, dtype=np.bool_)
    is_sent = is_companion.copy()
    is_sent[accompanies[is_companion]] = True
    return is_sent


class BlockContents(NamedTuple):
    """Contents of the full blocks of prompts and outputs.

    Ids are equal if and only if all tokens from the start to the block's end are equal.
    """

    start: I64
    """(N + 1) Where each request's ids begin."""
    ids: I32
    """(B) Numbered from 0 without gaps."""


_ELEMENTS: Final[dict[object, np.dtype[Any]]] = {I32: np.dtype(np.int32), I64: np.dtype(np.int64)}
_TYPES: Final = {name: _ELEMENTS[hint] for name, hint in get_type_hints(RequestPlan).items()}
NULLABLE_COLUMNS: Final[tuple[str, ...]] = (
    "follows",
    "joins",
    "accompanies",
    "think_ns",
    "abort_after_ns",
    "session_index",
    "prefix_request",
)
_ZEROS: Final[tuple[str, ...]] = ("class_index", "tenant_index", "priority", "prefix_tokens")
_DEFAULTS: Final[dict[str, int]] = {
    **dict.fromkeys(_ZEROS, 0),
    **dict.fromkeys(NULLABLE_COLUMNS, NONE),
}


def column_types() -> dict[str, np.dtype[Any]]:
    """Columns of a plan in order, with their dtypes."""
    return dict(_TYPES)


def request_plan(
    where: str, row_name: Callable[[int], str] = "request {}".format, **columns: ArrayLike
) -> RequestPlan:
    """The plan of these columns.

    Required: arrivals, prompts and outputs; ``max_tokens`` defaults to the output.

    Raises
    ------
    SpecError
        A column of another length or kind, or an invalid row; ``row_name`` is its name in messages.
    """
    n_requests = len(np.asarray(columns["arrival_ns"]))
    given = {"max_tokens": columns["output_tokens"]} | columns
    filled = {
        name: given[name] if name in given else np.full(n_requests, _DEFAULTS[name])
        for name in _TYPES
    }
    plan = RequestPlan(**{name: column(name, filled[name], n_requests, where) for name in _TYPES})
    check_plan(plan, where, row_name)
    return plan


def check_plan(
    plan: RequestPlan, where: str, row_name: Callable[[int], str] = "request {}".format
) -> None:
    """Refuse requests that cannot be sent.

    Raises
    ------
    SpecError
        The first row that cannot be sent, and why.
    """
    if plan.n_requests == 0:
        raise SpecError(
            "no requests",
            where=where,
            allowed="at least one",
            try_="more --requests, or a longer --for",
        )
    _check_arrivals(plan, where, row_name)
    for column, is_wrong, why, advice in _range_checks(plan):
        text = f"{column} of {{}} is {{}}{why}"
        _refuse(is_wrong, text, getattr(plan, column), where, row_name, **advice)
    _check_followers(plan, where, row_name)
    _check_prefixes(plan, where, row_name)


def _range_checks(
    plan: RequestPlan,
) -> Iterator[tuple[str, NDArray[np.bool_], str, dict[str, str]]]:
    """Columns with a range: name, rows outside, reason and allowed values."""
    try_ = "remove them, or skip_empty = true under [replay] of a workload file"
    for name in ("prompt_tokens", "output_tokens"):
        yield name, getattr(plan, name) < 1, "", {"allowed": "1 or more", "try_": try_}
    yield "max_tokens", plan.max_tokens < plan.output_tokens, ", below its output_tokens", {}
    for name in ("follows", "accompanies", "prefix_request"):
        pointer = getattr(plan, name)
        is_wrong = (pointer < NONE) | (pointer >= np.arange(plan.n_requests))
        yield name, is_wrong, "", {"allowed": "an earlier request (counted from 0), or none"}
    for name in ("class_index", "tenant_index", "prefix_tokens"):
        yield name, getattr(plan, name) < 0, "", {"allowed": "0 or more"}
    for name in ("abort_after_ns", "session_index"):
        yield name, getattr(plan, name) < NONE, "", {"allowed": "0 or more, or none"}
    for name, most in (
        ("arrival_ns", MOST_NS),
        ("think_ns", MOST_NS // 2),
        ("abort_after_ns", MOST_NS),
    ):
        yield name, getattr(plan, name) > most, "", {"allowed": f"up to {most}"}


def block_contents(plan: RequestPlan, block_size: int) -> BlockContents:
    """Contents of the full blocks of ``block_size`` tokens.

    In order of requests; blocks of a shared prefix have the ids of its owner.

    Example
    -------
    >>> lengths = {"prompt_tokens": [6, 8], "output_tokens": [2, 1]}
    >>> plan = request_plan("here", arrival_ns=[0, 1], **lengths, prefix_request=[-1, 0], prefix_tokens=[0, 7])
    >>> block_contents(plan, 2).ids.tolist()
    [0, 1, 2, 3, 0, 1, 2, 4]
    """
    n_full = (plan.prompt_tokens.astype(np.int64) + plan.output_tokens) // block_size
    n_shared = plan.prefix_tokens.astype(np.int64) // block_size
    start = np.concatenate([[0], np.cumsum(n_full)]).astype(np.int64)
    if start[-1] > np.iinfo(np.int32).max:
        raise SpecError(
            f"{start[-1]} blocks of {block_size} tokens in all prompts and outputs",
            where="the workload",
            allowed="2^31 - 1",
            try_="fewer requests at once",
        )
    # +1 and -1 at the ends of each shared stretch: their sum tells shared from own blocks, and
    # the sum of those counts the own blocks before.
    ids = np.zeros(start[-1] + 1, np.int32)
    np.add.at(ids, start[:-1], 1)
    np.subtract.at(ids, start[:-1] + n_shared, 1)
    np.cumsum(ids, out=ids)
    np.subtract(1, ids, out=ids)
    np.cumsum(ids, out=ids)
    ids = ids[:-1] - np.int32(1)
    shares = np.flatnonzero(n_shared)
    owner = start[plan.prefix_request[shares]]
    for mine, theirs, n_blocks in zip(
        start[shares].tolist(), owner.tolist(), n_shared[shares].tolist(), strict=True
    ):
        ids[mine : mine + n_blocks] = ids[theirs : theirs + n_blocks]
    return BlockContents(start=start, ids=ids)


def _check_arrivals(plan: RequestPlan, where: str, row_name: Callable[[int], str]) -> None:
    is_follower = plan.follows != NONE
    _refuse(
        is_follower & (plan.arrival_ns != NONE),
        "arrival_ns of {}, which follows another, is {}",
        plan.arrival_ns,
        where,
        row_name,
        allowed="none",
    )
    advice = {"allowed": "0 or more", "try_": "count from the first request, which comes at 0"}
    _refuse(
        ~is_follower & (plan.arrival_ns < 0),
        "arrival_ns of {} is {}",
        plan.arrival_ns,
        where,
        row_name,
        **advice,
    )
    known = np.maximum.accumulate(plan.arrival_ns)
    _refuse(
        ~is_follower & (plan.arrival_ns < known),
        "{} arrives at {} ns, before its predecessor",
        plan.arrival_ns,
        where,
        row_name,
        allowed="rows in order of arrival",
        try_="sort them, or is_sorted = false under [replay] of a workload file",
    )


def _check_followers(plan: RequestPlan, where: str, row_name: Callable[[int], str]) -> None:
    is_follower = plan.follows != NONE
    has_think = plan.think_ns >= 0
    _refuse(
        is_follower != has_think,
        "think_ns of {} is {}",
        plan.think_ns,
        where,
        row_name,
        allowed="0 or more for followers only",
    )
    is_joining = plan.joins != NONE
    is_later = (plan.joins > np.arange(plan.n_requests)) & (plan.joins < plan.n_requests)
    awaited = np.where(is_later, plan.joins, 0)
    may_wait = is_later & is_follower[awaited] & (plan.accompanies[awaited] == NONE)
    _refuse(
        is_joining & ~may_wait,
        "{} joins request {}",
        plan.joins,
        where,
        row_name,
        allowed="a later request (counted from 0) that follows another and accompanies none, or none",
    )
    is_companion = plan.accompanies != NONE
    lead = np.where(is_companion, plan.accompanies, 0)
    goes = is_follower[lead] & (plan.accompanies[lead] == NONE)
    goes &= plan.follows[lead] == plan.follows
    _refuse(
        is_companion & ~goes,
        "{} accompanies request {}",
        plan.accompanies,
        where,
        row_name,
        allowed="an earlier request that follows the same one and accompanies none, or none",
    )


def _check_prefixes(plan: RequestPlan, where: str, row_name: Callable[[int], str]) -> None:
    owner = plan.prefix_request
    held = plan.prompt_tokens.astype(np.int64) + plan.output_tokens
    most = np.where(owner == NONE, 0, np.minimum(plan.prompt_tokens, held[owner]))
    what = "prefix_tokens of {} is {}"
    allowed = "no more than its prompt and than what the other request holds"
    _refuse(plan.prefix_tokens > most, what, plan.prefix_tokens, where, row_name, allowed=allowed)


def _refuse(
    is_wrong: NDArray[np.bool_],
    what: str,
    values: NDArray[Any],
    where: str,
    row_name: Callable[[int], str],
    **advice: str,
) -> None:
    if np.count_nonzero(is_wrong):
        wrong = np.flatnonzero(is_wrong)
        more = f" (and {wrong.size - 1:,} rows more)" if wrong.size > 1 else ""
        raise SpecError(
            what.format(row_name(int(wrong[0])), values[wrong[0]]) + more, where=where, **advice
        )


def column(name: str, values: ArrayLike, n_requests: int, where: str) -> NDArray[Any]:
    """The values as the plan's column of this name.

    Raises
    ------
    SpecError
        They are not one for each request, or no whole numbers that it can hold.
    """
    array = np.asarray(values)
    if array.shape != (n_requests,):
        raise SpecError(
            f"{name} has the shape {array.shape}",
            where=where,
            allowed=f"one value for each of {n_requests} requests",
        )
    if array.dtype == _TYPES[name]:
        return array.copy()
    try:
        with np.errstate(invalid="ignore"):  # values that do not fit are refused below
            cast = array.astype(_TYPES[name])
    except OverflowError:
        cast = None
    if cast is None or not np.array_equal(cast, array):
        raise SpecError(
            f"{name} does not fit {_TYPES[name]}",
            where=where,
            allowed="whole numbers; instants within 292 years",
        )
    return np.ascontiguousarray(cast)
