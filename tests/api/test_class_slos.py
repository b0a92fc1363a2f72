"""Do ``size`` and ``capacity`` of one kind of replica meet the SLO that the workload's file gives a class?"""

import inferometer as im

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
    assert easy.pick.asked.served.verdict == "met"
    assert easy.pick.asked.served.weakest.startswith("ttft:p95<2000ms")
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
