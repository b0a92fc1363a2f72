"""What happens when, from the first arrival to the last token?

``kernel/one_replica.py`` tells the order.
"""

from inferometer.simulate.outcome import FAR_NS, Outcome, Status
from reference.clients import Clients
from reference.replica import Replica
from reference.request import Request


class Engine:
    """One replica and its clients."""

    def __init__(self, clients: Clients, replica: Replica, until_ns: int) -> None:
        self._clients = clients
        self._replica = replica
        self._until_ns = until_ns

    def run(self) -> Outcome:
        """Go on until all is done, the time is over, or no progress is possible."""
        replica = self._replica
        while True:
            self._catch_up(replica.now_ns)
            if not replica.fill():
                when_ns = self._next_event_ns()
                if when_ns == FAR_NS or when_ns > self._until_ns:
                    return self._end_of_run()
                replica.now_ns = max(replica.now_ns, when_ns)
                continue
            if replica.ready_ns > self._until_ns:
                replica.now_ns = self._until_ns
                self._catch_up(self._until_ns)
                return Outcome.HORIZON
            replica.now_ns = max(replica.now_ns, replica.ready_ns)
            self._catch_up(replica.now_ns - 1)
            if not replica.complete_oldest():
                return Outcome.LIVELOCK

    def _catch_up(self, until_ns: int) -> None:
        """Who has gone by now, and who has come until then, in order of time.

        At one instant who goes is before who comes.
        """
        clients = self._clients
        while True:
            if clients.next_abort_ns <= min(clients.next_ns, self._replica.now_ns):
                self._drop(clients.next_abort_ns, clients.take_next_abort())
            elif clients.next_ns <= until_ns:
                request = clients.take_next()
                if request.status is Status.UNSEEN:  # else its client has gone in the very instant
                    self._replica.take(request)
            else:
                return

    def _drop(self, when_ns: int, request: Request) -> None:
        """A client goes away."""
        if request.status is Status.UNSEEN:
            request.status = Status.ABORTED
            self._clients.end(request, when_ns)
        else:
            self._replica.drop(request, when_ns)

    def _next_event_ns(self) -> int:
        return min(self._replica.ready_ns, self._clients.next_ns, self._clients.next_abort_ns)

    def _end_of_run(self) -> Outcome:
        """Nothing will happen any more, or not in time: how did it end?"""
        if self._replica.scheduler.has_unfinished:
            return Outcome.STUCK if self._next_event_ns() == FAR_NS else Outcome.HORIZON
        return Outcome.FINISHED if self._clients.next_ns == FAR_NS else Outcome.HORIZON
