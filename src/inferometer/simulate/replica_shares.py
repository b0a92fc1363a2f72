"""Which part of the work did each replica of a cluster do, and does the queue of one of them grow while others are idle?"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from inferometer.records.types import RequestTable, VisitTable
from inferometer.simulate.disaggregation_config import DisaggregatedConfig
from inferometer.simulate.outcome import Simulation

Role: TypeAlias = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShare:
    """What one replica got and did; tokens are of the requests that it was sent."""

    replica: int
    role: Role
    """Does it compute prompts, generate answers, or both? Tokens of the other part are not its
    own: 0."""
    n_requests: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompts, found in its prefix cache."""
    output_tokens: int
    n_preemptions: int
    busy_fraction: float
    """Of the time from 0 to the end: how much of it was in steps that were done?"""


def replica_shares(
    simulation: Simulation, pools: DisaggregatedConfig | None = None
) -> tuple[ReplicaShare, ...]:
    """The shares of all replicas; none where there is one replica.

    ``pools`` where some compute prompts alone.
    """
    if simulation.visits is None:
        return ()
    shares = list[ReplicaShare]()
    for replica, busy_ns in enumerate(simulation.busy_ns.tolist()):
        own, role = (
            requests_of(simulation.requests, simulation.visits, replica),
            _role(replica, pools),
        )
        shares.append(
            ReplicaShare(
                replica=replica,
                role=role,
                n_requests=len(own.request_index),
                prompt_tokens=int(own.prompt_tokens.sum()) * (role != "decode"),
                cached_tokens=int(own.cached_tokens.sum()) * (role != "decode"),
                output_tokens=int(own.output_tokens.sum()) * (role != "prefill"),
                n_preemptions=int(own.n_preemptions.sum()),
                busy_fraction=busy_ns / simulation.end_ns if simulation.end_ns else 0.0,
            )
        )
    return tuple(shares)


def _role(replica: int, pools: DisaggregatedConfig | None) -> Role:
    if pools is None:
        return "both"
    return "prefill" if replica < pools.prefill.n_replicas else "decode"


def requests_of(requests: RequestTable, visits: VisitTable, replica: int) -> RequestTable:
    """The rows of those that this replica was sent."""
    is_own = np.isin(requests.request_index, visits.request_index[visits.replica == replica])
    return RequestTable._make(column[is_own] for column in requests)
