"""What does ``fit --load`` answer where the requests contradict every server, and where its flags contradict the record?"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import check_refused, run

import inferometer as im
from inferometer.api import fitted_servers
from inferometer.errors import ModelError
from inferometer.records.imports.llmservingsim import read_llmservingsim
from inferometer.records.store import write_run

REAL = Path(__file__).parents[1] / "fit" / "recorded_loads" / "vllm-rtx4090-llama-3.1-8b"
LIMITS = "max_num_seqs=256,num_gpu_blocks=2588,max_num_batched_tokens=2048"
KNOWN = f"{LIMITS},enable_prefix_caching=on,enable_chunked_prefill=on,async_scheduling=on"


@pytest.fixture
def folder(tmp_path):
    """A real run, and the same with answers that stall for no reason that a server has.

    Neither holds its server's configuration.
    """
    real = read_llmservingsim(REAL).run
    bare = replace(real, manifest=replace(real.manifest, engine=None))
    write_run(tmp_path / "real", real)
    table, rng = real.requests, np.random.default_rng(3)
    stall_ns = (rng.random(300) ** 3 * 200e9).astype(np.int64)
    first_ns = table.sent_ns + (rng.random(300) * 30e9).astype(np.int64)
    stalled = table._replace(
        first_token_ns=first_ns,
        finished_ns=first_ns + (table.finished_ns - table.first_token_ns) + stall_ns,
    )
    write_run(tmp_path / "stalled", replace(bare, requests=stalled))
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [("none",), ("real", "none"), ("real", "--server-log", "none.log"), ("real", "--workload", "none.toml")],
    ids=["run", "second run", "log", "workload"],
)  # fmt: skip
def test_what_is_missing_is_named_before_anything_is_simulated(folder, words):
    refused = run("fit", "--load", *words, folder=folder)
    assert refused.returncode in {2, 4}
    assert "none" in refused.stderr
    assert "simulating" not in refused.stderr


def test_a_server_of_imported_runs_is_called_by_their_model(folder, monkeypatch):
    """Further load tests of ``--model server`` were suggested."""
    names = list[str]()

    def seen(_tests, subject):
        names.append(subject.address.served_model)
        raise ModelError("that is all")

    monkeypatch.setattr(fitted_servers.estimation, "judged_server", seen)
    with pytest.raises(ModelError, match="that is all"):
        im.fit(folder / "real", load=True)
    assert names == ["llama-3.1-8b"]


@pytest.mark.slow
def test_a_fit_far_from_the_requests_is_undecided_and_not_written(folder):
    found = run("fit", "--load", "stalled", "--known", KNOWN, "--out", "server.json", folder=folder)
    assert found.returncode == 11, found.stderr
    assert not (folder / "server.json").exists()
    assert found.stdout.startswith("Undecided: ")
    assert "times what is expected" in found.stdout
    assert "--workload FILE" in found.stdout
    as_json = run(
        "fit",
        "--load",
        "stalled",
        "--known",
        KNOWN,
        "--out",
        "server.json",
        "--json",
        folder=folder,
    )
    answer = json.loads(as_json.stdout)
    assert (as_json.returncode, answer["model_file"], answer["server"]) == (11, None, None)
    assert answer["refusal"]["scatter_ratio"] > 5


@pytest.mark.slow
def test_a_fit_reports_its_residual_and_takes_the_configuration(folder):
    found = run("fit", "--load", "real", "--out", "server.json", folder=folder)
    assert found.returncode == 0, found.stderr
    assert "TRUST  simulated again, the mean TPOT of like requests is off by" in found.stdout
    assert "256 concurrent sequences, 2,587 KV blocks, 2,048 tokens per step" in found.stdout
    assert "CAUTION the residual is large: prompts that begin alike" in found.stdout
    assert "name the workload (--workload FILE)" in found.stdout


def test_what_contradicts_the_record_is_refused(folder):
    check_refused(
        run("fit", "--load", "real", "--known", "num_gpu_blocks=100", folder=folder),
        2,
        "num_gpu_blocks = 100",
        "2588",
    )
    check_refused(
        run("fit", "--load", "real", "--workload", "512x16", folder=folder),
        2,
        "the prompts of 512x16 are not those of",
    )
    check_refused(
        run("fit", "real", "--known", "max_num_seqs=4", folder=folder),
        2,
        "--known without load tests",
    )
    check_refused(
        run("fit", "--load", "stalled", "--known", "max_num_seqs=8", folder=folder),
        5,
        "max_num_seqs = 8 cannot be",
    )
