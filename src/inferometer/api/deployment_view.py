"""What is said of the servers that were simulated, and of where their numbers are from?"""

from dataclasses import asdict, dataclass

import msgspec

from inferometer.perfmodel.steptime_levels import Basis
from inferometer.records.latencies import HandoverSummary, summarise_handovers
from inferometer.records.types import Run
from inferometer.simulate.deployment import Deployment, PrefillPool
from inferometer.simulate.fleet import AnswerBeginsAt, ClusterConfig, LinkShape, Router
from inferometer.simulate.shares import TransferShares


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentView:
    """The server that was simulated, and where its numbers are from."""

    model_id: str
    hardware: str | None
    dtype: str
    quantization: str | None
    """The format of weights, where it is another."""
    tensor_parallel_size: int
    n_devices: int
    """Of one replica, all pipeline stages together."""
    parallelism: str
    """Such as TP2 PP2."""
    engine: str
    knobs: dict[str, bool | int | float | str | None]
    """Of the engine's scheduler, under its own names."""
    n_kv_blocks: int
    kv_block_bytes: int
    """On all devices of a replica."""
    kv_blocks_from: str
    step_times_basis: Basis
    step_times_from: str
    n_replicas: int
    data_parallel_size: int
    """How many of them share experts and take each step together; 1 where each steps by itself."""
    router: Router | None
    """None where there is one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggregationView:
    """Which replicas prefilled, and how the KV caches came from there, in the likely run."""

    prefill: DeploymentView
    answer_begins_at: AnswerBeginsAt
    link_shape: LinkShape
    link_bytes_per_s: float
    link_latency_s: float
    link_from: str
    """Where its speed is from."""
    kv_block_bytes: int
    transfers: TransferShares
    handovers: HandoverSummary | None
    """From the end of the prefill to the KV cache's arrival."""


def deployment_view(deployment: Deployment, rules: ClusterConfig) -> DeploymentView:
    """What is said of a server, and of how many there are of it."""
    engine, config = deployment.engine, deployment.config
    return DeploymentView(
        model_id=deployment.model.model_id,
        hardware=None if deployment.hardware is None else deployment.hardware.name,
        dtype=engine.dtype,
        quantization=engine.quantization,
        tensor_parallel_size=engine.tensor_parallel_size,
        n_devices=deployment.n_devices,
        parallelism=deployment.parallelism,
        engine=config.engine,
        knobs=msgspec.to_builtins(asdict(config)),
        n_kv_blocks=config.n_kv_blocks,
        kv_block_bytes=deployment.kv_block_bytes,
        kv_blocks_from=deployment.kv_origin,
        step_times_basis=deployment.step_times.basis,
        step_times_from=deployment.step_times.origin,
        n_replicas=rules.n_replicas,
        data_parallel_size=rules.n_replicas if rules.in_lockstep else 1,
        router=rules.router if rules.n_replicas > 1 else None,
    )


def disaggregation_view(
    pool: PrefillPool | None, transfers: TransferShares | None, run: Run
) -> DisaggregationView | None:
    """What is said of those that compute the prompts; None where there are none."""
    if pool is None or transfers is None:
        return None
    return DisaggregationView(
        prefill=deployment_view(pool.deployment, pool.cluster),
        answer_begins_at=pool.answer_begins_at,
        link_shape=pool.link.shape,
        link_bytes_per_s=pool.link.bytes_per_s,
        link_latency_s=pool.link.latency_s,
        link_from=pool.link_origin,
        kv_block_bytes=pool.link.block_bytes,
        transfers=transfers,
        handovers=summarise_handovers(run),
    )
