"""Do vLLM, Prometheus, promtool and HAProxy themselves take the files of a deployment, and does every query find its data?

INFEROMETER_VLLM_PYTHON names an interpreter that has vLLM; the others are skipped where they are
not installed.
"""

import http.client
import json
import math
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from fleets import fleet, operating_point
from peers import free_port, haproxy, program, prometheus, promtool

from inferometer.decide.artefacts import alerts, dashboard, folder, kubernetes, router, vllm_command
from inferometer.decide.artefacts.folder import files_of
from inferometer.decide.artefacts.packaging import Wishes, packaging_of
from inferometer.inputs.gate import GateSpec
from inferometer.serve.emulator_plan import EmulatorPlan
from inferometer.serve.emulator_process import start
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
MODEL = "tiny"


def server(step_s):
    config = SchedulerConfig(num_blocks=2000, max_model_len=512, max_num_seqs=64)
    return EmulatorPlan(
        model_name=MODEL,
        fleet=lone_replica(config, linear_cost(launch_s=step_s)),
        mean_output_tokens=None,
    )


SERVER = server(5e-3)


def write(folder, made, wishes):
    packaging = packaging_of(made, wishes)
    folder.mkdir(exist_ok=True)
    for name, text in files_of(made, packaging).items():
        (folder / name).write_text(text)
    return packaging


def ask(address, n_tokens=20, endpoint="/v1/completions"):
    body = {
        "model": MODEL,
        "prompt": "one two three four five six",
        "max_tokens": n_tokens,
        "ignore_eos": True,
    }
    with closing(http.client.HTTPConnection(address, timeout=60)) as line:
        line.request("POST", endpoint, json.dumps(body), {"Content-Type": "application/json"})
        answer = line.getresponse()
        return answer.status, json.loads(answer.read())


@contextmanager
def traffic(addresses):
    """Requests one after the other to each, until the end."""
    is_over = threading.Event()

    def send(address):
        while not is_over.is_set():
            assert ask(address)[0] == http.client.OK

    with ThreadPoolExecutor(len(addresses)) as pool:
        sending = [pool.submit(send, address) for address in addresses]
        try:
            yield
        finally:
            is_over.set()
        for one in sending:
            one.result(60)


def python_with_vllm():
    named = os.environ.get("INFEROMETER_VLLM_PYTHON")
    if not named:
        pytest.skip("INFEROMETER_VLLM_PYTHON names no interpreter that can import vllm")
    return named


LINES = [
    {},
    {"engine": {"quantization": "float8", "kv_cache_dtype": "float8"}},
    {"engine": {"quantization": "int8", "kv_cache_dtype": "int8"}},
    {"engine": {"dtype": "float16", "kv_cache_dtype": "int4", "quantization": "int4"}},
    {"engine": {"kv_cache_dtype": "float4", "tensor_parallel_size": 8}},
    {"scheduler": {"pipeline_parallel_size": 2}},
    {
        "scheduler": {
            "enable_prefix_caching": False,
            "async_scheduling": False,
            "scheduler_reserve_full_isl": False,
        }
    },
    {
        "scheduler": {
            "policy": "priority",
            "watermark_fraction": 0.01,
            "max_num_active_seqs": 32,
            "block_size": 32,
        }
    },
    {
        "scheduler": {
            "long_prefill_token_threshold": 256,
            "long_prefill_token_threshold_adaptive": True,
            "max_num_batched_tokens": 8192,
        }
    },
    {"scheduler": {"enable_chunked_prefill": False, "max_num_batched_tokens": 8192}},
    {"scheduler": {"num_speculative_tokens": 3, "acceptance_fraction": 0.6}},
]
GROUP = {"engine": {"tensor_parallel_size": 8}, "scheduler": {"pipeline_parallel_size": 2}}


def words_of_group():
    """Of the leader and of a worker, with Kubernetes' variables put in."""
    made = fleet(**GROUP)
    template = kubernetes.groups(made, packaging_of(made))["spec"]["leaderWorkerTemplate"]
    for index, name in enumerate(("leaderTemplate", "workerTemplate")):
        variables = {"$(LWS_LEADER_ADDRESS)": "group-0.group", "$(LWS_WORKER_INDEX)": str(index)}
        yield [
            variables.get(word, word) for word in template[name]["spec"]["containers"][0]["args"]
        ]


def test_vllm_understands_what_was_decided():
    made = [fleet(**changes) for changes in LINES]
    words = [
        *(vllm_command.serve_arguments(one, packaging_of(one)) for one in made),
        *words_of_group(),
    ]
    done = subprocess.run(
        [python_with_vllm(), HERE / "vllm_flags.py", json.dumps(words)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *said, leader, worker = json.loads(done.stdout.splitlines()[-1])
    for flags, node_rank in ((leader, 0), (worker, 1)):
        assert (flags["nnodes"], flags["node_rank"], flags["master_addr"]) == (
            2,
            node_rank,
            "group-0.group",
        )
        assert (
            flags["tensor_parallel_size"],
            flags["pipeline_parallel_size"],
            flags["headless"],
        ) == (8, 2, node_rank == 1)
    for one, flags in zip(made, said, strict=True):
        engine, scheduler = one.engine, one.scheduler
        assert flags["model_tag"] == one.model.hf_id
        assert (flags["dtype"], flags["tensor_parallel_size"]) == (
            engine.dtype,
            engine.tensor_parallel_size,
        )
        assert flags["gpu_memory_utilization"] == one.utilization_fraction
        assert flags["scheduling_policy"] == scheduler.policy
        assert (flags["watermark"] or 0.0) == scheduler.watermark_fraction
        same = (
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_num_active_seqs",
            "block_size",
            "enable_prefix_caching",
        )
        more = ("enable_chunked_prefill", "scheduler_reserve_full_isl", "async_scheduling")
        long = ("long_prefill_token_threshold", "long_prefill_token_threshold_adaptive")
        assert {name: flags[name] for name in same + more + long} == {
            name: getattr(scheduler, name) for name in same + more + long
        }
    assert [flags["quantization"] for flags in said[:4]] == [
        None,
        "fp8",
        "int8_per_channel_weight_only",
        None,
    ]
    assert [flags["kv_cache_dtype"] for flags in said[:5]] == [
        "auto",
        "fp8",
        "int8_per_token_head",
        "int4_per_token_head",
        "nvfp4",
    ]
    assert said[-1]["speculative_config"] == {"method": "ngram", "num_speculative_tokens": 3}


# --- promtool
# ---------------------------------------------------------------------------------------------------------------------------

STEP_S = 15
"""Between samples of the unit tests."""
PER_STEP = 60
"""Requests of each replica: 4 per second, the planned rate."""
USUAL = {
    "num_requests_running": "10x480",
    "num_requests_waiting": "0x480",
    "kv_cache_usage_perc": "0.3x480",
    "request_success_total": f"0+{PER_STEP}x480",
    "num_preemptions_total": "0x480",
    "request_prompt_tokens_sum": f"0+{PER_STEP * 1000}x480",
    "request_prompt_tokens_count": f"0+{PER_STEP}x480",
    "request_generation_tokens_sum": f"0+{PER_STEP * 200}x480",
    "request_generation_tokens_count": f"0+{PER_STEP}x480",
    "time_to_first_token_seconds_sum": f"0+{PER_STEP * 0.1}x480",
    "time_to_first_token_seconds_count": f"0+{PER_STEP}x480",
    'time_to_first_token_seconds_bucket{le="0.5"}': f"0+{PER_STEP}x480",
    "request_time_per_output_token_seconds_sum": f"0+{PER_STEP * 0.02}x480",
    "request_time_per_output_token_seconds_count": f"0+{PER_STEP}x480",
    'request_time_per_output_token_seconds_bucket{le="0.05"}': f"0+{PER_STEP}x480",
    'request_time_per_output_token_seconds_bucket{le="0.075"}': f"0+{PER_STEP}x480",
}
"""A replica at the planned load."""
SCENARIOS = {
    "all is well": ({}, 2, set()),
    "a tenth is later than the edge": (
        {'time_to_first_token_seconds_bucket{le="0.5"}': f"0+{PER_STEP * 0.9}x480"},
        2,
        {"LlmPromiseBroken"},
    ),
    "a fifth is between the edges": (
        {'request_time_per_output_token_seconds_bucket{le="0.05"}': f"0+{PER_STEP * 0.8}x480"},
        2,
        {"LlmPromiseInDoubt"},
    ),
    "a replica is gone": ({}, 1, {"LlmReplicasTooFew"}),
    "all are gone": ({}, 0, {"LlmReplicasTooFew"}),
    "twice the traffic": (
        {
            name: f"0+{float(value[2:-4]) * 2}x480"
            for name, value in USUAL.items()
            if value.startswith("0+")
        },
        2,
        {"LlmBeyondCapacity"},
    ),
    "the queue grows": ({"num_requests_waiting": "0+1x480"}, 2, {"LlmQueueGrows"}),
    "the cache is full": ({"kv_cache_usage_perc": "0.97x480"}, 2, {"LlmKvCacheNearFull"}),
    "requests are preempted": (
        {"num_preemptions_total": f"0+{PER_STEP * 0.05}x480"},
        2,
        {"LlmPreemptions"},
    ),
    "prompts are longer": (
        {"request_prompt_tokens_sum": f"0+{PER_STEP * 2000}x480"},
        2,
        {"LlmTrafficDiffers"},
    ),
    "answers are shorter": (
        {"request_generation_tokens_sum": f"0+{PER_STEP * 100}x480"},
        2,
        {"LlmTrafficDiffers"},
    ),
    "steps are slower": (
        {"request_time_per_output_token_seconds_sum": f"0+{PER_STEP * 0.045}x480"},
        2,
        {"LlmPredictionDrift"},
    ),
    "steps are faster": (
        {"request_time_per_output_token_seconds_sum": f"0+{PER_STEP * 0.01}x480"},
        2,
        {"LlmPredictionDrift"},
    ),
    "nobody asks": (
        {name: "0x480" for name, value in USUAL.items() if value.startswith("0+")}
        | {"num_requests_running": "0x480"},
        2,
        set(),
    ),
}


def series(changes, n_replicas):
    for replica in range(n_replicas):
        for name, values in (USUAL | changes).items():
            family, _, labels = name.partition("{")
            own = f'model_name="{fleet().model.hf_id}",engine="0",instance="r{replica}"'
            yield {
                "series": f"vllm:{family}{{{own}{',' + labels if labels else '}'}",
                "values": values,
            }


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_alert_fires_when_it_should_and_no_other(name, tmp_path):
    changes, n_replicas, expected = SCENARIOS[name]
    write(tmp_path, fleet(), Wishes())
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    test = {
        "interval": f"{STEP_S}s",
        "input_series": list(series(changes, n_replicas)),
        "promql_expr_test": [
            {
                "expr": f"{firing} > bool 0",
                "eval_time": "90m",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(expected)
                ],
            }
        ],
    }
    cases = {
        "rule_files": ["prometheus-rules.yaml"],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [test],
    }
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases))
    assert "SUCCESS" in promtool("test", "rules", "cases.yaml", folder=tmp_path)


@pytest.mark.parametrize(
    "wishes", [Wishes(), Wishes(backends=("127.0.0.1:1", "[::1]:2")), Wishes(served_name='a"b')]
)
@pytest.mark.parametrize(
    "slo", ["ttft:p95<500ms", "ttft:p99<1ms, tpot:p50<5ms, e2e:p90<9000s, queue:p95<1s"]
)
def test_promtool_takes_rules_and_configuration(wishes, slo, tmp_path):
    write(tmp_path, fleet(slo=slo), wishes)
    assert "SUCCESS" in promtool("check", "rules", "prometheus-rules.yaml", folder=tmp_path)
    assert "is valid" in promtool("check", "config", "prometheus.yml", folder=tmp_path)


# --- Prometheus
# -------------------------------------------------------------------------------------------------------------------------


def check_queries(server, made, packaging, *, without=()):
    """Each query of dashboard and autoscaler gives finite numbers, and each rule is evaluated without an error.

    ``without``: panels of what this server does not report.
    """
    sections = dashboard.sections_of(made, packaging)
    for panel in (
        *dashboard.summary_of(made, packaging),
        *(panel for section in sections for panel in section.panels),
    ):
        if panel.title in without:
            continue
        for query in panel.queries:
            found = server.values(query.expression.replace("$__rate_interval", "1m"))
            assert found, f"{panel.title}: nothing for {query.expression}"
            assert all(math.isfinite(value) for _, value in found), (
                f"{panel.title}: {found} for {query.expression}"
            )
    for one in alerts.recorded(made, packaging):
        assert server.values(f"{one.name}{{{alerts.selector(packaging, **dict(one.labels))}}}"), (
            one.name
        )
    (rule,) = folder.adapter_config(packaging)["externalRules"]
    assert server.values(rule["seriesQuery"])
    assert math.isfinite(server.values(rule["metricsQuery"])[0][1])
    assert {rule["health"] for rule in server.rules()} == {"ok"}


def test_every_query_finds_its_data_on_emulated_replicas(tmp_path):
    program("prometheus", "prometheus")
    with start(SERVER) as first, start(SERVER) as second:
        addresses = [one.url.removeprefix("http://") for one in (first, second)]
        made = replace(
            fleet(slo="ttft:p95<500ms, tpot:p90<60ms, e2e:p99<5s"),
            planned=(
                operating_point(requests_per_s=8.0),
                operating_point("fast"),
                operating_point("slow"),
            ),
        )
        packaging = write(
            tmp_path, made, Wishes(served_name=MODEL, backends=tuple(addresses), n_most=4)
        )
        with prometheus(tmp_path) as server, traffic(addresses * 3):
            time.sleep(25)
            # how long its blocks lived the emulated server does not know
            check_queries(server, made, packaging, without={"Evicted prefixes"})
            of = f"{{{alerts.selector(packaging)}}}"
            assert server.values(f"{alerts.REPLICAS}{of}")[0][1] == 2
            assert 0 < server.values(f"{alerts.IN_FLIGHT}{of}")[0][1] <= 6
            assert server.values(f"{alerts.OUTPUT_TOKENS}{of}")[0][1] == pytest.approx(20)
            assert server.values(f"{alerts.PROMPT_TOKENS}{of}")[0][1] == pytest.approx(6)
            tpot_s = server.values(f"{alerts.mean_name('tpot')}{of}")[0][1]
            assert 0.0049 < tpot_s < 0.02  # 5 ms a step
            promise = f"{{{alerts.selector(packaging, promise='tpot:p90<60ms')}}}"
            assert server.values(f"{alerts.SURELY_WITHIN}{promise}")[0][1] == pytest.approx(1)
            firing = {labels["alertname"] for labels, _ in server.values("ALERTS")}
            assert "LlmTrafficDiffers" in firing  # 6 and 20 tokens where 1000 and 200 were planned
            assert "LlmPromiseBroken" not in firing


@contextmanager
def served_by_vllm(folder, made, packaging):
    """``vllm-serve.sh`` itself, with a vLLM for CPUs and random weights."""
    command = folder / "bin" / "vllm"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec {python_with_vllm()} {HERE / "vllm_command_shim.py"} "$@"\n'
    )
    command.chmod(0o755)
    settings = {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no worker process beside the engine's: 10 of 27 CPU s
        "HF_HUB_OFFLINE": "1",
    }
    words = [
        "timeout",
        "800",
        "sh",
        str(folder / "vllm-serve.sh"),
        "--load-format",
        "dummy",
        "--enforce-eager",
        "--host",
        "127.0.0.1",
    ]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            words, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT, cwd=folder
        )
    try:
        until_s = time.monotonic() + 400
        while not is_healthy(packaging.wishes.port):
            assert process.poll() is None, (folder / "server.log").read_text(errors="replace")[
                -3000:
            ]
            assert time.monotonic() < until_s, (folder / "server.log").read_text(errors="replace")[
                -3000:
            ]
            time.sleep(0.5)
        yield f"127.0.0.1:{packaging.wishes.port}"
    finally:
        process.terminate()
        process.wait(60)


def is_healthy(port):
    with (
        suppress(OSError, http.client.HTTPException),
        closing(http.client.HTTPConnection("127.0.0.1", port, timeout=2)) as line,
    ):
        line.request("GET", "/health")
        return line.getresponse().status == http.client.OK
    return False


def test_vllm_starts_from_the_script_and_every_query_finds_its_data(tmp_path):
    program("prometheus", "prometheus")
    sys.path.insert(0, str(HERE.parent / "measure"))
    from vllm_server import write_model

    (tmp_path / "model").mkdir()
    write_model(tmp_path / "model")
    made = fleet(
        "smollm2-135m",
        "xeon_8480p",
        engine={"dtype": "float32", "device": "cpu", "tensor_parallel_size": 1},
        scheduler={
            "num_blocks": 2000,
            "max_model_len": 512,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 256,
            "block_size": 32,
        },
        n_replicas=1,
    )
    port = free_port()
    wishes = Wishes(
        served_name=MODEL,
        model_source=str(tmp_path / "model"),
        port=port,
        backends=(f"127.0.0.1:{port}",),
    )
    packaging = write(tmp_path, made, wishes)
    with (
        served_by_vllm(tmp_path, made, packaging) as address,
        prometheus(tmp_path) as server,
        traffic([address] * 2),
    ):
        time.sleep(25)
        check_queries(server, made, packaging)
        (labels,) = [labels for labels, _ in server.values("vllm:cache_config_info")]
        assert labels["block_size"] == "32"
        assert labels["enable_prefix_caching"] == "True"


# --- HAProxy
# ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wishes", [Wishes(), Wishes(backends=("127.0.0.1:1", "127.0.0.1:2"))])
@pytest.mark.parametrize("gate", [None, GateSpec(order="priority", max_in_flight=16)])
def test_haproxy_takes_its_configuration(wishes, gate, tmp_path):
    write(tmp_path, fleet(gate=gate), wishes)
    checked = subprocess.run(
        [program("haproxy", "haproxy"), "-c", "-f", tmp_path / "haproxy.cfg"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr


def in_order(port, bodies):
    """The order in which requests that were sent one after the other are answered."""
    answered = []

    def send(name, body):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
            head = {"Content-Type": "application/json"}
            line.request("POST", "/v1/completions", json.dumps(body), head)
            assert line.getresponse().status == http.client.OK
        answered.append(name)

    with ThreadPoolExecutor(len(bodies)) as pool:
        sending = []
        for name, body in bodies.items():
            sending.append(pool.submit(send, name, body))
            time.sleep(0.05)
        for one in sending:
            one.result(60)
    return answered


def test_haproxy_lets_the_more_urgent_of_those_who_wait_go_first(tmp_path):
    program("haproxy", "haproxy")
    gate = GateSpec(order="priority", max_in_flight=1)
    with start(server(20e-3)) as replica:
        backends = (replica.url.removeprefix("http://"),)
        made = fleet(gate=gate, n_replicas=1)
        port, running = haproxy(
            tmp_path, router.haproxy_config(made, packaging_of(made, Wishes(backends=backends)))
        )

        def body(priority, prompt="one two"):
            said = {} if priority is None else {"priority": priority}
            return said | {"model": MODEL, "max_tokens": 25, "ignore_eos": True, "prompt": prompt}

        with running:
            time.sleep(3)  # its health checks
            found = in_order(
                port,
                {
                    "first": body(0),
                    "later": body(5),
                    "plain": body(None),
                    "urgent": body(-3),
                    "long": body(-2, "word " * 400),
                },
            )
    assert found == ["first", "urgent", "long", "plain", "later"]


def test_haproxy_streams_balances_by_load_and_outlives_a_replica(tmp_path):
    program("haproxy", "haproxy")
    slow = server(20e-3)
    with start(slow) as first, start(slow) as second:
        backends = tuple(one.url.removeprefix("http://") for one in (first, second))
        made = fleet()
        port, running = haproxy(
            tmp_path, router.haproxy_config(made, packaging_of(made, Wishes(backends=backends)))
        )
        with running:
            time.sleep(3)  # its health checks
            with ThreadPoolExecutor(8) as pool:
                assert {
                    status for status, _ in pool.map(lambda _: ask(f"127.0.0.1:{port}"), range(40))
                } == {http.client.OK}
            counts = [n_ended(address) for address in backends]
            assert sum(counts) == 40
            assert max(counts) - min(counts) <= 8
            assert spread_of_a_stream(port) > 0.15  # 20 tokens at 20 ms each do not come at once
            second.stop()
            time.sleep(8)
            assert {ask(f"127.0.0.1:{port}")[0] for _ in range(5)} == {http.client.OK}


def n_ended(address):
    with closing(http.client.HTTPConnection(address, timeout=10)) as line:
        line.request("GET", "/metrics")
        rows = line.getresponse().read().decode().splitlines()
    return round(
        sum(
            float(row.rpartition(" ")[2])
            for row in rows
            if row.startswith("vllm:request_success_total{")
        )
    )


def spread_of_a_stream(port):
    """Seconds between the first and the last piece of an answer."""
    body = {
        "model": MODEL,
        "prompt": "one two",
        "max_tokens": 20,
        "ignore_eos": True,
        "stream": True,
    }
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        line.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = line.getresponse()
        instants_s = [time.perf_counter() for _ in iter(lambda: answer.read1(65536), b"")]
    return instants_s[-1] - instants_s[0]
