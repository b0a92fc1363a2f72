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
    "other", [{"datasheet": True}, {"ep": True, "tp": 8}, {"hardware": "m4_max"}]
)
def test_an_engine_without_published_rows_is_refused(other):
    with pytest.raises(SpecError, match="step times of SGLang come from published rows"):
        im.predict("qwen3-30b-a3b", policy="sglang", **({"hardware": "h100_sxm"} | other))


def test_the_option_that_no_rows_answer_is_named():
    with pytest.raises(SpecError) as refused:
        im.predict("llama-3.1-8b", hardware="h100_sxm", policy="vllm", datasheet=True)
    assert refused.value.allowed is not None
    assert refused.value.allowed.endswith("not datasheet=True")
