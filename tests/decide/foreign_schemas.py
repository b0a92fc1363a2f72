"""What do LeaderWorkerSet's API and the prometheus-adapter take, as JSON schemas?

Pod templates are Kubernetes' own.

Source: kubernetes-sigs/lws v0.9.0, api/leaderworkerset/v1: the fields, their enumerations and
bounds, written anew; so are those of kubernetes-sigs/prometheus-adapter@01919d0e,
pkg/config/config.go, whose loader refuses every other field.
"""

_COUNT = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_SHARE = {"anyOf": [_COUNT, {"type": "string", "pattern": r"^\d+%$"}]}


def _closed(required=(), **fields):
    return {
        "type": "object",
        "properties": fields,
        "required": list(required),
        "additionalProperties": False,
    }


LEADER_WORKER_SET = _closed(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata={"type": "object"},
    spec=_closed(
        ("leaderWorkerTemplate",),
        replicas=_COUNT | {"maximum": 1_000_000},
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        rolloutStrategy=_closed(
            ("type",),
            type={"enum": ["RollingUpdate"]},
            rollingUpdateConfiguration=_closed(
                partition=_COUNT, maxUnavailable=_SHARE, maxSurge=_SHARE
            ),
        ),
        networkConfig=_closed(
            ("subdomainPolicy",), subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}
        ),
        leaderWorkerTemplate=_closed(
            ("workerTemplate",),
            size=_COUNT | {"minimum": 1},
            restartPolicy={
                "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
            },
            leaderTemplate={"type": "object"},
            workerTemplate={"type": "object"},
            subGroupPolicy={"type": "object"},
            volumeClaimTemplates={"type": "array"},
            persistentVolumeClaimRetentionPolicy={"type": "object"},
        ),
    ),
)

_TEXT = {"type": "string"}
_RULE = _closed(
    ("seriesQuery", "resources", "name"),
    seriesQuery=_TEXT,
    seriesFilters={"type": "array", "items": _closed(**{"is": _TEXT, "isNot": _TEXT})},
    resources=_closed(
        template=_TEXT,
        overrides={
            "type": "object",
            "additionalProperties": _closed(("resource",), group=_TEXT, resource=_TEXT),
        },
        namespaced={"type": "boolean"},
    ),
    name=_closed(**{"matches": _TEXT, "as": _TEXT}),
    metricsQuery=_TEXT,
    labelValueReplacements={"type": "array", "items": _closed(find=_TEXT, replace=_TEXT)},
)
PROMETHEUS_ADAPTER = _closed(
    rules={"type": "array", "items": _RULE},
    resourceRules={"type": "object"},
    externalRules={"type": "array", "items": _RULE},
)
