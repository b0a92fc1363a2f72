"""How many seats and tokens to a step has a vLLM server, if nobody says?"""

from typing import Final, NamedTuple

from inferometer.spec.types import HardwareSpec

_LARGE_BYTES: Final = 160 * 2**30
_MIDDLE_BYTES: Final = 70 * 2**30


class BatchLimits(NamedTuple):
    """``max_num_seqs`` and ``max_num_batched_tokens``."""

    max_num_seqs: int
    max_num_batched_tokens: int


_USUAL: Final = BatchLimits(256, 2048)
_TPU_STEP_TOKENS: Final = {"v5e": 512, "v5p": 256, "v6e": 1024}
"""Of the API server; other TPUs have the usual ones."""
_UNIFIED_MEMORY: Final = "gb10"
"""A DGX Spark has the memory of a large GPU, not its speed: vLLM 0.33.0 gives it the limits of a
small one."""


def default_limits(hardware: HardwareSpec | None, *, n_devices: int) -> BatchLimits:
    """Those of ``vllm serve`` on so many of these devices; where the device is not known, those of a small one.

    Source
    ------ vLLM 0.33.0, ``EngineArgs.get_batch_defaults``, usage context ``OPENAI_API_SERVER``: by
    the memory of the device, less for an A100 (its PR 17885), by the chip for a TPU. 0.32.0 differs
    in one device, GB10: 1024 and 8192 there.

    Example
    -------
    >>> from inferometer.spec.catalog import find_hardware
    >>> default_limits(find_hardware("h100_sxm"), n_devices=1)
    BatchLimits(max_num_seqs=1024, max_num_batched_tokens=8192)
    """
    if hardware is None:
        return _USUAL
    if hardware.kind == "cpu":
        return BatchLimits(128 * n_devices, 2048 * n_devices)
    name = hardware.name.lower()
    if hardware.kind == "tpu":
        n_tokens = next(
            (n for chip, n in _TPU_STEP_TOKENS.items() if chip in name),
            _USUAL.max_num_batched_tokens,
        )
        return _USUAL._replace(max_num_batched_tokens=n_tokens)
    if hardware.kind != "gpu" or hardware.memory_bytes.value < _MIDDLE_BYTES:
        return _USUAL
    if hardware.memory_bytes.value >= _LARGE_BYTES:
        return BatchLimits(1024, 16_384)
    return _USUAL if "a100" in name or _UNIFIED_MEMORY in name else BatchLimits(1024, 8192)
