"""How do the replicas' metrics come to Prometheus, and from there to Kubernetes' autoscaler?

In Kubernetes Prometheus learns the replicas from the DNS of their headless service, as the router
does.
"""

from typing import Final

from inferometer.decide.artefacts import promql
from inferometer.decide.artefacts.kubernetes import in_flight_metric, replica_host
from inferometer.decide.artefacts.packaging import Packaging
from inferometer.decide.artefacts.pods import Manifest

RULES_FILE: Final = "prometheus-rules.yaml"
_INTERVAL: Final = "15s"


def prometheus_config(packaging: Packaging) -> Manifest:
    """A configuration that scrapes the replicas and evaluates the rules: whole, or to be taken into one that is there."""
    return {
        "global": {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": [RULES_FILE],
        "scrape_configs": [{"job_name": packaging.name} | _replicas(packaging)],
    }


def adapter_config(packaging: Packaging) -> Manifest:
    """What prometheus-adapter offers to the autoscaler: requests in flight in all replicas together."""
    series = f"{promql.IN_FLIGHT}{{{promql.selector(packaging)}}}"
    rule: Manifest = {
        "seriesQuery": series,
        "resources": {"namespaced": False},
        "name": {"as": in_flight_metric(packaging)},
        "metricsQuery": f"sum(avg_over_time({series}[1m]))",
    }
    return {"externalRules": [rule]}


def _replicas(packaging: Packaging) -> Manifest:
    if packaging.backends:
        return {"static_configs": [{"targets": list(packaging.backends)}]}
    return {
        "dns_sd_configs": [
            {
                "names": [replica_host(packaging)],
                "type": "A",
                "port": packaging.port,
                "refresh_interval": _INTERVAL,
            }
        ]
    }
