"""Which files deploy, watch and check a fleet, and what is each of them for?"""

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
)
from inferometer.decide.artefacts.kubernetes import (
    Manifest,
    in_flight_metric,
    in_flight_target,
    replica_host,
    storage_gib,
)
from inferometer.decide.artefacts.packaging import (
    VLLM_VERSION,
    Fleet,
    OperatingPoint,
    Packaging,
    Promise,
)
from inferometer.decide.artefacts.proving import duration_s
from inferometer.decide.artefacts.router import balance_note
from inferometer.decide.artefacts.vllm_command import checkpoint_note
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.plans import SIZED_PLAN
from inferometer.units import format_duration, format_number

FILES = {
    "plan.json": (
        "all that was decided and predicted; `inferometer deploy plan.json --out DIR` writes this"
        " folder anew with other names"
    ),
    "workload.json": "the traffic that was simulated",
    "vllm-serve.sh": f"one replica on one machine, for vLLM {VLLM_VERSION}",
    "kubernetes.yaml": (
        "the volume of the weights, replicas, disruption budget, router and services; an autoscaler"
        " with --most"
    ),
    "haproxy.cfg": (
        "the router alone, for machines without Kubernetes (`inferometer deploy plan.json --backend"
        " HOST:PORT …`)"
    ),
    "prometheus.yml": "scrapes the replicas and evaluates the rules",
    "prometheus-rules.yaml": "recorded series, and alerts from the SLO and the predicted range",
    "prometheus-adapter.yaml": (
        "offers requests in flight to the autoscaler (for the prometheus-adapter; in its chart:"
        " `rules.external`)"
    ),
    "grafana-dashboard.json": "measured beside predicted; reads the recorded series",
    "grafana-live.json": (
        "the prediction for the present traffic beside the replicas' metrics; reads what"
        " `inferometer watch URL --predicted FILE --export-port 9110` exports, which Prometheus has"
        " to scrape"
    ),
    "check-promise.sh": "a load test that says whether the SLO is met",
    "verify.toml": (
        "the prediction as `inferometer verify verify.toml --url URL` seals it before it measures"
        " the same requests"
    ),
}
"""Each file of the folder with its purpose."""


def readme(fleet: Fleet, packaging: Packaging, names: list[str]) -> str:
    """The folder's README, in Markdown."""
    parts = [
        f"# {packaging.served_name}: {_fleet_of(fleet, packaging.n_least)}",
        _decision(fleet, packaging),
        "## The SLO, and what the simulation gives",
        _promises(fleet),
        "## What it rests on",
        "\n".join(f"- {line}" for line in assumptions(fleet, packaging)),
        *_priorities(fleet),
        "## In which range it should work",
        _range(fleet),
        "## Files",
        "\n".join(f"- `{name}`: {FILES[name]}" for name in FILES if name in names),
        "## Before it serves",
        "\n".join(f"- {line}" for line in _before(fleet, packaging, names)),
    ]
    return "\n\n".join(parts) + "\n"


def assumptions(fleet: Fleet, packaging: Packaging) -> list[str]:
    """The assumptions of a sizing, one sentence each."""
    engine, scheduler = fleet.engine, fleet.scheduler
    sizes = (
        f"max_num_seqs {scheduler.max_num_seqs}, {scheduler.max_num_batched_tokens} tokens a step,"
        f" contexts up to {scheduler.max_model_len} tokens"
    )
    switches = (
        f"prefix caching {_on(scheduler.enable_prefix_caching)}, chunked prefill"
        f" {_on(scheduler.enable_chunked_prefill)}"
    )
    lengths = (
        f"prompts of {format_number(fleet.prompt_mean_tokens)} and outputs of"
        f" {format_number(fleet.output_mean_tokens)} tokens in the mean"
    )
    spare = f"{packaging.wishes.n_spare} of {packaging.n_least} replicas are spare"
    return [
        (
            f"Model: {fleet.model.model_id}, {engine.formats}, KV cache in"
            f" {engine.kv_cache_dtype or engine.dtype}."
        ),
        f"Engine: {scheduler.engine}, {sizes}; {switches}.",
        (
            f"KV cache of a replica: {scheduler.n_kv_blocks:,} blocks of {scheduler.block_size}"
            f" tokens ({fleet.kv_origin})."
        ),
        (
            f"Traffic: {_load_of(fleet)} of {fleet.workload.name}, {lengths}; the"
            " distributions are in workload.json."
        ),
        f"Step times: {fleet.step_times_from}.",
        (
            f"Replicas: {fleet.n_replicas}, simulated together behind a router ({fleet.router}), at"
            f" {fleet.sized_for} step times."
        ),
        "Latencies: on the server; network and router are not in them.",
        (
            f"Redundancy: {spare}; to lose one and still meet the SLO takes"
            f" {fleet.n_replicas_if_one_fails}."
        ),
        f"Price: {fleet.price_from or 'unknown (pass --prices)'}.",
        *(
            f"{caution.text[:1].upper()}{caution.text[1:]} ({caution.remedy})."
            for caution in fleet.cautions
        ),
    ]


def _load_of(fleet: Fleet) -> str:
    if fleet.users is None:
        return f"{fleet.rate_per_s:g} requests/s"
    return f"{fleet.users:,} users who wait ({fleet.rate_per_s:.4g} requests/s)"


def _on(is_on: bool) -> str:  # noqa: FBT001 -- a word for a switch
    return "on" if is_on else "off"


def _decision(fleet: Fleet, packaging: Packaging) -> str:
    verdict = {"met": "meets", "missed": "misses", "undecided": "may or may not meet"}[
        fleet.verdict
    ]
    paces = "at fast, likely and slow step times together"
    tested = (
        "In simulation, without what is spare," if packaging.wishes.n_spare else "In simulation"
    )
    lines = [f"{_running(fleet, packaging)}. {tested} it {verdict} the SLO {paces}."]
    lines += [f"Weakest link: {fleet.weakest}."] if fleet.weakest else []
    lines += (
        [f"Under more traffic breaks first: {fleet.breaks_first}."] if fleet.breaks_first else []
    )
    met = fleet.kept_requests_per_s
    lines += (
        []
        if met is None
        else [
            (
                f"One replica carries up to {met:.4g} requests/s, all together"
                f" {met * fleet.n_replicas:.4g}."
            )
        ]
    )
    return "\n".join(lines)


def _running(fleet: Fleet, packaging: Packaging) -> str:
    """What runs, what it costs, and how much of both is spare."""
    each = None if fleet.usd_per_hour is None else fleet.usd_per_hour / fleet.n_replicas
    running = _fleet_of(fleet, packaging.n_least) + _cost(each, packaging.n_least)
    n_spare = packaging.wishes.n_spare
    return f"{running}; spare of it: {n_spare}{_cost(each, n_spare)}" if n_spare else running


def _cost(usd_each: float | None, n_replicas: int) -> str:
    return "" if usd_each is None else f" for ${usd_each * n_replicas:.2f} an hour"


def _fleet_of(fleet: Fleet, n_replicas: int) -> str:
    replicas = "1 replica" if n_replicas == 1 else f"{n_replicas} replicas, each"
    return f"{replicas} of {fleet.n_devices} x {fleet.hardware.name}"


def _promises(fleet: Fleet) -> str:
    rows = [
        f"| limit | simulated, {fleet.sized_for} step times | interval | verdict |",
        "|---|---|---|---|",
    ]
    table = "\n".join([*rows, *(_promise_row(promise) for promise in fleet.promises)])
    workflows = [one.text for one in fleet.objective.thresholds if one.metric == "workflow"]
    if not workflows:
        return table
    unseen = (
        f"vLLM's metrics are of single requests: {' and '.join(workflows)} has no alert and no panel."
        " The load test of this folder sends whole workflows and judges it."
    )
    return f"{table}\n\n{unseen}"


def _promise_row(promise: Promise) -> str:
    seen = "–" if promise.seen_s is None else format_duration(promise.seen_s)
    is_open = promise.low_s is None
    interval = (
        "too few requests"
        if is_open
        else f"{format_duration(promise.low_s or 0.0)} to {_end(promise.high_s)}"
    )
    return f"| {promise.text} | {seen} | {interval} | {promise.verdict} |"


def _end(high_s: float | None) -> str:
    return "beyond the run" if high_s is None else format_duration(high_s)


def _priorities(fleet: Fleet) -> list[str]:
    """Sentences on where priorities come from and which part uses them."""
    if not fleet.has_priorities:
        return []
    gate, heeding = fleet.gate, list[str]()
    if fleet.scheduler.policy == "priority":
        heeding.append("vLLM (`--scheduling-policy priority`)")
    if gate is not None and gate.order == "priority":
        heeding.append(
            f"the router, which lets {gate.max_in_flight} requests at once into each replica"
        )
    rows = [f"| {one.name} | `{one.priority}` |" for one in fleet.workload.classes]
    said = (
        "Clients say in the body of each request how urgent it is, before the prompt"
        ' (`{"priority": 0, …}`; the smaller, the more urgent; without it 0).'
        f" It is heeded by {' and by '.join(heeding)}."
    )
    table = "\n".join(["| class of requests | priority |", "|---|--:|", *rows])
    return ["## Priorities", f"{said}\n\n{table}"]


def _range(fleet: Fleet) -> str:
    heads = (
        "one replica",
        "requests/s",
        "in flight",
        "waiting, 99 % of the time",
        "KV cache, mean",
        "KV cache, 99 %",
        "mean TTFT",
        "mean TPOT",
    )
    points = [(f"planned, {point.step_times} step times", point) for point in fleet.planned] + [
        (f"at capacity, {fleet.fullest.step_times} step times", fleet.fullest)
    ]
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*rows, *(_point_row(name, point) for name, point in points)])


def _point_row(name: str, point: OperatingPoint) -> str:
    latencies = (
        "–" if one is None else format_duration(one)
        for one in (point.ttft_mean_s, point.tpot_mean_s)
    )
    cells = (
        name,
        f"{point.requests_per_s:.4g}",
        f"{point.in_flight_load:.3g}",
        str(point.n_waiting_high),
        f"{point.kv_used_mean_fraction:.0%}",
        f"{point.kv_used_high_fraction:.0%}",
        *latencies,
    )
    return f"| {' | '.join(cells)} |"


def _before(fleet: Fleet, packaging: Packaging, names: list[str]) -> list[str]:
    note = checkpoint_note(fleet)
    lines = [
        (
            "vLLM's log says 'GPU KV cache size': it must be at least"
            f" {fleet.scheduler.n_kv_tokens:,} tokens."
        ),
        (
            f"Run `./check-promise.sh URL` ({format_duration(duration_s(fleet))}): exit 0 met, 10"
            " missed, 11 undecided."
        ),
    ]
    if "kubernetes.yaml" in names:
        known = (
            f"{dict(packaging.wishes.node_labels)} does it"
            if packaging.wishes.node_labels
            else "name their labels with --node-label KEY=VALUE"
        )
        target = f"more than {in_flight_target(fleet)} requests are in flight in each"
        lines.append(
            f"Kubernetes must place the pods on nodes with {fleet.hardware.name}: {known}."
        )
        lines += [_scaling(packaging, target), _rollout(packaging), _weights(fleet, packaging)]
    else:
        why = (
            f"no image of vLLM is known for {fleet.hardware.name} (--image NAME)"
            if packaging.image is None
            else f"no pod has the folder {packaging.model_source} (--model-claim NAME)"
        )
        lines.append(f"There is no kubernetes.yaml: {why}.")
    if fleet.n_nodes > 1:
        lines.append(
            f"A replica takes {fleet.n_nodes} nodes. kubernetes.yaml makes a group of pods of each,"
            " for which LeaderWorkerSet must be in the cluster (v0.7 or newer); its pods want the"
            " network over which the nodes' devices speak, which is the cluster's to name."
        )
        lines.append(
            f"Without Kubernetes: on each node `./vllm-serve.sh --nnodes {fleet.n_nodes}"
            " --master-addr FIRST_NODE --node-rank N`, N from 0 on; on all but the first with"
            " `--headless`. Only the first answers."
        )
    lines += [f"The router: {router_note}."] if (router_note := balance_note(fleet)) else []
    return [*lines, *([f"The checkpoint: {note}."] if note else [])]


def _scaling(packaging: Packaging, target: str) -> str:
    if not packaging.scales:
        return (
            f"There is no autoscaler: {packaging.n_least} replicas run. Where the cluster can have"
            " more devices, --most N writes one."
        )
    return (
        f"The autoscaler starts more than {packaging.n_least} replicas where {target}, up to"
        f" {packaging.n_most}, for which the cluster must have devices; a new one helps once its"
        " model is loaded."
    )


def _rollout(packaging: Packaging) -> str:
    if packaging.wishes.n_surge:
        return (
            f"A rollout starts {packaging.wishes.n_surge} new replicas beside the old ones: keep the"
            " devices for them free."
        )
    if packaging.n_least == 1:
        return (
            "A rollout stops the only replica while the new one loads. --surge 1 starts it beside"
            " the old one, on free devices."
        )
    left = f"{packaging.n_least - 1} of {packaging.n_least} replicas answer"
    slo = (
        "which is enough for the SLO"
        if packaging.wishes.n_spare
        else "too few for the SLO at the planned load: roll out at a quiet hour"
    )
    more = "" if packaging.wishes.n_spare else ", or give --spare 1, or --surge 1 and free devices"
    return f"During a rollout {left}, {slo}{more}."


def _weights(fleet: Fleet, packaging: Packaging) -> str:
    if packaging.wishes.model_claim is not None:
        top = ", the model's files at its top" if packaging.mount == packaging.model_source else ""
        return (
            f"The weights are on the claim {packaging.wishes.model_claim}, mounted at"
            f" {packaging.mount}{top}; it must be readable from every node."
        )
    return (
        f"The weights lie on one volume of {storage_gib(fleet)} GiB that every node mounts"
        " (ReadWriteMany: NFS, CephFS, FSx, Filestore or alike; --storage-class NAME), and a job"
        " fetches them once. --model-claim NAME takes a claim that has them."
    )


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
    return {README_FILE: readme(fleet, packaging, list(files)), **files}


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
