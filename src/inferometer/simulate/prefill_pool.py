"""The pool of prefill replicas of a disaggregated deployment, and its KV link."""

from dataclasses import dataclass, replace
from typing import Final

from inferometer.errors import SpecError
from inferometer.simulate.deployment import Case, Deployment
from inferometer.simulate.fleet import (
    AnswerBeginsAt,
    ClusterConfig,
    KvLink,
    LinkShape,
    PrefillReplicas,
)

_WHERE: Final = "--kv-link"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkAsked:
    """Settings of the KV link that the user gave.

    The default bandwidth is that of the replica whose scale-up links together are slower.
    """

    bytes_per_s: float | None = None
    latency_s: float = 0.0
    shape: LinkShape = "ports"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPool:
    """The pool of prefill replicas, and the KV link to the decode replicas."""

    deployment: Deployment
    cluster: ClusterConfig
    link: KvLink
    link_origin: str
    """Source of the link's bandwidth."""
    answer_begins_at: AnswerBeginsAt = "decode"

    def at(self, case: Case) -> "PrefillPool":
        """The pool with this plausible server's settings and step times."""
        known = self.deployment.at(case)
        return replace(self, deployment=known, cluster=replace(self.cluster, engine=known.config))

    @property
    def replicas(self) -> PrefillReplicas:
        """The prefill replicas to simulate, with expected step times."""
        return PrefillReplicas(
            replicas=self.cluster,
            step_times=self.deployment.step_times.likely,
            link=self.link,
            answer_begins_at=self.answer_begins_at,
        )


def kv_link(prefill: Deployment, decode: Deployment, link_knobs: LinkAsked) -> tuple[KvLink, str]:
    """The KV link between replicas of these deployments, and the source of its bandwidth.

    Raises
    ------
    SpecError
        The bandwidth is unknown, or the KV cache formats differ.
    """
    block_bytes, other_bytes = (one.kv_block_bytes for one in (decode, prefill))
    if block_bytes != other_bytes:
        raise SpecError(
            f"KV blocks of {other_bytes} bytes for {block_bytes}",
            where="--kv-dtype",
            allowed="the same on both sides",
        )
    link = KvLink(block_bytes=block_bytes, latency_s=link_knobs.latency_s, shape=link_knobs.shape)
    if link_knobs.bytes_per_s is not None:
        return replace(link, bytes_per_s=link_knobs.bytes_per_s), "given"
    ends = [(one.hardware, one.n_devices) for one in (prefill, decode)]
    known = [
        (hardware.link_bytes_per_s.value * n, hardware, n)
        for hardware, n in ends
        if hardware and hardware.link_bytes_per_s
    ]
    if len(known) < len(ends):
        raise SpecError(
            "the speed of KV transfers is unknown",
            where=_WHERE,
            allowed="a device whose links the catalogue knows, or a speed",
            try_="--kv-link 50GB/s (a network card of 400 Gbit/s)",
        )
    speed_bytes_per_s, hardware, n_devices = min(known, key=lambda one: one[0])
    return (
        replace(link, bytes_per_s=speed_bytes_per_s),
        f"the scale-up links of {n_devices} x {hardware.name}",
    )
