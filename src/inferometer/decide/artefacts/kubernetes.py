"""Which Kubernetes objects run a fleet: its replicas, how many, what may take them away, and who finds them?

``replicas`` of the Deployment is what the autoscaler starts from. It scales on requests in flight per replica: a server that cannot keep
up lets them grow without bound, while its CPU, its accelerator's load and its memory look the same.
"""

import math
from typing import Final, TypeAlias

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.decide.artefacts.vllm_command import serve_arguments

Manifest: TypeAlias = dict[str, object]

_CACHE: Final = "/model-cache"
_REPLICAS: Final = "-replicas"
"""Ends the name of the headless service."""
_SHARED_MEMORY_GIB: Final = 8
"""For the processes of one replica to talk to one another: PyTorch's and NCCL's buffers."""
_START_S: Final = 3600
"""A large model is fetched and loaded in it."""
_PROBE_PERIOD_S: Final = 10
_LEAST_GRACE_S: Final = 60
_DRAIN_S: Final = 10
"""Until routers know that a replica goes."""


def manifests(fleet: Fleet, packaging: Packaging) -> list[Manifest]:
    """The objects, in the order in which they are applied."""
    return [
        _deployment(fleet, packaging),
        _service(packaging),
        _replica_service(packaging),
        _autoscaler(fleet, packaging),
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


def labels(packaging: Packaging) -> dict[str, object]:
    """What names the replicas."""
    return {"app.kubernetes.io/name": "vllm", "app.kubernetes.io/instance": packaging.name}


def metadata(packaging: Packaging, suffix: str = "") -> Manifest:
    """Name, namespace and labels of an object."""
    return {"name": packaging.name + suffix, "namespace": packaging.namespace, "labels": labels(packaging)}


def _deployment(fleet: Fleet, packaging: Packaging) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(packaging),
        "spec": {
            "replicas": packaging.n_least,
            "progressDeadlineSeconds": _START_S + 600,
            "selector": {"matchLabels": labels(packaging)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": min(1, packaging.n_spare)}},
            "template": {"metadata": {"labels": labels(packaging), "annotations": _scraped(packaging)}, "spec": _pod(fleet, packaging)},
        },
    }


def _scraped(packaging: Packaging) -> dict[str, object]:
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(packaging.port), "prometheus.io/path": "/metrics"}


def _pod(fleet: Fleet, packaging: Packaging) -> Manifest:
    grace_s = max(_LEAST_GRACE_S, math.ceil(2 * (fleet.e2e_high_s or 0.0))) + _DRAIN_S
    pod: Manifest = {
        "terminationGracePeriodSeconds": grace_s,
        "containers": [_container(fleet, packaging)],
        "volumes": [
            {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_SHARED_MEMORY_GIB}Gi"}},
            {"name": "model-cache", "emptyDir": {}},
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": labels(packaging)},
            }
        ],
    }
    if packaging.resource is not None:
        pod["tolerations"] = [{"key": packaging.resource, "operator": "Exists", "effect": "NoSchedule"}]
    if packaging.node_labels:
        pod["nodeSelector"] = dict(packaging.node_labels)
    return pod


def _container(fleet: Fleet, packaging: Packaging) -> Manifest:
    container: Manifest = {
        "name": "vllm",
        "image": packaging.image,
        "command": ["vllm", "serve"],
        "args": list(serve_arguments(fleet, packaging)),
        "env": [
            {"name": "HF_HOME", "value": _CACHE},
            {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token", "optional": True}}},
        ],
        "ports": [{"name": "http", "containerPort": packaging.port}],
        "startupProbe": _probe(_START_S // _PROBE_PERIOD_S),
        "readinessProbe": _probe(3),
        "livenessProbe": _probe(6),
        "lifecycle": {"preStop": {"sleep": {"seconds": _DRAIN_S}}},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}, {"name": "model-cache", "mountPath": _CACHE}],  # noqa: S108
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if packaging.resource is not None:
        devices = {packaging.resource: str(fleet.n_devices)}
        container["resources"] = {"limits": devices, "requests": dict(devices)}
    return container


def _probe(n_failures: int) -> Manifest:
    return {
        "httpGet": {"path": "/health", "port": "http"},
        "periodSeconds": _PROBE_PERIOD_S,
        "timeoutSeconds": 5,
        "failureThreshold": n_failures,
    }


def _service(packaging: Packaging) -> Manifest:
    """Any replica, at random: for a router that is none, and for looking."""
    spec = {"selector": labels(packaging), "ports": [{"name": "http", "port": packaging.port, "targetPort": "http"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(packaging), "spec": spec}


def _replica_service(packaging: Packaging) -> Manifest:
    """The addresses of all replicas that are ready, for the router."""
    spec = {"clusterIP": "None", "selector": labels(packaging), "ports": [{"name": "http", "port": packaging.port, "targetPort": "http"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(packaging, _REPLICAS), "spec": spec}


def _autoscaler(fleet: Fleet, packaging: Packaging) -> Manifest:
    target = {"type": "AverageValue", "averageValue": str(in_flight_target(fleet))}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(packaging),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": packaging.name},
            "minReplicas": packaging.n_least,
            "maxReplicas": packaging.n_most,
            "metrics": [{"type": "External", "external": {"metric": {"name": in_flight_metric(packaging)}, "target": target}}],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": 0, "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}]},
                "scaleDown": {"stabilizationWindowSeconds": 600, "policies": [{"type": "Pods", "value": 1, "periodSeconds": 300}]},
            },
        },
    }


def _budget(packaging: Packaging) -> Manifest:
    spec = {"maxUnavailable": max(1, packaging.n_spare), "selector": {"matchLabels": labels(packaging)}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(packaging), "spec": spec}


__all__ = ["Manifest", "in_flight_metric", "in_flight_target", "labels", "manifests", "metadata", "replica_host"]
