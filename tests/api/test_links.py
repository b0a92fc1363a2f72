"""Do simulate, capacity and size take the links between devices as predict does?"""

import pytest

from inferometer.api.server import Server, deployment_of
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_levels

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
