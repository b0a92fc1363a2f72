"""What the published 4-bit float checkpoints of a model store in more than 4 bits."""

from collections.abc import Mapping
from typing import Final

_PLAIN: Final = 16.0
_FP8: Final = 8.0
_NVFP4: Final = 4.5
_ATTENTION: Final = ("query", "key_value", "attention_out")
_RECURRENT: Final = ("linear_in", "linear_out")
_SHARED: Final = ("shared_up", "shared_down")

_QWEN: Final = dict.fromkeys((*_ATTENTION, *_RECURRENT), _FP8)

FLOAT4_BITS: Final[Mapping[str, Mapping[str, float]]] = {
    "gemma-4-31b": dict.fromkeys(_ATTENTION, _PLAIN),
    "qwen3.6-27b": _QWEN,
    "qwen3.6-35b-a3b": _QWEN,
    "nemotron-3-nano-30b-a3b": dict.fromkeys(_ATTENTION, _PLAIN)
    | dict.fromkeys(_RECURRENT, (6 * _PLAIN + 17 * _NVFP4) / 23),
    "nemotron-3-super-120b-a12b": dict.fromkeys((*_ATTENTION, "experts_latent_in"), _PLAIN)
    | {"experts_latent_out": _PLAIN}
    | dict.fromkeys((*_RECURRENT, *_SHARED), _FP8),
}
"""Bits per weight of matrices, by model and the names of ``matrices.linears``. Matrices and models
that are not here count as quantised like the rest.

Source
------
NVIDIA's checkpoints. Gemma 4 31B: discussion 5 of nvidia/Gemma-4-31B-IT-NVFP4 on Hugging Face
(W_q, W_k, W_v and W_o are not quantised); a server's log says 31.04 GiB. Qwen3.6: github
sgl-project/sglang pulls 32959 and 27906, Avarok-Cybersecurity/atlas pull 121 (attention in FP8).
Nemotron 3 Nano: the exclude_modules of its NVFP4 configuration (all 6 layers of attention, and the
Mamba layer before each). Nemotron 3 Super: docs.nvidia.com/nemotron, quantisation of Super 3 and of
Ultra 3, which has Super's recipe (routed experts in NVFP4; shared experts and Mamba in FP8;
attention and latent projections in 16 bits).
"""
