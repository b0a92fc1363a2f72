"""The requests of a simulation: arrivals, lengths, and shared prefixes.

Letters of shapes: N requests, K content ids of all requests together.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import (
    NONE,
    RequestPlan,
    column,
    column_types,
    request_plan,
    spread_places,
)
from inferometer.records.columns import I32, I64, Bools
from inferometer.records.types import ABSENT
from inferometer.simulate.engine_config import EngineConfig, block_sizes_of

_WHERE: Final = "the workload"


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

        The group is chosen by ``spread_places``: shares are close to the weights after any number
        of requests.

        Example
        -------
        >>> Route(0, (0, 2), (0.5, 0.5)).shared(8).tolist()
        [0, 2, 0, 2, 0, 0, 2, 0]
        """
        place = spread_places(n_requests, n_before)
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
        As for ``request_plan``; or an abort, or the earliest arrival of a follower, is before 0 or
        before the request arrives.
    """
    n_requests = len(np.asarray(arrival_ns))

    def times_ns(name: str, values: ArrayLike | None, default: int = 0) -> I64:
        chosen = np.full(n_requests, default) if values is None else values
        return column(name, chosen, n_requests, _WHERE)

    earliest_ns, pause_ns = times_ns("arrival_ns", arrival_ns), times_ns("think_ns", think_ns)
    end_ns = times_ns("abort_after_ns", abort_ns, default=ABSENT)
    is_follower, leaves = times_ns("follows", follows, default=NONE) != NONE, end_ns != ABSENT
    own_ns = np.where(is_follower, 0, earliest_ns)
    wrong = np.flatnonzero((leaves & (end_ns < own_ns)) | (is_follower & (earliest_ns < 0)))
    if wrong.size:
        what = f"request {wrong[0]} is aborted before it arrives, or arrives before 0"
        raise SpecError(what, where=_WHERE)
    others = {
        "max_tokens": max_tokens,
        "priority": priority,
        "class_index": class_index,
        "tenant_index": tenant_index,
        "follows": follows,
        "joins": joins,
        "accompanies": accompanies,
    }
    plan = request_plan(
        _WHERE,
        "request {}".format,
        arrival_ns=np.where(is_follower, NONE, earliest_ns),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        think_ns=np.where(is_follower, pause_ns, NONE),
        abort_after_ns=np.where(leaves, end_ns - own_ns, NONE),
        **{name: values for name, values in others.items() if values is not None},
    )
    return demand_without_contents(plan)._replace(arrival_ns=earliest_ns, think_ns=pause_ns)


def demand_without_contents(plan: RequestPlan) -> Demand:
    """The plan's requests, without shared prefixes."""
    is_follower = plan.follows != NONE
    own_ns = np.where(is_follower, 0, plan.arrival_ns)
    columns = {
        name: np.ascontiguousarray(getattr(plan, name), dtype)
        for name, dtype in column_types().items()
        if name in Demand._fields
    }
    columns |= {
        "arrival_ns": own_ns,
        "abort_ns": np.where(plan.abort_after_ns == NONE, ABSENT, own_ns + plan.abort_after_ns),
        "think_ns": np.where(is_follower, plan.think_ns, 0),
        "content_start": np.zeros(plan.n_requests + 1, np.int64),
        "contents": np.empty(0, np.int32),
    }
    return Demand(**columns)


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


def leaving_order(requests: Demand) -> I32:
    """Requests whose client disconnects, in order of time, then room for those of followers."""
    is_leaving = requests.abort_ns != ABSENT
    known = np.flatnonzero(is_leaving & (requests.follows == -1))
    leaving = np.zeros(int(is_leaving.sum()), np.int32)
    leaving[: len(known)] = known[np.argsort(requests.abort_ns[known], kind="stable")]
    return leaving
