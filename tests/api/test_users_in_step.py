"""What is answered where users of a closed loop send requests of one length?"""

import pytest

import inferometer as im
from inferometer.api.workload import Workload, users_in_step
from inferometer.inputs.workload.distributions import Uniform

MODEL, DEVICE = "mistral-7b-v0.3", "rtx_4090"


def simulated(workload, **options):
    return im.simulate(MODEL, hardware=DEVICE, workload=workload, requests=80, **options)


def median_ttft_s(level):
    return level.summary.latency("ttft").percentile(0.5).seconds.value


def test_equal_answers_are_named_and_intervals_hold_answers_that_models_end():
    answer = simulated("256x100", concurrency=8)
    (caution,) = [one for one in answer.cautions if one.code == "IN_STEP"]
    assert "TTFT p50 is" in caution.text
    assert "prompt=256,output=80..120" in caution.remedy
    likely, *draws = map(median_ttft_s, answer.levels)
    varied = median_ttft_s(simulated("prompt=256,output=80..120", concurrency=8).levels[0])
    assert varied < likely / 1.5
    assert min(draws) < varied < max(draws)


def test_a_capacity_of_users_in_step_says_how_many_there_are_otherwise():
    options = {"hardware": DEVICE, "slo": "ttft:p95<400ms", "probe_requests": 200, "time_limit": 10}
    found = im.capacity(MODEL, workload="512x64", concurrency=4, **options)
    (caution,) = [one for one in found.cautions if one.code == "IN_STEP"]
    assert "prompt=512,output=51..77" in caution.remedy
    located = found.levels[0].capacity.located_load
    apart = int(caution.text.partition("about ")[2].partition(" users")[0].replace(",", ""))
    assert apart > 1.2 * located
    varied = im.capacity(MODEL, workload="prompt=512,output=51..77", concurrency=4, **options)
    assert varied.levels[0].capacity.located_load > 1.2 * located
    assert not [one for one in varied.cautions if one.code == "IN_STEP"]


FILE = """
[arrivals]
kind = "closed"
concurrency = 4
[[classes]]
name = "all"
prompt_tokens = { kind = "constant", value = 512 }
output_tokens = { kind = "constant", value = 64 }
"""


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("512:64", "--workload prompt=512,output=51..77"),
        ("prompt=512,output=64", "--workload prompt=512,output=51..77"),
        ("0.5kx64", "--workload prompt=512,output=51..77"),
        ("prompt=512,output=64,prefix=8", 'output_tokens = { kind = "uniform", low = 51, high'),
        (FILE, 'output_tokens = { kind = "uniform", low = 51, high'),
        ("512..513x64", None),
        ("512x1", None),
    ],
)
def test_lengths_of_any_spelling_are_of_users_in_step(text, remedy, tmp_path):
    """Only `512x64` was seen."""
    if text == FILE:
        (tmp_path / "users.toml").write_text(text)
        options = Workload(workload=str(tmp_path / "users.toml"))
    else:
        options = Workload(workload=text, concurrency=4)
    asked = []

    def capacity_of(spec, start):
        asked.append((spec.classes[0].output_tokens, start))
        return 2 * start

    cautions = users_in_step(options, 10.0, capacity_of)
    if remedy is None:
        assert (cautions, asked) == ((), [])
        return
    assert asked == [(Uniform(low=51, high=77), 10.0)]
    assert cautions[0].remedy.startswith(remedy)
    assert "about 20 users meet the SLO" in cautions[0].text


def test_a_sizing_of_users_in_step_says_that_more_replicas_may_do_worse():
    """It met the SLO for users beyond what it printed as the capacity."""
    kinds = {"gpus": "a10g", "tp": "1", "max_num_seqs": "64", "max_num_batched_tokens": "2048"}
    slo = "tpot:p95<65ms, ttft:p95<2s"
    answer = im.size("llama-3.1-8b", workload="1024x128", concurrency=8, slo=slo, **kinds)
    (caution,) = [one for one in answer.cautions if one.code == "IN_STEP"]
    assert "1 replica can meet the SLO, with 2 it is missed" in caution.text
    assert "prompt=1024,output=102..154" in caution.remedy
    assert answer.pick.n_replicas == 1
    pace = answer.pick.sized_pace
    assert pace.served.verdict == "met"
    assert pace.met_users >= 8
    assert answer.pick.headroom_fraction >= 0


def test_lone_users_and_open_loops_and_drawn_lengths_have_no_step_to_stay_in():
    for workload, load in (
        ("256x100", {"concurrency": 1}),
        ("256x100", {"rate": 2}),
        ("prompt=256,output=80..120", {"concurrency": 8}),
    ):
        answer = simulated(workload, **load)
        assert "IN_STEP" not in {one.code for one in answer.cautions}, (workload, load)


_GROUPS = """
[[groups]]
name = "long"
replicas = 1
min_prompt_tokens = 600
server = { hardware = "rtx_4090" }

[[groups]]
name = "short"
replicas = 1
server = { hardware = "rtx_4090", max_model_len = 600 }
"""


def test_varied_answers_fit_each_group(tmp_path):
    """The longest were cut by the second group, and its KV cache was named as too small."""
    file = tmp_path / "groups.toml"
    file.write_text(_GROUPS)
    answer = im.simulate(MODEL, groups=str(file), workload="512x80", concurrency=8, requests=40)
    codes = {one.code for one in answer.cautions}
    assert "IN_STEP" in codes
    assert "TOO_FEW_KV_BLOCKS" not in codes
