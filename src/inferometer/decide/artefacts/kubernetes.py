"""Kubernetes objects of a fleet: replicas, scaling, disruption budget, services.

As many replicas run as the traffic was sized for. An autoscaler is there where more may run than
that: it scales on requests in flight per replica, for a server that cannot keep up lets them grow
without bound, while its CPU, its accelerator's load and its memory look the same; ``replicas`` of
the Deployment is what it starts from. A replica of several nodes is a group of pods, which
Kubernetes does not have: LeaderWorkerSet, which has to be installed in the cluster, runs them.

The weights lie on one volume that every replica reads. In each pod they would fill the node's disk
and be fetched again at every restart. A
PersistentVolumeClaim that many nodes mount, and a job that fills it, is how operators of vLLM do it
(``pvcStorage`` of production-stack, ``pvc://`` of llm-d).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from inferometer.decide.artefacts.packaging import CACHE, Fleet, Packaging
from inferometer.decide.artefacts.vllm_command import serve_arguments
from inferometer.inputs.types import DTYPE_BITS, EngineSpec
from inferometer.perfmodel.weights import weight_bytes

# Which pod runs a replica, or a node's part of one.
#
# Its container, what it asks for, when it is ready and when it may go?


Manifest: TypeAlias = dict[str, object]

START_S: Final = 3600
"""A large model is loaded in it, and at the first start fetched before."""
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
    """The role of a pod in a replica that spans several pods."""

    n_devices: int
    name: str | None = None
    """Name of the part, in a label."""
    flags: tuple[str, ...] = ()
    """Flags of ``vllm serve`` besides the replica's."""
    answers: bool = True
    """Requests and probes, over HTTP."""


def labels(packaging: Packaging, part: str | None = None) -> dict[str, object]:
    """Labels that select the pods of all replicas, or of one part of each."""
    named: dict[str, object] = {
        "app.kubernetes.io/name": "vllm",
        "app.kubernetes.io/instance": packaging.name,
    }
    return named if part is None else named | {_PART: part}


def metadata(packaging: Packaging, suffix: str = "") -> Manifest:
    """Name, namespace and labels of an object."""
    return {
        "name": packaging.name + suffix,
        "namespace": packaging.wishes.namespace,
        "labels": labels(packaging),
    }


def claim_name(packaging: Packaging) -> str:
    """The claim that holds the weights."""
    return packaging.wishes.model_claim or f"{packaging.name}-weights"


def pod_template(fleet: Fleet, packaging: Packaging, part: Part) -> Manifest:
    """The pod template."""
    named: Manifest = {"labels": labels(packaging, part.name)}
    named |= {"annotations": _scraped(packaging)} if part.answers else {}
    return {"metadata": named, "spec": _pod(fleet, packaging, part)}


def _scraped(packaging: Packaging) -> dict[str, object]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(packaging.wishes.port),
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
    if packaging.wishes.node_labels:
        pod["nodeSelector"] = dict(packaging.wishes.node_labels)
    return pod


def _container(arguments: Sequence[str], packaging: Packaging, part: Part) -> Manifest:
    container: Manifest = {
        "name": "vllm",
        "image": packaging.image,
        "command": ["vllm", "serve"],
        "args": [*arguments, *part.flags],
        "env": list(CACHE_VARIABLES),
        **(_serving_container(packaging) if part.answers else {}),
        "volumeMounts": [
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 -- a path in the container
            {"name": "weights", "mountPath": packaging.mount},
        ],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if packaging.resource is not None:
        devices = {packaging.resource: str(part.n_devices)}
        container["resources"] = {"limits": devices, "requests": dict(devices)}
    return container


def _serving_container(packaging: Packaging) -> Manifest:
    return {
        "ports": [{"name": "http", "containerPort": packaging.wishes.port}],
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


_MARGIN_RATIO: Final = 1.25
"""For the tokenizer, files of other formats beside the weights, and the file that is being
fetched."""
_GIB: Final = 2**30
_SECOND_COPY: Final = "original/*"
"""The weights once more, in their author's own format, which vLLM does not read."""
_REPLICAS: Final = "-replicas"
"""Ends the name of the headless service."""


def volume_manifests(fleet: Fleet, packaging: Packaging) -> list[Manifest]:
    """The PersistentVolumeClaim and the job that downloads the weights; none where they lie on a claim."""
    if packaging.wishes.model_claim is not None:
        return []
    return [_claim(fleet, packaging), _fetching(packaging)]


def storage_gib(fleet: Fleet) -> int:
    """Size of the weights' volume in GiB: the published checkpoint and a margin."""
    stored = fleet.model.checkpoint_dtype
    is_small = stored is not None and DTYPE_BITS[stored] < DTYPE_BITS["bfloat16"]
    checkpoint = weight_bytes(
        fleet.model, EngineSpec(dtype="bfloat16", quantization=stored if is_small else None)
    )
    return math.ceil(checkpoint * _MARGIN_RATIO / _GIB)


def _claim(fleet: Fleet, packaging: Packaging) -> Manifest:
    spec: Manifest = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": f"{storage_gib(fleet)}Gi"}},
    }
    if packaging.wishes.storage_class is not None:
        spec["storageClassName"] = packaging.wishes.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(packaging, "-weights"),
        "spec": spec,
    }


def _fetching(packaging: Packaging) -> Manifest:
    """The job that downloads the weights; it needs no accelerator and downloads nothing twice."""
    container: Manifest = {
        "name": "fetch",
        "image": packaging.image,
        "command": ["hf", "download", packaging.model_source, "--exclude", _SECOND_COPY],
        "env": list(CACHE_VARIABLES),
        "volumeMounts": [{"name": "weights", "mountPath": CACHE}],
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    pod: Manifest = {
        "restartPolicy": "OnFailure",
        "containers": [container],
        "volumes": [
            {"name": "weights", "persistentVolumeClaim": {"claimName": claim_name(packaging)}}
        ],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(packaging, "-fetch"),
        "spec": {"backoffLimit": 10, "template": {"spec": pod}},
    }


def manifests(fleet: Fleet, packaging: Packaging) -> list[Manifest]:
    """The objects, in the order in which they are applied."""
    return [
        *volume_manifests(fleet, packaging),
        (groups(fleet, packaging) if fleet.n_nodes > 1 else _deployment(fleet, packaging)),
        _service(fleet, packaging),
        _replica_service(fleet, packaging),
        *([_autoscaler(fleet, packaging)] if packaging.scales else []),
        _budget(packaging),
    ]


def in_flight_target(fleet: Fleet) -> int:
    """Requests in flight per replica above which the autoscaler adds replicas."""
    return max(1, math.floor(fleet.fullest.in_flight_load))


def in_flight_metric(packaging: Packaging) -> str:
    """Name of the autoscaler's metric: requests in flight of all replicas."""
    return f"llm_requests_in_flight_{packaging.name.replace('-', '_')}"


def replica_host(packaging: Packaging) -> str:
    """DNS name that resolves to the addresses of all replicas."""
    return f"{packaging.name}{_REPLICAS}.{packaging.wishes.namespace}.svc.cluster.local"


def _deployment(fleet: Fleet, packaging: Packaging) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(packaging),
        "spec": {
            "replicas": packaging.n_least,
            "progressDeadlineSeconds": START_S + 600,
            "selector": {"matchLabels": labels(packaging)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": packaging.rollout},
            "template": pod_template(fleet, packaging, Part(n_devices=fleet.n_devices)),
        },
    }


def _service(fleet: Fleet, packaging: Packaging) -> Manifest:
    """Any replica, at random: for a router that is none, and for looking."""
    spec = {
        "selector": _answering(fleet, packaging),
        "ports": [{"name": "http", "port": packaging.wishes.port, "targetPort": "http"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(packaging), "spec": spec}


def _replica_service(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The headless service with the addresses of all ready replicas."""
    ports = [{"name": "http", "port": packaging.wishes.port, "targetPort": "http"}]
    spec = {"clusterIP": "None", "selector": _answering(fleet, packaging), "ports": ports}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(packaging, _REPLICAS),
        "spec": spec,
    }


def _autoscaler(fleet: Fleet, packaging: Packaging) -> Manifest:
    target = {"type": "AverageValue", "averageValue": str(in_flight_target(fleet))}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(packaging),
        "spec": {
            "scaleTargetRef": _scaled(fleet, packaging),
            "minReplicas": packaging.n_least,
            "maxReplicas": packaging.n_most,
            "metrics": [
                {
                    "type": "External",
                    "external": {"metric": {"name": in_flight_metric(packaging)}, "target": target},
                }
            ],
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": 0,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": 600,
                    "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}],
                },
            },
        },
    }


def _scaled(fleet: Fleet, packaging: Packaging) -> Manifest:
    if fleet.n_nodes > 1:
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": name_of(packaging),
        }
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": packaging.name}


def _answering(fleet: Fleet, packaging: Packaging) -> dict[str, object]:
    """The pods that answer: of a group its leader."""
    return labels(packaging, LEADER if fleet.n_nodes > 1 else None)


def _budget(packaging: Packaging) -> Manifest:
    """The PodDisruptionBudget; losing one pod of a group loses the group."""
    spec = {
        "maxUnavailable": max(1, packaging.wishes.n_spare),
        "selector": {"matchLabels": labels(packaging)},
    }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(packaging),
        "spec": spec,
    }


# The leader of a group is node 0 of vLLM and answers; the workers follow it, without a port of
# their own. A group whose pod is lost is made anew as a whole: vLLM cannot take a node back.
# Source: kubernetes-sigs/lws v0.9.0, api/leaderworkerset/v1 (variables of the pods, the service
# of a group's name); vLLM 0.32.0, --nnodes.


API_VERSION: Final = "leaderworkerset.x-k8s.io/v1"
KIND: Final = "LeaderWorkerSet"
LEADER: Final = "leader"
_WORKER: Final = "worker"
_SUFFIX: Final = "-groups"
"""LeaderWorkerSet makes a headless service of its own name, through which the pods of a group
find their leader before it is ready."""


def name_of(packaging: Packaging) -> str:
    """Name of a Kubernetes object."""
    return packaging.name + _SUFFIX


def groups(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The LeaderWorkerSet: a group of pods for each replica, a pod for each of its nodes."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": metadata(packaging, _SUFFIX),
        "spec": {
            "replicas": packaging.n_least,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": packaging.rollout,
            },
            "leaderWorkerTemplate": {
                "size": fleet.n_nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod_template(fleet, packaging, _part(fleet, LEADER)),
                "workerTemplate": pod_template(fleet, packaging, _part(fleet, _WORKER)),
            },
        },
    }


def _part(fleet: Fleet, name: str) -> Part:
    """A node's part of a replica; Kubernetes puts the variables in."""
    is_leader = name == LEADER
    of_group = (
        "--nnodes",
        str(fleet.n_nodes),
        "--master-addr",
        "$(LWS_LEADER_ADDRESS)",
        "--node-rank",
        "$(LWS_WORKER_INDEX)",
    )
    flags = of_group if is_leader else (*of_group, "--headless")
    return Part(
        n_devices=fleet.n_devices // fleet.n_nodes, name=name, flags=flags, answers=is_leader
    )
