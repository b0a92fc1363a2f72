"""Does the SLO that the workload's file gives a class count beside ``--slo``, in every verb that predicts?"""

import pytest

import inferometer as im
from inferometer.errors import SpecError

DESK = """
n_requests = 400
arrivals = {{ kind = "open", rate_per_s = 8.0 }}
[[classes]]
name = "urgent"
slo = "{slo}"
prompt_tokens = {{ kind = "constant", value = 200 }}
output_tokens = {{ kind = "constant", value = 50 }}
[[classes]]
name = "report"
weight_ratio = 3
prompt_tokens = {{ kind = "constant", value = 3000 }}
output_tokens = {{ kind = "constant", value = 100 }}
"""
NOBODY, EVERYBODY = "ttft:p95<1ms", "ttft:p95<100s"


def options(folder, slo, **more):
    (folder / "desk.toml").write_text(DESK.format(slo=slo))
    return {
        "workload": str(folder / "desk.toml"),
        "slo": "ttft:p95<2s",
        "datasheet": True,
        "requests": 400,
        "probe_requests": 100,
        "executor": "inline",
        "time_limit": 30,
        **more,
    }


def sized(folder, slo):
    more = {"gpus": "h100_sxm", "tp": "1", "max_num_seqs": "64", "max_num_batched_tokens": "8192"}
    more |= {"requests": 2000}
    return im.size("llama-3.1-8b", **options(folder, slo, **more))


def test_a_class_that_no_replica_serves_in_time_is_not_passed_over(tmp_path):
    easy, never = sized(tmp_path, EVERYBODY), sized(tmp_path, NOBODY)
    assert easy.pick.sized_pace.served.verdict == "met"
    assert easy.pick.sized_pace.served.weakest.startswith("ttft:p95<2000ms")
    assert never.pick is None
    assert "class urgent: ttft:p95<1ms" in never.impossible[0].why


def test_the_capacity_is_that_of_the_class_that_fares_worst(tmp_path):
    more = {"hardware": "h100_sxm", "resolution": 0.2}
    easy, hard = (
        im.capacity("llama-3.1-8b", **options(tmp_path, slo, **more))
        for slo in (EVERYBODY, "ttft:p95<120ms")
    )
    assert easy.objective == "ttft:p95<2000ms; urgent: ttft:p95<100s"
    assert hard.levels[0].capacity.weakest.startswith("class urgent: ttft:p95<120ms")
    assert hard.levels[0].capacity.located_load < 0.9 * easy.levels[0].capacity.located_load


@pytest.mark.slow
def test_where_each_class_has_an_slo_that_of_all_need_not_be_named(tmp_path):
    both = DESK.replace("weight_ratio = 3", 'weight_ratio = 3\nslo = "ttft:p95<4s, e2e:p95<60s"')
    (tmp_path / "both.toml").write_text(both.format(slo="ttft:p99<1s"))
    asked = options(tmp_path, EVERYBODY) | {"workload": str(tmp_path / "both.toml"), "slo": None}
    more = {"hardware": "h100_sxm", "resolution": 0.3}
    found = im.capacity("llama-3.1-8b", **asked, **more)
    assert found.objective == (
        "ttft:p95<4000ms; urgent: ttft:p99<1000ms; report: ttft:p95<4000ms, e2e:p95<60s"
    )
    assert found.levels[0].capacity.located_load > 1
    assert im.size("llama-3.1-8b", gpus="h100_sxm", tp="1", **asked).objective == "ttft:p95<4000ms"


def test_a_class_without_an_slo_needs_that_of_all(tmp_path):
    asked = options(tmp_path, EVERYBODY) | {"slo": None}
    with pytest.raises(SpecError, match="slo is missing"):
        im.capacity("llama-3.1-8b", hardware="h100_sxm", **asked)
    with pytest.raises(SpecError, match="slo is missing"):
        im.size("llama-3.1-8b", gpus="h100_sxm", **asked)


H100 = {"hardware": "h100_sxm", "datasheet": True, "executor": "inline"}


def simulated(folder, own, **more):
    (folder / "desk.toml").write_text(DESK.format(slo=own))
    asked = H100 | {"workload": str(folder / "desk.toml"), "slo": "ttft:p95<60s"} | more
    return im.simulate("llama-3.1-8b", **asked)


def test_a_class_that_misses_its_slo_is_the_verdict_of_the_whole(tmp_path):
    more = {"rate": 1, "requests": 1000}
    never, easy = (simulated(tmp_path, own, **more) for own in (NOBODY, EVERYBODY))
    assert (never.verdict, never.exit_code) == ("missed", 10)
    assert (easy.verdict, easy.exit_code) == ("met", 0)
    first, second = never.pages()[0].chips
    assert first.text == "urgent misses the SLO: 0 % of requests within ttft:p95<1ms"
    assert (first.verdict, second.verdict) == ("missed", "met")
    assert "ttft:p95<1ms" in never.next_step
    assert [one.name for one in never.every_slo] == ["", "urgent"]


def test_without_an_slo_of_all_the_classes_own_are_the_verdict(tmp_path):
    never = simulated(tmp_path, NOBODY, slo=None)
    assert (never.verdict, never.exit_code) == ("missed", 10)
    (chip,) = never.pages()[0].chips
    assert chip.verdict == "missed"


def test_a_point_of_a_grid_meets_the_slo_where_each_class_does(tmp_path):
    never = simulated(tmp_path, NOBODY, rate="4,8")
    assert [point.words["slo"] for point in never.points] == ["missed", "missed"]
    assert "0 of 2 points meet it" in str(never)
    assert never.exit_code == 10


def test_an_undecided_class_says_in_which_draws(tmp_path):
    few = simulated(tmp_path, EVERYBODY, requests=100, datasheet=False)
    assert (few.verdict, few.every_slo[1].verdict) == ("undecided", "undecided")
    (why,) = (one.text for one in few.pages()[0].lines if one.label == "WHY")
    (of_class,) = (line for line in why.splitlines() if line.startswith("urgent: undecided"))
    assert of_class.endswith("; draws: 19 undecided")
    ends = simulated(tmp_path, "ttft:p95<60ms").pages()[0].lines[0].text
    assert "missed at slow step times" in ends


@pytest.mark.slow
def test_tuning_counts_the_slo_of_a_class(tmp_path):
    (tmp_path / "desk.toml").write_text(DESK.format(slo=NOBODY))
    asked = H100 | {"workload": str(tmp_path / "desk.toml"), "slo": "ttft:p95<60s"}
    del asked["executor"]
    found = im.tune("llama-3.1-8b", steps="max_num_seqs", requests=60, **asked)
    assert (found.slo_before, found.slo_after, found.exit_code) == ("missed", "missed", 10)
    assert found.objective == "ttft:p95<60s; urgent: ttft:p95<1ms"
    assert [one.text for one in found.latencies] == ["ttft:p95<60s", "urgent: ttft:p95<1ms"]
    assert found.latencies[1].before_s.value > 1e-3
    assert any(one.name == "urgent TTFT p95 now" for one in found.pages()[0].numbers)


def test_the_reason_of_an_undecided_probe_is_what_is_undecided(tmp_path):
    """All together are nearer to their limit, and met: the few requests of the class are open."""
    more = {"hardware": "h100_sxm", "resolution": 0.3, "time_limit": 5, "rate": 2}
    asked = options(tmp_path, EVERYBODY, **more)
    rare = DESK.format(slo=EVERYBODY).replace("weight_ratio = 3", "weight_ratio = 20")
    (tmp_path / "desk.toml").write_text(rare)
    found = im.capacity("llama-3.1-8b", **asked | {"probe_requests": 400})
    probes = [one for one in found.levels[0].capacity.probes if one.verdict == "undecided"]
    assert any(one.why.startswith("class urgent") for one in probes)
    for one in probes:
        assert "too small for a 95 % interval" in one.why or "both sides" in one.why


ONE_TOKEN = {"workload": "512x1", "slo": "tpot:p95<50ms, ttft:p95<1s", "datasheet": True}


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        (im.simulate, {"hardware": "h100_sxm", "rate": 5, "requests": 50}),
        (im.capacity, {"hardware": "h100_sxm"}),
        (im.size, {"gpus": "h100_sxm", "rate": 5}),
        (im.predict, {"hardware": "h100_sxm", "output": 1, "workload": None}),
    ],
)
def test_a_tpot_that_no_answer_has_is_neither_met_nor_missed(verb, more):
    asked = {name: value for name, value in (ONE_TOKEN | more).items() if value is not None}
    with pytest.raises(SpecError, match="no answer has a second token") as refused:
        verb("llama-3.1-8b", **asked)
    assert "slo='ttft:p95<1000ms'" in str(refused.value)


def test_nor_is_that_of_a_class_of_single_tokens(tmp_path):
    text = DESK.replace("value = 50 }}", "value = 1 }}").format(slo="tpot:p95<50ms")
    (tmp_path / "one.toml").write_text(text)
    asked = options(tmp_path, EVERYBODY) | {"workload": str(tmp_path / "one.toml")}
    with pytest.raises(SpecError, match="no answer has a second token") as refused:
        im.capacity("llama-3.1-8b", hardware="h100_sxm", **asked)
    assert "slo of class urgent" in str(refused.value)
