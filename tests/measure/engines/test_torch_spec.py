"""Is what transformers and vLLM refuse on every machine refused by a plan too, without torch?"""

import subprocess
import sys

import pytest

import inferometer as im
from inferometer.errors import SpecError
from inferometer.inputs.types import EngineSpec
from inferometer.measure.environments import check_batch, check_torch_spec


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        ({"engine": "vllm", "mode": "static"}, "no mode 'static'"),
        ({"engine": "vllm", "attn": "sdpa"}, "attention kernel 'sdpa'"),
        ({"engine": "vllm", "quantization": "int8"}, "not run by the vllm engine"),
        ({"engine": "vllm", "kv_dtype": "float8"}, "KV cache in 'float8'"),
        ({"engine": "vllm", "tp": 2}, "9 attention heads cannot be divided among 2 ranks"),
        ({"engine": "vllm", "batch_sizes": "8,257"}, "a batch of 257"),
        ({"quantization": "float8"}, "not run by the transformers engine on cpu, tp=1"),
        ({"quantization": "int4", "tp": 2}, "transformers engine on cpu, tp=2"),
        ({"kv_dtype": "int8"}, "KV cache in 'int8'"),
        ({"dtype": "float8"}, "'float8' is not computed in by transformers"),
    ],
)
def test_a_dry_run_refuses_what_the_engine_would(wanted, complaint):
    plan = {"model": "smollm2-135m", "load_format": "dummy", "device": "cpu", "dry_run": True}
    with pytest.raises(SpecError, match=complaint) as caught:
        im.sweep(**plan | wanted)
    assert caught.value.allowed


def test_what_the_engines_can_do_passes():
    check_torch_spec(EngineSpec(quantization="int4", device="cpu"))
    check_torch_spec(EngineSpec(tensor_parallel_size=2, mode="static", kv_cache_dtype="float32"))
    check_torch_spec(EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16"))
    check_batch(EngineSpec(), 1024)
    check_batch(EngineSpec(engine="vllm"), 256)
    plan = {"model": "smollm2-135m", "load_format": "dummy", "device": "cpu", "dry_run": True}
    assert im.sweep(**plan, engine="vllm", tp=3, batch_sizes="256").points


def test_a_plan_is_checked_without_torch():
    code = (
        "import sys; from inferometer.measure import environments;"
        " print({'torch', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
