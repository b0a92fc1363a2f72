"""Which two pools of replicas compute prompts and answers, and how fast is the way between them, where the catalogue knows?"""

from dataclasses import dataclass, replace
from typing import Final

from inferometer.errors import SpecError
from inferometer.simulate.cluster_config import ClusterConfig
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.disaggregation_config import (
    AnswerBeginsAt,
    DisaggregatedConfig,
    KvLink,
    LinkShape,
)
from inferometer.simulate.fleet import PrefillReplicas

_WHERE: Final = "--kv-link"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAsked:
    """What is asked of the link.

    Without a speed: that of the scale-up links of the pool that has fewer devices in a replica.
    """

    bytes_per_s: float | None = None
    latency_s: float = 0.0
    shape: LinkShape = "ports"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """The replicas that compute prompts for those of a deployment, and how KV caches come from the ones to the others."""

    deployment: Deployment
    cluster: ClusterConfig
    link: KvLink
    link_origin: str
    """Where its speed is from."""
    answer_begins_at: AnswerBeginsAt = "decode"

    def before(self, decode: ClusterConfig) -> DisaggregatedConfig:
        """The rules of both pools."""
        return DisaggregatedConfig(
            prefill=self.cluster,
            decode=decode,
            link=self.link,
            answer_begins_at=self.answer_begins_at,
        )

    def at(self, case: Case) -> "PrefillPool":
        """The same as if its replicas were known to be these."""
        known = self.deployment.at(case)
        return replace(self, deployment=known, cluster=replace(self.cluster, engine=known.config))

    @property
    def replicas(self) -> PrefillReplicas:
        """What is simulated, with the expected step times."""
        return PrefillReplicas(
            replicas=self.cluster,
            step_times=self.deployment.step_times.likely,
            link=self.link,
            answer_begins_at=self.answer_begins_at,
        )


def kv_link(prefill: Deployment, decode: Deployment, asked: LinkAsked) -> tuple[KvLink, str]:
    """The link between replicas of these deployments, and where its speed is from.

    Raises
    ------
    SpecError
        Nobody says how fast it is; the two keep different KV caches.
    """
    block_bytes, other_bytes = (one.kv_block_bytes for one in (decode, prefill))
    if block_bytes != other_bytes:
        raise SpecError(
            f"KV blocks of {other_bytes} bytes for {block_bytes}",
            where="--kv-dtype",
            allowed="the same on both sides",
        )
    link = KvLink(block_bytes=block_bytes, latency_s=asked.latency_s, shape=asked.shape)
    if asked.bytes_per_s is not None:
        return replace(link, bytes_per_s=asked.bytes_per_s), "given"
    ends = [(one.hardware, one.n_devices) for one in (prefill, decode)]
    known = [
        (hardware.link_bytes_per_s.value * n, hardware, n)
        for hardware, n in ends
        if hardware and hardware.link_bytes_per_s
    ]
    if len(known) < len(ends):
        raise SpecError(
            "nothing says how fast KV caches travel",
            where=_WHERE,
            allowed="a device whose links the catalogue knows, or a speed",
            try_="--kv-link 50GB/s (a network card of 400 Gbit/s)",
        )
    speed_bytes_per_s, hardware, n_devices = min(known, key=lambda one: one[0])
    return (
        replace(link, bytes_per_s=speed_bytes_per_s),
        f"the scale-up links of {n_devices} x {hardware.name}",
    )
