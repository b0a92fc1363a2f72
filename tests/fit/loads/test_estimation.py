"""Is a server found again from load tests alone, and is it said what they do not tell?"""

import numpy as np
import pytest
from black_boxes import BLOCKS, SLOTS, Box, config

from inferometer.errors import ModelError
from inferometer.fit.loads.estimation import Address, Subject, fit_server
from inferometer.fit.loads.intervals import N_DRAWS
from inferometer.fit.loads.load_tests import LoadTest, peak_load, served_load, step_pace
from inferometer.fit.loads.server import ReportedSettings
from inferometer.fit.loads.server_fit import is_server_fit, load_server_fit
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape, prefill_shape
from inferometer.simulate.demand import demand
from inferometer.simulate.run import simulate

pytestmark = pytest.mark.slow

ADDRESS = Address(url="http://127.0.0.1:8000", served_model="m")
SUBJECT = Subject(address=ADDRESS, engine=EngineSpec(engine="vllm"), reported=ReportedSettings())
RATES = ((0.8, 90), (3.0, 160), (9.0, 260))


def fitted(box, subject=SUBJECT):
    return fit_server([LoadTest(run=box.load_test(*load)) for load in RATES], subject)


@pytest.fixture(scope="module")
def seated():
    """Few slots, memory for all."""
    return Box(config(max_num_seqs=SLOTS))


@pytest.fixture(scope="module")
def fit(seated):
    return fitted(seated)


def test_what_load_tests_show_by_themselves(seated):
    looks = [served_load(LoadTest(run=seated.load_test(*load))) for load in RATES]
    assert peak_load(looks).n_streaming == SLOTS
    steps = seated.served(*RATES[-1]).steps
    assert peak_load(looks).n_inside >= SLOTS + int(steps.n_waiting_requests.max())
    pace, batch = step_pace(looks), SLOTS
    company = pace.base_s + batch * pace.sequence_s + batch * 250 * pace.context_token_s
    assert company == pytest.approx(
        shape_duration_s(seated.steps, decode_shape(batch_size=batch, context_tokens=250)), rel=0.15
    )


def test_seats_are_found_and_unused_memory_is_said_to_be_open(fit):
    slots, blocks, _ = (knob for knob in fit.knobs if knob.low is not None)
    assert slots.low <= SLOTS <= slots.high
    assert slots.high - slots.low <= 2
    assert (slots.value, slots.informed_by, slots.probe) == (SLOTS, "load", None)
    assert (blocks.high, blocks.informed_by) == (None, "assumed")
    assert "never used up" in blocks.text
    assert blocks.probe.startswith("inferometer load http://127.0.0.1:8000 --model m --workload ")


def test_steps_are_inside_what_is_left_open(fit, seated):
    levels = fit.levels()
    for shape in (
        prefill_shape(batch_size=1, prompt_tokens=250),
        decode_shape(batch_size=6, context_tokens=250),
    ):
        fast, likely, slow, true = (
            shape_duration_s(steps, shape)
            for steps in (levels.fast, levels.likely, levels.slow, seated.steps)
        )
        assert fast < likely < slow
        assert fast < true < slow
        assert likely == pytest.approx(true, rel=0.05)


def test_draws_keep_to_the_load_tests(fit, seated):
    """Slots that were filled are the same in all.

    A step is as long as the true one amid them, though single parameters differ widely.
    """
    assert len(fit.draws) == N_DRAWS
    slots, open_blocks = (
        [draw.knobs[name] for draw in fit.draws] for name in ("max_num_seqs", "n_kv_blocks")
    )
    low, high = next((knob.low, knob.high) for knob in fit.knobs if knob.name == "max_num_seqs")
    assert low <= min(slots) <= max(slots) <= high
    assert max(open_blocks) > 2 * min(open_blocks)
    shape = decode_shape(batch_size=6, context_tokens=250)
    drawn_s = [shape_duration_s(fit.drawn_levels(draw).likely, shape) for draw in fit.draws]
    assert min(drawn_s) < shape_duration_s(seated.steps, shape) < max(drawn_s)
    assert max(drawn_s) < 1.05 * min(drawn_s)
    parameters = np.array([draw.parameters for draw in fit.draws])
    assert (parameters.max(axis=0) / parameters.min(axis=0)).max() > 1.5


def test_another_rate_is_foretold(fit, seated):
    rate, n_requests = 5.0, 400
    sent_ns, prompt, output = seated.asked(rate, n_requests)
    true = seated.served(rate, n_requests).requests
    limits = config(
        max_num_seqs=fit.knob("max_num_seqs"),
        max_num_batched_tokens=fit.knob("max_num_batched_tokens"),
    )
    said = simulate(
        demand(sent_ns + round(fit.front_end_s * 1e9), prompt, output), limits, fit.steps()
    ).requests
    for quantile in (0.5, 0.95):
        ttft_s = [np.quantile(table.first_token_ns - sent_ns, quantile) for table in (said, true)]
        tpot_s = [
            np.quantile(
                (table.finished_ns - table.first_token_ns) / np.maximum(output - 1, 1), quantile
            )
            for table in (said, true)
        ]
        assert ttft_s[0] == pytest.approx(ttft_s[1], rel=0.1)
        assert tpot_s[0] == pytest.approx(tpot_s[1], rel=0.05)


def test_it_is_the_same_after_its_file(fit, tmp_path):
    fit.save(tmp_path / "server.json")
    assert is_server_fit(tmp_path / "server.json")
    read = load_server_fit(tmp_path / "server.json")
    assert read == fit
    assert read.levels().slow._asdict().keys() == fit.levels().slow._asdict().keys()
    assert shape_duration_s(
        read.steps(), decode_shape(batch_size=3, context_tokens=99)
    ) == shape_duration_s(fit.steps(), decode_shape(batch_size=3, context_tokens=99))


@pytest.mark.long
def test_a_full_cache_is_found_and_seats_stay_open():
    fit = fitted(Box(config(num_blocks=BLOCKS + 1)))
    slots, blocks, _ = (knob for knob in fit.knobs if knob.low is not None)
    assert blocks.low <= BLOCKS <= blocks.high
    assert blocks.high < 1.3 * blocks.low
    assert slots.high is None
    assert slots.low <= 64


def test_what_the_server_names_is_taken(seated):
    told = ReportedSettings(
        limits={"max_num_seqs": SLOTS, "n_kv_blocks": 4999},
        switches={"async_scheduling": True},
        block_tokens=16,
    )
    fit = fitted(seated, Subject(address=ADDRESS, engine=EngineSpec(engine="vllm"), reported=told))
    named = [knob for knob in fit.knobs if knob.informed_by == "server"]
    assert {knob.name: knob.value for knob in named} == {
        "max_num_seqs": SLOTS,
        "n_kv_blocks": 4999,
        "async_scheduling": True,
    }
    assert all(knob.text == "as the server reports" and knob.probe is None for knob in named)


def test_what_cannot_be_fitted(seated, tmp_path):
    with pytest.raises(ModelError, match="no load tests"):
        fit_server([], SUBJECT)
    with pytest.raises(ModelError, match="12 requests that ended well are too few"):
        fit_server([LoadTest(run=seated.load_test(1.0, 12))], SUBJECT)
    (tmp_path / "other.json").write_text('{"kind": "server", "schema_version": 99}')
    with pytest.raises(ModelError, match="schema version 99"):
        load_server_fit(tmp_path / "other.json")
    assert not is_server_fit(tmp_path / "absent.json")
