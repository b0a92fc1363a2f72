"""Who comes and who goes, and what became of everybody?

In plain Python; ``kernel/requests.py`` does the same on arrays.
"""

from collections import defaultdict
from heapq import heapify, heappop, heappush

import numpy as np

from inferometer.records.columns import I64
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import Demand
from inferometer.simulate.outcome import FAR_NS, RequestFacts, Status
from reference.request import Request


class Clients:
    """All requests, those that are still to come in order of time, then of index."""

    def __init__(self, demand: Demand) -> None:
        self.requests = _requests(demand)
        self.sent_ns = [request.arrival_ns for request in self.requests]
        self.admitted_ns = [ABSENT] * demand.n_requests
        self.first_token_ns = [ABSENT] * demand.n_requests
        self.finished_ns = [ABSENT] * demand.n_requests
        self.replica = [-1] * demand.n_requests
        self._demand = demand
        self._arrivals = [
            (request.arrival_ns, request.index)
            for request in self.requests
            if demand.follows[request.index] < 0
        ]
        self._awaiting = defaultdict[int, set[int]](set)
        self._awaited = defaultdict[int, set[int]](set)
        self._ends_ns = defaultdict[int, list[int]](list)
        for i, (leader, later) in enumerate(zip(demand.follows, demand.joins, strict=True)):
            if leader >= 0:
                self._awaiting[int(leader)].add(i)
            if later >= 0:
                self._awaiting[i].add(int(later))
        for i, lead in enumerate(demand.accompanies.tolist()):
            if lead >= 0:
                for those in self._awaiting.values():
                    those.update({i} if lead in those else ())
        for i, those in self._awaiting.items():
            for one in those:
                self._awaited[one].add(i)
        self._departures = [
            (int(when), i)
            for i, when in enumerate(demand.abort_ns)
            if when != ABSENT and demand.follows[i] < 0
        ]
        heapify(self._departures)

    @property
    def next_ns(self) -> int:
        """When does the next request come? ``FAR_NS`` where none is known to."""
        return self._arrivals[0][0] if self._arrivals else FAR_NS

    @property
    def next_abort_ns(self) -> int:
        """When does the next client go away? ``FAR_NS`` where none is known to."""
        return self._departures[0][0] if self._departures else FAR_NS

    def take_next(self) -> Request:
        """Who comes at ``next_ns``?"""
        return self.requests[heappop(self._arrivals)[1]]

    def take_next_abort(self) -> Request:
        """Whose client goes away at ``next_abort_ns``?"""
        return self.requests[heappop(self._departures)[1]]

    def end(self, request: Request, when_ns: int) -> None:
        """A request has ended; whoever waited for nobody else will be sent."""
        self.finished_ns[request.index] = when_ns
        for index in self._awaiting[request.index]:
            self._ends_ns[index].append(when_ns)
            self._awaited[index].discard(request.index)
            if self._awaited[index]:
                continue
            after = self.requests[index]
            after.arrival_ns = max(
                int(self._demand.arrival_ns[index]),
                max(self._ends_ns[index]) + int(self._demand.think_ns[index]),
            )
            self.sent_ns[after.index] = after.arrival_ns
            heappush(self._arrivals, (after.arrival_ns, after.index))
            if self._demand.abort_ns[after.index] != ABSENT:
                heappush(
                    self._departures,
                    (after.arrival_ns + int(self._demand.abort_ns[after.index]), after.index),
                )

    def facts(self) -> RequestFacts:
        """What became of them?"""
        return RequestFacts(
            status=_column([request.status for request in self.requests]),
            arrival_ns=_column(self.sent_ns),
            admitted_ns=_column(self.admitted_ns),
            first_token_ns=_column(self.first_token_ns),
            finished_ns=_column(self.finished_ns),
            num_tokens=_column([request.num_tokens for request in self.requests]),
            num_cached_tokens=_column([request.num_cached_tokens for request in self.requests]),
            num_preemptions=_column([request.num_preemptions for request in self.requests]),
            arrived_ns=_column([request.arrival_ns for request in self.requests]),
            replica=_column(self.replica),
        )


def _requests(demand: Demand) -> list[Request]:
    start, contents = demand.content_start.tolist(), demand.contents.tolist()
    columns = zip(
        np.where(demand.follows < 0, demand.arrival_ns, FAR_NS).tolist(),
        demand.prompt_tokens.tolist(),
        demand.output_tokens.tolist(),
        demand.max_tokens.tolist(),
        demand.priority.tolist(),
        demand.class_index.tolist(),
        strict=True,
    )
    return [
        Request(
            i,
            arrival_ns=arrival,
            prompt=prompt,
            stop=stop,
            max_tokens=most,
            priority=priority,
            contents=contents[start[i] : start[i + 1]],
            class_index=which,
        )
        for i, (arrival, prompt, stop, most, priority, which) in enumerate(columns)
    ]


def _column(values: list[int] | list[Status]) -> I64:
    return np.array(values, dtype=np.int64)
