"""The requests of a simulation: arrivals, lengths, and shared prefixes.

Letters of shapes: N requests, K content ids of all requests together.
"""

import math
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from inferometer.errors import SpecError
from inferometer.records.columns import I32, I64, Bools
from inferometer.records.types import ABSENT
from inferometer.simulate.engine_config import EngineConfig, block_sizes_of

_WHERE: Final = "the workload"
_MAX_THINK_NS: Final = 2**61
_INVERSE_GOLDEN_RATIO: Final = (math.sqrt(5) - 1) / 2

Number = TypeVar("Number", np.int32, np.int64)


class Demand(NamedTuple):
    """N requests; those that follow no other request are in order of arrival.

    Created by ``demand``, which checks the columns.
    """

    arrival_ns: I64
    """Arrival time; of a request that follows another one, its earliest possible arrival."""
    prompt_tokens: I32
    output_tokens: I32
    """Tokens after which the model stops."""
    max_tokens: I32
    """The client's limit of output tokens; the scheduler knows only this limit in advance."""
    priority: I32
    """As in vLLM, smaller is more urgent."""
    class_index: I32
    tenant_index: I32
    abort_ns: I64
    """When the client disconnects (of a follower: how long after its send); ABSENT: never."""
    content_start: I64
    """(N + 1) Index in ``contents`` where each request's content ids begin."""
    contents: I32
    """(K) Id of the content of each full block of prompt and output: equal ids mean equal tokens
    from the start of the sequence."""
    follows: I32
    """The request after whose end this one is sent; -1: none, it is sent at its arrival time.
    Used for closed loops, turns of sessions, and (with several followers) fan-outs.
    """
    joins: I32
    """A later request that also waits for this one's end, besides the one it follows; -1: none."""
    accompanies: I32
    """An earlier request with the same ``follows``: this one is sent after the same ends as that
    one, each after its own ``think_ns``; -1: none."""
    think_ns: I64
    """Pause between the end (or the last of the ends) that a request waits for, and its send."""

    @property
    def n_requests(self) -> int:
        """The number of requests."""
        return len(self.arrival_ns)

    @property
    def n_contents(self) -> int:
        """The number of different block contents."""
        return int(self.contents.max()) + 1 if self.contents.size else 0


class SharedBlocks(NamedTuple):
    """Contents of the full blocks that requests share; all other blocks are unique."""

    start: I64
    """(N + 1) Index in ``ids`` where each request's ids begin."""
    ids: I64
    """Any integers; equal ids mean equal tokens from the start of the sequence."""


class Route(NamedTuple):
    """How the requests of one class are divided among groups of replicas, by weights."""

    class_index: int
    targets: tuple[int, ...]
    """The groups that get requests of the class."""
    weights: tuple[float, ...]
    """Share of the requests for each of ``targets``; the shares sum to 1."""
    takers: tuple[int, ...] | None = None
    """The route is only for requests that exactly these groups accept; None: for all."""

    def shared(self, n_requests: int, n_before: int = 0) -> I32:
        """(N) The group of each of ``n_requests`` requests, after ``n_before`` earlier ones.

        The group of request k is chosen by the fractional part of k times the inverse golden ratio
        (Weyl's sequence). So the shares are close to the weights after any number of requests, and
        the groups of the first requests do not depend on how many follow.

        Example
        -------
        >>> Route(0, (0, 2), (0.5, 0.5)).shared(8).tolist()
        [0, 2, 0, 2, 0, 0, 2, 0]
        """
        place = ((n_before + np.arange(n_requests)) * _INVERSE_GOLDEN_RATIO) % 1.0
        edges = np.cumsum(self.weights[:-1])
        return np.array(self.targets, np.int32)[np.searchsorted(edges, place, side="right")]


def demand(  # noqa: PLR0913 -- one for each column
    arrival_ns: ArrayLike,
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    *,
    max_tokens: ArrayLike | None = None,
    priority: ArrayLike | None = None,
    class_index: ArrayLike | None = None,
    tenant_index: ArrayLike | None = None,
    abort_ns: ArrayLike | None = None,
    follows: ArrayLike | None = None,
    joins: ArrayLike | None = None,
    accompanies: ArrayLike | None = None,
    think_ns: ArrayLike | None = None,
) -> Demand:
    """Check these columns and combine them; ``with_contents`` adds shared prefixes.

    Raises
    ------
    SpecError
        A column of another length, an arrival before its predecessor or before 0, a length below 1,
        an abort before its arrival; a request that follows a later one, or joins an earlier one or
        one that comes by itself, or accompanies one that follows another one.
    """
    n_requests = len(np.asarray(arrival_ns))

    def counts(name: str, values: ArrayLike | None, default: int = 0) -> I32:
        chosen = np.full(n_requests, default) if values is None else values
        return _column(name, chosen, n_requests, np.int32)

    def times_ns(name: str, values: ArrayLike | None, default: int = 0) -> I64:
        chosen = np.full(n_requests, default) if values is None else values
        return _column(name, chosen, n_requests, np.int64)

    made = Demand(
        arrival_ns=times_ns("arrival_ns", arrival_ns),
        prompt_tokens=counts("prompt_tokens", prompt_tokens),
        output_tokens=counts("output_tokens", output_tokens),
        max_tokens=counts("max_tokens", output_tokens if max_tokens is None else max_tokens),
        priority=counts("priority", priority),
        class_index=counts("class_index", class_index),
        tenant_index=counts("tenant_index", tenant_index),
        abort_ns=times_ns("abort_ns", abort_ns, default=ABSENT),
        content_start=np.zeros(n_requests + 1, np.int64),
        contents=np.empty(0, np.int32),
        follows=counts("follows", follows, default=-1),
        joins=counts("joins", joins, default=-1),
        accompanies=counts("accompanies", accompanies, default=-1),
        think_ns=times_ns("think_ns", think_ns),
    )
    _check(made)
    _check_followers(made)
    return made


def with_contents(
    requests: Demand, block_size: int | I64, shared: SharedBlocks | None = None
) -> Demand:
    """The same requests with content ids for all full blocks, which prefix caching needs.

    ``block_size``: one for all requests, or (N) one for each. Blocks that are not shared get unique
    ids: only the request itself hits them, after a preemption.
    """
    n_full = (requests.prompt_tokens.astype(np.int64) + requests.output_tokens) // block_size
    start = np.concatenate([[0], np.cumsum(n_full)])
    if start[-1] > np.iinfo(np.int32).max:
        raise SpecError(
            f"{start[-1]} blocks in all prompts and outputs",
            where=_WHERE,
            allowed="2^31 - 1",
            try_="fewer requests at once",
        )
    contents = np.full(int(start[-1]), -1, np.int32)
    n_ids = 0
    if shared is not None:
        n_shared = np.diff(shared.start)
        if len(n_shared) != requests.n_requests or bool(np.any(n_shared > n_full)):
            raise SpecError(
                "shared blocks do not fit the requests",
                where=_WHERE,
                allowed="at most the full blocks of prompt and output",
            )
        distinct, dense = np.unique(shared.ids, return_inverse=True)
        n_ids = len(distinct)
        places = np.repeat(start[:-1] - shared.start[:-1], n_shared) + np.arange(len(shared.ids))
        contents[places] = dense
    own = contents < 0
    contents[own] = np.arange(n_ids, n_ids + int(own.sum()), dtype=np.int32)
    return requests._replace(content_start=start.astype(np.int64), contents=contents)


def contents_checked(requests: Demand, config: EngineConfig) -> Demand:
    """The same requests with content ids for this engine's blocks, if it has prefix caching.

    Raises
    ------
    SpecError
        The contents were made for blocks of another size.
    """
    if not config.enable_prefix_caching:
        return requests
    block_size = block_sizes_of(config, requests)
    if not requests.contents.size:
        return with_contents(requests, block_size)
    n_full = (requests.prompt_tokens.astype(np.int64) + requests.output_tokens) // block_size
    if not np.array_equal(np.diff(requests.content_start), n_full):
        raise SpecError(
            "the requests' contents were made for blocks of another size",
            where=_WHERE,
            allowed=f"blocks of {config.block_size} tokens",
        )
    return requests


def selected(requests: Demand, rows: Bools) -> Demand:
    """The requests for which ``rows`` is True, with their contents.

    Raises
    ------
    SpecError
        A selected request waits for the end of one that is not selected.
    """
    places = np.flatnonzero(rows)
    place_of = np.full(requests.n_requests + 1, -1, np.int32)  # the last entry: for -1
    place_of[places] = np.arange(len(places), dtype=np.int32)
    before, beside = requests.follows[places], requests.accompanies[places]
    follows, joins, accompanies = place_of[before], place_of[requests.joins], place_of[beside]
    left_out = ((follows < 0) & (before >= 0)) | ((accompanies < 0) & (beside >= 0))
    if left_out.any() or (joins[~rows] >= 0).any():
        raise SpecError(
            "a request follows one that is left out",
            where=_WHERE,
            allowed="requests with all that they follow",
        )
    n_blocks = np.diff(requests.content_start)[places] if requests.contents.size else 0 * places
    start = np.concatenate([[0], np.cumsum(n_blocks)]).astype(np.int64)
    shift = requests.content_start[:-1][places] - start[:-1]
    contents = requests.contents[np.repeat(shift, n_blocks) + np.arange(start[-1])]
    columns = {
        name: column[places]
        for name, column in requests._asdict().items()
        if name not in {"follows", "joins", "accompanies", "content_start", "contents"}
    }
    return Demand(
        **columns,
        follows=follows,
        joins=joins[places],
        accompanies=accompanies,
        content_start=start,
        contents=np.unique(contents, return_inverse=True)[1].astype(np.int32),
    )


def _column(name: str, values: ArrayLike, n_requests: int, dtype: type[Number]) -> NDArray[Number]:
    array = np.asarray(values)
    if array.shape != (n_requests,):
        raise SpecError(
            f"{name} has the shape {array.shape}",
            where=_WHERE,
            allowed=f"one value for each of {n_requests} requests",
        )
    with np.errstate(invalid="ignore"):  # values that do not fit raise below
        cast = array.astype(dtype)
    if not np.array_equal(cast, array):
        raise SpecError(f"{name} does not fit {dtype}", where=_WHERE, allowed="whole numbers")
    return np.ascontiguousarray(cast)


def leaving_order(requests: Demand) -> I32:
    """Requests whose client disconnects, in order of time, then room for those of followers."""
    is_leaving = requests.abort_ns != ABSENT
    known = np.flatnonzero(is_leaving & (requests.follows == -1))
    leaving = np.zeros(int(is_leaving.sum()), np.int32)
    leaving[: len(known)] = known[np.argsort(requests.abort_ns[known], kind="stable")]
    return leaving


def _check(requests: Demand) -> None:
    if requests.n_requests == 0:
        raise SpecError("no requests", where=_WHERE, allowed="at least one")
    own = np.flatnonzero(requests.follows < 0)
    late = np.concatenate(
        [
            own[np.diff(requests.arrival_ns[own], prepend=0) < 0],
            np.flatnonzero(requests.arrival_ns < 0),
        ]
    )
    if late.size:
        raise SpecError(
            f"request {late[0]} arrives at {requests.arrival_ns[late[0]]} ns, before its"
            " predecessor or before 0",
            where=_WHERE,
        )
    for name in ("prompt_tokens", "output_tokens"):
        short = np.flatnonzero(getattr(requests, name) < 1)
        if short.size:
            raise SpecError(
                f"{name} of request {short[0]} is {getattr(requests, name)[short[0]]}",
                where=_WHERE,
                allowed="1 or more",
            )
    small = np.flatnonzero(requests.max_tokens < requests.output_tokens)
    if small.size:
        raise SpecError(
            f"max_tokens of request {small[0]} is below its output_tokens",
            where=_WHERE,
            allowed="that or more",
        )
    earliest_ns = np.where(requests.follows < 0, requests.arrival_ns, 0)
    early = np.flatnonzero((requests.abort_ns != ABSENT) & (requests.abort_ns < earliest_ns))
    if early.size:
        raise SpecError(f"request {early[0]} is aborted before it arrives", where=_WHERE)


def _check_followers(requests: Demand) -> None:
    followers = np.flatnonzero(requests.follows != -1)
    leaders = requests.follows[followers]
    wrong = followers[(leaders < -1) | (leaders >= followers)]
    if wrong.size:
        text = f"request {wrong[0]} follows request {requests.follows[wrong[0]]}"
        raise SpecError(text, where=_WHERE, allowed="-1 (comes by itself) or an earlier request")
    joining = np.flatnonzero(requests.joins != -1)
    awaiting = requests.joins[joining]
    is_later = (awaiting > joining) & (awaiting < requests.n_requests)
    awaited = np.where(is_later, awaiting, 0)
    may_wait = is_later & (requests.follows[awaited] != -1) & (requests.accompanies[awaited] == -1)
    if not may_wait.all():
        first = joining[~may_wait][0]
        text = f"request {first} joins request {requests.joins[first]}"
        allowed = "-1 (none) or a later request that follows another and accompanies none"
        raise SpecError(text, where=_WHERE, allowed=allowed)
    _check_companions(requests)
    unthinkable = np.flatnonzero((requests.think_ns < 0) | (requests.think_ns > _MAX_THINK_NS))
    if unthinkable.size:
        raise SpecError(
            f"think_ns of request {unthinkable[0]} is {requests.think_ns[unthinkable[0]]}",
            where=_WHERE,
            allowed="0 to 2^61",
        )


def _check_companions(requests: Demand) -> None:
    companions = np.flatnonzero(requests.accompanies != -1)
    lead = requests.accompanies[companions]
    is_earlier = (lead >= 0) & (lead < companions)
    lead = np.where(is_earlier, lead, 0)
    goes = is_earlier & (requests.follows[lead] != -1) & (requests.accompanies[lead] == -1)
    goes &= requests.follows[lead] == requests.follows[companions]
    if not goes.all():
        first = companions[~goes][0]
        text = f"request {first} accompanies request {requests.accompanies[first]}"
        allowed = "-1 (none) or an earlier request that follows the same one and accompanies none"
        raise SpecError(text, where=_WHERE, allowed=allowed)
