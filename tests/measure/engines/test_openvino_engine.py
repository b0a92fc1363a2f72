from pathlib import Path

import pytest

import inferometer as im
from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec
from inferometer.measure.engines.openvino_engine import open_engine
from inferometer.measure.engines.openvino_spec import check_spec
from inferometer.measure.engines.protocol import ModelReference


@pytest.mark.parametrize(
    ("asked", "complaint"),
    [
        ({"device": "cuda"}, "OpenVINO on 'cuda'"),
        ({"load_format": "dummy"}, "random weights"),
        ({"mode": "compiled"}, "no mode 'compiled'"),
        ({"dtype": "int8"}, "'int8' is no format of activations"),
        ({"quantization": "float8"}, "weights in 'float8'"),
        ({"kv_cache_dtype": "float4"}, "KV cache in 'float4'"),
        ({"attention": "sdpa"}, "attention kernel 'sdpa'"),
        ({"tensor_parallel_size": 2}, "does not split"),
    ],
)
def test_what_openvino_cannot_do_is_a_bad_question(asked, complaint):
    with pytest.raises(SpecError, match=complaint) as caught:
        check_spec(EngineSpec(engine="openvino", **asked))
    assert caught.value.allowed


def test_a_dry_run_refuses_what_no_run_would_do():
    with pytest.raises(SpecError, match="random weights"):
        im.sweep(model="smollm2-135m", load_format="dummy", engine="openvino", dry_run=True)


def test_what_openvino_can_do_passes():
    check_spec(EngineSpec(engine="openvino", dtype="bfloat16", kv_cache_dtype="int8"))
    check_spec(EngineSpec(engine="openvino", quantization="int4"))


def test_random_weights_are_refused(tiny):
    with pytest.raises(SpecError, match="random weights"):
        open_engine(EngineSpec(engine="openvino"), tiny)


def test_a_folder_without_a_graph_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SpecError, match="not in a form that OpenVINO reads") as caught:
        open_engine(
            EngineSpec(engine="openvino"),
            ModelReference(kind="folder", location=str(tmp_path), spec=None),
        )
    assert "openvino_model.xml" in (caught.value.allowed or "")
    assert "GGUF" in (caught.value.try_ or "")


def test_a_missing_file_is_refused():
    with pytest.raises(SpecError, match="not in a form"):
        open_engine(
            EngineSpec(engine="openvino"),
            ModelReference(kind="gguf", location=str(Path("gone.gguf")), spec=None),
        )
