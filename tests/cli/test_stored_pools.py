"""Do stored runs, sizings and tunings of servers with KV pools say what the simulation said?"""

import hashlib
import json

import pytest
from command_line import check_refused, run

MIX = """arrivals = { kind = "open", rate_per_s = 6 }
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
POOLS = "kv_pools=share=30% class=chat kv_dtype=float8; share=70% block_size=64"
ON_H100 = ("llama-3.1-8b", "--hardware", "h100_sxm", "--datasheet", "--workload", "mix.toml")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mix.toml").write_text(MIX)
    return tmp_path


@pytest.fixture(params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["alone", "replicas"])
def stored(folder, request):
    """Replicas with pools have a loop of their own, which takes 7 CPU s to compile."""
    outcome = run(
        *("simulate", *ON_H100, "--requests", 200, "--num-blocks", 3000, "--max-model-len", 4000),
        *("--set", POOLS, "--replicas", request.param, "--out", "run", "--json"),
        folder=folder,
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)["kv_pools"]


def shown(folder):
    outcome = run("show", "run", "--json", folder=folder)
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)["requests"][0]["kv_pools"]


def test_the_record_knows_the_pools_of_the_answer(folder, stored):
    assert shown(folder) == stored
    assert [one["rule"] for one in stored] == ["class chat", "what is left"]
    assert sum(one["summary"]["n_requests"] for one in stored) == 200
    text = run("show", "run", "--verbose", folder=folder).stdout
    assert any(line.startswith("class chat") and "float8" in line for line in text.splitlines())
    assert run("report", "run", folder=folder).returncode == 0
    page = (folder / "run" / "report.html").read_text()
    assert "KV cache, pool by pool" in page


def test_a_record_of_before_is_read_without_them(folder, stored):
    manifest = folder / "run" / "manifest.json"
    facts = json.loads(manifest.read_text())
    assert (
        len(facts["manifest"].pop("kv_pools") if "manifest" in facts else facts.pop("kv_pools"))
        == 2
    )
    before = hashlib.sha256(manifest.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(facts))
    sums = folder / "run" / "SHA256SUMS"
    now = hashlib.sha256(manifest.read_bytes()).hexdigest()
    assert before in sums.read_text()
    sums.write_text(sums.read_text().replace(before, now))
    assert shown(folder) == []
    assert "pool by pool" not in run("show", "run", "--verbose", folder=folder).stdout


def test_a_pool_for_a_class_that_nobody_sends_is_the_cause(folder):
    """Larger devices would not help."""
    words = ("--gpus", "l40s,h100_sxm", "--slo", "ttft:p95<1s", "--workload", "mix.toml")
    pools = POOLS.replace("chat", "agents")
    outcome = run("size", "llama-3.1-8b", *words, "--set", pools, folder=folder)
    check_refused(outcome, 2, "a pool for class agents", "chat, report", "--set kv_pools")
    assert "larger" not in outcome.stderr


@pytest.mark.slow
def test_a_server_with_pools_is_tuned_and_has_no_command(folder):
    words = ("--num-blocks", 3000, "--max-model-len", 4000, "--max-num-seqs", 4, "--set", POOLS)
    outcome = run(
        *("tune", *ON_H100, *words, "--requests", 200, "--slo", "ttft:p95<2s"),
        *("--steps", "max_num_seqs", "--out", "tuned", "--json"),
        folder=folder,
    )
    assert outcome.returncode in {0, 10, 11}, outcome.stderr
    answer = json.loads(outcome.stdout)
    assert answer["command"] is None
    assert "KV cache of several pools" in answer["command_why_not"]
    assert "KV_POOLS" in {one["code"] for one in answer["cautions"]}
    assert not (folder / "tuned" / "serve.sh").exists()
    assert "several pools" in (folder / "tuned" / "index.html").read_text()
    pools = next(one for one in answer["settings"] if one["name"] == "kv_pools")
    assert "blocks of 64 for what is left" in pools["value"]
