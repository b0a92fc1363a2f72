"""With which interpreter, variables and patience is an engine's process run?"""

import os
import sys
from dataclasses import dataclass
from typing import Final

_INHERITED: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "USER",
    "LD_LIBRARY_PATH",
    "CC",
    "CXX",
    "XDG_CACHE_HOME",
)
_INHERITED_PREFIXES: Final = (
    "CUDA_",
    "NVIDIA_",
    "HF_",
    "VLLM_",
    "TORCH",
    "OMP_",
    "KMP_",
    "GOMP_",
    "MKL_",
    "OPENBLAS_",
    "NCCL_",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """With which interpreter and how patiently is an engine run?"""

    python: str = sys.executable
    variables: tuple[tuple[str, str], ...] = ()
    """Besides those of ``worker_variables``, and stronger."""
    load_timeout_s: float = 1800.0
    reply_timeout_s: float = 1800.0
    """Silence for longer than this is a hang. A compilation of many minutes is not."""
    memory_limit_bytes: int | None = None
    """Address space that the worker may use (RLIMIT_AS)."""


def worker_variables(
    n_threads: int | None, extra: tuple[tuple[str, str], ...] = ()
) -> dict[str, str]:
    """With which environment variables does an engine run?

    An allow-list of the shell's, then ours, then ``extra``.

    OMP_WAIT_POLICY=passive: a thread that spins at a barrier while a neighbour has its core makes a
    step 15 to 80 times slower; sleeping costs nothing that can be measured.
    """
    variables = {
        name: value
        for name, value in os.environ.items()
        if name in _INHERITED or name.startswith(_INHERITED_PREFIXES)
    }
    variables.setdefault("HF_HUB_OFFLINE", "1")
    variables |= {
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    if n_threads is not None:
        variables |= {
            name: str(n_threads)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        }
    return variables | dict(extra)
