"""Which pod runs a replica, or a node's part of one.

Its container, what it asks for, when it is ready and when it may go?
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.decide.artefacts.vllm_command import serve_arguments

Manifest: TypeAlias = dict[str, object]

START_S: Final = 3600
"""A large model is loaded in it, and at the first start fetched before."""
CACHE: Final = "/model-cache"
"""Where the volume with the weights is mounted."""
CACHE_VARIABLES: Final[tuple[Manifest, ...]] = (
    {"name": "HF_HOME", "value": CACHE},
    {
        "name": "HF_TOKEN",
        "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token", "optional": True}},
    },
)
_SHARED_MEMORY_GIB: Final = 8
"""For the processes of one replica to talk to one another: PyTorch's and NCCL's buffers."""
_PROBE_PERIOD_S: Final = 10
_LEAST_GRACE_S: Final = 60
_DRAIN_S: Final = 10
"""Until routers know that a replica goes."""
_PART: Final = "app.kubernetes.io/component"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one pod does of a replica; by itself all of it."""

    n_devices: int
    name: str | None = None
    """Of the part, which a label carries."""
    flags: tuple[str, ...] = ()
    """Of ``vllm serve``, besides those of the replica."""
    answers: bool = True
    """Requests and probes, over HTTP."""


def labels(packaging: Packaging, part: str | None = None) -> dict[str, object]:
    """What names the pods: of the replicas, or of one part of each."""
    named: dict[str, object] = {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": packaging.name,
    }
    return named if part is None else named | {_PART: part}


def metadata(packaging: Packaging, suffix: str = "") -> Manifest:
    """Name, namespace and labels of an object."""
    return {
        "name": packaging.name + suffix,
        "namespace": packaging.namespace,
        "labels": labels(packaging),
    }


def claim_name(packaging: Packaging) -> str:
    """The claim that holds the weights."""
    return packaging.model_claim or f"{packaging.name}-weights"


def pod_template(fleet: Fleet, packaging: Packaging, part: Part) -> Manifest:
    """The pod, and what finds it."""
    named: Manifest = {"labels": labels(packaging, part.name)}
    named |= {"annotations": _scraped(packaging)} if part.answers else {}
    return {"metadata": named, "spec": _pod(fleet, packaging, part)}


def _scraped(packaging: Packaging) -> dict[str, object]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(packaging.port),
        "prometheus.io/path": "/metrics",
    }


def _pod(fleet: Fleet, packaging: Packaging, part: Part) -> Manifest:
    grace_s = max(_LEAST_GRACE_S, math.ceil(2 * (fleet.e2e_high_s or 0.0))) + _DRAIN_S
    pod: Manifest = {
        "terminationGracePeriodSeconds": grace_s,
        "containers": [_container(serve_arguments(fleet, packaging), packaging, part)],
        "volumes": [
            {
                "name": "shared-memory",
                "emptyDir": {"medium": "Memory", "sizeLimit": f"{_SHARED_MEMORY_GIB}Gi"},
            },
            {"name": "weights", "persistentVolumeClaim": {"claimName": claim_name(packaging)}},
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(packaging, part.name)},
            }
        ],
    }
    if packaging.resource is not None:
        pod["tolerations"] = [
            {"key": packaging.resource, "operator": "Exists", "effect": "NoSchedule"}
        ]
    if packaging.node_labels:
        pod["nodeSelector"] = dict(packaging.node_labels)
    return pod


def _container(arguments: Sequence[str], packaging: Packaging, part: Part) -> Manifest:
    container: Manifest = {
        "name": "vllm",
        "image": packaging.image,
        "command": ["vllm", "serve"],
        "args": [*arguments, *part.flags],
        "env": list(CACHE_VARIABLES),
        **(_answering(packaging) if part.answers else {}),
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 -- a path in the container
            {"name": "weights", "mountPath": CACHE},
        ],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if packaging.resource is not None:
        devices = {packaging.resource: str(part.n_devices)}
        container["resources"] = {"limits": devices, "requests": dict(devices)}
    return container


def _answering(packaging: Packaging) -> Manifest:
    return {
        "ports": [{"name": "http", "containerPort": packaging.port}],
        "startupProbe": _probe(START_S // _PROBE_PERIOD_S),
        "readinessProbe": _probe(3),
        "livenessProbe": _probe(6),
        "lifecycle": {"preStop": {"sleep": {"seconds": _DRAIN_S}}},
    }


def _probe(n_failures: int) -> Manifest:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": _PROBE_PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": n_failures,
    }
