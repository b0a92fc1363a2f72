"""Whose step times does a prediction take?"""

import pytest

import inferometer as im
from inferometer.errors import SpecError

SUBJECT = {"hardware": "h100_sxm", "tp": 4, "batch": 16, "prompt": 1024, "output": 64}


def test_engines_have_step_times_of_their_own():
    tpots_s = {
        engine: im.predict("llama-3.1-70b", policy=engine, **SUBJECT).answered.tpot_s.value
        for engine in ("vllm", "sglang", "trtllm")
    }
    assert len(set(tpots_s.values())) == 3
    assert tpots_s["vllm"] == im.predict("llama-3.1-70b", **SUBJECT).answered.tpot_s.value


@pytest.mark.parametrize(
    "other", [{"datasheet": True}, {"sparsity": True, "tp": 8}, {"hardware": "m4_max"}]
)
def test_an_engine_without_published_rows_is_refused(other):
    with pytest.raises(SpecError, match="step times of SGLang come from published rows"):
        im.predict("qwen3-30b-a3b", policy="sglang", **({"hardware": "h100_sxm"} | other))


def test_the_option_that_no_rows_answer_is_named():
    with pytest.raises(SpecError) as refused:
        im.predict("llama-3.1-8b", hardware="h100_sxm", policy="vllm", datasheet=True)
    assert refused.value.allowed is not None
    assert refused.value.allowed.endswith("not datasheet=True")


@pytest.mark.parametrize("datasheet", [False, True])
def test_without_graphs_a_decode_step_takes_as_long_as_a_simulated_one(datasheet):
    one = {"hardware": "h100_sxm", "enforce_eager": True, "datasheet": datasheet}
    predicted = im.predict("llama-3.1-8b", prompt=512, output=128, **one)
    alone = im.simulate("llama-3.1-8b", workload="512x128", concurrency=1, requests=20, **one)
    simulated_s = [row["summary.tpot_p50_s.value"] for row in alone.rows()]
    tpot = predicted.answered.tpot_s
    assert tpot is not None
    assert tpot.value == pytest.approx(simulated_s[0], rel=0.05)
    assert tpot.low == pytest.approx(min(simulated_s), rel=0.05)
    assert tpot.high == pytest.approx(max(simulated_s), rel=0.05)
    captured = im.predict(
        "llama-3.1-8b", prompt=512, output=128, **(one | {"enforce_eager": False})
    )
    assert captured.answered.tpot_s is not None
    assert tpot.value > 2 * captured.answered.tpot_s.value


def test_a_cpu_launches_no_kernels():
    times = [
        im.predict("llama-3.2-1b", hardware="m4_max", enforce_eager=is_eager).answered.tpot_s
        for is_eager in (False, True)
    ]
    assert times[0] is not None
    assert times[0] != times[1]
    cpu = [
        im.predict("llama-3.2-1b", hardware="epyc_9654", enforce_eager=is_eager).answered.tpot_s
        for is_eager in (False, True)
    ]
    assert cpu[0] == cpu[1]


def test_graphs_of_a_bare_loop_are_none_of_an_engine_without_graphs():
    with pytest.raises(SpecError, match="enforce_eager"):
        im.predict("llama-3.1-8b", hardware="h100_sxm", enforce_eager=True, mode="graphs")
