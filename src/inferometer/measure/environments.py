"""In which Python does an engine live, how is such a Python made, and what does no engine do?

Engines pin what other engines cannot have (vLLM its torch, OpenVINO none at all), so each may have
an interpreter of its own. The locks that say exactly what is in it ship with the package.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final, Literal, TypeAlias

from inferometer import suggestions
from inferometer.errors import EngineError, MissingEngineError, SpecError
from inferometer.inputs.types import DType, EngineName, EngineSpec

Where: TypeAlias = Literal["variable", "here", "managed"]

ENGINES_DIR: Final = "INFEROMETER_ENGINES_DIR"
"""Names the folder that holds the managed environments, ``.venv-<engine>`` each; without it, the
user's cache folder."""

LIBRARIES: Final[dict[EngineName, tuple[str, ...]]] = {
    "transformers": ("torch", "transformers"),
    "vllm": ("vllm",),
    "openvino": ("openvino_genai",),
}
"""Libraries that an interpreter needs to run an engine."""

_TORCH: Final = ("-r", "torch.lock")
_INSTALLS: Final[dict[EngineName, tuple[tuple[str, ...], ...]]] = {
    "transformers": (_TORCH, ("--no-deps", "-r", "transformers.lock")),
    "vllm": (_TORCH, ("--no-deps", "-r", "vllm.lock")),
    "openvino": (("--no-deps", "-r", "openvino.lock"),),
}
"""The arguments of ``pip install`` for each engine, in order."""

_COMPLETE: Final = "inferometer-complete"
"""A file written when everything is installed, with the hash of the locks: an installation that
was interrupted is none."""

_N_LAST_LINES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEnvironment:
    """An interpreter that can run an engine, and how we came to it."""

    engine: EngineName
    python: Path
    where: Where


def find_environment(engine: EngineName) -> EngineEnvironment:
    """Interpreter of this engine: from its variable, else this one, else the managed one.

    Raises
    ------
    SpecError
        The variable names no interpreter.
    MissingEngineError
        There is none; the message says how to get one.
    """
    variable = python_variable(engine)
    named = os.environ.get(variable)
    if named:
        if not os.access(named, os.X_OK) or Path(named).is_dir():
            raise SpecError(
                f"{named!r} is no program that can be run",
                where=variable,
                allowed="the path of a Python interpreter",
            )
        return EngineEnvironment(engine=engine, python=Path(named), where="variable")
    if all(importlib.util.find_spec(library) is not None for library in LIBRARIES[engine]):
        return EngineEnvironment(engine=engine, python=Path(sys.executable), where="here")
    folder = managed_folder(engine)
    if (folder / _COMPLETE).exists():
        return EngineEnvironment(engine=engine, python=_python_of(folder), where="managed")
    raise MissingEngineError(
        f"the engine {engine} is not installed: there is no {' or '.join(LIBRARIES[engine])} here,"
        f" and no environment in {folder}",
        where="the requested engine",
        allowed=(
            f"an interpreter that has it, named by {variable}, or a folder of environments, named"
            f" by {ENGINES_DIR}"
        ),
        try_=(
            f"{suggestions.command('engines', '--install', engine)} (an environment of its own), or"
            f" pip install 'inferometer[{engine}]' (beside inferometer)"
        ),
    )


def python_variable(engine: EngineName) -> str:
    """Environment variable that names this engine's interpreter.

    Example
    -------
    >>> python_variable("vllm")
    'INFEROMETER_VLLM_PYTHON'
    """
    return f"INFEROMETER_{engine.upper()}_PYTHON"


def managed_folder(engine: EngineName) -> Path:
    """Folder of this engine's managed environment, whether or not it exists."""
    named = os.environ.get(ENGINES_DIR)
    if named:
        return Path(named).absolute() / f".venv-{engine}"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (
        (Path(cache) if cache else Path.home() / ".cache")
        / "inferometer"
        / "engines"
        / f".venv-{engine}"
    )


def install_environment(
    engine: EngineName, *, say: Callable[[str], None] | None = None
) -> EngineEnvironment:
    """Make the managed environment of this engine from the locks that ship with the package.

    Made from the same, it is left alone.

    ``say`` is told what happens, step by step. What was there but not complete is completed.

    Raises
    ------
    EngineError
        The folder cannot be written, or pip failed; the message ends with its last lines.
    """
    folder = managed_folder(engine)
    found = EngineEnvironment(engine=engine, python=_python_of(folder), where="managed")
    complete = folder / _COMPLETE
    tell = say or _say_nothing
    try:
        with as_file(files("inferometer.measure") / "locks") as locks:
            fingerprint = _fingerprint(engine, locks)
            if complete.exists() and complete.read_text() == fingerprint:
                return found
            folder.parent.mkdir(parents=True, exist_ok=True)
            complete.unlink(missing_ok=True)
            if not found.python.exists():
                tell(f"making {folder}")
                _run(engine, [sys.executable, "-m", "venv", str(folder)])
            for arguments in _INSTALLS[engine]:
                tell(f"installing {_n_packages(locks / arguments[-1])} packages of {arguments[-1]}")
                _pip_install(engine, found.python, (*arguments[:-1], str(locks / arguments[-1])))
        complete.write_text(fingerprint)
    except OSError as error:
        raise EngineError(
            f"the environment of {engine} cannot be made: {error}",
            where=str(folder),
            try_=f"another {ENGINES_DIR}",
        ) from error
    return found


def _pip_install(engine: EngineName, python: Path, arguments: tuple[str, ...]) -> None:
    # In an environment that forbids bytecode vLLM takes 30 s to import instead of 6: let pip
    # compile.
    _run(
        engine,
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--compile",
            *arguments,
        ],
    )


def _run(engine: EngineName, command: list[str]) -> None:
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in {"PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME"}
    }
    done = subprocess.run(
        command,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stdout.decode(errors="replace").splitlines() if line.strip()]
        raise EngineError(
            f"the environment of {engine} could not be installed (exit code {done.returncode}); the"
            " last lines were:\n    " + "\n    ".join(lines[-_N_LAST_LINES:]),
            where=" ".join(command[:4]),
            try_="when that is mended, the same goes on where it stopped: "
            + suggestions.command("engines", "--install", engine),
        )


def _say_nothing(text: str) -> None:
    del text


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _fingerprint(engine: EngineName, locks: Path) -> str:
    content = b"".join((locks / arguments[-1]).read_bytes() for arguments in _INSTALLS[engine])
    return hashlib.sha256(content).hexdigest() + "\n"


def _n_packages(lock: Path) -> int:
    return sum(1 for line in lock.read_text().splitlines() if line[:1].isalnum())


# What do transformers and vLLM do on no machine? Known before torch is imported or anything is loaded.
# Whether torch sees the GPU, and whether that has bfloat16, only the engine itself finds out.


COMPUTES_IN: Final[tuple[DType, ...]] = ("float32", "float16", "bfloat16")
WEIGHT_FORMATS: Final[tuple[DType, ...]] = ("int8", "int4")
"""Those in which the transformers engine packs weights, on a CPU."""
MAX_SEQUENCES: Final = 256
"""``max_num_seqs`` of vLLM, and of OpenVINO: a larger batch would not run as one."""
_TRY_OPENVINO: Final = "--engine openvino, which keeps a GGUF's 4-bit weights"


def check_torch_spec(spec: EngineSpec) -> None:
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
    """Refuse a batch that the engine, vLLM or OpenVINO, would run in parts."""
    if spec.engine != "transformers" and batch_size > MAX_SEQUENCES:
        raise SpecError(
            f"a batch of {batch_size}",
            where="--batch-sizes",
            allowed=f"at most {MAX_SEQUENCES} on this engine",
            try_="--engine transformers",
        )


def check_attention(spec: EngineSpec) -> None:
    """Refuse another attention kernel than that of vLLM or OpenVINO."""
    if spec.attention is not None:
        raise SpecError(
            f"{_NAMES[spec.engine]} with the attention kernel {spec.attention!r}",
            where="--attn",
            allowed="its own paged attention, without --attn",
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
    check_attention(spec)
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
