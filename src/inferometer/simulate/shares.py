"""Which part of the work did each replica do, and what did KV caches wait for on their way?

Where one replica's queue grows while others are idle, and how busy the link between two pools was.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from inferometer.records.columns import I64, Bools
from inferometer.records.types import ABSENT, RequestTable, VisitTable
from inferometer.simulate.fleet import DisaggregatedConfig, KvLink
from inferometer.simulate.outcome import Simulation
from inferometer.units import NS_PER_S

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


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferShares:
    """All transfers of a run together. Means are those of this run, without an interval."""

    n_transfers: int
    """Prompts that were to go on elsewhere."""
    n_received: int
    moved_bytes: int
    """Of those received."""
    mean_room_wait_s: float | None
    """For blocks in the decode replica; with the next two, None where nobody got so far."""
    mean_link_wait_s: float | None
    mean_moving_s: float | None
    """The latency included."""
    busiest_port_fraction: float
    """Of the time from 0 to the end: how much of it was the busiest port, or the shared link,
    taken?"""


def transfer_shares(simulation: Simulation, link: KvLink) -> TransferShares:
    """The transfers of a run on prefill and decode replicas.

    Raises
    ------
    ValueError
        Each replica of this run computed prompts and answers.
    """
    moves = simulation.transfers
    if moves is None:
        raise ValueError("no transfers")
    requested, begun, came = (
        column != ABSENT for column in (moves.asked_ns, moves.begun_ns, moves.received_ns)
    )
    taken_ns = np.where(came, moves.received_ns - link.latency_ns - moves.begun_ns, 0)
    ports = (
        [np.zeros(len(came), np.int64)] if link.shape == "shared" else [moves.source, moves.replica]
    )
    busiest_ns = max(
        (int(np.bincount(port, weights=taken_ns).max(initial=0)) for port in ports), default=0
    )
    return TransferShares(
        n_transfers=len(came),
        n_received=int(came.sum()),
        moved_bytes=int(moves.n_blocks[came].sum()) * link.block_bytes,
        mean_room_wait_s=_mean_s(moves.asked_ns - moves.prefilled_ns, requested),
        mean_link_wait_s=_mean_s(moves.begun_ns - moves.asked_ns, begun),
        mean_moving_s=_mean_s(moves.received_ns - moves.begun_ns, came),
        busiest_port_fraction=busiest_ns / simulation.end_ns if simulation.end_ns else 0.0,
    )


def _mean_s(durations_ns: I64, has_it: Bools) -> float | None:
    return float(durations_ns[has_it].mean()) / NS_PER_S if has_it.any() else None
