"""What does OpenVINO do here, before it is installed or anything is loaded?"""

from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.types import DType, EngineSpec
from inferometer.measure import environments

READABLE: Final = "a GGUF file, or a folder with openvino_model.xml"
PRECISIONS: Final[dict[DType, str]] = {
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "u8",
}
WEIGHT_FORMATS: Final[tuple[DType, ...]] = ("int8", "int4")
"""Those in which weights of 16 or 32 bits are packed."""


def check_spec(spec: EngineSpec) -> None:
    """Refuse settings that this engine does not support."""
    if spec.device != "cpu":
        raise SpecError(
            f"OpenVINO on {spec.device!r}",
            where="--device",
            allowed="cpu",
            try_="--engine transformers",
        )
    if spec.load_format == "dummy":
        raise no_weights()
    if spec.mode != "eager":
        raise SpecError(
            f"OpenVINO has no mode {spec.mode!r}: it always runs its compiled graph on a paged"
            " cache",
            where="--mode",
            allowed="eager, its name here",
        )
    environments.check_attention(spec)
    if spec.dtype not in environments.COMPUTES_IN:
        raise SpecError(
            f"dtype {spec.dtype!r} is no format of activations",
            where="--dtype",
            allowed=", ".join(environments.COMPUTES_IN),
        )
    if spec.kv_cache_dtype is not None and spec.kv_cache_dtype not in PRECISIONS:
        raise SpecError(
            f"a KV cache in {spec.kv_cache_dtype!r}",
            where="--kv-cache-dtype",
            allowed=", ".join(PRECISIONS),
        )
    if spec.quantization is not None and spec.quantization not in WEIGHT_FORMATS:
        raise SpecError(
            f"weights in {spec.quantization!r} are not made here",
            where="--quantization",
            allowed=f"{', '.join(WEIGHT_FORMATS)}; a file's own formats stay without it",
        )
    if spec.tensor_parallel_size > 1:
        raise SpecError(
            "OpenVINO does not split a model",
            where="--tp",
            allowed="1",
            try_="--engine transformers or --engine vllm",
        )


def no_weights() -> SpecError:
    """The error of a model without weights."""
    return SpecError(
        "OpenVINO cannot run random weights",
        where="--load-format dummy",
        allowed=READABLE,
        try_="--engine transformers",
    )
