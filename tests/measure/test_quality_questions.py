"""What a question about quality reads, and what it refuses before a model is loaded."""

import pytest

import inferometer as im
from inferometer.api import quality
from inferometer.api.question import question_of
from inferometer.errors import SpecError


@pytest.mark.parametrize(("tokens", "window"), [(256, 256), (700, 512)])
def test_a_window_is_no_longer_than_what_is_read(tokens, window):
    question = question_of(quality.Quality, {"model": "m", "tokens": tokens})
    task = quality._Task("the reference", None, quality.LossyChange(), None)
    score = quality._score(question, task, "", ())
    assert score.window_tokens * score.n_windows <= tokens
    assert score.window_tokens == window


def test_what_cannot_be_done_is_refused_before_a_model_is_loaded(smollm2, monkeypatch):
    monkeypatch.setattr(quality, "RemoteEngine", None)
    with pytest.raises(SpecError, match="windows of 512 tokens, and 256 tokens to read"):
        im.quality(smollm2.location, quantization=["int8"], tokens=256, window=512)
    with pytest.raises(SpecError, match="are stored in int4"):
        im.quality(smollm2.location, quantization=["int8"], engine="openvino")
    with pytest.raises(SpecError, match="a KV cache in 'float8'"):
        im.quality(smollm2.location, kv_dtype=["fp8"], engine="openvino")
