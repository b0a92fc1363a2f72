"""What happens when, if prompts and answers are computed by different replicas?

``kernel/cluster_run.py`` tells the order.
"""

from collections.abc import Sequence
from typing import NamedTuple

from inferometer.simulate.fleet import DisaggregatedConfig
from inferometer.simulate.outcome import FAR_NS, Outcome, Stage
from reference.clients import Clients
from reference.cluster import Cluster, Entry
from reference.handover import DecodeScheduler, PrefillScheduler, Transfers
from reference.link import Link
from reference.replica import Replica
from reference.request import Request
from reference.router import RouterRule


class Pools(NamedTuple):
    """The replicas of both pools with their schedulers, and who sends what between them."""

    prefill: list[PrefillScheduler]
    decode: list[DecodeScheduler]
    replicas: list[Replica]
    """All, those that prefill first."""
    transfers: Transfers
    routers: tuple[RouterRule, RouterRule]


class SplitCluster(Cluster):
    """Prefill replicas behind a router, decode replicas behind another, and a link between them."""

    def __init__(
        self, clients: Clients, pools: Pools, config: DisaggregatedConfig, entry: Entry | None
    ) -> None:
        super().__init__(clients, pools.replicas, pools.routers[0], config.prefill, entry)
        self._pools = pools
        self._link = Link(config.link, config.prefill.n_replicas + config.decode.n_replicas)

    @property
    def _entrances(self) -> Sequence[Replica]:
        return self._replicas[: len(self._pools.prefill)]

    def _next_event_ns(self) -> int:
        return min(super()._next_event_ns(), self._link.next_ns)

    def _deliver_load_reports(self) -> None:
        for router in self._pools.routers:
            router.hear(self.now_ns)

    def _report(self, replica: Replica) -> None:
        n_prefill = len(self._pools.prefill)
        router, first = (
            (self._pools.routers[0], 0)
            if replica.number < n_prefill
            else (self._pools.routers[1], n_prefill)
        )
        router.report(replica.number - first, replica.report())

    def _route(self, request: Request) -> Replica:
        prefill = self._entrances
        replica = prefill[self._router.choose(request, [replica.n_inside for replica in prefill])]
        self._pools.transfers.open(request)
        return replica

    def _drop(self, request: Request) -> None:
        if (
            not request.status.is_finished
            and self._pools.transfers.of(request).stage is Stage.FOR_ROOM
        ):
            self._forget(request)
        super()._drop(request)

    def _hand_over(self) -> None:
        """Whose KV cache arrives now, and whose prompt is computed?"""
        while self._link.next_ns <= self.now_ns:
            request = self._clients.requests[self._link.take_next()]
            self._forget(request)
            replica = self._replicas[self._clients.replica[request.index]]
            self._pools.decode[replica.number - len(self._pools.prefill)].receive(request)
            self._mark_due(replica)
        for source in self._replicas:
            for request in source.prefilled:
                transfer = self._pools.transfers.of(request)
                transfer.source, transfer.prefilled_ns = source.number, self.now_ns
                request.arrival_ns = self.now_ns
                decode = self._replicas[len(self._pools.prefill) :]
                replica = decode[
                    self._pools.routers[1].choose(request, [one.n_inside for one in decode])
                ]
                replica.take(request)
                self._mark_due(replica)
            source.prefilled.clear()

    def _forget(self, request: Request) -> None:
        """The replica that computed a prompt may forget it."""
        source = self._pools.transfers.of(request).source
        self._pools.prefill[source].forget(request)
        self._mark_due(self._replicas[source])

    def _fetch(self, replica: Replica) -> None:
        """The KV caches that a decode replica has asked for go on their way."""
        if replica.number < len(self._pools.prefill):
            return
        scheduler = self._pools.decode[replica.number - len(self._pools.prefill)]
        for request in scheduler.asked:
            self._link.begin(
                request, self._pools.transfers.of(request), replica.number, self.now_ns
            )
        scheduler.asked.clear()

    def _end_of_run(self, when_ns: int) -> Outcome:
        return Outcome.HORIZON if self._link.next_ns != FAR_NS else super()._end_of_run(when_ns)
