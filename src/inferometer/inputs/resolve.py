"""Resolution of MODEL: a folder, a file, a catalogue id or a Hugging Face id.

Nothing is downloaded and no network is used: an id is looked up in the local hub cache and in the
catalogue.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.catalog import close_models, known_model
from inferometer.inputs.foreign_bytes import Door, path_named
from inferometer.inputs.gguf import read_gguf_model
from inferometer.inputs.model_config import read_model_config
from inferometer.inputs.name_search import no_decoder
from inferometer.inputs.synonyms import named_weights
from inferometer.inputs.types import DTYPE_BITS, AskedFormat, DType, LoadFormat, ModelSpec

_REVISION: Final = Door(noun="name of a revision", allowed="one line of text", max_bytes=1000)
_PLAIN_BITS: Final = 16

ResolvedKind: TypeAlias = Literal["folder", "gguf", "catalog", "hub_cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """The model that MODEL names.

    ``path`` is the folder or file that an engine loads; None if only the architecture is known: from
    the catalogue, or from a configuration file of another name.
    """

    kind: ResolvedKind
    path: Path | None
    spec: ModelSpec
    weights_available: bool

    def quantization(self, asked: AskedFormat | None = None) -> DType | None:
        """Format of an engine's weights if it differs from that of the activations.

        As requested, else as published. The engines that are measured here widen GGUF weights.

        Example
        -------
        >>> resolve_model("deepseek-v3", load_format="dummy").quantization()
        'float8'
        """
        if asked is not None:
            return None if asked == "none" else asked
        stored = self.spec.checkpoint_dtype
        return (
            stored
            if stored is not None and DTYPE_BITS[stored] < _PLAIN_BITS and self.kind != "gguf"
            else None
        )


_OTHER_PROGRAMS: Final = re.compile(
    r"(?:\S*/)?(?:ollama|llama-(?:server|cli|bench)|lmdeploy|text-generation-launcher|mlx_lm\S*"
    r"|tritonserver|mlc_llm|lms|docker|python3?|llamafile|koboldcpp|tabbyapi)\s"
)
"""Programs that start other servers."""
_OLLAMA_TAG: Final = re.compile(r"[\w.-]+:[\w.-]+")
_AS_OLLAMA: Final = (
    "Weights as Ollama stores this name, in 4 bits; the published ones: --quantization none"
)
_WIDE: Final = frozenset(name for name, bits in DTYPE_BITS.items() if bits >= _PLAIN_BITS)
_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")


def resolve_model(
    text: str, *, load_format: LoadFormat, can_be_dummy: bool = True
) -> ResolvedModel:
    """The model that the text names, and its location; checks that it can be loaded.

    Parameters
    ----------
    can_be_dummy
        Whether random weights would suffice: only then does the error suggest them.

    Raises
    ------
    SpecError
        The name is unknown, its files cannot be read, or the weights that are needed are missing.

    Example
    -------
    >>> resolve_model("qwen2.5-0.5b", load_format="dummy").kind
    'catalog'
    """
    found = _local(text) or _cached(text) or _catalogued(text)
    if found is None:
        raise _unknown(text, load_format, can_be_dummy=can_be_dummy)
    if load_format == "auto" and not found.weights_available:
        raise _without_weights(text, found, can_be_dummy=can_be_dummy)
    return found


def hub_cache_folder() -> Path:
    """Folder of Hugging Face downloads on this machine.

    Source
    ------
    huggingface_hub, constants: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub.
    """
    if chosen := os.environ.get("HF_HUB_CACHE"):
        return Path(chosen).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(  # noqa: PTH118 -- "~"
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    return Path(home).expanduser() / "hub"


def _local(text: str) -> ResolvedModel | None:
    if not text.strip():
        raise SpecError(
            f"{text!r} is no model",
            where="MODEL",
            allowed="a folder, a GGUF file, a config.json or an id",
            try_=suggestions.command("catalog", "models"),
        )
    path = path_named(text, where="MODEL")
    if path.is_dir():
        return _folder(path, "folder")
    if path.is_file() and path.suffix.lower() == ".gguf":
        return ResolvedModel(
            kind="gguf", path=path, spec=read_gguf_model(path), weights_available=True
        )
    if path.is_file() and path.name == "config.json":
        return _folder(path.parent, "folder")
    if path.is_file() and path.suffix.lower() == ".json":
        # Engines load a folder by its config.json; that file and the weights may be another model's.
        return ResolvedModel(
            kind="folder", path=None, spec=read_model_config(path), weights_available=False
        )
    if path.is_file():
        raise SpecError(
            f"{path.name} is neither a GGUF file nor a configuration",
            where="MODEL",
            allowed="FOLDER, FILE.gguf or config.json",
        )
    looks_like_path = text.startswith((".", "/", "~")) or path.suffix.lower() in {".gguf", ".json"}
    if looks_like_path:
        raise SpecError(
            f"{text!r} does not exist",
            where="MODEL",
            allowed="a folder, a GGUF file, a config.json or an id",
            try_=suggestions.command("catalog", "models"),
        )
    return None


def _folder(folder: Path, kind: ResolvedKind) -> ResolvedModel:
    if (folder / "config.json").is_file():
        return ResolvedModel(
            kind=kind,
            path=folder,
            spec=read_model_config(folder),
            weights_available=_has_weights(folder),
        )
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return ResolvedModel(
            kind="gguf", path=files[0], spec=read_gguf_model(files[0]), weights_available=True
        )
    if files:
        raise SpecError(
            f"the folder has {len(files)} GGUF files",
            where=str(folder),
            allowed="one model",
            try_=f"MODEL = {files[0]}",
        )
    raise SpecError(
        "the folder has no config.json and no GGUF file",
        where=str(folder),
        allowed="a Hugging Face folder or a GGUF file",
        try_=suggestions.command("catalog", "models"),
    )


def _has_weights(folder: Path) -> bool:
    return any(
        next(folder.glob(pattern), None) is not None
        for pattern in ("*.safetensors", "pytorch_model*.bin")
    )


def _cached(text: str) -> ResolvedModel | None:
    """The newest snapshot of the hub's model in the local cache; None where there is none."""
    if text.count("/") != 1:
        return None
    repository = hub_cache_folder() / ("models--" + text.replace("/", "--"))
    named = repository / "refs" / "main"
    folders = (
        [repository / "snapshots" / _REVISION.text_of(named).strip()] if named.is_file() else []
    )
    folders += sorted((repository / "snapshots").glob("*"))
    usable = [folder for folder in folders if (folder / "config.json").is_file()]
    if not usable:
        return None
    found = _folder(usable[0], "hub_cache")
    return replace(found, spec=replace(found.spec, hf_id=text))


def _catalogued(text: str) -> ResolvedModel | None:
    model = known_model(text) or _quantized(text)
    if model is None:
        return None
    if _OLLAMA_TAG.fullmatch(text) and (model.checkpoint_dtype or "bfloat16") in _WIDE:
        model = replace(model, checkpoint_dtype="int4", note=_AS_OLLAMA)
    named = (
        replace(model, hf_id=text) if "/" in text else model
    )  # the served model is the requested one, not the variant of the catalogue
    return ResolvedModel(kind="catalog", path=None, spec=named, weights_available=False)


def _quantized(text: str) -> ModelSpec | None:
    """The catalogue's model in the format that a checkpoint's name ends in: `Qwen3-32B-FP8`.

    Not what vLLM's kernels of that format do not run: llama.cpp's files, bitsandbytes. Nor a model
    that is published in fewer bits itself, whose layers need not all have the format of the name.
    """
    weights = named_weights(text)
    base = None if weights is None else known_model(weights[0])
    is_of_others = re.search(r"bnb|gguf|q\d[_-]", text, re.IGNORECASE) is not None
    few = {str(dtype): dtype for dtype, bits in DTYPE_BITS.items() if bits < _PLAIN_BITS}
    if weights is None or base is None or base.checkpoint_dtype in few or is_of_others:
        return None
    stored = few.get(weights[1])
    return None if stored is None else replace(base, checkpoint_dtype=stored)


def _unknown(text: str, load_format: LoadFormat, *, can_be_dummy: bool) -> SpecError:
    if why := no_decoder(text):
        return SpecError(
            f"{text!r} is not answered for: {why}",
            where="MODEL",
            allowed="decoder-only language models, and servers of them",
            try_=suggestions.command("catalog", "models"),
        )
    if _OTHER_PROGRAMS.match(text):
        named = re.search(r"\S*[/:]\S+|(?<=-m )\S+", text)
        close = close_models(
            named[0].removesuffix("-GGUF").removesuffix(".gguf") if named else text
        )
        return SpecError(
            f"{text.split(maxsplit=1)[0]!r} starts no server that is simulated",
            where="MODEL",
            allowed="a model, or the start command of vLLM, SGLang or TensorRT-LLM",
            try_=f"did you mean {', '.join(close)}?" if named and close else "the model's name",
        )
    weights = named_weights(text)
    known = None if weights is None else known_model(weights[0])
    close = close_models(text)
    fetched = _fetched(text, needs_weights=load_format == "auto")
    # Verbs that need no weights have no --load-format.
    is_dummy_better = load_format == "auto" and can_be_dummy
    remark = " (catalogue: --load-format dummy)" if is_dummy_better else ""
    return SpecError(
        f"no model {text!r} is known on this machine",
        where="MODEL",
        allowed=(
            "a Hugging Face folder, a GGUF file, a config.json, an id in the local hub cache, a"
            " catalogue id, or a server's start command (`vllm serve MODEL ...`)"
        ),
        try_=(
            f"{known.model_id} {suggestions.flags('--quantization', weights[1])}{remark}"
            if weights is not None and known is not None
            else f"{fetched}did you mean {', '.join(close)}?{remark}"
            if close
            else fetched + suggestions.command("catalog", "models")
        ),
    )


def _fetched(text: str, *, needs_weights: bool) -> str:
    """Remedy for a name of the hub: download of the model, or only of its configuration."""
    if not _HUB_NAME.fullmatch(text) or text.lower().endswith("gguf"):
        return ""
    what = "" if needs_weights else " config.json"
    return f"hf download {text}{what}, then the same command; or "


def _without_weights(text: str, found: ResolvedModel, *, can_be_dummy: bool) -> SpecError:
    if found.kind == "catalog":
        what = (
            f"{text!r} is known to the catalogue ({found.spec.model_id}), but its weights are not"
            " on this machine"
        )
    else:
        what = f"{text!r} has a configuration but no weights"
    return SpecError(
        what,
        where="MODEL",
        allowed="a folder with *.safetensors, or a GGUF file",
        try_=(
            "--load-format dummy (true architecture, random weights: speed does not depend on their"
            " values)"
            if can_be_dummy
            else "download the weights, and give their folder"
        ),
    )
