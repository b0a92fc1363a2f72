"""Which router stands before the replicas, and how is it set up?

HAProxy, with the rule that was simulated where it has it: ``leastconn`` sends each request to the
replica with the fewest in flight. It buffers no answer, so that tokens arrive one by one, and asks
``/health``. In Kubernetes it learns the replicas from DNS.
"""

import math
from typing import Final

from inferometer.decide.artefacts.kubernetes import (
    Manifest,
    in_flight_target,
    metadata,
    replica_host,
)
from inferometer.decide.artefacts.packaging import Fleet, Packaging
from inferometer.inputs.gate import GateSpec
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.simulate.fleet import Router

_BALANCE: Final[dict[Router, str]] = {
    "least-loaded": "leastconn",
    "round-robin": "roundrobin",
    "random": "random(1)",
    "power-of-two": "random(2)",
}
"""HAProxy's names of the simulator's rules; ``random(N)`` draws N and takes the least loaded of
them."""
_IMAGE: Final = "haproxy:3.2-alpine"
_PORT: Final = 8080
_STATUS_PORT: Final = 8404
_N_ROUTERS: Final = 2
_LEAST_TIMEOUT_S: Final = 600
_LEAST_CONNECTIONS: Final = 2000
_CONNECTIONS_RATIO: Final = 8
_SUFFIX: Final = "-router"
_FILE: Final = "haproxy.cfg"


_BODY_BYTES: Final = 256 * 1024
"""Of a body so much is read for its priority, which ``inferometer load`` says first."""
_MOST_URGENT: Final = 2047
"""HAProxy knows priorities from -2047 to 2047."""


def gate_refusal(gate: GateSpec, workload: WorkloadSpec) -> str | None:
    """Why HAProxy cannot act as this gate; None: it can.

    It holds requests back beyond ``max_in_flight`` of each replica, in order of arrival or of
    priority, for at most ``max_wait_s``.
    """
    rules = (gate.admission.max_queue, gate.admission.max_queued_tokens, gate.first_token)
    of_classes = [
        value
        for one in gate.classes
        for name in one.__struct_fields__
        if name not in {"name", "priority"} and (value := getattr(one, name)) is not None
    ]
    reasons = {
        f"HAProxy has no order {gate.order}": gate.order not in {"fcfs", "priority"},
        "HAProxy needs max_in_flight, the most of each replica": gate.max_in_flight is None,
        "HAProxy turns nobody away by what waits": gate.admission.too_late != "keep"
        or any(one is not None for one in rules),
        "HAProxy knows no tenants and no lengths": bool(gate.tenants) or gate.oversized is not None,
        "of a class HAProxy knows the priority alone": bool(of_classes),
        f"HAProxy's priorities end at {_MOST_URGENT}": any(
            abs(one) > _MOST_URGENT
            for one in (
                *(one.priority for one in workload.classes),
                *(one.priority or 0 for one in gate.classes),
            )
        ),
    }
    return next((why for why, is_so in reasons.items() if is_so), None)


def haproxy_config(fleet: Fleet, packaging: Packaging) -> str:
    """The configuration: sections, each with its directives."""
    timeout_s = max(_LEAST_TIMEOUT_S, math.ceil(4 * (fleet.e2e_high_s or 0.0)))
    sections: dict[str, list[str]] = {
        "global": [
            "log stdout format raw local0",
            f"maxconn {_most_connections(fleet, packaging)}",
            *([f"tune.bufsize {_BODY_BYTES}"] if _is_ordering(fleet) else []),
        ],
        "defaults": [
            "mode http",
            "log global",
            "option httplog",
            "option redispatch",
            "retries 2",
            "retry-on conn-failure",
            "timeout connect 5s",
            *_queue_time(fleet, timeout_s),
            f"timeout client {timeout_s}s",
            f"timeout server {timeout_s}s",
            "timeout check 5s",
        ],
        **_resolvers(packaging),
        "frontend openai": [
            f"bind :{_PORT}",
            *(_ORDERING if _is_ordering(fleet) else ()),
            "default_backend replicas",
        ],
        "backend replicas": [
            f"balance {_BALANCE.get(fleet.router, _BALANCE['least-loaded'])}",
            "option httpchk GET /health",
            "http-check expect status 200",
            "http-reuse safe",
            "default-server check inter 2s fall 3 rise 1" + _room(fleet, packaging),
            *_servers(packaging),
        ],
        "frontend status": [
            f"bind :{_STATUS_PORT}",
            "http-request use-service prometheus-exporter if { path /metrics }",
            "http-request return status 200 if { path /health }",
        ],
    }
    return (
        "\n\n".join(
            "\n".join([name, *(f"    {line}" for line in lines)])
            for name, lines in sections.items()
        )
        + "\n"
    )


_ORDERING: Final = (
    "option http-buffer-request",
    "http-request set-priority-class req.body,json_query('$.priority','int')",
)
"""HAProxy's rule that waiting requests go in order of the body's priority, smaller first."""


def _is_ordering(fleet: Fleet) -> bool:
    return fleet.gate is not None and fleet.gate.order == "priority"


def _queue_time(fleet: Fleet, timeout_s: int) -> list[str]:
    """HAProxy's lines for the longest wait for a replica with room."""
    if fleet.gate is None:
        return []
    return [f"timeout queue {round(1000 * (fleet.gate.admission.max_wait_s or timeout_s))}ms"]


def _room(fleet: Fleet, packaging: Packaging) -> str:
    """Requests that this router may have in flight at each replica: its share of the limit."""
    if fleet.gate is None or fleet.gate.max_in_flight is None:
        return ""
    n_routers = 1 if packaging.wishes.backends else _N_ROUTERS
    return f" maxconn {max(fleet.gate.max_in_flight // n_routers, 1)}"


def router_manifests(fleet: Fleet, packaging: Packaging) -> list[Manifest]:
    """The router in Kubernetes: its configuration, its pods, and the service that clients speak to."""
    selector: Manifest = {
        "app.kubernetes.io/name": "haproxy",
        "app.kubernetes.io/instance": packaging.name,
    }
    named = metadata(packaging, _SUFFIX) | {"labels": selector}
    pod = _router_pod(packaging)
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": named,
            "data": {_FILE: haproxy_config(fleet, packaging)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": named,
            "spec": {
                "replicas": _N_ROUTERS,
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": selector}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {
                "selector": selector,
                "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            },
        },
    ]


def _router_pod(packaging: Packaging) -> Manifest:
    return {
        "containers": [
            {
                "name": "haproxy",
                "image": _IMAGE,
                "ports": [
                    {"name": "http", "containerPort": _PORT},
                    {"name": "status", "containerPort": _STATUS_PORT},
                ],
                "readinessProbe": {"httpGet": {"path": "/health", "port": "status"}},
                "volumeMounts": [
                    {
                        "name": "configuration",
                        "mountPath": "/usr/local/etc/haproxy",
                        "readOnly": True,
                    }
                ],
                "resources": {
                    "requests": {"cpu": "250m", "memory": "256Mi"},
                    "limits": {"memory": "512Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "runAsNonRoot": True,
                    "runAsUser": 99,
                },
            }
        ],
        "volumes": [{"name": "configuration", "configMap": {"name": packaging.name + _SUFFIX}}],
    }


def balance_note(fleet: Fleet) -> str | None:
    """What HAProxy's balancing does differently from the simulated router; None: nothing."""
    if fleet.router in _BALANCE:
        return None
    return (
        f"{fleet.router} was simulated, which HAProxy cannot do; haproxy.cfg takes the least loaded"
        " replica"
    )


def _most_connections(fleet: Fleet, packaging: Packaging) -> int:
    """More than can be answered in time: queues form in the replicas, where they are seen."""
    return max(_LEAST_CONNECTIONS, _CONNECTIONS_RATIO * packaging.n_most * in_flight_target(fleet))


def _resolvers(packaging: Packaging) -> dict[str, list[str]]:
    """HAProxy's resolver of Kubernetes' DNS, from the pod's resolv.conf."""
    if packaging.wishes.backends:
        return {}
    return {
        "resolvers kubernetes": [
            "parse-resolv-conf",
            "accepted_payload_size 8192",
            "hold valid 5s",
            "hold obsolete 10s",
        ]
    }


def _servers(packaging: Packaging) -> list[str]:
    """HAProxy's server lines: each address, or as many templates as there may be replicas."""
    if packaging.wishes.backends:
        return [
            f"server replica{i} {address}" for i, address in enumerate(packaging.wishes.backends)
        ]
    return [
        (
            f"server-template replica {packaging.n_places} {replica_host(packaging)}:{packaging.wishes.port}"
            " resolvers kubernetes init-addr none"
        )
    ]
