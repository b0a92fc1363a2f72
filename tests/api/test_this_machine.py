"""``--hardware this``: do all verbs describe this machine with the same measured ceilings?"""

import subprocess
import sys

import pytest

import inferometer as im
from inferometer.api.decision_pages import capacity_page
from inferometer.api.groups import servers_of_groups
from inferometer.api.predict_page import predict_page
from inferometer.api.server import Server, deployment_of
from inferometer.api.sizing_offers import offers_of
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_model
from inferometer.measure.this_machine import this_hardware

MODEL = "smollm2-135m"
SLO = "ttft:p95<1000s, tpot:p95<100s"
SHORT = {"workload": "8x4", "rate": 1.0, "requests": 100}
BUSY = "BUSY_CEILINGS"


def test_every_description_of_a_server_has_the_same_ceilings(tmp_path):
    (tmp_path / "groups.toml").write_text(
        '[[groups]]\nname = "here"\nmax_prompt_tokens = 60\nserver = { hardware = "this" }\n'
        '[[groups]]\nname = "there"\n'
    )
    here = deployment_of(Server(model=MODEL, hardware="this"))
    assert here.step_times.origin.startswith("ceilings measured on")
    assert here.config.n_kv_blocks > 0
    predicted = im.predict(MODEL, hardware="this").datasheet.scenario.hardware
    groups = servers_of_groups(tmp_path / "groups.toml", Server(model=MODEL, hardware="l4")).groups
    offers = offers_of("this, this,l4", None, [], find_model(MODEL))
    assert [one.hardware.hardware_id for one in offers] == ["this", "l4"]
    same = (predicted, groups.groups[0].deployment.hardware, offers[0].hardware)
    assert all(one == here.hardware for one in same)
    assert groups.groups[1].deployment.hardware.hardware_id == "l4"


@pytest.mark.slow
def test_answers_are_cautioned_where_the_cpu_was_busy():
    """Ceilings that another process shared were taken without a word."""
    this_hardware.cache_clear()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            note = this_hardware().memory_bytes_per_s.note
        finally:
            neighbour.kill()
    try:
        assert "other processes use" in note
        predicted = predict_page(im.predict(MODEL, hardware="this"))
        simulated = im.simulate(MODEL, hardware="this", **SHORT)
        located = im.capacity(MODEL, hardware="this", slo=SLO, time_limit=1.0, **SHORT)
        sized = im.size(MODEL, gpus="this", slo=SLO, time_limit=2.0, **SHORT)
        for cautions in (
            predicted.cautions,
            simulated.cautions,
            located.cautions,
            capacity_page(located).cautions,
            sized.cautions,
        ):
            (caution,) = (one for one in cautions if one.code == BUSY)
            assert note in caution.text
    finally:
        this_hardware.cache_clear()


def test_devices_of_the_catalogue_are_never_cautioned_so():
    simulated = im.simulate(MODEL, hardware="l4", datasheet=True, **SHORT)
    assert BUSY not in {one.code for one in simulated.cautions}


def test_files_that_deploy_on_a_machine_without_a_name_are_refused(tmp_path):
    with pytest.raises(SpecError, match="deploy on this machine"):
        im.size(MODEL, gpus="l4, this", slo=SLO, out=tmp_path / "out", **SHORT)
