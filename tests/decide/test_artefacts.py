"""Are the files of a deployment what Kubernetes, vLLM, Prometheus and Grafana take, and do they say what was decided?

Peers check them for real in ``test_artefacts_peers.py`` (slow).
"""

import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path

import foreign_schemas
import jsonschema
import msgspec
import pytest
import yaml
from fleets import fleet, operating_point

from inferometer.api.watch_exporter import WatchExporter
from inferometer.api.watch_prediction import METRICS
from inferometer.decide.artefacts import (
    alerts,
    dashboard,
    folder,
    kubernetes,
    planning,
    proving,
    router,
    vllm_command,
)
from inferometer.decide.artefacts.folder import files_of, plan_text, read_plan
from inferometer.decide.artefacts.packaging import Wishes, packaging_of
from inferometer.decide.artefacts.planning import fleet_of
from inferometer.decide.candidates import Grid, Offer, candidates_of
from inferometer.decide.sizing import size_device
from inferometer.decide.sizing_types import SizingQuestion, Task
from inferometer.errors import SizingError, SpecError
from inferometer.inputs import catalog, plans
from inferometer.inputs.gate import Admission, GateClass, GateSpec, GateTenant
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload.reading import read_workload, resolve_workload, with_changes
from inferometer.records.server_names import SERVERS, VLLM_EDGES_S, known_families, plain

GOLDEN = Path(__file__).parent / "golden" / "deployment"
KUBERNETES_VERSION = "1.34"
HELD_STILL = sorted({"README.md"} | set(folder.FILES) - {"plan.json", "workload.json"})
"""Those that the catalogue and the presets do not change."""


def of_kind(objects, kind, suffix=""):
    return next(
        one for one in objects if one["kind"] == kind and one["metadata"]["name"].endswith(suffix)
    )


def flags_of(text):
    parts = shlex.split(text.replace("\\\n", " "), comments=True)
    parts = parts[parts.index("serve") + 2 :]
    return {
        word: following
        for word, following in zip(parts, [*parts[1:], ""], strict=True)
        if word.startswith("--")
    }


@pytest.mark.parametrize("name", HELD_STILL)
def test_files_are_held_still(name):
    text = files_of(fleet(), packaging_of(fleet(), Wishes(n_most=4)))[name]
    golden = GOLDEN / name
    if os.environ.get("INFEROMETER_ACCEPT_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert golden.exists(), f"no {golden.name}; make golden"
    assert text == golden.read_text()


def test_no_file_is_kept_that_is_no_longer_written():
    assert {path.name for path in GOLDEN.iterdir()} == set(HELD_STILL)


def test_a_plan_comes_back_as_it_went():
    made = fleet(scheduler={"acceptance_fraction": 0.7, "num_speculative_tokens": 2})
    assert read_plan(plan_text(made), where="here") == made


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", plan_text(fleet()).replace('"n_replicas": 2', '"n_replicas": "two"')]
)
def test_what_is_no_plan_is_refused(text):
    with pytest.raises(SpecError, match=r"the plan is (damaged|empty)"):
        read_plan(text, where="here")


def test_the_workload_file_is_one(tmp_path):
    (tmp_path / "workload.json").write_text(
        files_of(fleet(), packaging_of(fleet()))["workload.json"]
    )
    assert read_workload(tmp_path / "workload.json") == fleet().workload


@pytest.mark.parametrize(
    ("changes", "flags"),
    [
        (
            {},
            {
                "--dtype": "bfloat16",
                "--kv-cache-dtype": "auto",
                "--tensor-parallel-size": "2",
                "--gpu-memory-utilization": "0.9",
            },
        ),
        (
            {"engine": {"quantization": "float8", "kv_cache_dtype": "float8"}},
            {"--quantization": "fp8", "--kv-cache-dtype": "fp8"},
        ),
        ({"engine": {"quantization": "int8"}}, {"--quantization": "int8_per_channel_weight_only"}),
        (
            {"scheduler": {"max_num_batched_tokens": 512, "block_size": 32}},
            {"--max-num-batched-tokens": "512", "--block-size": "32"},
        ),
        (
            {"scheduler": {"policy": "priority", "watermark_fraction": 0.01}},
            {"--scheduling-policy": "priority", "--watermark": "0.01"},
        ),
        (
            {"scheduler": {"long_prefill_token_threshold": 256}},
            {"--long-prefill-token-threshold": "256"},
        ),
        (
            {"scheduler": {"pipeline_parallel_size": 4}},
            {"--pipeline-parallel-size": "4", "--tensor-parallel-size": "2"},
        ),
        (
            {"scheduler": {"max_num_active_seqs": 32}},
            {"--max-num-active-seqs": "32", "--max-num-seqs": "64"},
        ),
    ],
)
def test_the_command_says_what_was_decided(changes, flags):
    made = fleet(**changes)
    said = flags_of(vllm_command.serve_script(made, packaging_of(made)))
    assert {name: said.get(name) for name in flags} == flags
    assert said["--max-model-len"] == "8192"


def test_replicas_without_graphs_are_started_and_verified_so(tmp_path):
    for is_eager in (False, True):
        made = fleet(is_eager=is_eager)
        files = files_of(made, packaging_of(made))
        assert ("--enforce-eager" in files["vllm-serve.sh"]) == is_eager
        assert ("--enforce-eager" in files["kubernetes.yaml"]) == is_eager
        (tmp_path / "verify.toml").write_text(files["verify.toml"])
        (tmp_path / "workload.json").write_text(files["workload.json"])
        server = plans.read_plan(tmp_path / "verify.toml").server
        assert server.get("enforce_eager", False) == is_eager


@pytest.mark.parametrize("is_on", [True, False])
def test_switches_are_said_either_way(is_on):
    made = fleet(scheduler={"enable_prefix_caching": is_on, "async_scheduling": is_on})
    said = flags_of(vllm_command.serve_script(made, packaging_of(made)))
    assert ("--enable-prefix-caching" in said) is is_on
    assert ("--no-enable-prefix-caching" in said) is not is_on
    assert ("--async-scheduling" in said) is is_on


def test_weights_in_a_format_that_vllm_cannot_make_are_the_checkpoints():
    made = fleet(engine={"quantization": "int4"})
    assert "--quantization" not in flags_of(vllm_command.serve_script(made, packaging_of(made)))
    assert "int4" in vllm_command.checkpoint_note(made)
    assert "--model-source" in files_of(made, packaging_of(made))["README.md"]
    assert vllm_command.checkpoint_note(fleet(engine={"quantization": "float8"})) is None


@pytest.mark.parametrize(
    ("wanted", "note"), [("float8", None), (None, "bfloat16"), ("int8", "int8")]
)
def test_weights_that_were_published_in_fewer_bits_are_not_made_of_others(wanted, note):
    made = fleet(model="deepseek-r1", engine={"quantization": wanted, "tensor_parallel_size": 8})
    assert "--quantization" not in flags_of(vllm_command.serve_script(made, packaging_of(made)))
    said = vllm_command.checkpoint_note(made)
    assert said is None if note is None else f"simulated as {note}" in said


@pytest.mark.parametrize(
    "scheduler",
    [
        {"one_prefill_at_a_time": True},
        {"kv_allocation": "contiguous", "enable_prefix_caching": False},
        {"rules": "sarathi"},
        {"policy": "srpt"},
    ],
)
def test_what_vllm_cannot_do_is_not_deployed(scheduler):
    made = fleet(scheduler=scheduler)
    with pytest.raises(SizingError, match=r"vLLM 0\.32\.0 cannot"):
        files_of(made, packaging_of(made))


@pytest.mark.parametrize("device", ["h100_sxm", "mi300x", "xeon_8480p"])
@pytest.mark.parametrize(
    "wishes",
    [
        Wishes(),
        Wishes(n_most=4),
        Wishes(n_spare=1, node_labels=(("pool", "gpus"),), namespace="llm", port=9000),
    ],
)
def test_kubernetes_takes_the_objects(device, wishes):
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed: make setup"
    ).validate
    made = fleet(device=device)
    objects = list(
        yaml.safe_load_all(files_of(made, packaging_of(made, wishes))["kubernetes.yaml"])
    )
    kinds = [one["kind"] for one in objects]
    claims = {"PersistentVolumeClaim", "Job"}
    scaled = {"HorizontalPodAutoscaler"} if wishes.n_most else set()
    assert {"Deployment", "Service", "PodDisruptionBudget", "ConfigMap"} | claims | scaled == set(
        kinds
    )
    for one in objects:
        validate(one, KUBERNETES_VERSION, strict=True)
        assert one["metadata"]["namespace"] == wishes.namespace


def test_the_schemas_of_kubernetes_refuse_what_is_wrong():
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed: make setup"
    )
    scaler = of_kind(
        kubernetes.manifests(fleet(), packaging_of(fleet(), Wishes(n_most=4))),
        "HorizontalPodAutoscaler",
    )
    scaler["spec"]["minReplica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(scaler, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize(
    ("device", "resource"), [("h100_sxm", "nvidia.com/gpu"), ("mi300x", "amd.com/gpu")]
)
def test_pods_ask_for_as_many_devices_as_a_replica_has(device, resource):
    made = fleet(device=device)
    pod = of_kind(kubernetes.manifests(made, packaging_of(made)), "Deployment")["spec"]["template"][
        "spec"
    ]
    (container,) = pod["containers"]
    assert container["resources"]["limits"] == {resource: "2"} == container["resources"]["requests"]
    assert [container["command"], *container["args"]] == [
        ["vllm", "serve"],
        *vllm_command.serve_arguments(made, packaging_of(made)),
    ]
    assert pod["tolerations"][0]["key"] == resource


def test_spare_replicas_run_and_may_be_taken_away():
    packaging = packaging_of(fleet(), Wishes(n_spare=1, n_most=6))
    objects = kubernetes.manifests(fleet(), packaging)
    scaler = of_kind(objects, "HorizontalPodAutoscaler")["spec"]
    assert of_kind(objects, "Deployment")["spec"]["replicas"] == 3 == scaler["minReplicas"]
    assert scaler["maxReplicas"] == 6
    assert of_kind(objects, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    with pytest.raises(SpecError, match="at most 1"):
        packaging_of(fleet(), Wishes(n_most=1))


def test_services_router_and_prometheus_find_the_replicas():
    packaging = packaging_of(fleet())
    objects = [
        *kubernetes.manifests(fleet(), packaging),
        *router.router_manifests(fleet(), packaging),
    ]
    replicas = of_kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"]
    headless = of_kind(objects, "Service", "-replicas")
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["selector"].items() <= replicas.items()
    host = f"{headless['metadata']['name']}.default.svc.cluster.local"
    files = files_of(fleet(), packaging)
    assert f"{host}:8000" in files["haproxy.cfg"]
    assert f"server-template replica {packaging.n_most} " in files["haproxy.cfg"]
    assert yaml.safe_load(files["prometheus.yml"])["scrape_configs"][0]["dns_sd_configs"][0][
        "names"
    ] == [host]
    assert of_kind(objects, "ConfigMap")["data"] == {"haproxy.cfg": files["haproxy.cfg"]}


@pytest.mark.parametrize(
    ("rule", "balance"),
    [("least-loaded", "leastconn"), ("power-of-two", "random(2)"), ("prefix-affine", "leastconn")],
)
def test_the_router_does_what_was_simulated_or_the_readme_says_so(rule, balance):
    made = fleet(router=rule)
    files = files_of(made, packaging_of(made))
    assert f"balance {balance}\n" in files["haproxy.cfg"]
    assert ("HAProxy cannot do" in files["README.md"]) is (rule == "prefix-affine")


CLASSES = ("interactive", "batch")


def with_classes(**changes):
    """A fleet of whose two classes one is more urgent."""
    plain = fleet().workload
    (chat,) = plain.classes
    classes = [
        msgspec.structs.replace(chat, name=name, priority=priority)
        for name, priority in zip(CLASSES, (-1, 5), strict=True)
    ]
    return fleet(workload=msgspec.structs.replace(plain, classes=tuple(classes)), **changes)


def test_priorities_of_classes_reach_the_engine_the_clients_and_the_readme():
    made = with_classes(scheduler={"policy": "priority"})
    files = files_of(made, packaging_of(made))
    assert flags_of(files["vllm-serve.sh"])["--scheduling-policy"] == "priority"
    assert "--send-priorities" in files["check-promise.sh"]
    assert "sends_priorities = true" in files["verify.toml"]
    assert "| interactive | `-1` |\n| batch | `5` |" in files["README.md"]
    assert "set-priority-class" not in files["haproxy.cfg"], "nobody waits at this router"
    for unheard in (fleet(scheduler={"policy": "priority"}), with_classes()):
        files = files_of(unheard, packaging_of(unheard))
        assert "--send-priorities" not in files["check-promise.sh"]
        assert "## Priorities" not in files["README.md"]


def test_users_start_at_the_rate_at_which_they_go_on():
    """They are sized for without the burst of all at once, which a short test would judge them by."""
    plain = resolve_workload("chat")
    users = with_changes(plain, {"arrivals": {"kind": "closed", "concurrency": 30}}, where="a test")
    assert planning.one_by_one(users, 6.0).arrivals.start_over_s == 5.0
    slow = with_changes(users, {"arrivals": {"start_over_s": 60.0}}, where="a test")
    assert planning.one_by_one(slow, 6.0) == slow, "as was requested"
    assert planning.one_by_one(plain, 6.0) == plain, "an open loop"


def test_a_gate_that_haproxy_can_be_is_its_queue():
    gate = GateSpec(order="priority", max_in_flight=9, admission=Admission(max_wait_s=2.5))
    made = with_classes(gate=gate)
    alone = router.haproxy_config(
        made, packaging_of(made, Wishes(backends=("127.0.0.1:1", "127.0.0.1:2")))
    )
    assert "maxconn 9\n" in alone
    assert "timeout queue 2500ms" in alone
    assert "set-priority-class" in alone
    two_routers = router.haproxy_config(made, packaging_of(made))
    assert "rise 1 maxconn 4\n" in two_routers, "each of the two lets half of them in"
    files = files_of(made, packaging_of(made))
    assert "the router, which lets 9 requests at once" in files["README.md"]
    assert read_plan(plan_text(made), where="a test").gate == gate


@pytest.mark.parametrize(
    ("gate", "why"),
    [
        (GateSpec(order="priority", max_in_flight=9), None),
        (GateSpec(max_in_flight=9, admission=Admission(max_wait_s=1.0)), None),
        (GateSpec(max_in_flight=9, classes=(GateClass(name="*", priority=1),)), None),
        (GateSpec(order="fair", max_in_flight=9), "order fair"),
        (GateSpec(order="priority"), "needs max_in_flight"),
        (GateSpec(max_in_flight=9, admission=Admission(max_queue=5)), "turns nobody away"),
        (GateSpec(max_in_flight=9, tenants=(GateTenant(name="a"),)), "no tenants"),
        (
            GateSpec(max_in_flight=9, classes=(GateClass(name="a", window_s=0.1),)),
            "the priority alone",
        ),
        (
            GateSpec(max_in_flight=9, classes=(GateClass(name="a", priority=5000),)),
            "end at 2047",
        ),
    ],
)
def test_what_haproxy_cannot_be_is_refused_with_its_reason(gate, why):
    found = router.gate_refusal(gate, fleet().workload)
    assert (found is None) if why is None else (why in found)


def test_clients_send_the_priorities_that_the_gate_gives_the_classes():
    rules = (GateClass(name="batch", priority=7), GateClass(name="*", priority=3))
    sent = planning.as_sent(with_classes().workload, GateSpec(max_in_flight=1, classes=rules))
    assert [one.priority for one in sent.classes] == [3, 7]
    assert planning.as_sent(fleet().workload, None) == fleet().workload


def test_outside_kubernetes_replicas_are_named():
    packaging = packaging_of(fleet(), Wishes(backends=("a:1", "b:2")))
    files = files_of(fleet(), packaging)
    assert "server replica0 a:1" in files["haproxy.cfg"]
    assert "resolvers" not in files["haproxy.cfg"]
    assert yaml.safe_load(files["prometheus.yml"])["scrape_configs"][0]["static_configs"] == [
        {"targets": ["a:1", "b:2"]}
    ]


def test_a_full_fleet_has_no_autoscaler_and_rolls_out_without_devices_that_nobody_has():
    objects = kubernetes.manifests(fleet(), packaging_of(fleet()))
    assert "HorizontalPodAutoscaler" not in {one["kind"] for one in objects}
    assert "prometheus-adapter.yaml" not in files_of(fleet(), packaging_of(fleet()))
    deployment = of_kind(objects, "Deployment")["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    readme = files_of(fleet(), packaging_of(fleet()))["README.md"]
    assert "There is no autoscaler: 2 replicas run." in readme
    assert "1 of 2 replicas answer" in readme
    packaging = packaging_of(fleet(), Wishes(n_surge=1))
    free = of_kind(kubernetes.manifests(fleet(), packaging), "Deployment")["spec"]["strategy"][
        "rollingUpdate"
    ]
    assert free == {"maxSurge": 1, "maxUnavailable": 0}
    assert "server-template replica 3 " in files_of(fleet(), packaging)["haproxy.cfg"]


def test_weights_lie_once_on_a_volume_that_every_replica_reads():
    """Llama-3.1-8B in 16 bits is 15 GiB; no pod has a copy of its own."""
    packaging = packaging_of(fleet(), Wishes(storage_class="fast"))
    objects = kubernetes.manifests(fleet(), packaging)
    claim = of_kind(objects, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["storageClassName"] == "fast"
    assert 15 < int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi")) < 22
    pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    (weights,) = (one for one in pod["volumes"] if one["name"] == "weights")
    assert weights["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert [one["name"] for one in pod["volumes"] if "emptyDir" in one] == ["shared-memory"]
    job = of_kind(objects, "Job")["spec"]["template"]["spec"]["containers"][0]
    fetching = ["hf", "download", packaging.model_source, "--exclude", "original/*"]
    assert job["command"] == fetching, "not the weights a second time, for which there is no room"
    there = kubernetes.manifests(fleet(), packaging_of(fleet(), Wishes(model_claim="models")))
    assert not {"PersistentVolumeClaim", "Job"} & {one["kind"] for one in there}
    assert {"claimName": "models"} in [
        one.get("persistentVolumeClaim")
        for one in of_kind(there, "Deployment")["spec"]["template"]["spec"]["volumes"]
    ]


@pytest.mark.parametrize(
    ("source", "mount"), [("/models/llama", "/models/llama"), ("/model-cache/a", "/model-cache")]
)
def test_a_folder_is_on_the_claim_that_is_mounted_there(source, mount):
    packaging = packaging_of(fleet(), Wishes(model_source=source, model_claim="models"))
    objects = kubernetes.manifests(fleet(), packaging)
    pod = of_kind(objects, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "weights", "mountPath": mount} in container["volumeMounts"]
    assert not {"PersistentVolumeClaim", "Job"} & {one["kind"] for one in objects}
    readme = files_of(fleet(), packaging)["README.md"]
    assert f"on the claim models, mounted at {mount}" in readme
    assert ("the model's files at its top" in readme) is (mount == source)
    assert "fetches them once" not in readme


@pytest.mark.parametrize(
    "wishes", [{"model_source": "/models/llama"}, {"model_source": "./llama", "model_claim": "it"}]
)
def test_a_folder_that_no_pod_has_is_refused(wishes):
    with pytest.raises(SpecError, match="no pod has the folder") as caught:
        packaging_of(fleet(), Wishes(**wishes))
    assert "--model-claim" in caught.value.try_
    outside = Wishes(**wishes, backends=("10.0.0.1:8000", "10.0.0.2:8000"))
    files = files_of(fleet(), packaging_of(fleet(), outside))
    assert "kubernetes.yaml" not in files
    assert f"no pod has the folder {wishes['model_source']}" in files["README.md"]


def test_the_readme_says_what_runs_costs_and_is_spare():
    readme = files_of(fleet(), packaging_of(fleet(), Wishes(n_spare=2)))["README.md"]
    assert "4 replicas, each of 2 x" in readme.splitlines()[0]
    assert "for $20.00 an hour; spare of it: 2 for $10.00 an hour. In simulation, without" in readme
    unpriced = fleet(usd_per_hour=None)
    assert "$" not in files_of(unpriced, packaging_of(unpriced, Wishes(n_spare=2)))["README.md"]


@pytest.mark.parametrize(
    ("wishes", "what"),
    [
        ({"namespace": "Bad NS!"}, "'Bad NS!' is no namespace"),
        ({"namespace": "a" * 64}, "is no namespace"),
        ({"namespace": "llm-"}, "is no namespace"),
        ({"backends": ("foo", "b:1")}, "'foo' is no address"),
        ({"backends": ("foo:0", "b:1")}, "'foo:0' is no address"),
        ({"backends": ("foo:65536", "b:1")}, "is no address"),
        ({"backends": ("http://foo:1", "b:1")}, "is no address"),
        ({"backends": ("::1:8000", "b:1")}, "is no address"),
        ({"backends": ("[::z]:8000", "b:1")}, "is no address"),
        ({"backends": ("a:1", "a:1")}, "only 1 of 2 replicas"),
        ({"backends": ("a:1", "b:1"), "n_spare": 1}, "only 2 of 3 replicas"),
    ],
)
def test_names_and_addresses_that_nobody_takes_are_refused(wishes, what):
    with pytest.raises(SpecError, match=re.escape(what)):
        packaging_of(fleet(), Wishes(**wishes))


def test_addresses_of_replicas_are_names_or_numbers():
    backends = ("[2001:db8::1]:8000", "gpu_1.example.org:65535", "10.0.0.1:1")
    assert (
        packaging_of(fleet(), Wishes(namespace="7-a", backends=backends)).wishes.backends
        == backends
    )


def test_the_autoscaler_reads_what_the_adapter_offers():
    packaging = packaging_of(fleet(), Wishes(n_most=4))
    metric = of_kind(kubernetes.manifests(fleet(), packaging), "HorizontalPodAutoscaler")["spec"][
        "metrics"
    ][0]["external"]
    offered = yaml.safe_load(files_of(fleet(), packaging)["prometheus-adapter.yaml"])
    jsonschema.validate(offered, foreign_schemas.PROMETHEUS_ADAPTER)
    (rule,) = offered["externalRules"]
    assert metric["metric"]["name"] == rule["name"]["as"]
    assert metric["target"] == {
        "type": "AverageValue",
        "averageValue": "30",
    }  # whole ones of the 30.5 in flight at capacity


def test_groups_of_pods_are_what_leader_worker_set_takes():
    """2 x 8 devices: two machines of eight; of 4 x 3 none cuts a group of four."""
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed: make setup"
    ).validate
    for tp, n_stages, n_nodes in ((8, 2, 2), (4, 3, 3), (16, 1, 2)):
        made = fleet(
            engine={"tensor_parallel_size": tp}, scheduler={"pipeline_parallel_size": n_stages}
        )
        objects = list(yaml.safe_load_all(files_of(made, packaging_of(made))["kubernetes.yaml"]))
        groups = of_kind(objects, "LeaderWorkerSet")
        jsonschema.validate(groups, foreign_schemas.LEADER_WORKER_SET)
        template = groups["spec"]["leaderWorkerTemplate"]
        assert template["size"] == n_nodes
        for name in ("leaderTemplate", "workerTemplate"):
            pod = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": groups["metadata"],
                "template": template[name],
            }
            validate(pod, KUBERNETES_VERSION, strict=True)
        for one in objects:
            if one is not groups:
                validate(one, KUBERNETES_VERSION, strict=True)


def test_a_replica_of_several_nodes_answers_at_its_leader_and_goes_whole():
    made = fleet(engine={"tensor_parallel_size": 8}, scheduler={"pipeline_parallel_size": 2})
    packaging = packaging_of(made, Wishes(n_most=4))
    objects = kubernetes.manifests(made, packaging)
    groups = of_kind(objects, "LeaderWorkerSet")
    template = groups["spec"]["leaderWorkerTemplate"]
    leader, worker = (
        template[name]["spec"]["containers"][0] for name in ("leaderTemplate", "workerTemplate")
    )
    assert groups["spec"]["replicas"] == packaging.n_least
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert leader["resources"]["limits"] == {"nvidia.com/gpu": "8"} == worker["resources"]["limits"]
    assert worker["args"] == [*leader["args"], "--headless"]
    assert "readinessProbe" in leader
    assert not {"readinessProbe", "livenessProbe", "startupProbe", "ports"} & set(worker)
    scaled = of_kind(objects, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert scaled == {
        "apiVersion": groups["apiVersion"],
        "kind": groups["kind"],
        "name": groups["metadata"]["name"],
    }
    services = [one for one in objects if one["kind"] == "Service"]
    pods = {
        name: template[name]["metadata"]["labels"].items()
        for name in ("leaderTemplate", "workerTemplate")
    }
    for service in services:
        assert service["spec"]["selector"].items() <= pods["leaderTemplate"]
        assert not service["spec"]["selector"].items() <= pods["workerTemplate"]
        assert (
            service["metadata"]["name"] != groups["metadata"]["name"]
        )  # LeaderWorkerSet makes one of that name
    budget = of_kind(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items()
    assert all(budget <= named for named in pods.values())
    readme = files_of(made, packaging)["README.md"]
    assert "--nnodes 2" in readme
    assert "LeaderWorkerSet must be in the cluster" in readme
    assert "2 replicas, each of 16 x NVIDIA H100 SXM" in readme


def test_no_image_no_kubernetes():
    made = fleet(device="tpu_v5e")
    files = files_of(made, packaging_of(made))
    assert "kubernetes.yaml" not in files
    assert "--image" in files["README.md"]
    named = files_of(made, packaging_of(made, Wishes(image="mine:1")))["kubernetes.yaml"]
    assert "image: mine:1" in named
    assert "google.com/tpu: '2'" in named


@pytest.mark.parametrize("metric", ["ttft", "tpot", "e2e", "queue"])
def test_limits_lie_between_their_edges(metric):
    for limit_s in (0.0005, 0.06, 0.5, 3.0, 1e6):
        (threshold,) = parse_objective(f"{metric}:p95<{limit_s * 1e3:.6f}ms").thresholds
        below_s, above_s = alerts.edges_of(threshold)
        assert below_s is None or below_s <= limit_s
        assert above_s is None or above_s >= limit_s
        assert not any((below_s or 0.0) < edge_s < limit_s for edge_s in VLLM_EDGES_S[metric])


def test_a_promise_between_edges_can_be_in_doubt_and_one_at_an_edge_cannot():
    found = [
        (alert.name, dict(alert.labels).get("promise"))
        for alert in alerts.alerts_of(fleet(), packaging_of(fleet()))
    ]
    assert ("LlmPromiseBroken", "ttft:p95<500ms") in found
    assert ("LlmPromiseInDoubt", "ttft:p95<500ms") not in found
    assert ("LlmPromiseBroken", "tpot:p90<60ms") in found
    assert ("LlmPromiseInDoubt", "tpot:p90<60ms") in found


def test_windows_hold_enough_requests():
    assert alerts.window_min(fleet()) == 5
    slow = fleet(rate_per_s=0.2, slo="ttft:p99<1s")
    assert alerts.window_min(slow) == 60  # 1000 requests take longer; an hour is the most
    assert alerts.window_min(fleet(rate_per_s=0.5)) == 7  # 200 requests


def test_only_metrics_that_vllm_has_are_read():
    vllm = next(server for server in SERVERS if server.kind == "vllm")
    exported = Path(__file__).parents[1] / "records" / "vllm_0_33_metric_names.txt"
    known = known_families(vllm) | {plain(name) for name in exported.read_text().split()}
    text = json.dumps(
        [
            alerts.rules(fleet(), packaging_of(fleet())),
            dashboard.dashboard(fleet(), packaging_of(fleet())),
        ]
    )
    read = {word for part in text.split("vllm:")[1:] for word in [part.split("{")[0]]}
    assert read
    assert {
        plain(f"vllm:{name}").removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        for name in read
    } <= known


def test_panels_show_bytes_evictions_steps_and_drafts_where_there_are_any():
    def queries(**scheduler):
        made = fleet(scheduler=scheduler)
        sections = dashboard.sections_of(made, packaging_of(made))
        return {one.title: one for section in sections for one in section.panels}

    drafting = {"num_speculative_tokens": 2, "acceptance_fraction": 0.5}
    shown = queries(**drafting)
    used, free = shown["KV cache, used and free"].queries
    # 10,000 blocks of 16 tokens, of which each has 32 layers x 2 x 8 heads x 128 x 2 bytes
    assert used.expression.endswith(f"* {10_000 * 16 * 32 * 2 * 8 * 128 * 2}")
    assert "llm:replicas" in free.expression
    assert "kv_block_lifetime_seconds_count" in shown["Evicted prefixes"].queries[0].expression
    assert shown["Drafted tokens that are accepted"].limits == (0.375,)  # (1/2 + 1/4) / 2
    assert "iteration_tokens_total_sum" in shown["Tokens of a step"].queries[0].expression
    assert "Drafted tokens that are accepted" not in queries()
    assert "Evicted prefixes" not in queries(enable_prefix_caching=False)


def test_the_sample_of_the_evictions_is_what_the_replicas_are_started_with():
    made = fleet()
    flags = flags_of(files_of(made, packaging_of(made))["vllm-serve.sh"])
    assert float(flags["--kv-cache-metrics-sample"]) == vllm_command.KV_SAMPLE_FRACTION


def test_panels_stand_beside_one_another_and_read_what_is_recorded():
    packaging = packaging_of(fleet())
    shown = dashboard.dashboard(fleet(), packaging)["panels"]
    drawn = list(dashboard.every_panel(shown))
    assert [panel["type"] for panel in shown[:7]] == ["stat"] * 6 + ["row"], (
        "first the state of the service, in one row of numbers"
    )
    assert sum(panel["gridPos"]["w"] for panel in shown[:6]) == 24
    assert [panel["title"] for panel in shown if panel["type"] == "row"] == [
        "SLO",
        "Load",
        "KV cache",
        "Steps",
        "Measured against the plan",
    ]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in drawn]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in drawn})
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in drawn)
    recorded = {one.name for one in alerts.recorded(fleet(), packaging)}
    used = {
        name
        for panel in drawn
        for target in panel.get("targets", ())
        for name in re.findall(r"(?<!v)llm:\w+(?::\w+)*", target["expr"])
    }
    assert used <= recorded
    assert used


def unread(ours, theirs, where=""):
    """Fields and values of ours that did not come back."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name, value in ours.items():
            yield from unread(value, theirs.get(name), f"{where}/{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for rank, pair in enumerate(zip(ours, theirs, strict=True)):
            yield from unread(*pair, f"{where}/{rank}")
    elif ours != theirs:
        yield where


def lost_by_grafana(board):
    """What Grafana's own classes, made from the schema of 11.6, do not know of a dashboard.

    Grafana itself is in no registry that is reached here: these classes are what it publishes.
    """
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    cog = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder").JSONEncoder
    cog.register_default_plugins()  # of panels and data sources: each kind has a schema of its own
    read = json.dumps(models.Dashboard.from_json(board), cls=encoder)
    return list(unread(board, json.loads(read)))


@pytest.mark.parametrize("make", [dashboard.dashboard, proving.board])
def test_grafana_knows_every_field_of_the_boards(make):
    drafting = fleet(scheduler={"num_speculative_tokens": 2, "acceptance_fraction": 0.5})
    board = json.loads(json.dumps(make(drafting, packaging_of(drafting))))
    assert lost_by_grafana(board) == []
    chart = next(i for i, one in enumerate(board["panels"]) if one["type"] == "timeseries")
    for way in (("options", "legend"), ("fieldConfig", "defaults", "custom"), ("targets", 0)):
        wrong = json.loads(json.dumps(board))
        node = wrong["panels"][chart]
        for step in way:
            node = node[step]
        node["fillOpacty"] = 1
        where = "/".join(map(str, way))
        assert lost_by_grafana(wrong) == [f"/panels/{chart}/{where}/fillOpacty"]


def live_board_panels(fleet, packaging):
    sections = proving.sections(fleet, packaging)
    return [*proving.summary(), *(one for section in sections for one in section.panels)]


def test_the_live_board_reads_the_replicas_and_what_watch_exports():
    drafting = fleet(scheduler={"num_speculative_tokens": 2, "acceptance_fraction": 0.5})
    packaging = packaging_of(drafting)
    shown = list(dashboard.every_panel(proving.board(drafting, packaging)["panels"]))
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in shown]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in shown})
    text = " ".join(
        query.expression for one in live_board_panels(drafting, packaging) for query in one.queries
    )
    exported = set(re.findall(r"inferometer_\w+", text))
    known = {family.name for family in WatchExporter(lambda: (), None).collect()}
    assert exported <= known | {f"inferometer_predicted_{one}_seconds" for one in METRICS}
    assert {"inferometer_predicted_ttft_seconds", "inferometer_residual_ratio"} <= exported
    live = {f"{one}_bucket" for one in alerts.FAMILIES.values()}
    titles = {panel["title"] for panel in shown}
    assert live & set(re.findall(r"vllm:\w+", text))
    assert {
        "Tokens of a step",
        "Drafted tokens that are accepted",
        "KV cache, used and free",
        "Evicted prefixes",
    } <= titles


def test_what_is_verified_is_what_was_decided(tmp_path):
    made = fleet(
        scheduler={"policy": "priority", "watermark_fraction": 0.01},
        engine={"kv_cache_dtype": "float8"},
    )
    for name, text in files_of(made, packaging_of(made)).items():
        (tmp_path / name).write_text(text)
    plan = plans.read_plan(tmp_path / "verify.toml")
    assert (
        plan.server["model"],
        plan.server["hardware"],
        plan.server["tp"],
        plan.server["replicas"],
    ) == (
        "llama-3.1-8b",
        "h100_sxm",
        2,
        2,
    )
    assert (
        plan.server["num_blocks"],
        plan.server["max_num_seqs"],
        plan.server.get("kv_dtype"),
    ) == (
        10_001,
        64,
        "float8",
    )
    assert plan.server["own"] == {"policy": "priority", "watermark_fraction": 0.01}
    assert plan.traffic.rates_per_s == (8.0,)
    assert plan.traffic.slo == made.objective.text
    assert read_workload(Path(plan.traffic.workload)) == made.workload


def test_a_fit_whose_file_is_not_known_is_not_verified():
    made = fleet(step_times_basis="fitted")
    files = files_of(made, packaging_of(made))
    assert "verify.toml" not in files
    assert "verify.toml" not in files["README.md"]


def test_names_with_quotes_do_not_break_queries():
    packaging = packaging_of(fleet(), Wishes(served_name='a"b'))
    assert 'model_name="a\\"b"' in alerts.recorded(fleet(), packaging)[0].expression


def test_the_readme_names_every_file_and_the_assumptions():
    files = files_of(fleet(), packaging_of(fleet(), Wishes(n_most=4)))
    assert set(folder.FILES) == set(files) - {"README.md"}
    for name in folder.FILES:
        assert f"`{name}`" in files["README.md"]
    for said in (
        "8 requests/s",
        "10,000 blocks",
        "Numbers are made up",
        "ttft:p95<500ms",
        "undecided",
        "$10.00",
    ):
        assert said in files["README.md"], said


@pytest.mark.slow
def test_the_fleet_of_a_sizing_is_what_was_simulated():
    model = catalog.find_model("llama-3.1-8b")
    offer = Offer(hardware=catalog.find_hardware("l40s"), price=None)
    tried = candidates_of(
        model,
        [offer],
        Grid(tensor_parallel_sizes=(1,), max_num_seqs=(64,), max_num_batched_tokens=(2048,)),
    )
    asked = SizingQuestion(
        spec=resolve_workload("chat"),
        offered_load=6.0,
        objective=parse_objective("ttft:p95<1s, tpot:p95<100ms"),
        n_requests=300,
    )
    best = size_device(Task(asked, tried.possible)).best
    made = fleet_of(asked, best, utilization_fraction=0.9, cautions=(), tool_version="0")
    assert (made.n_replicas, made.verdict) == (best.n_replicas, best.verdict)
    assert made.likely.requests_per_s == pytest.approx(6.0 / best.n_replicas)
    assert made.likely.in_flight_load == pytest.approx(
        best.sized_at.served.in_flight_load, rel=0.2
    )  # another number of requests
    assert made.fullest.in_flight_load >= made.likely.in_flight_load * 0.99
    slow, fast = (
        next(point for point in made.planned if point.step_times == name)
        for name in ("slow", "fast")
    )
    assert fast.tpot_mean_s < made.likely.tpot_mean_s < slow.tpot_mean_s
    assert 0 < made.likely.kv_used_mean_fraction <= made.likely.kv_used_high_fraction <= 1
    assert read_plan(plan_text(made), where="here") == made
    assert files_of(made, packaging_of(made))


def test_a_full_cache_at_capacity_does_not_alarm_by_itself():
    full = replace(
        fleet(),
        fullest=operating_point(kv_used_high_fraction=0.99, preemptions_per_request_ratio=0.2),
    )
    said = {alert.name: alert.expression for alert in alerts.alerts_of(full, packaging_of(full))}
    assert said["LlmKvCacheNearFull"].endswith("> 0.995")
    assert said["LlmPreemptions"].endswith("> 0.4")


def test_everything_is_plain_json():
    assert (
        msgspec.json.decode(files_of(fleet(), packaging_of(fleet()))["plan.json"])["n_replicas"]
        == 2
    )
