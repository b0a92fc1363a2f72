"""Where do a fleet's weights lie? On one volume that every replica reads.

In each pod they would fill the node's disk and be fetched again at every restart. A
PersistentVolumeClaim that many nodes mount, and a job that fills it, is how operators of vLLM do it
(``pvcStorage`` of production-stack, ``pvc://`` of llm-d).
"""

import math
from typing import Final

from inferometer.decide.artefacts.fleet import Fleet
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.decide.artefacts.pods import CACHE, CACHE_VARIABLES, Manifest, claim_name, metadata
from inferometer.inputs.types import DTYPE_BITS, EngineSpec
from inferometer.perfmodel.weights import weight_bytes

_MARGIN_RATIO: Final = 1.25
"""For the tokenizer, files of other formats beside the weights, and the file that is being
fetched."""
_GIB: Final = 2**30


def manifests(fleet: Fleet, packaging: Packaging) -> list[Manifest]:
    """The claim and the job that fetches into it; none where the weights lie on a claim that is there."""
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
