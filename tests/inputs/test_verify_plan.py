"""Are plans read as docs/verify.md tells them, and is a wrong one named?"""

import pytest

from inferometer.errors import SpecError
from inferometer.inputs.plans import plan_from_text, read_plan
from inferometer.verify.seals import plan_sha256

SERVER = "[server]\nmodel = 'smollm2-135m'\nhardware = 'l4'\n"


def test_paths_hold_from_the_plan_and_do_not_move_its_sum(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "w.toml").write_text("")
    text = (
        f"name = 'x'\n{SERVER}fit = 'fit.json'\n[traffic]\nworkload = 'w.toml'\nrates_per_s = [1]\n"
    )
    (tmp_path / "here" / "plan.toml").write_text(text)
    plan = read_plan(tmp_path / "here" / "plan.toml")
    assert plan.server["fit"] == str(tmp_path / "here" / "fit.json")
    assert plan.traffic.workload == str(tmp_path / "here" / "w.toml")
    assert plan_sha256(plan) == plan_sha256(plan_from_text(text, where="here"))
    assert plan_sha256(plan) != plan_sha256(
        plan_from_text(text.replace("[1]", "[2]"), where="here")
    )


def test_the_plan_of_a_sizing_is_the_one_beside_it(tmp_path):
    fleet = tmp_path / "plan.json"
    fleet.write_text("{}")
    with pytest.raises(SpecError, match=r"no verify\.toml beside it") as caught:
        read_plan(fleet)
    assert f"inferometer deploy {fleet} --out {tmp_path / 'plan-files'}" in str(caught.value)
    (tmp_path / "verify.toml").write_text(f"name = 'sized'\n{SERVER}[traffic]\nrates_per_s = [1]\n")
    assert read_plan(fleet) == read_plan(tmp_path / "verify.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"name = 'x'\n{SERVER}", "either"),
        (f"name = ' '\n{SERVER}[traffic]", "no name"),
        (f"name = 'x'\n{SERVER}[traffic]\nconcurrencies = [4]", "n_requests"),
        (
            f"name = 'x'\n{SERVER}[traffic]\nconcurrencies = [4]\nn_requests = 5\nduration_s = 3",
            "duration_s",
        ),
        (f"name = 'x'\n{SERVER}[traffic]\nrates_per_s = [1.0, 1.0]", "twice"),
        (f"name = 'x'\n{SERVER}[traffic]\nrates_per_s = [0]", "rates_per_s"),
        (f"name = 'x'\n{SERVER}[points]\nprompt_tokens = []\nbatch_sizes = [1]", "prompt_tokens"),
        ("name = 'x'\n[server]\nhardware = 'l4'\n[traffic]", "no model"),
        ("name = ", "TOML"),
    ],
)
def test_a_wrong_plan_is_named(text, words):
    with pytest.raises(SpecError) as raised:
        plan_from_text(text, where="plan.toml")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("[traffic]\nrate = [1.0]", "rates_per_s"),
        ("[traffic]\nn_request = 5", "n_requests"),
        ("[traffic]\nn-requests = 5", "n_requests"),
        ("[traffic]\n[client]\nserved_name = 'm'", "served_model"),
        ("[traffic]\ntimeout_s = 5", "[client] timeout_s"),
        ("[trafic]\nrates_per_s = [1.0]", "traffic"),
        ("[traffic]\nzzz = 1", None),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(text, meant):
    with pytest.raises(SpecError, match="unknown field") as caught:
        plan_from_text(f"name = 'x'\n{SERVER}{text}", where="plan.toml")
    assert caught.value.try_ == meant
