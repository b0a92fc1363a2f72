"""Do simulate, capacity and size take the links between devices as predict does?"""

from dataclasses import replace

import pytest

import inferometer as im
from inferometer.api.server import Server, Settings, deployment_of, fit_cautions
from inferometer.errors import SpecError, TooLargeError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.memory import SmallestGroup
from inferometer.perfmodel.roofline import beyond_link
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape

WORDS = {"model": "llama-3.1-70b", "hardware": "h100_sxm", "tp": 4}


def message_s(**links):
    return deployment_of(Server(**WORDS, **links)).step_times.likely.message_s


def test_slower_links_make_slower_steps_and_leave_published_rows():
    own, nvlink, pcie = (
        deployment_of(Server(**WORDS, **links)).step_times
        for links in ({}, {"link": "nvlink"}, {"link": "pcie4"})
    )
    assert own.basis == nvlink.basis == "published", "its own link"
    assert pcie.basis == "datasheet"
    sheet = deployment_of(Server(**WORDS, datasheet=True)).step_times
    assert pcie.likely.link_row_s > 10 * sheet.likely.link_row_s


def test_a_stated_latency_takes_the_place_of_the_prior_at_every_pace():
    """160 messages in a step of 80 layers."""
    assert message_s(all_reduce_us=30) == pytest.approx(30e-6 / 12e-6 * message_s(datasheet=True))
    engine = EngineSpec(dtype="bfloat16", tensor_parallel_size=4)
    times = datasheet_levels(
        find_model("llama-3.1-70b"), engine, find_hardware("h100_sxm"), all_reduce_s=30e-6
    )
    assert times.fast.message_s == times.slow.message_s == times.likely.message_s
    assert "all-reduces of 30 µs" in times.origin


def test_links_of_fitted_steps_are_those_they_were_measured_with(tmp_path):
    with pytest.raises(SpecError, match="--link changes the steps that were fitted"):
        deployment_of(Server(**WORDS, fit=tmp_path / "fit.json", link="pcie4"))
    with pytest.raises(SpecError, match="--all-reduce-us changes"):
        deployment_of(Server(**WORDS, fit=tmp_path / "fit.json", all_reduce_us=5.0))


def test_a_group_wider_than_its_link_says_what_its_times_lack():
    """NVLink joins the eight H100 of a board, and two A40; 72 GB200."""
    wide = Server(model="llama-3.1-405b", hardware="h100_sxm", tp=16)
    (caution,) = [one for one in fit_cautions(deployment_of(wide)) if one.code == "NODES"]
    assert "joins 8 devices" in caution.text
    assert not fit_cautions(deployment_of(replace(wide, tp=8, pp=2)))
    assert not fit_cautions(deployment_of(replace(wide, link="50GB/s")))
    assert beyond_link(find_hardware("a40"), 4)
    assert beyond_link(find_hardware("gb200"), 64) is None
    assert beyond_link(find_hardware("h100_sxm"), 2, 4) is None
    assert "--tp 4 --data-parallel-size 4" in (beyond_link(find_hardware("h100_sxm"), 4, 4) or "")
    measured = deployment_of(wide)
    measured = replace(measured, step_times=replace(measured.step_times, basis="fitted"))
    assert not fit_cautions(measured), "its network is in the measured steps"
    predicted = im.predict("llama-3.1-405b", hardware="h100_sxm", tp=16).datasheet.cautions
    assert any("joins 8 devices" in text for text in predicted)


@pytest.mark.slow
def test_a_capacity_has_the_cautions_of_its_servers():
    answer = im.capacity(
        "llama-3.1-405b", hardware="h100_sxm", tp=16, slo="ttft:p95<10s", time_limit=1
    )
    assert [one.code for one in answer.cautions] == ["NODES"]


def test_what_does_not_fit_is_told_groups_that_a_link_joins():
    predicted = im.predict("llama-3.1-405b", hardware="h100_sxm")
    assert predicted.smallest_group == SmallestGroup(n_tensor=8, n_pipeline=2)
    assert im.predict("llama-3.1-405b", hardware="h100_sxm", tp=8, pp=2).datasheet.sizes.memory.fits
    with pytest.raises(TooLargeError) as refused:
        deployment_of(Server(model="llama-3.1-405b", hardware="h100_sxm"))
    assert refused.value.try_ == "--tp 8 --pp 2, the smallest that fits"


def test_stages_have_a_flag_of_their_own():
    server = Server(model="llama-3.1-70b", hardware="h100_sxm", tp=2)
    by_flag = deployment_of(replace(server, pp=2))
    assert by_flag == deployment_of(replace(server, set=("pipeline_parallel_size=2",)))
    assert (by_flag.n_devices, by_flag.parallelism) == (4, "TP2 PP2")
    with pytest.raises(SpecError, match="two numbers of stages: 2 and 4"):
        deployment_of(replace(server, pp=2, set=("pipeline_parallel_size=4",)))


def test_replicas_that_share_experts_may_exchange_them_over_pcie():
    server = Server(model="mixtral-8x7b", hardware="a100_80gb_sxm")
    own, nvlink, pcie = (
        deployment_of(replace(server, **links), n_sharing=2).step_times
        for links in ({"datasheet": True}, {"link": "300GB/s"}, {"link": "pcie4"})
    )
    assert pcie.likely.link_row_s > 5 * own.likely.link_row_s
    assert nvlink.likely.link_row_s == pytest.approx(own.likely.link_row_s)
    bare = replace(find_hardware("a100_80gb_sxm"), link_bytes_per_s=None, pcie_bytes_per_s=None)
    with pytest.raises(SpecError, match="no link between devices is known") as refused:
        datasheet_levels(
            find_model("mixtral-8x7b"), EngineSpec(dtype="bfloat16"), bare, n_sharing=2
        )
    assert refused.value.try_ == "--link pcie4"


def what_fits(server, n_sharing=1):
    with pytest.raises(TooLargeError) as refused:
        deployment_of(server, n_sharing=n_sharing)
    return refused.value.try_.removesuffix(", the smallest that fits")


def test_replicas_that_share_experts_are_told_more_of_them():
    """Each of them has one device: more tensor-parallel ranks are refused."""
    server = Server(model="deepseek-v3", hardware="h200_sxm")
    assert what_fits(server, 2) == "--data-parallel-size 8"
    assert deployment_of(server, n_sharing=8).n_devices == 1
    assert "64 of these do not hold it" in what_fits(replace(server, hardware="t4"), 2)


def test_what_is_said_to_fit_holds_the_contexts_that_were_wanted():
    server = Server(model="llama-3.1-70b", hardware="h100_sxm")
    assert what_fits(server) == "--tp 2"
    long = replace(server, settings=Settings(max_model_len=131_072))
    assert what_fits(long) == "--tp 4"
    assert deployment_of(replace(long, tp=4)).config.max_model_len == 131_072
    assert what_fits(replace(server, pp=1)) == "--tp 2 --pp 1"


def test_what_a_policy_does_not_have_is_refused_before_the_memory():
    server = Server(
        model="qwen3-next-80b-a3b",
        hardware="t4",
        tp=4,
        settings=Settings(gpu_memory_utilization=0.5),
        policy="static",
    )
    with pytest.raises(SpecError, match="4 pipeline stages of static"):
        deployment_of(replace(server, pp=4))
    assert "8 of these do not hold it; --policy vllm has stages" in what_fits(server)


def test_spread_experts_take_the_step_that_predict_gives_them():
    """`simulate --ep` was refused, and `predict --ep` answered."""
    words = {"model": "qwen3-30b-a3b", "hardware": "h100_sxm", "tp": 2}
    split, whole = (
        deployment_of(Server(**words, datasheet=True, ep=ep)).step_times for ep in (False, True)
    )
    predicted = im.predict(**words, ep=True, prompt=512, output=1025)
    step = decode_shape(batch_size=1, context_tokens=512 + 512)
    assert whole.basis == "datasheet"
    assert shape_duration_s(whole.likely, step) == pytest.approx(
        predicted.datasheet.speeds.tpot_s.value, rel=0.01
    )
    assert shape_duration_s(whole.likely, step) > 1.05 * shape_duration_s(split.likely, step)
    dense = {**words, "model": "llama-3.1-8b", "datasheet": True}
    alike = [deployment_of(Server(**dense, ep=ep)).step_times.likely for ep in (False, True)]
    assert alike[0].message_s == alike[1].message_s
    for alone in ({**words, "tp": 1}, {**words, "model": "llama-3.1-8b"}):
        basis = deployment_of(Server(**alone, ep=True)).step_times.basis
        assert basis == "published", "nothing is spread: other step times would say nothing new"


@pytest.mark.parametrize(
    ("words", "basis"),
    [
        ({"model": "qwen3-30b-a3b", "tp": 1}, "published"),
        ({"model": "llama-3.1-8b", "tp": 2}, "published"),
        ({"model": "qwen3-30b-a3b", "tp": 2}, "published"),
    ],
)
def test_spread_experts_are_answered_by_published_rows(words, basis):
    """`predict --ep` was answered by the datasheet alone: faster than without, by its wide interval."""
    predicted = im.predict(**words, hardware="h100_sxm", ep=True)
    assert predicted.basis == basis
    assert predicted.fitted.tpot_s == im.predict(**words, hardware="h100_sxm").fitted.tpot_s, (
        "with tensor-parallel attention experts are summed up by the same all-reduce"
    )


def test_a_server_with_spread_experts_has_the_published_steps_and_says_of_what():
    words = {"model": "qwen3-30b-a3b", "hardware": "h100_sxm", "tp": 2}
    split, whole = (deployment_of(Server(**words, ep=ep)).step_times for ep in (False, True))
    assert whole.basis == "published"
    assert whole.likely.message_s == split.likely.message_s > 0
    assert whole.likely.link_row_s == split.likely.link_row_s
    assert whole.origin.endswith("of experts split over 2 devices, as of whole ones")


def test_spread_experts_are_no_option_of_a_fit(tmp_path):
    with pytest.raises(SpecError, match="--ep changes the steps that were fitted"):
        deployment_of(Server(model="qwen3-30b-a3b", fit=tmp_path / "fit.json", ep=True))
