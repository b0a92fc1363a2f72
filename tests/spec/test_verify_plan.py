"""Are plans read as docs/verify.md tells them, and is a wrong one named?"""

import json

import pytest

from inferometer.errors import SpecError
from inferometer.spec.verify_plan import plan_from_text, read_plan
from inferometer.verify.seals import plan_sha256

SERVER = "[server]\nmodel = 'smollm2-135m'\nhardware = 'l4'\n"


def test_paths_hold_from_the_plan_and_do_not_move_its_sum(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "w.toml").write_text("")
    text = f"name = 'x'\n{SERVER}fit = 'fit.json'\n[traffic]\nworkload = 'w.toml'\nrates_per_s = [1]\n"
    (tmp_path / "here" / "plan.toml").write_text(text)
    plan = read_plan(tmp_path / "here" / "plan.toml")
    assert plan.server.fit == str(tmp_path / "here" / "fit.json")
    assert plan.traffic.workload == str(tmp_path / "here" / "w.toml")
    assert plan_sha256(plan) == plan_sha256(plan_from_text(text, where="here"))
    assert plan_sha256(plan) != plan_sha256(plan_from_text(text.replace("[1]", "[2]"), where="here"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"name = 'x'\n{SERVER}", "either"),
        (f"name = ' '\n{SERVER}[traffic]", "no name"),
        (f"name = 'x'\n{SERVER}[traffic]\nconcurrencies = [4]", "n_requests"),
        (f"name = 'x'\n{SERVER}[traffic]\nconcurrencies = [4]\nn_requests = 5\nduration_s = 3", "duration_s"),
        (f"name = 'x'\n{SERVER}[traffic]\nrates_per_s = [1.0, 1.0]", "twice"),
        (f"name = 'x'\n{SERVER}[traffic]\nrates_per_s = [0]", "rates_per_s"),
        (f"name = 'x'\n{SERVER}[points]\nprompt_tokens = []\nbatch_sizes = [1]", "prompt_tokens"),
        (f"name = 'x'\n{SERVER}seats = 3\n[traffic]", "seats"),
        ("name = ", "TOML"),
    ],
)
def test_a_wrong_plan_is_named(text, words):
    with pytest.raises(SpecError) as raised:
        plan_from_text(text, where="plan.toml")
    assert words in str(raised.value)


def test_the_answer_of_size_is_a_plan(tmp_path):
    """As `inferometer size --json` gives it; ``tests/cli/test_verify.py`` asks it for one."""
    pick = {"hardware_id": "l4", "weights_dtype": "int4", "kv_cache_dtype": "float8", "tensor_parallel_size": 2, "n_replicas": 3}
    pick |= {"step_times_from": "the datasheet of L4", "knobs": [["max_num_seqs", 64], ["max_model_len", 4096]]}
    answer = {"model_id": "m", "rate_per_s": 20.0, "workload_name": "chat", "objective": "ttft:p95<1s", "router": "random", "pick": pick}
    (tmp_path / "sized.json").write_text(json.dumps(answer))
    plan = read_plan(tmp_path / "sized.json")
    server, traffic = plan.server, plan.traffic
    assert (server.router, server.dtype) == ("random", None)
    assert (server.tp, server.replicas, server.quantization, server.kv_dtype, server.max_num_seqs) == (2, 3, "int4", "float8", 64)
    assert (traffic.rates_per_s, traffic.slo, traffic.workload) == ((20.0,), "ttft:p95<1s", "chat")
    for changed, words in ((None, "no pick"), (pick | {"step_times_from": "fitted to 9 step times"}, "rests on a fit")):
        (tmp_path / "sized.json").write_text(json.dumps(answer | {"pick": changed}))
        with pytest.raises(SpecError, match=words):
            read_plan(tmp_path / "sized.json")
