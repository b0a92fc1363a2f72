"""What happens when, with several replicas that take each step together?

``kernel/cluster_run.py`` tells the order.

In each layer the tokens of all replicas go to the experts and back, so nobody's step is done
before everybody's is. A replica that has nothing to do computes a dummy batch meanwhile.

vLLM 0.32.0 (``DPEngineCoreProc``): it sees who came when that is done, and joins the next step even
where the others decided theirs ahead.

SGLang (``prepare_mlp_sync_batch`` of ``managers/scheduler.py`` and
``scheduler_components/dp_attn.py``) and TensorRT-LLM (``_prepare_and_schedule_batch`` and
``_can_queue`` of ``_torch/pyexecutor/py_executor.py``): all decide a step at the same time and then
gather how many tokens each has. Prompts of one may be in a step with decodes of another. Who comes
after that decision waits for the next one. Not mirrored: TensorRT-LLM holds a step that was decided
ahead back where one rank has requests but none that can be computed in it.
"""

from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.scheduler_config import SchedulerConfig
from reference.cluster import Cluster
from reference.price import SharedRows


class LockstepCluster(Cluster):
    """Replicas behind a router, and one clock of steps for all."""

    @property
    def _decides_together(self) -> bool:
        return not isinstance(self._engine, SchedulerConfig)

    def _launch(self) -> None:
        """Where no step of the group runs.

        Whoever has something to do begins one, all at once, and decides ahead what follows.
        """
        self._due.clear()
        if any(self.now_ns < replica.ready_ns < FAR_NS for replica in self._replicas):
            return
        for replica in self._replicas:
            replica.now_ns = self.now_ns
        is_closed = self._decides_together and any(one.has_decided for one in self._replicas)
        joining = [
            replica
            for replica in self._replicas
            if (replica.has_decided if is_closed else replica.joins())
        ]
        rows = [replica.own_rows() for replica in joining]
        shared = SharedRows(sum(one.n_rows for one in rows), sum(one.n_yielding for one in rows))
        duration_ns = max((replica.own_duration_ns(shared) for replica in joining), default=0)
        for replica in joining:
            replica.begin(duration_ns)
        for replica in self._replicas:
            if replica in joining:
                replica.decide_ahead()
            elif joining and self._decides_together:
                replica.decide_ahead(takes_part=False)
            self._report(replica)
