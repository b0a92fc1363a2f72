"""Which Kubernetes objects run a fleet: its replicas, how many, what may take them away, and who finds them?

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
from typing import Final

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.decide.artefacts.pods import (
    CACHE,
    CACHE_VARIABLES,
    START_S,
    Manifest,
    Part,
    claim_name,
    labels,
    metadata,
    pod_template,
)
from inferometer.inputs.types import DTYPE_BITS, EngineSpec
from inferometer.perfmodel.weights import weight_bytes

_MARGIN_RATIO: Final = 1.25
"""For the tokenizer, files of other formats beside the weights, and the file that is being
fetched."""
_GIB: Final = 2**30
_REPLICAS: Final = "-replicas"
"""Ends the name of the headless service."""


def volume_manifests(fleet: Fleet, packaging: Packaging) -> list[Manifest]:
    """The PersistentVolumeClaim and the job that downloads the weights; none where they lie on a claim."""
    if packaging.model_claim is not None:
        return []
    is_folder = packaging.model_source.startswith(("/", "."))
    return [_claim(fleet, packaging), *([] if is_folder else [_fetching(packaging)])]


def storage_gib(fleet: Fleet) -> int:
    """What the volume must hold: the checkpoint as it was published, and a margin."""
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
    if packaging.storage_class is not None:
        spec["storageClassName"] = packaging.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata(packaging, "-weights"),
        "spec": spec,
    }


def _fetching(packaging: Packaging) -> Manifest:
    """It needs no accelerator, and may be applied again: what is there is not fetched twice."""
    container: Manifest = {
        "name": "fetch",
        "image": packaging.image,
        "command": ["hf", "download", packaging.model_source],
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
    """So many requests in flight per replica are as many as keep the promise: beyond, the autoscaler starts more."""
    return max(1, math.floor(fleet.fullest.in_flight_load))


def in_flight_metric(packaging: Packaging) -> str:
    """What the metrics adapter calls the requests in flight in all replicas together."""
    return f"llm_requests_in_flight_{packaging.name.replace('-', '_')}"


def replica_host(packaging: Packaging) -> str:
    """The name under which DNS knows the addresses of all replicas."""
    return f"{packaging.name}{_REPLICAS}.{packaging.namespace}.svc.cluster.local"


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
        "ports": [{"name": "http", "port": packaging.port, "targetPort": "http"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(packaging), "spec": spec}


def _replica_service(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The addresses of all replicas that are ready, for the router."""
    ports = [{"name": "http", "port": packaging.port, "targetPort": "http"}]
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
    """Of pods: losing one of a group loses all of it, so that groups go one by one."""
    spec = {
        "maxUnavailable": max(1, packaging.n_spare),
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
    """What the object is called."""
    return packaging.name + _SUFFIX


def groups(fleet: Fleet, packaging: Packaging) -> Manifest:
    """As many groups as there are replicas, each of as many pods as a replica takes nodes."""
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
