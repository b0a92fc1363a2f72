"""What happens when, with several replicas behind a router?

``kernel/cluster_run.py`` tells the order.
"""

from collections.abc import Sequence
from typing import NamedTuple

from inferometer.records.types import ABSENT
from inferometer.simulate.demand import Demand
from inferometer.simulate.fleet import ClusterConfig
from inferometer.simulate.gate_config import NOTHING, GateConfig
from inferometer.simulate.outcome import FAR_NS, Outcome, Status
from reference.clients import Clients
from reference.gate import Gate
from reference.replica import Replica
from reference.request import Request
from reference.router import RouterRule


class Entry(NamedTuple):
    """A gate, and how much may be behind it, on all replicas together."""

    gate: Gate
    max_in_flight: int
    max_waiting_tokens: int = 0
    """Of prompts that wait in the engines' own queues; 0: no such rule."""


def entry_of(
    gate: GateConfig | None, requests: Demand, pools: Sequence[ClusterConfig]
) -> Entry | None:
    """The gate before these pools of replicas, of which the first takes what it lets in.

    Where the gate says no ``max_in_flight``, engines are given as many prompt tokens as the batches
    that may be in flight can compute, and no more: so no engine lacks work, and whoever waits does
    so at the gate, in its order.
    """
    if gate is None:
        return None
    n_most = sum(
        pool.n_replicas * (gate.max_in_flight or pool.engine.max_num_active) for pool in pools
    )
    first = pools[0].engine
    n_tokens = (
        0 if gate.max_in_flight else pools[0].n_replicas * first.depth * first.step_budget_tokens
    )
    return Entry(Gate(requests, gate), n_most, n_tokens)


class Cluster:
    """Replicas behind a router, and their clients; sometimes a gate between them."""

    def __init__(
        self,
        clients: Clients,
        replicas: list[Replica],
        router: RouterRule,
        config: ClusterConfig,
        entry: Entry | None,
    ) -> None:
        self.now_ns = 0
        self._max_prompt_tokens = config.engine.max_prompt_tokens
        self._engine = config.engine
        self._clients = clients
        self._replicas = replicas
        self._router = router
        self._gate = None if entry is None else entry.gate
        self._max_in_flight = 0 if entry is None else entry.max_in_flight
        self._max_waiting_tokens = 0 if entry is None else entry.max_waiting_tokens
        self._let_in: list[Request] = []
        """Whom the gate let in, until they are admitted."""
        self._due = set[int]()
        """Who has something to decide now."""

    def run(self, until_ns: int) -> Outcome:
        """Go on until all is done, the time is over, or no progress is possible."""
        while True:
            when_ns = self._next_event_ns()
            if when_ns == FAR_NS or when_ns > until_ns:
                return self._end_of_run(when_ns)
            self.now_ns = when_ns
            self._deliver_load_reports()
            self._abort_disconnected()
            if not self._complete():
                return Outcome.LIVELOCK
            self._hand_over()
            self._process_arrivals()
            self._launch()

    def _next_event_ns(self) -> int:
        """When does a request come or go away, a step end, or a wait?"""
        if self._gate is not None and any(replica.ended for replica in self._replicas):
            return self.now_ns  # refused at the door of an engine: there is room again
        gate_ns = FAR_NS if self._gate is None else self._gate.wake_ns
        return min(
            gate_ns,
            self._clients.next_ns,
            self._clients.next_abort_ns,
            *(replica.ready_ns for replica in self._replicas),
        )

    def _deliver_load_reports(self) -> None:
        """What do replicas say of themselves?"""
        self._router.hear(self.now_ns)

    def _report(self, replica: Replica) -> None:
        """A replica says how much it has to do."""
        self._router.report(replica.number, replica.report())

    def _abort_disconnected(self) -> None:
        """Whose client goes away now?"""
        while self._clients.next_abort_ns <= self.now_ns:
            request = self._clients.take_next_abort()
            if (
                request.status is Status.UNSEEN
            ):  # it would have come in this very instant, or waits at the gate
                if self._gate is not None:
                    self._gate.gone(request.index, self.now_ns)
                self._end_outside(request, Status.ABORTED)
                for replica in self._replicas:
                    self._mark_due(replica)
            else:
                self._drop(request)

    def _drop(self, request: Request) -> None:
        """The client of a request goes away that a replica has."""
        replica = self._replicas[self._clients.replica[request.index]]
        replica.drop(request, self.now_ns)
        self._mark_due(replica)

    def _complete(self) -> bool:
        """Whose oldest step is done, or whose wait over?

        False where a replica's requests preempt one another for ever.
        """
        for replica in self._replicas:
            if replica.ready_ns > self.now_ns:
                continue
            replica.now_ns = self.now_ns
            self._due.add(replica.number)
            if replica.is_computing and not replica.complete_oldest():
                return False
        return True

    def _hand_over(self) -> None:
        """What goes from one replica to another? Nothing, where each does all."""

    def _process_arrivals(self) -> None:
        """Who comes now, and who goes in, and where to?"""
        if self._gate is not None:
            self._report_ends_to_gate(self._gate)
        while self._clients.next_ns <= self.now_ns:
            self._abort_disconnected()  # a follower may go in the instant in which it would come
            request = self._clients.take_next()
            if request.status is not Status.UNSEEN:
                continue  # its client has gone in this very instant
            if self._gate is None:
                self._send(request)
            elif request.num_prompt_tokens > self._max_prompt_tokens or not self._gate.offer(
                request.index, self.now_ns
            ):
                self._end_outside(request, Status.REJECTED)
        if self._gate is not None:
            self._open(self._gate)

    def _report_ends_to_gate(self, gate: Gate) -> None:
        """The gate learns of all that have ended inside."""
        for replica in self._replicas:
            for request in replica.ended:
                gate.ended(request.index, request.num_output_tokens, self.now_ns)
            replica.ended.clear()

    def _open(self, gate: Gate) -> None:
        """Whom does the gate turn away, and whom does it let in?"""
        while (index := gate.shed(self.now_ns)) != NOTHING:
            self._end_outside(self._clients.requests[index], Status.REJECTED)
        n_room = self._max_in_flight - sum(replica.n_inside for replica in self._replicas)
        admitted_ns = self._clients.admitted_ns
        self._let_in = [
            one
            for one in self._let_in
            if admitted_ns[one.index] == ABSENT and not one.status.is_finished
        ]
        n_waiting_tokens = sum(one.num_prompt_tokens for one in self._let_in)
        n_free_tokens = sum(replica.n_free_tokens for replica in self._entrances)
        while True:
            is_enough = (
                n_waiting_tokens >= self._max_waiting_tokens or n_waiting_tokens > n_free_tokens
            )
            index = gate.release(
                self.now_ns, 0 if self._max_waiting_tokens and is_enough else n_room
            )
            if index == NOTHING:
                return
            request = self._clients.requests[index]
            request.arrival_ns = self.now_ns
            self._send(request)
            self._let_in.append(request)
            n_waiting_tokens += request.num_prompt_tokens
            n_room -= 1

    @property
    def _entrances(self) -> Sequence[Replica]:
        """The replicas that take what the gate lets in."""
        return self._replicas

    def _send(self, request: Request) -> None:
        """A request goes to the replica that the router says."""
        replica = self._route(request)
        replica.take(request)
        self._mark_due(replica)

    def _route(self, request: Request) -> Replica:
        return self._replicas[
            self._router.choose(request, [replica.n_inside for replica in self._replicas])
        ]

    def _end_outside(self, request: Request, status: Status) -> None:
        """A request ends that no replica has."""
        request.status = status
        self._clients.end(request, self.now_ns)

    def _mark_due(self, replica: Replica) -> None:
        """Something has changed for this replica: if it does nothing, it has to look again."""
        if replica.is_idle:
            self._due.add(replica.number)

    def _launch(self) -> None:
        """Everybody who has something to decide does."""
        for replica in self._replicas:
            if replica.number in self._due:
                replica.now_ns = self.now_ns
                replica.fill()
                self._report(replica)
                self._fetch(replica)
        self._due.clear()

    def _fetch(self, replica: Replica) -> None:
        """What has this replica asked for that others have? Nothing, where each does all."""

    def _end_of_run(self, when_ns: int) -> Outcome:
        """Nothing will happen any more, or not in time: how did it end?"""
        if self._gate is not None and self._gate.n_waiting > 0:
            return Outcome.STUCK if when_ns == FAR_NS else Outcome.HORIZON
        if any(
            replica.scheduler.has_unfinished or replica.is_computing for replica in self._replicas
        ):
            return Outcome.STUCK if when_ns == FAR_NS else Outcome.HORIZON
        return Outcome.FINISHED if self._clients.next_ns == FAR_NS else Outcome.HORIZON
