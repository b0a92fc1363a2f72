import pytest

pytest.importorskip("transformers")

from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec
from inferometer.measure.engines.vllm_engine import check_spec, last_line, read_model


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"device": "cuda"}, "'cuda' is not on this machine"),
        ({"mode": "static"}, "no mode 'static'"),
        ({"dtype": "int4"}, "'int4' is not computed in"),
        ({"quantization": "int8"}, "quantization 'int8'"),
        ({"kv_cache_dtype": "float8"}, "KV cache in 'float8'"),
        ({"attention": "sdpa"}, "attention kernel 'sdpa'"),
    ],
)
def test_what_vllm_cannot_do_is_a_bad_question(asked, complaint):
    with pytest.raises(SpecError, match=complaint) as caught:
        check_spec(EngineSpec(engine="vllm", **asked))
    assert caught.value.allowed


def test_what_vllm_can_do_passes():
    check_spec(
        EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", kv_cache_dtype="bfloat16")
    )


@pytest.mark.slow
def test_heads_that_do_not_divide_are_a_bad_question(smollm2):
    with pytest.raises(SpecError, match="9 attention heads cannot be divided among 2 ranks"):
        read_model(EngineSpec(engine="vllm", tensor_parallel_size=2), smollm2)


def test_pydantic_s_frame_is_taken_off():
    framed = (
        "1 validation error for VllmConfig\n  Value error, heads (9) must divide."
        " [type=value_error, input_value=...]\n    For more"
    )
    assert last_line(ValueError(framed)) == "heads (9) must divide."
    assert last_line(RuntimeError("above\n  below ")) == "below"
