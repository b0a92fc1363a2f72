"""Do replicas that compute prompts, and others that generate the answers, meet an SLO at this load?

A probe of both pools.
"""

from dataclasses import dataclass
from typing import Final

from inferometer.decide.candidates import Candidate
from inferometer.decide.capacity import Reading
from inferometer.decide.probing import EFFORT_RATIO, reading_of
from inferometer.decide.sizing_types import SizingQuestion
from inferometer.decide.traffic import plan_at
from inferometer.records.promises import judge_objective
from inferometer.simulate import (
    cluster_config,
    disaggregated_deployment as pools,
    fleet,
    run,
    simulated_run,
)

_SHARES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolProbe:
    """``probe(load, effort)``, as that of replicas that do both."""

    question: SizingQuestion
    candidate: Candidate
    n_prefill: int
    n_decode: int

    def __call__(self, load: float, effort: int) -> Reading:
        """The verdict and the margin at this load."""
        question = self.question
        deployment = self.candidate.deployment.at(question.pace)
        link, origin = pools.kv_link(deployment, deployment, pools.LinkAsked())
        decode = cluster_config.ClusterConfig(
            engine=deployment.config, n_replicas=self.n_decode, router=question.router
        )
        prefill = cluster_config.ClusterConfig(
            engine=deployment.config, n_replicas=self.n_prefill, router=question.router
        )
        pool = pools.PrefillPool(
            deployment=deployment, cluster=prefill, link=link, link_origin=origin
        )
        servers = fleet.Fleet(
            replicas=decode,
            step_times=deployment.step_times.likely,
            prefill=pool.replicas,
            front_end_s=deployment.front_end_s,
        )
        traffic = question.traffic
        plan = plan_at(
            traffic.spec,
            load,
            min(traffic.n_requests * _SHARES * EFFORT_RATIO**effort, traffic.most_requests),
        )
        found = simulated_run.simulated_run(
            run.run(servers, plan, record_steps=False),
            servers.rules,
            run_id="probe",
            created_utc="",
            command=(),
            tool_version="",
        )
        return reading_of(found, judge_objective(found, question.objective))
