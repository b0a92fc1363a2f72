"""Names, ports, images and spare replicas of a deployed fleet."""

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv6Address
from typing import Final, NamedTuple

from inferometer import suggestions
from inferometer.decide.candidates import NODE_DEVICES
from inferometer.errors import SpecError
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.objectives import ObjectiveSpec
from inferometer.inputs.types import Caution, EngineSpec, HardwareSpec, ModelSpec
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.perfmodel.kv_cache import kv_block_bytes
from inferometer.perfmodel.roofline import ParallelPlan, kv_dtype
from inferometer.perfmodel.types import Basis
from inferometer.simulate.deployment import Pace
from inferometer.simulate.fleet import Router
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.stats.estimate import Verdict
from inferometer.units import counted

# What is to run, and what was predicted of it?
#
# All that the files of a deployment are made of: their plan.


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """The state of one replica at its share of a load, from a simulation of the fleet."""

    step_times: Pace
    requests_per_s: float
    in_flight_load: float
    """Requests that wait or run, in the mean over time: their time in the system / the time
    (Little)."""
    n_waiting_high: int
    """Below it for 99 % of the time."""
    kv_used_mean_fraction: float
    kv_used_high_fraction: float
    """Below it for 99 % of the time."""
    preemptions_per_request_ratio: float
    ttft_mean_s: float | None
    tpot_mean_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One threshold of the SLO, and the latency at likely step times."""

    text: str
    verdict: Verdict
    seen_s: float | None
    low_s: float | None
    high_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """The result of a sizing, as far as deployment files need it.

    The rates of operating points are those of one replica.
    """

    model: ModelSpec
    hardware: HardwareSpec
    engine: EngineSpec
    scheduler: SchedulerConfig
    utilization_fraction: float
    """``gpu_memory_utilization``"""
    n_replicas: int
    n_replicas_if_one_fails: int
    workload: WorkloadSpec
    rate_per_s: float
    """Rate of the whole traffic; in a closed loop the completed rate."""
    objective: ObjectiveSpec
    router: Router
    sized_for: Pace
    """Step times at which the SLO must be met; the following numbers are at these."""
    verdict: Verdict
    promises: tuple[Promise, ...]
    weakest: str | None
    breaks_first: str | None
    prompt_mean_tokens: float
    output_mean_tokens: float
    e2e_high_s: float | None
    """The 99th percentile."""
    kept_requests_per_s: float | None
    """Highest rate of one replica shown, or located, to meet the SLO."""
    broken_requests_per_s: float | None
    """The lowest rate of one replica that was shown to break it."""
    planned: tuple[OperatingPoint, ...]
    """Under its part of the traffic, at likely, fast and slow step times."""
    fullest: OperatingPoint
    """Operating point at the highest rate within the SLO, else at its share of the traffic."""
    step_times_basis: Basis
    step_times_from: str
    has_stated_links: bool
    """Was the link, or the time of an all-reduce, given?"""
    kv_origin: str
    usd_per_hour: float | None
    price_from: str | None
    """Source of the price; None: unknown."""
    cautions: tuple[Caution, ...]
    tool_version: str
    users: int | None = None
    """Users of a closed loop; None in an open loop."""
    gate: GateSpec | None = None
    """The part of a gate that the router implements: waiting and order."""
    is_eager: bool = False
    """Without CUDA graphs?"""

    @property
    def has_priorities(self) -> bool:
        """Must clients send priorities?"""
        return uses_priorities(self.workload, self.scheduler.policy, self.gate)

    @property
    def likely(self) -> OperatingPoint:
        """A replica under its part of the traffic at likely step times."""
        return next(point for point in self.planned if point.step_times == "likely")

    @property
    def kv_bytes(self) -> int:
        """KV cache of a replica on all its devices, in bytes."""
        return self.scheduler.n_kv_blocks * kv_block_bytes(
            self.model,
            kv_dtype(self.engine),
            block_tokens=self.scheduler.block_size,
            is_grouped=self.scheduler.sliding_window > 0,
        )

    @property
    def n_devices(self) -> int:
        """To a replica."""
        return ParallelPlan(
            n_tensor=self.engine.tensor_parallel_size,
            n_pipeline=self.scheduler.pipeline_parallel_size,
        ).n_devices

    @property
    def n_nodes(self) -> int:
        """To a replica, of machines as they are sold.

        As few as hold it with an equal part on each, and no tensor-parallel group cut.
        """
        n_devices, tp = self.n_devices, self.engine.tensor_parallel_size
        counts = (
            n for n in range(-(-n_devices // NODE_DEVICES), n_devices + 1) if n_devices % n == 0
        )
        return next(n for n in counts if (each := n_devices // n) % tp == 0 or tp % each == 0)


VLLM_VERSION: Final = "0.32.0"
"""vLLM version of the command line, images and metrics."""


class _Platform(NamedTuple):
    image: str | None
    """vLLM's own, under its version's name; None: it publishes none for this kind of device."""
    resource: str | None
    """Kubernetes resource name of a device; None for a CPU."""


_PLATFORMS: Final = {
    ("nvidia", "gpu"): _Platform(f"vllm/vllm-openai:v{VLLM_VERSION}", "nvidia.com/gpu"),
    ("amd", "gpu"): _Platform(f"vllm/vllm-openai-rocm:v{VLLM_VERSION}", "amd.com/gpu"),
    ("intel", "gpu"): _Platform(None, "gpu.intel.com/xe"),
    ("intel", "asic"): _Platform(None, "habana.ai/gaudi"),
    ("google", "tpu"): _Platform(None, "google.com/tpu"),
    ("intel", "cpu"): _Platform(
        f"public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v{VLLM_VERSION}", None
    ),
    ("amd", "cpu"): _Platform(
        f"public.ecr.aws/q9t5s3a7/vllm-cpu-release-repo:v{VLLM_VERSION}", None
    ),
}
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
_LONGEST_NAME: Final = 40
"""Kubernetes' labels end at 63 letters, and suffixes follow."""
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""RFC 1123."""
_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w-]+(\.[\w-]+)*):(\d{1,5})", re.ASCII)
CACHE: Final = "/model-cache"
"""Mount path of the weights' volume, where vLLM looks for downloads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Settings of a deployment that a sizing does not decide; None means the default."""

    served_name: str | None = None
    """[what vLLM loads]"""
    model_source: str | None = None
    """What vLLM loads: a Hugging Face id or a folder. [the model's id there]"""
    namespace: str = "default"
    port: int = 8000
    image: str | None = None
    """[vLLM's own for the device]"""
    n_spare: int = 0
    """Replicas beyond those that the traffic needs."""
    n_surge: int = 0
    """Replicas for which devices are free while a new version is rolled out."""
    n_most: int | None = None
    """Most replicas of the autoscaler. [the least: no autoscaler]"""
    model_claim: str | None = None
    """A PersistentVolumeClaim that holds the weights. [one of the fleet's own, and a job that
    fetches into it]"""
    storage_class: str | None = None
    """Storage class of the created claim. [the cluster's default]"""
    node_labels: tuple[tuple[str, str], ...] = ()
    """Labels of the nodes that have the device."""
    backends: tuple[str, ...] = ()
    """HOST:PORT of each replica outside Kubernetes; empty: its DNS names them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaging:
    """The names and numbers that all files share: the wishes, and what they left open."""

    wishes: Wishes
    served_name: str
    """What clients call the model; ``model_name`` of the metrics."""
    model_source: str
    name: str
    """Name of the Kubernetes objects."""
    image: str | None
    """None: unknown."""
    resource: str | None
    n_least: int
    """Replicas that run: those that the traffic needs, and spare ones."""
    n_most: int

    @property
    def is_folder(self) -> bool:
        """Does vLLM load the model from a folder, which no job can download?"""
        return self.model_source.startswith(("/", "."))

    @property
    def mount(self) -> str:
        """Mount path of the weights' volume: the folder that vLLM loads."""
        is_elsewhere = self.is_folder and not self.model_source.startswith(f"{CACHE}/")
        return self.model_source if is_elsewhere else CACHE

    @property
    def has_weights(self) -> bool:
        """Can a pod get the weights: downloaded, or from a claim?"""
        is_mounted = self.model_source.startswith("/") and self.wishes.model_claim is not None
        return is_mounted or not self.is_folder

    @property
    def scales(self) -> bool:
        """May an autoscaler start more replicas than the traffic was sized for?"""
        return self.n_most > self.n_least

    @property
    def n_places(self) -> int:
        """The largest number of replicas that may serve at the same time."""
        return self.n_most + self.wishes.n_surge

    @property
    def rollout(self) -> dict[str, object]:
        """The update strategy: one replica after another.

        Where devices are free, the new pod starts before the old one ends. On a full fleet it would
        wait forever, so the old one ends first.
        """
        return {"maxSurge": self.wishes.n_surge, "maxUnavailable": 0 if self.wishes.n_surge else 1}


def packaging_of(fleet: Fleet, wishes: Wishes | None = None) -> Packaging:
    """Names and packaging of a fleet.

    Raises
    ------
    SpecError
        A setting is invalid.
    """
    wanted = wishes or Wishes()
    n_least = fleet.n_replicas + wanted.n_spare
    n_most = n_least if wanted.n_most is None else wanted.n_most
    if n_most < n_least:
        raise SpecError(
            f"at most {counted(n_most, 'replica')}",
            where="--most",
            allowed=f"{n_least} or more: the plan's and the spare ones",
            try_=suggestions.flags("--most", n_least + 1),
        )
    _check_addresses(wanted, n_least)
    platform = _PLATFORMS.get((fleet.hardware.vendor, fleet.hardware.kind), _Platform(None, None))
    source = wanted.model_source or fleet.model.hf_id or fleet.model.model_id
    packaging = Packaging(
        wishes=wanted,
        served_name=wanted.served_name or source,
        model_source=source,
        name=kubernetes_name(fleet.model.model_id),
        image=wanted.image or platform.image,
        resource=platform.resource,
        n_least=n_least,
        n_most=n_most,
    )
    if packaging.image is not None and not (packaging.has_weights or wanted.backends):
        raise SpecError(
            f"no pod has the folder {source}",
            where="--model-source",
            allowed="a Hugging Face id, or an absolute path and the claim that is mounted there",
            try_="--model-claim NAME too; for replicas outside Kubernetes --backend HOST:PORT",
        )
    return packaging


def _check_addresses(wanted: Wishes, n_least: int) -> None:
    if _LABEL.fullmatch(wanted.namespace) is None:
        raise SpecError(
            f"{wanted.namespace!r} is no namespace of Kubernetes",
            where="--namespace",
            allowed="at most 63 small letters, digits and hyphens, no hyphen at an end",
            try_="--namespace llm",
        )
    for address in wanted.backends:
        if not _is_address(address):
            raise SpecError(
                f"{address!r} is no address of a replica",
                where="--backend",
                allowed="HOST:PORT, an IPv6 address in brackets, a port from 1 to 65535",
                try_="--backend 10.0.0.1:8000",
            )
    n_known = len(set(wanted.backends))
    if 0 < n_known < n_least:
        raise SpecError(
            f"only {n_known} of {n_least} replicas have an address",
            where="--backend",
            allowed=f"{n_least} or more, those that the traffic needs and --spare",
            try_="--backend HOST:PORT once for each replica",
        )


def _is_address(text: str) -> bool:
    found = _ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found[3]) <= 65535:
        return False
    try:
        return not text.startswith("[") or bool(IPv6Address(found[1][1:-1]))
    except AddressValueError:
        return False


def kubernetes_name(text: str) -> str:
    """The text as Kubernetes takes it in names: small letters, digits and hyphens, a letter first.

    Example
    -------
    >>> kubernetes_name("meta-llama/Llama-3.1-8B")
    'vllm-meta-llama-llama-3-1-8b'
    """
    return f"vllm-{_NOT_IN_NAMES.sub('-', text.lower()).strip('-')}"[:_LONGEST_NAME].rstrip("-")


def uses_priorities(workload: WorkloadSpec, policy: str, gate: GateSpec | None) -> bool:
    """Do classes differ in priority, and does the engine or the router use it?"""
    is_heeded = policy == "priority" or (gate is not None and gate.order == "priority")
    return is_heeded and len({one.priority for one in workload.classes}) > 1
