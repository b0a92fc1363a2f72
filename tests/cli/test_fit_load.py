"""Is a server that was simulated found again by the command that is given its runs, and nothing else?"""

import json

import pytest
from command_line import run
from server_files import FRONT_END_S, LIMITS, write_server

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_a_simulated_server_is_found_again(tmp_path):
    write_server(tmp_path)
    for name, rate, n_requests in (
        ("slow", "0.5", "60"),
        ("busy", "2", "100"),
        ("beyond", "8", "240"),
    ):
        traffic = ("--workload", "code", "--rate", rate, "--requests", n_requests, "--out", name)
        assert (
            run("simulate", "hidden", "--fit", "server.json", *traffic, folder=tmp_path).returncode
            == 0
        )
    found = run(
        "fit", "--load", "slow", "busy", "beyond", "--out", "again.json", "--json", folder=tmp_path
    )
    assert found.returncode == 0, found.stderr
    server = json.loads(found.stdout)["server"]
    slots = next(knob for knob in server["knobs"] if knob["name"] == "max_num_seqs")
    assert slots["low"] <= LIMITS["max_num_seqs"]
    assert slots["high"] is None or LIMITS["max_num_seqs"] <= slots["high"]
    front_end = server["parameters"][-1]["estimate"]
    assert front_end["value"] == pytest.approx(FRONT_END_S, rel=0.2)
    assert (
        run(
            "simulate",
            "server",
            "--fit",
            "again.json",
            "--rate",
            "1",
            "--requests",
            "30",
            folder=tmp_path,
        ).returncode
        == 0
    )
