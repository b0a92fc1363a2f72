"""Which files deploy, watch and check a fleet, and what stands in them?"""

import json
from typing import Final

import msgspec
import yaml

from inferometer.decide.artefacts import (
    alerts,
    dashboard,
    kubernetes,
    proving,
    router,
    vllm_command,
    words,
)
from inferometer.decide.artefacts.kubernetes import Manifest, in_flight_metric, replica_host
from inferometer.decide.artefacts.packaging import Fleet, Packaging
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.plans import SIZED_PLAN

_PLAN: Final = Door(noun="plan", allowed="the plan.json of inferometer size --out DIR")

PLAN_FILE: Final = "plan.json"
README_FILE: Final = "README.md"
_WIDTH: Final = 140


def files_of(fleet: Fleet, packaging: Packaging) -> dict[str, str]:
    """The text of each file by its name, the README first.

    Raises
    ------
    SizingError
        vLLM cannot be configured to run what was simulated.
    """
    files = {
        PLAN_FILE: plan_text(fleet),
        proving.WORKLOAD_FILE: _json(msgspec.to_builtins(fleet.workload)),
        "vllm-serve.sh": vllm_command.serve_script(fleet, packaging),
        "haproxy.cfg": router.haproxy_config(fleet, packaging),
        "prometheus.yml": _yaml(prometheus_config(packaging)),
        RULES_FILE: _yaml(alerts.rules(fleet, packaging)),
        "grafana-dashboard.json": _json(dashboard.dashboard(fleet, packaging)),
        "grafana-live.json": _json(proving.board(fleet, packaging)),
        "check-promise.sh": proving.check_script(fleet, packaging),
    }
    if (plan := proving.verify_plan(fleet, packaging)) is not None:
        files[SIZED_PLAN] = plan
    if packaging.scales:
        files["prometheus-adapter.yaml"] = _yaml(adapter_config(packaging))
    if packaging.image is not None and packaging.has_weights:
        files["kubernetes.yaml"] = _yaml(
            *kubernetes.manifests(fleet, packaging), *router.router_manifests(fleet, packaging)
        )
    return {README_FILE: words.readme(fleet, packaging, list(files)), **files}


def plan_text(fleet: Fleet) -> str:
    """The fleet as JSON, which ``read_plan`` reads; whole numbers in fields of fractions are written as those."""
    return _json(msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(fleet), Fleet)))


def read_plan(text: str, *, where: str) -> Fleet:
    """The fleet that ``plan_text`` wrote.

    Raises
    ------
    SpecError
        The text is no plan of this version; ``where`` names it.
    """
    return _PLAN.json(text, Fleet, where=where)


def _yaml(*documents: kubernetes.Manifest) -> str:
    text: str = yaml.dump_all(
        documents, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True
    )
    return text


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # yaml has no types
    """YAML writer for readers: multi-line strings as blocks, no anchors."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _block_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _block_text)


# In Kubernetes Prometheus learns the replicas from the DNS of their headless service, as the
# router does.


RULES_FILE: Final = "prometheus-rules.yaml"
_INTERVAL: Final = "15s"


def prometheus_config(packaging: Packaging) -> Manifest:
    """Prometheus' configuration: scrapes the replicas and evaluates the rules."""
    return {
        "global": {"scrape_interval": _INTERVAL, "evaluation_interval": _INTERVAL},
        "rule_files": [RULES_FILE],
        "scrape_configs": [{"job_name": packaging.name} | _replicas(packaging)],
    }


def adapter_config(packaging: Packaging) -> Manifest:
    """Configuration of prometheus-adapter: requests in flight, for the autoscaler."""
    series = f"{alerts.IN_FLIGHT}{{{alerts.selector(packaging)}}}"
    rule: Manifest = {
        "seriesQuery": series,
        "resources": {"namespaced": False},
        "name": {"as": in_flight_metric(packaging)},
        "metricsQuery": f"sum(avg_over_time({series}[1m]))",
    }
    return {"externalRules": [rule]}


def _replicas(packaging: Packaging) -> Manifest:
    if packaging.wishes.backends:
        return {"static_configs": [{"targets": list(packaging.wishes.backends)}]}
    return {
        "dns_sd_configs": [
            {
                "names": [replica_host(packaging)],
                "type": "A",
                "port": packaging.wishes.port,
                "refresh_interval": _INTERVAL,
            }
        ]
    }
