"""Which servers are simulated: equal replicas behind a router, and what stands before them?"""

from dataclasses import dataclass

from inferometer.perfmodel.steptime_arrays import StepTimeArrays
from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.disaggregation_config import AnswerBeginsAt, DisaggregatedConfig, KvLink
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.gate_config import GateConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillReplicas:
    """Replicas that only compute prompts, and the link by which the KV caches leave them."""

    replicas: ClusterConfig
    step_times: StepTimeArrays
    link: KvLink
    answer_begins_at: AnswerBeginsAt = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """All that answers the requests of one simulation: ``run.run`` simulates it."""

    replicas: ClusterConfig
    """The engine of each replica, how many there are, their router, and whether they take each
    step together. With ``prefill``: the replicas that generate the answers."""
    step_times: StepTimeArrays
    prefill: PrefillReplicas | None = None
    """None where each replica computes prompts and answers."""
    gate: GateConfig | None = None
    """Holds requests back, or turns them away, before the router."""
    front_end_s: float = 0.0
    """From when a client sends a request to when the scheduler sees it."""

    @property
    def n_replicas(self) -> int:
        """All of them: those that generate answers, and those that compute prompts alone."""
        n_prefill = 0 if self.prefill is None else self.prefill.replicas.n_replicas
        return self.replicas.n_replicas + n_prefill

    @property
    def pools(self) -> DisaggregatedConfig | None:
        """The prefill and the decode replicas and the link between them; None where they are the same.

        Raises
        ------
        SpecError
            The two do not go together.
        """
        if self.prefill is None:
            return None
        return DisaggregatedConfig(
            prefill=self.prefill.replicas,
            decode=self.replicas,
            link=self.prefill.link,
            answer_begins_at=self.prefill.answer_begins_at,
        )

    @property
    def rules(self) -> EngineConfig | DisaggregatedConfig:
        """What ``simulated_run`` wants to know: the pools, or the engine where there are none."""
        return self.pools or self.replicas.engine

    @property
    def has_contents(self) -> bool:
        """Does any replica cache prefixes, so that it matters what a prompt contains?"""
        engines = [self.replicas.engine]
        engines += [] if self.prefill is None else [self.prefill.replicas.engine]
        return any(engine.enable_prefix_caching for engine in engines)


def lone_replica(engine: EngineConfig, step_times: StepTimeArrays) -> Fleet:
    """One replica of this engine, and nothing before it."""
    return Fleet(replicas=ClusterConfig(engine=engine), step_times=step_times)
