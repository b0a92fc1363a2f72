"""inferometer size --groups: what it prints, its tables and page, its exit code, and what is not deployed."""

import csv
import json

import pytest
from command_line import check_refused, run

GROUPS = """[[groups]]
name = 'short'
max_prompt_tokens = 60
server = { hardware = 'l4', max_num_seqs = 8 }
[[groups]]
name = 'long'
server = { hardware = 'l40s' }
"""
MIX = """arrivals = { kind = "open", rate_per_s = 20 }
[[classes]]
name = 'short'
prompt_tokens = { kind = 'constant', value = 40 }
output_tokens = { kind = 'constant', value = 6 }
[[classes]]
name = 'long'
prompt_tokens = { kind = 'constant', value = 200 }
output_tokens = { kind = 'constant', value = 6 }
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mix.toml").write_text(MIX)
    (tmp_path / "groups.toml").write_text(GROUPS)
    return tmp_path


def sized(folder, *flags, slo="ttft:p95<4s"):
    return run(
        *("size", "smollm2-135m", "--groups", "groups.toml", "--workload", "mix.toml"),
        *("--slo", slo, "--datasheet", "--probe-requests", "100", "--requests", "400", *flags),
        folder=folder,
    )


@pytest.mark.slow
def test_the_page_the_table_and_the_json_say_the_same(folder):
    shown = sized(folder, "--report", "sized.html")
    assert shown.returncode == 0, shown.stderr
    first, verdict, *_ = shown.stdout.splitlines()
    assert (
        "1 × smollm2-135m on NVIDIA L4 (short) and 1 × smollm2-135m on NVIDIA L40S (long)" in first
    )
    assert verdict.startswith("✔ meets the SLO: every group and all together")
    assert (
        "inferometer capacity smollm2-135m --groups groups.toml --workload mix.toml" in shown.stdout
    )
    assert "1 × NVIDIA L4" in (folder / "sized.html").read_text()
    answer = json.loads(sized(folder, "--json").stdout)
    rows = list(csv.DictReader(sized(folder, "--csv").stdout.splitlines()))
    assert [row["name"] for row in rows] == ["short", "long"]
    assert [row["n_replicas"] for row in rows] == ["1", "1"]
    assert [row["n_replicas"] for row in answer["groups"]["rows"]] == [1, 1]
    assert answer["groups"]["whole"]["n_devices"] == 2


def test_a_limit_that_no_number_meets_exits_10(folder):
    shown = sized(folder, slo="ttft:p95<1us")
    assert shown.returncode == 10
    assert "no number of short and of long meets" in shown.stdout


def test_a_limit_of_workflows_binds_the_group_that_has_them(folder):
    (folder / "mix.toml").write_text(
        MIX
        + """[classes.fan_out]
subtasks = { kind = 'constant', value = 2 }
prompt_tokens = { kind = 'constant', value = 100 }
output_tokens = { kind = 'constant', value = 20 }
think_s = { kind = 'constant', value = 1.0 }
"""
    )
    (folder / "groups.toml").write_text(
        GROUPS.replace("max_prompt_tokens = 60", "classes = ['short']")
    )
    flags = ("--likely", "--json")
    found = json.loads(sized(folder, *flags, slo="workflow:p50<8s").stdout)["groups"]
    short, long = found["rows"]
    assert (short["n_replicas"], short["verdict"]) == (1, "met")
    assert "no workflow" in short["weakest"]
    assert (long["n_replicas"], long["verdict"]) == (1, "met")
    alone = json.loads(sized(folder, *flags, slo="workflow:p50<100ms").stdout)["groups"]["rows"]
    assert [one["verdict"] for one in alone] == ["undecided", "missed"]
    seconds = float(alone[1]["weakest"].partition("p50<100ms: ")[2].split()[0]) / 1000
    assert seconds > 2.0, "each workflow pauses twice for a second"


def test_groups_are_not_deployed(folder):
    check_refused(sized(folder, "--out", "plan"), 2, "--out beside --groups", "--gpus with it")
    deployed = run("deploy", "groups.toml", "--out", "plan", folder=folder)
    check_refused(deployed, 2, "not deployed", "plan.json")
