"""What do transformers and vLLM do here, before torch is imported or anything is loaded?

Whether torch sees the GPU, and whether that has bfloat16, only the engine itself finds out.
"""

from typing import Final

from inferometer.errors import SpecError
from inferometer.inputs.types import DType, EngineSpec

COMPUTES_IN: Final[tuple[DType, ...]] = ("float32", "float16", "bfloat16")
WEIGHT_FORMATS: Final[tuple[DType, ...]] = ("int8", "int4")
"""Those in which the transformers engine packs weights, on a CPU."""
MAX_SEQUENCES: Final = 256
"""``max_num_seqs`` of vLLM, and of OpenVINO: a larger batch would not run as one."""
_TRY_OPENVINO: Final = "--engine openvino, which keeps a GGUF's 4-bit weights"


def check_spec(spec: EngineSpec) -> None:
    """Refuse settings that the engine, transformers or vLLM, supports on no machine."""
    if spec.dtype not in COMPUTES_IN:
        raise dtype_refusal(spec, COMPUTES_IN)
    if spec.engine == "vllm":
        _check_vllm(spec)
    else:
        _check_weights(spec)
    if spec.kv_cache_dtype not in {None, spec.dtype}:
        raise SpecError(
            f"a KV cache in {spec.kv_cache_dtype!r}",
            where="--kv-dtype",
            allowed=f"the model's own {spec.dtype}",
        )


def dtype_refusal(spec: EngineSpec, allowed: tuple[DType, ...]) -> SpecError:
    """The error of activations in a format that the engine does not compute in."""
    on = f" on this {spec.device}" if "bfloat16" not in allowed else " here"
    return SpecError(
        f"dtype {spec.dtype!r} is not computed in by {_NAMES[spec.engine]}{on}",
        where="--dtype",
        allowed=", ".join(allowed),
    )


def check_heads(spec: EngineSpec, n_heads: int) -> None:
    """Refuse ranks of vLLM that do not get an equal number of heads."""
    if spec.engine == "vllm" and n_heads % spec.tensor_parallel_size:
        raise SpecError(
            f"{n_heads} attention heads cannot be divided among {spec.tensor_parallel_size} ranks",
            where="--tp",
            allowed=f"a divisor of {n_heads} (vLLM splits attention by heads)",
            try_="--engine transformers, which then keeps attention whole",
        )


def check_batch(spec: EngineSpec, batch_size: int) -> None:
    """Refuse a batch of which the engine, vLLM or OpenVINO, would run a part at a time."""
    if spec.engine != "transformers" and batch_size > MAX_SEQUENCES:
        raise SpecError(
            f"a batch of {batch_size}",
            where="--batch-sizes",
            allowed=f"at most {MAX_SEQUENCES} on this engine",
            try_="--engine transformers",
        )


_NAMES: Final = {"transformers": "transformers", "vllm": "vLLM", "openvino": "OpenVINO"}


def _check_vllm(spec: EngineSpec) -> None:
    if spec.mode == "static":
        raise SpecError(
            "vLLM has no mode 'static': its paged KV cache is always preallocated",
            where="--mode",
            allowed="eager, compiled",
            try_="--mode eager",
        )
    if spec.attention is not None:
        raise SpecError(
            f"vLLM with the attention kernel {spec.attention!r}",
            where="--attn",
            allowed="its own paged attention, without --attn",
            try_="--engine transformers",
        )
    if spec.quantization is not None:
        raise SpecError(
            f"quantization {spec.quantization!r} is not run by the vllm engine",
            where="--quantization",
            allowed="none (a GGUF file is unpacked to --dtype)",
            try_=_TRY_OPENVINO,
        )


def _check_weights(spec: EngineSpec) -> None:
    """Refuse a weight format without kernels."""
    if spec.quantization is None:
        return
    if (
        spec.quantization not in WEIGHT_FORMATS
        or spec.device != "cpu"
        or spec.tensor_parallel_size > 1
    ):
        where = f"{spec.device}, --tp {spec.tensor_parallel_size}"
        raise SpecError(
            f"quantization {spec.quantization!r} is not run by the transformers engine on {where}",
            where="--quantization",
            allowed="int8 and int4 on the CPU of one process; a GGUF file is unpacked to --dtype",
            try_=_TRY_OPENVINO,
        )
