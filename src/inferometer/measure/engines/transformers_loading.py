"""How does the transformers engine load a model: real or random weights, in how many bits?

Fewer bits are for weights only: activations keep their format. Rounding is to nearest without
calibration, on the symmetric grids of ``inferometer quality``; embeddings and the last layer stay.
The products are torch's own CPU kernels (``_weight_int8pack_mm``, ``_weight_int4pack_mm_for_cpu``).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor
from torch.nn import Linear, Module
from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.initialization import no_init_weights

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.config_writing import config_from_model
from inferometer.inputs.types import DType, EngineSpec, ModelSpec
from inferometer.measure import environments
from inferometer.measure.engines.protocol import ModelReference

HfConfig: TypeAlias = Any
"""A ``PreTrainedConfig``: its attributes are those of its file, known to nobody before."""
HfModel: TypeAlias = Any
"""A ``PreTrainedModel``, whose call signature differs from architecture to architecture."""
TORCH_DTYPE: Final[dict[DType, torch.dtype]] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
MAX_HASHED_BYTES: Final = 2 * 2**30
"""Larger weights are not hashed: it would take longer than the sweep."""
_WEIGHT_SUFFIXES: Final = (".safetensors", ".gguf", ".bin")


def check_spec(spec: EngineSpec) -> None:
    """Refuse settings that this engine does not support on this machine."""
    check_device(spec)
    environments.check_torch_spec(spec)
    if spec.dtype == "bfloat16" and spec.device == "cuda" and not torch.cuda.is_bf16_supported():
        raise environments.dtype_refusal(spec, ("float32", "float16"))


def check_device(spec: EngineSpec) -> None:
    """Refuse a GPU that torch does not see."""
    if spec.device == "cuda" and not torch.cuda.is_available():
        raise SpecError(
            "device 'cuda' is not on this machine",
            where="--device",
            allowed="cpu",
            try_="--device cpu",
        )


def read_config(model: ModelReference) -> HfConfig:
    """The model's Hugging Face configuration, from any source.

    Raises
    ------
    SpecError
        It cannot be read, or it is no decoder-only language model.
    """
    if model.location is None:
        if model.spec is None:
            raise SpecError(
                "a model without location and without architecture", where="the sweep's model"
            )
        return configuration_of(model.spec)
    try:
        folder, gguf = folder_and_gguf(model)
        config = AutoConfig.from_pretrained(folder, **gguf)
    except (OSError, ValueError) as error:
        raise SpecError(
            f"transformers cannot read the model {model.location!r}: {_first_line(error)}",
            where="--model",
            allowed="a Hugging Face folder or id in the local cache, or a GGUF file",
        ) from error
    if getattr(config, "is_encoder_decoder", False):
        raise SpecError(
            f"{model.location!r} is an encoder-decoder model",
            where="its configuration",
            allowed="decoder-only language models",
        )
    return config


def load_model(spec: EngineSpec, model: ModelReference, config: HfConfig, device: str) -> HfModel:
    """The model, ready for inference, on its device, in its dtype.

    Tensor-parallel ranks each get their shard.

    Raises
    ------
    EngineError
        transformers could not load it.
    """
    dtype = TORCH_DTYPE[spec.dtype]
    kernel: dict[str, Any] = (
        {} if spec.attention is None else {"attn_implementation": spec.attention}
    )
    is_sharded = spec.tensor_parallel_size > 1
    try:
        if spec.load_format == "dummy" or model.location is None:
            loaded = _random_model(config, dtype, "cpu" if is_sharded else device, kernel)
            if is_sharded:
                # Every rank drew the same numbers; each keeps its shard of them.
                loaded = type(loaded).from_pretrained(
                    None,
                    config=config,
                    state_dict=loaded.state_dict(),
                    dtype=dtype,
                    distributed_config=sharding(config, spec),
                    **kernel,
                )
        else:
            folder, gguf = folder_and_gguf(model)
            where: dict[str, Any] = (
                {"distributed_config": sharding(config, spec)}
                if is_sharded
                else {"device_map": device}
            )
            packed = {"quantization_config": GgufConfig(dequantize=True)} if gguf else {}
            loaded = AutoModelForCausalLM.from_pretrained(
                folder, config=config, dtype=dtype, **gguf, **packed, **where, **kernel
            )
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise EngineError(
            f"transformers could not load the model: {_first_line(error)}",
            where=str(model.location or "the catalogue"),
        ) from error
    return loaded.eval()


def sharding(config: HfConfig, spec: EngineSpec) -> DistributedConfig:
    """The tensor-parallel rules that apply: all, or all but attention's if heads do not divide."""
    if not replicated_parts(config, spec):
        return DistributedConfig(tp_size=spec.tensor_parallel_size, tp_plan="auto")
    plan = config.base_model_tp_plan or {}
    whole = {f"model.{name}": "replicate" for name in plan if ".self_attn." in name}
    return DistributedConfig(tp_size=spec.tensor_parallel_size, tp_plan=whole)


def replicated_parts(config: HfConfig, spec: EngineSpec) -> tuple[str, ...]:
    """Parts of the model that every tensor-parallel rank computes whole.

    Attention, where its heads do not divide among the ranks.
    """
    heads = (
        config.num_attention_heads,
        getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
    )
    return ("attention",) if any(n % spec.tensor_parallel_size for n in heads) else ()


def hash_weights(model: ModelReference) -> str | None:
    """SHA-256 of the weight files in order of name; None if none are here or they are too large."""
    if model.location is None:
        return None
    place = Path(model.location)
    candidates = sorted(place.iterdir()) if place.is_dir() else [place]
    files = [path for path in candidates if path.is_file() and path.suffix in _WEIGHT_SUFFIXES]
    if not files or sum(path.stat().st_size for path in files) > MAX_HASHED_BYTES:
        return None
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as weights:
            for chunk in iter(lambda: weights.read(2**22), b""):
                digest.update(chunk)
    return digest.hexdigest()


def distinct_parameters(loaded: HfModel) -> Iterator[torch.Tensor]:
    """Every parameter tensor once, tied embeddings too."""
    seen: set[int] = set()
    for parameter in loaded.parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            yield parameter


def _random_model(
    config: HfConfig, dtype: torch.dtype, device: str, kernel: dict[str, Any]
) -> HfModel:
    """The architecture with random weights, built on its device and in its format, without a copy.

    Values do not matter for speed, except that zeros draw less power and denormal ones are slow:
    uniform within the range of trained weights.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device), no_init_weights():
            loaded = AutoModelForCausalLM.from_config(config, dtype=dtype, **kernel)
    finally:
        torch.set_default_dtype(before)
    loaded.tie_weights()
    generator = torch.Generator(device=device).manual_seed(0)
    with torch.no_grad():
        for parameter in distinct_parameters(loaded):
            if parameter.dim() < 2:
                parameter.fill_(1.0)
            else:
                parameter.uniform_(-0.04, 0.04, generator=generator)
    return loaded


def folder_and_gguf(model: ModelReference) -> tuple[str, dict[str, str]]:
    """The folder, and as an argument the file in it, as transformers' loaders take them."""
    location = str(model.location)
    if model.kind == "gguf":
        return str(Path(location).parent), {"gguf_file": Path(location).name}
    return location, {}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def configuration_of(spec: ModelSpec) -> HfConfig:
    """The configuration that builds the entry's architecture.

    Raises
    ------
    SpecError
        Its architecture cannot be written down as a configuration, or this transformers does not
        know it.
    """
    fields = {
        name: value
        for name, value in config_from_model(spec).items()
        if name not in {"architectures", "model_type", "torch_dtype"}
    }
    try:
        return AutoConfig.for_model(spec.architecture, **fields)
    except ValueError as error:
        raise SpecError(
            f"transformers does not know the model type {spec.architecture!r}",
            where=f"the model {spec.model_id!r}",
            try_="a newer transformers, or a folder with the model's own config.json",
        ) from error


GROUP_SIZE: Final = 64
"""Weights of a row that share a scale in int4; a layer whose rows are no multiple stays as it is."""
_INT4_ROWS: Final = 16
"""The int4 kernel takes a multiple of this number of rows."""
_INT8_MOST, _INT4_MOST = 127, 7
_INT4_ZERO: Final = 8


class PackedLinear(Module):  # type: ignore[misc]  # torch has no types here
    """A linear layer whose weights are integers, with a scale for each row or group."""

    packed: Tensor
    scales: Tensor

    def __init__(self, linear: Linear, quantization: DType) -> None:
        super().__init__()
        self.n_weights = linear.weight.numel()
        self.is_int8 = quantization == "int8"
        weight = linear.weight.detach().float()
        packed, scales = _int8(weight) if self.is_int8 else _int4(weight)
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales.to(linear.weight.dtype))
        self.bias: Tensor | None = linear.bias

    @property
    def held_bytes(self) -> int:
        """Bytes of the packed weights and their scales."""
        return int(self.packed.nbytes + self.scales.nbytes)

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) to (…, outputs)."""
        rows = x.reshape(-1, x.shape[-1])
        if self.is_int8:
            out = torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scales)  # noqa: SLF001
        else:
            out = torch.ops.aten._weight_int4pack_mm_for_cpu(  # noqa: SLF001
                rows, self.packed, GROUP_SIZE, self.scales
            )
        out = out.reshape(*x.shape[:-1], out.shape[-1])
        return out if self.bias is None else out + self.bias


def pack_weights(model: HfModel, quantization: DType | None) -> HfModel:
    """The model with packed linear layers (in place); unchanged without a format."""
    if quantization is None:
        return model
    head = model.get_output_embeddings()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            is_plain = isinstance(child, Linear) and child is not head
            if is_plain and (quantization == "int8" or _fits_int4(child)):
                setattr(parent, name, PackedLinear(child, quantization))
    return model


def packed_sizes(model: HfModel) -> tuple[int, int]:
    """Bytes and number of packed weights, which no longer count as parameters."""
    packed = [one for one in model.modules() if isinstance(one, PackedLinear)]
    return sum(one.held_bytes for one in packed), sum(one.n_weights for one in packed)


def _fits_int4(linear: Linear) -> bool:
    return not linear.in_features % GROUP_SIZE and not linear.out_features % _INT4_ROWS


def _int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """(outputs, inputs) integers, (outputs,) scales."""
    scales = weight.abs().amax(-1).clamp_min(1e-12) / _INT8_MOST
    return (weight / scales[:, None]).round().to(torch.int8), scales


def _int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The kernel's own layout of integers; (groups, outputs, 2) scales and offsets, which are 0."""
    n_outputs = weight.shape[0]
    groups = weight.reshape(n_outputs, -1, GROUP_SIZE)
    scales = groups.abs().amax(-1).clamp_min(1e-12) / _INT4_MOST
    codes = (groups / scales[..., None]).round().to(torch.int32) + _INT4_ZERO
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(  # noqa: SLF001
        codes.reshape(n_outputs, -1), 1
    )
    pairs = torch.stack([scales.T, torch.zeros_like(scales.T)], dim=-1)
    return packed, pairs.contiguous()
