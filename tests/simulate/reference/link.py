"""When does which KV cache arrive at its decode replica?

In plain Python; ``kernel/handover.py`` does the same on arrays.
"""

from heapq import heappop, heappush

from inferometer.simulate.fleet import KvLink
from inferometer.simulate.outcome import FAR_NS
from reference.handover import Transfer
from reference.request import Request


class Link:
    """What travels, and until when each replica's port is taken; whoever arrives first, then by index."""

    def __init__(self, config: KvLink, n_replicas: int) -> None:
        self._config = config
        self._free_ns = [0] * n_replicas
        self._arriving: list[tuple[int, int]] = []

    @property
    def next_ns(self) -> int:
        """When does something arrive? ``FAR_NS`` where nothing travels."""
        return self._arriving[0][0] if self._arriving else FAR_NS

    def begin(self, request: Request, transfer: Transfer, replica: int, now_ns: int) -> None:
        """A KV cache is asked for by this replica: it travels as soon as both ports are free."""
        ports = (0, 0) if self._config.shape == "shared" else (transfer.source, replica)
        transfer.asked_ns = now_ns
        transfer.begun_ns = max(now_ns, *(self._free_ns[port] for port in ports))
        end_ns = (
            transfer.begun_ns + (transfer.num_moved_blocks * self._config.block_ps + 500) // 1000
        )
        for port in ports:
            self._free_ns[port] = end_ns
        transfer.received_ns = end_ns + self._config.latency_ns
        heappush(self._arriving, (transfer.received_ns, request.index))

    def take_next(self) -> int:
        """Whose KV cache arrives at ``next_ns``?"""
        return heappop(self._arriving)[1]
