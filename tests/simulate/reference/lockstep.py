"""What happens when, with several replicas that take each step together?

``kernel/cluster_run.py`` tells the order.

Mirrors ``DPEngineCoreProc`` of vLLM 0.32.0: in each layer the tokens of all replicas go to the
experts and back, so nobody's step is done before everybody's is. A replica that has nothing to do
computes a dummy batch meanwhile, and sees who came when that is done.
"""

from inferometer.simulate.outcome import FAR_NS
from reference.cluster import Cluster
from reference.price import SharedRows


class LockstepCluster(Cluster):
    """Replicas behind a router, and one clock of steps for all."""

    def _launch(self) -> None:
        """Where no step of the group runs.

        Whoever has something to do begins one, all at once, and decides ahead what follows.
        """
        self._due.clear()
        if any(self.now_ns < replica.ready_ns < FAR_NS for replica in self._replicas):
            return
        for replica in self._replicas:
            replica.now_ns = self.now_ns
        joining = [replica for replica in self._replicas if replica.joins()]
        rows = [replica.own_rows() for replica in joining]
        shared = SharedRows(sum(one.n_rows for one in rows), sum(one.n_yielding for one in rows))
        duration_ns = max((replica.own_duration_ns(shared) for replica in joining), default=0)
        for replica in joining:
            replica.begin(duration_ns)
            replica.decide_ahead()
        for replica in self._replicas:
            self._report(replica)
