"""Which object runs replicas of several nodes?

Groups of pods of LeaderWorkerSet, which has to be installed in the cluster.

The leader of a group is node 0 of vLLM and answers; the workers follow it, without a port of their
own. A group whose pod is lost is made anew as a whole: vLLM cannot take a node back.

Source: kubernetes-sigs/lws v0.9.0, api/leaderworkerset/v1 (variables of the pods, the service of a
group's name); vLLM 0.32.0, --nnodes.
"""

from typing import Final

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.decide.artefacts.pods import Manifest, Part, metadata, pod_template

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
