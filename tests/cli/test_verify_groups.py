"""inferometer verify: plans whose servers are groups of replicas of different kinds."""

import json
import shutil

import pytest
from command_line import check_refused, run

SERVER = """name = 'groups'
[server]
model = 'smollm2-135m'
hardware = 'l4'
datasheet = true
max_model_len = 512
"""
GROUPED = f"{SERVER}groups = 'groups.toml'\n"
TRAFFIC = """[traffic]
workload = 'short.toml'
concurrencies = [4]
n_requests = 20
"""
GROUPS = """[[groups]]
name = 'short'
max_prompt_tokens = 60
server = { max_num_seqs = 2 }
[[groups]]
name = 'long'
replicas = 2
server = { hardware = 'l40s' }
"""
SHORT = """[[classes]]
name = 'short'
prompt_tokens = { kind = 'constant', value = 40 }
output_tokens = { kind = 'constant', value = 6 }
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "short.toml").write_text(SHORT)
    (tmp_path / "groups.toml").write_text(GROUPS)
    return tmp_path


def sealed(folder, plan):
    (folder / "plan.toml").write_text(plan)
    return run(
        "verify", "plan.toml", "--seal-only", "--out", "out", "--ledger", "l.jsonl", "--json", folder=folder,
    )  # fmt: skip


def seal_of(outcome):
    return json.loads(outcome.stdout)["experiment"]["seal"]


def test_a_plan_of_groups_is_sealed(folder):
    """All requests are short: predicted is what the server of the short ones does, as if it were alone."""
    found = seal_of(sealed(folder, GROUPED + TRAFFIC))
    belief = found["belief"]
    assert belief["subject"] == (
        "1 × smollm2-135m on NVIDIA L4 (short) and 2 × smollm2-135m on NVIDIA L40S (long)"
    )
    assert belief["basis"] == "datasheet"
    assert "short (prompts up to 60 tokens): step times" in belief["rests_on"]
    shutil.rmtree(folder / "out")
    alone = seal_of(sealed(folder, f"{SERVER}max_num_seqs = 2\n{TRAFFIC}"))
    assert found["claims"] == alone["claims"]
    assert belief["sha256"] != alone["belief"]["sha256"]


def test_groups_that_changed_since_the_seal_are_refused(folder):
    sealed(folder, GROUPED + TRAFFIC)
    (folder / "groups.toml").write_text(GROUPS.replace("replicas = 2", "replicas = 3"))
    check_refused(sealed(folder, GROUPED + TRAFFIC), 4, "the groups", "changed since")


def test_points_are_of_one_server(folder):
    points = "[points]\nprompt_tokens = [64]\nbatch_sizes = [1]\n"
    check_refused(sealed(folder, GROUPED + points), 2, "points of a sweep on groups", "[traffic]")


def test_ceilings_that_each_run_measures_again_are_not_sealed(folder):
    """The check would have been against other ceilings than those that were sealed."""
    of_server = f"{SERVER.replace('l4', 'this')}{TRAFFIC}"
    check_refused(sealed(folder, of_server), 2, "this machine's ceilings", "inferometer sweep")
    (folder / "groups.toml").write_text(GROUPS.replace("l40s", "this"))
    check_refused(sealed(folder, GROUPED + TRAFFIC), 2, "this machine's ceilings")
