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
    disaggregated,
    disaggregated_deployment as pools,
    front_end,
    simulated_run,
    workload_demand,
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
        rules, traffic = pool.before(decode), question.traffic
        plan = plan_at(
            traffic.spec,
            load,
            min(traffic.n_requests * _SHARES * EFFORT_RATIO**effort, traffic.most_requests),
        )
        demand = workload_demand.demand_of(
            plan, deployment.config.block_size, has_contents=deployment.config.enable_prefix_caching
        )
        delay_s = deployment.front_end_s
        done = disaggregated.simulate_disaggregated(
            front_end.delayed(demand, delay_s), rules, pool.costs(deployment), record_steps=False
        )
        simulation = front_end.as_clients_see(done, delay_s)
        run = simulated_run.simulated_run(
            simulation, rules, run_id="probe", created_utc="", command=(), tool_version=""
        )
        return reading_of(run, judge_objective(run, question.objective))
