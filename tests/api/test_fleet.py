"""Do all verbs that simulate servers take the same fleet, and say the same of it?"""

import dataclasses

import pytest

import inferometer as im
from inferometer.api import compute, verify_belief
from inferometer.api.capacity import Capacity
from inferometer.api.fleet import FleetOptions
from inferometer.api.question import fields_of
from inferometer.api.server import Server, Settings
from inferometer.api.simulate import Simulate
from inferometer.api.size import Size
from inferometer.api.verify_belief import Believed, belief_sha256, believed_of
from inferometer.api.workload import Workload, workload_of
from inferometer.cli.emulate import Emulate
from inferometer.errors import SizingError, SpecError
from inferometer.inputs.plans import plan_from_text
from inferometer.measure.executors import local
from inferometer.verify.seals import plan_sha256

MIX = """
arrivals = { kind = "open", rate_per_s = 24 }
[[classes]]
name = "chat"
weight_ratio = 3
prompt_tokens = { kind = "constant", value = 200 }
output_tokens = { kind = "constant", value = 20 }
[[classes]]
name = "report"
prompt_tokens = { kind = "constant", value = 2000 }
output_tokens = { kind = "constant", value = 100 }
"""
GATE = 'order = "shortest-remaining"\n[[classes]]\nname = "report"\nmax_in_flight = 24\n'
SLO = "ttft:p95<2s, tpot:p95<60ms"
ONE_KIND = {"max_num_seqs": "64", "max_num_batched_tokens": "2048"}
SMALL = {
    "probe_requests": 500,
    "requests": 2000,
    "executor": "inline",
    "time_limit": 300.0,
    "datasheet": True,
}


@pytest.fixture
def mix(tmp_path):
    path = tmp_path / "mix.toml"
    path.write_text(MIX)
    return str(path)


@pytest.fixture
def gate(tmp_path):
    path = tmp_path / "gate.toml"
    path.write_text(GATE)
    return path


def test_verbs_take_every_option_of_fleets_and_settings():
    """An option that is added to a group reaches all of them; none has a list of its own."""
    shared = {field.name for group in (FleetOptions, Settings) for field in fields_of(group)}
    assert {"order", "kv_link", "data_parallel_size", "max_model_len"} <= shared
    for verb in (Simulate, Capacity, Size, Emulate, Believed):
        assert shared <= {field.name for field in fields_of(verb)}, verb
    server = {field.name for field in fields_of(Server)}
    for verb in (Simulate, Capacity, Emulate, Believed):
        assert server <= {field.name for field in fields_of(verb)}, verb


@pytest.mark.slow
@pytest.mark.parametrize(
    "around",
    [
        {"gate": "the file"},
        {"router": "power-of-two"},
        {"prefill_replicas": 3, "kv_link": "50GB/s"},
        {"replicas": 4, "block_size": 32},
    ],
    ids=lambda around: next(iter(around)),
)
def test_the_winner_of_a_sizing_does_what_is_simulated_of_it(mix, gate, around):
    around = around | ({"gate": gate} if "gate" in around else {})
    sized = im.size(
        "llama-3.1-8b", gpus="l40s", tp="1", slo=SLO, workload=mix, **ONE_KIND, **SMALL, **around
    )
    pick = sized.pick
    assert pick is not None
    assert pick.n_replicas == around.get("replicas", pick.n_replicas)
    assert pick.n_devices == pick.n_replicas + around.get("prefill_replicas", 0)
    same = {name: value for name, value in around.items() if name != "replicas"}
    simulated = im.simulate(
        "llama-3.1-8b",
        hardware="l40s",
        workload=mix,
        requests=2000,
        replicas=pick.n_replicas,
        datasheet=True,
        **{name: int(value) for name, value in ONE_KIND.items()},
        **same,
    )
    for found in pick.paces:
        level = next(one for one in simulated.levels if one.step_times == found.step_times)
        for metric in ("ttft", "tpot", "e2e"):
            served = getattr(found.served, metric)
            expected = level.summary.latency(metric).percentile(served.percentile_fraction)
            assert served.seconds.value == pytest.approx(expected.seconds.value, rel=1e-6)


@pytest.mark.slow
def test_a_gate_changes_what_a_sizing_finds(mix, tmp_path):
    """One that lets few requests into each replica needs more of them."""
    narrow = tmp_path / "narrow.toml"
    narrow.write_text("max_in_flight = 4\n")
    free, gated = (
        im.size(
            "llama-3.1-8b", gpus="l40s", tp="1", slo=SLO, workload=mix, **ONE_KIND, **SMALL, **more
        )
        for more in ({}, {"gate": narrow})
    )
    assert gated.gate.max_in_flight == 4
    assert gated.pick.n_replicas > free.pick.n_replicas
    assert gated.failure is None


def test_a_number_of_replicas_that_is_asked_for_is_not_searched(mix):
    few = im.size(
        "llama-3.1-8b", gpus="l40s", tp="1", slo=SLO, workload=mix, replicas=1, **ONE_KIND, **SMALL
    )
    assert few.pick is None
    assert few.verdict == "missed"
    assert "1 are too few" in few.impossible[0].why


@pytest.mark.slow
def test_replicas_that_share_experts_are_sized_as_one_group():
    sized = im.size(
        "qwen3-30b-a3b", gpus="h100_sxm", tp="1", slo="ttft:p95<2s", rate=5, data_parallel_size=2,
        **ONE_KIND, **SMALL,
    )  # fmt: skip
    assert (sized.router, sized.pick.n_replicas, sized.pick.n_devices) == ("vllm", 2, 2)
    assert sized.pick.without_one is None
    dense = im.size(
        "llama-3.1-8b", gpus="h100_sxm", tp="1", slo="ttft:p95<2s", rate=5, data_parallel_size=2,
        **ONE_KIND, **SMALL,
    )  # fmt: skip
    assert (dense.router, dense.pick.n_replicas, dense.pick.n_devices) == ("vllm", 2, 2)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"router": "class-aware", "class_replicas": ["chat=0"]}, "class_replicas="),
        ({"total_gpus": 4, "replicas": 2}, "replicas="),
        ({"total_gpus": 4, "data_parallel_size": 2}, "data_parallel_size="),
        ({"out": "files", "order": "fair"}, "gate"),
        ({"out": "files", "prefill_replicas": 1}, "prefill_replicas"),
        ({"out": "files", "prefix_threshold": 0.5, "router": "prefix-affine"}, "prefix_threshold"),
        ({"kv_link": "50GB/s"}, "kv_link"),
    ],
)  # fmt: skip
def test_what_a_sizing_cannot_do_is_refused_by_name(options, named, tmp_path):
    options = options | ({"out": tmp_path / "files"} if "out" in options else {})
    with pytest.raises((SpecError, SizingError)) as refused:
        im.size("llama-3.1-8b", gpus="l40s", slo=SLO, rate=5, **options)
    assert named in str(refused.value) or named == "kv_link"
    assert not (tmp_path / "files").exists()


@pytest.mark.slow
def test_many_devices_are_split_into_prefill_and_decode_replicas_too():
    """More than 8 replicas: climbed from the balanced split; a part is simulated with its part of the load."""
    used = im.size(
        "llama-3.1-8b", gpus="h100_sxm", tp="1", quantization="none", slo="ttft:p95<1s, tpot:p95<12ms",
        workload="chat", total_gpus=12, max_num_seqs="256", max_num_batched_tokens="8192",
        probe_requests=150, requests=2400, executor="inline", time_limit=300.0,
    )  # fmt: skip
    splits = {row.n_prefill: row.located_requests_per_s for row in used.best_use.rows}
    assert len(splits) >= 4
    assert 0 in splits
    best = used.best_use.rows[0].n_prefill
    assert best > 0
    assert splits.keys() >= {best - 1, best + 1}
    assert all(row.n_devices == 12 for row in used.best_use.rows)


PLAN = """name = 'old'
[server]
model = 'smollm2-135m'
fit = 'runs/step_time.json'
max_num_seqs = 64
gpu_memory_utilization = 1
own = { enable_prefix_caching = false, watermark_fraction = 0.01 }
[traffic]
workload = 'chat'
rates_per_s = [1, 2.5]
n_requests = 50
"""
POINTS = """name = 'points'
[server]
model = 'here/smollm2-135m'
hardware = 'l4'
transfer = true
replicas = 3
router = 'random'
[points]
prompt_tokens = [64]
batch_sizes = [1, 2]
"""


@pytest.mark.parametrize(
    ("text", "sha256"),
    [
        (PLAN, "39809d78b557296230b61e6f470420e7b08fd9e0c1b158e76b772ef89a2f2df3"),
        (POINTS, "9739c8d4c2c0691f67d491084979217c946c668a37f86df6a09e237f8170f5c0"),
    ],
)
def test_plans_that_were_sealed_by_0_1_keep_their_sums(text, sha256):
    """Computed by the version before plans had keys of gates and prefill replicas."""
    assert plan_sha256(plan_from_text(text, where="plan.toml")) == sha256


def test_a_plan_has_the_keys_of_every_flag():
    text = PLAN.replace(
        "max_num_seqs = 64",
        "hardware = 'l4'\nprefill_replicas = 2\nkv_link = '50GB/s'\norder = 'fair'\nreplicas = 3\n"
        "class_replicas = ['a=0', 'b=1,2']\nrouter = 'class-aware'",
    )
    believed = believed_of(plan_from_text(text, where="plan.toml").server)
    assert believed.fleet.prefill.kv_link == 50e9
    assert believed.fleet.cluster.class_replicas == ("a=0", "b=1,2")
    assert believed.fleet.gate.order == "fair"
    assert believed.server.set == ("enable_prefix_caching=false", "watermark_fraction=0.01")


@pytest.mark.parametrize(
    ("line", "named"),
    [("seats = 3", "seats"), ("replicas = 0", "replicas"), ("tp = 'x'", "tp")],
)
def test_a_key_that_cannot_be_is_named(line, named):
    plan = plan_from_text(POINTS.replace("replicas = 3", line), where="plan.toml")
    with pytest.raises(SpecError) as refused:
        believed_of(plan.server)
    assert named in str(refused.value)
    assert "[server]" in str(refused.value)


def test_every_field_of_a_fleet_is_a_group_or_an_option():
    """What is no option would be a setting that no verb takes."""
    names = {one.name for one in dataclasses.fields(FleetOptions)}
    assert names == {"cluster", "prefill", "gate"}


def test_a_belief_has_the_sum_of_the_efficiencies_that_it_used(monkeypatch):
    published = believed_of({"model": "llama-3.1-8b", "hardware": "h100_sxm"})
    datasheet = believed_of({"model": "llama-3.1-8b", "hardware": "h100_sxm", "datasheet": True})
    before = belief_sha256(published), belief_sha256(datasheet)
    others = {"efficiency_file": lambda _hardware: b"another", "servers_file": lambda: b"another"}
    for name, other in others.items():
        with monkeypatch.context() as patched:
            patched.setattr(verify_belief, name, other)
            after = belief_sha256(published), belief_sha256(datasheet)
        assert after[0] != before[0], name
        assert after[1] == before[1], name


@pytest.mark.parametrize(
    ("model", "start"),
    [
        ("llama-3.1-8b", "903c3ba624eb"),
        ("qwen3-30b-a3b", "56ff505bbf37"),
        ("deepseek-v3", "6ea863bcf3e8"),
    ],
)
def test_plans_that_were_sealed_before_are_not_refused_as_changed(model, start):
    """Sums of 0.2.0: later fields of models, and files of efficiencies, change none of these."""
    cpu = believed_of({"model": model, "hardware": "epyc_9654"})
    assert belief_sha256(cpu).startswith(start)


LONE = {"hardware": "h100_sxm", "datasheet": True, "workload": "512x16", "requests": 20}


@pytest.mark.parametrize(
    ("options", "flag", "try_"),
    [
        ({"burstiness": 0.1}, "burstiness", "the same call without burstiness="),
        ({"kv_link": "50GB/s"}, "kv_link", "prefill_replicas=1"),
        ({"kv_link_latency": "10s"}, "kv_link_latency", "prefill_replicas=1"),
        ({"kv_link_shape": "shared"}, "kv_link_shape", "prefill_replicas=1"),
        ({"first_token_from": "prefill"}, "first_token_from", "prefill_replicas=1"),
        ({"prefix_threshold": 0.9}, "prefix_threshold", "router='prefix-affine'"),
        ({"balance_abs": 1, "replicas": 2}, "balance_abs", "router='prefix-affine'"),
        ({"class_replicas": ["chat=0"]}, "class_replicas", "router='class-aware'"),
        ({"jobs": 2, "executor": "inline"}, "jobs", "executor='processes'"),
        ({"ray_address": "host:1", "executor": "processes"}, "ray_address", "executor='ray'"),
    ],
)
def test_an_option_that_changes_nothing_is_refused_with_what_it_needs(options, flag, try_):
    with pytest.raises(SpecError) as refused:
        im.simulate("llama-3.1-8b", concurrency=4, **LONE, **options)
    assert (refused.value.where, refused.value.try_) == (flag, try_)


def test_one_stage_is_no_option_of_an_engine_without_stages():
    lone = LONE | {"concurrency": 4, "policy": "sglang"}
    answer, with_one = (im.simulate("llama-3.1-8b", **lone, pp=pp) for pp in (None, 1))
    assert with_one.levels == answer.levels
    with pytest.raises(SpecError, match="2 pipeline stages of sglang") as refused:
        im.simulate("llama-3.1-8b", **lone, pp=2)
    try_ = "policy='vllm', or tp=2 on the same devices; `im.predict()` has stages of a static batch"
    assert (refused.value.where, refused.value.try_) == ("pp", try_)


def test_a_number_of_processes_is_enough_to_have_them():
    where = compute.Executor(jobs=2)
    assert compute.n_at_once(where, 3) == 2
    with compute.opened(where, "parts") as executor:
        assert isinstance(executor, local.Processes)


def test_an_address_of_ray_in_the_environment_refuses_nothing(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "host:1")
    im.simulate("llama-3.1-8b", concurrency=4, ray_address="host:1", **LONE)


def test_users_of_a_file_have_no_burstiness(tmp_path):
    (tmp_path / "users.toml").write_text(
        'n_requests = 20\narrivals = { kind = "closed", concurrency = 2 }\n[[classes]]\n'
        'name = "a"\nprompt_tokens = { kind = "constant", value = 8 }\n'
        'output_tokens = { kind = "constant", value = 8 }\n'
    )
    named = str(tmp_path / "users.toml")
    with pytest.raises(SpecError, match="a closed loop"):
        workload_of(Workload(workload=named, burstiness=0.5))
    assert workload_of(Workload(workload=named, burstiness=0.5, rate=2.0)).arrivals.rate_per_s == 2


@pytest.mark.parametrize(
    ("options", "unused"),
    [
        ({"router": "prefix-affine", "prefix_threshold": 0.9}, {"router unused"}),
        ({"router": "random", "replicas": 2}, set()),
        ({"link": "pcie3"}, {"link unused"}),
        ({"link": "pcie3", "tp": 2}, set()),
        ({"link": "64GB/s", "prefill_replicas": 1}, set()),
    ],
)
def test_what_one_replica_on_one_device_has_no_use_for_is_a_caution(options, unused):
    answer = im.simulate("llama-3.1-8b", concurrency=4, **LONE, **options)
    assert {one.code for one in answer.cautions if one.code.endswith("unused")} == unused


@pytest.mark.parametrize(
    ("options", "assumed"),
    [
        ({"replicas": 2}, "router least-loaded: each request to the replica with the fewest"),
        ({"replicas": 2, "router": "round-robin"}, None),
        ({}, None),
    ],
)
def test_a_router_that_nobody_named_is_an_assumption(options, assumed):
    """vLLM's own balancer and nginx without a rule choose otherwise."""
    answer = im.simulate(
        "llama-3.1-8b", hardware="h100_sxm", workload="64x8", rate=20, requests=50,
        datasheet=True, executor="inline", **options,
    )  # fmt: skip
    assert [one.startswith(assumed or "") for one in answer.assumptions] == [True] * bool(assumed)
    assert ("ASSUME" in str(answer)) == bool(assumed)


@pytest.mark.parametrize(("policy", "name"), [("sglang", "SGLang"), ("trtllm", "TensorRT-LLM")])
def test_pools_of_other_engines_have_their_steps_and_vllms_scheduler(policy, name):
    pools = {"prefill_replicas": 1, "kv_link": "50GB/s", "workload": "512x16", "requests": 50}
    asked = {"model": "llama-3.1-70b", "hardware": "h100_sxm", "tp": 8, "rate": 1}
    ours, theirs = (
        im.simulate(**asked, **pools, policy=one).deployment for one in ("vllm", policy)
    )
    assert theirs.engine == ours.engine
    assert f"by {name}" in theirs.step_times_from
    assert "pools by the rules of vLLM's scheduler" in theirs.step_times_from
    with pytest.raises(SpecError, match="with prefill and decode pools"):
        im.simulate(**asked, **pools, policy="sglang", set="schedule_conservativeness_ratio=0.5")
