"""Hugging Face folders made for engines that read nothing else, or read them faster.

A GGUF file is unpacked once, to float32, into the user's cache folder, under the SHA-256 of its
content. A catalogue entry becomes a folder with nothing but a configuration. What the cache holds
can be deleted at any time.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import GgufConfig

from inferometer.errors import EngineError, SpecError
from inferometer.inputs.gguf import hash_file
from inferometer.measure.engines.protocol import ModelReference
from inferometer.measure.engines.transformers_loading import HfConfig

_LAYOUT = "1"
"""Raised when what we write changes, so that an older folder is not taken for a new one."""

_SMALL_BYTES: Final = 2**29
"""Of a GGUF file: unpacked it takes up to eight times as much of the disk."""


def unpacked_if_small(model: ModelReference) -> ModelReference:
    """The model as a folder if it is a small GGUF file, else as it is.

    transformers takes 19 CPU seconds to read SmolLM2 of 135M parameters from a GGUF file, most of
    them for its list of tokens, and 0.3 from the unpacked folder. Every process of an engine reads
    it.
    """
    if model.kind != "gguf" or model.location is None:
        return model
    try:
        if Path(model.location).stat().st_size > _SMALL_BYTES:
            return model
        return replace(model, kind="folder", location=weights_folder(model))
    except (OSError, EngineError):  # no room, or no GGUF file: then its reader says what is wrong
        return model


def weights_folder(model: ModelReference) -> str:
    """A folder (or Hugging Face id) with configuration and weights.

    Raises
    ------
    SpecError
        The model has no weights.
    EngineError
        The GGUF file cannot be unpacked, or there is no room for it.
    """
    if model.location is None:
        raise SpecError(
            "a catalogue entry has no weights",
            where="--model",
            allowed="a folder or a GGUF file",
            try_="--load-format dummy",
        )
    if model.kind != "gguf":
        return model.location
    folder = unpacked_folder() / f"{hash_file(Path(model.location))[:32]}-{_LAYOUT}"
    if not folder.exists():
        try:
            write_whole(folder, lambda draft: _unpack(Path(str(model.location)), draft))
        except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
            raise EngineError(
                f"the GGUF file could not be unpacked: {error}",
                where=str(model.location),
                try_="a Hugging Face folder",
            ) from error
    return str(folder)


def config_folder(config: HfConfig) -> str:
    """A folder with nothing but this configuration, for random weights."""
    content = _config_json(config)
    folder = unpacked_folder() / f"config-{hashlib.sha256(content.encode()).hexdigest()[:32]}"
    if not folder.exists():
        write_whole(folder, lambda draft: _write_config(content, draft))
    return str(folder)


def _unpack(gguf: Path, folder: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent),
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    tensors = {name: tensor.detach().contiguous() for name, tensor in loaded.state_dict().items()}
    config: HfConfig = loaded.config
    if config.tie_word_embeddings:
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _write_config(_config_json(config), folder)


def _config_json(config: HfConfig) -> str:
    content = config.to_dict()
    content.pop("quantization_config", None)
    if not content.get("architectures"):
        with torch.device("meta"):
            content["architectures"] = [type(AutoModelForCausalLM.from_config(config)).__name__]
    return json.dumps(content, indent=1, default=str, sort_keys=True)


def _write_config(content: str, folder: Path) -> None:
    (folder / "config.json").write_text(content)


# Where do folders live that we can make again at any time, and how are they written so that
# nobody sees half of one?


def unpacked_folder() -> Path:
    """Folder of models that were rewritten for an engine, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "inferometer" / "unpacked"


def write_whole(folder: Path, write: Callable[[Path], None]) -> None:
    """Fill a folder by ``write``: it is either absent or complete, even with other writers."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=folder.parent))
    try:
        write(draft)
        try:
            draft.rename(folder)
        except OSError:
            if not folder.exists():  # else somebody was faster, with the same content
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
