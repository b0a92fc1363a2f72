"""How do tensor-parallel ranks come up, learn what to run, and go?

The worker is rank 0. It starts the others, and before each run tells them by a broadcast what
comes. They live as long as the pipe to their stdin is open: when rank 0 dies, however it dies, so
do they.
"""

import datetime as dt
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import torch
import torch.distributed as dist

from inferometer.inputs.types import EngineSpec
from inferometer.measure.engines.protocol import Load, ModelReference

MEMORY_EXIT: Final = 77
"""Exit code of a rank that ran out of memory."""
_PATIENCE: Final = dt.timedelta(days=1)
"""Ranks wait for commands in a collective: between two of them may lie a night."""
_RANK: Final = "INFEROMETER_RANK"


def rank_of_this_process() -> int | None:
    """Rank of this process; None outside a distributed group."""
    return int(os.environ[_RANK]) if _RANK in os.environ else None


def join(rank: int, n_ranks: int, store: Path, device: str) -> None:
    """Become a rank: returns when all of them are there."""
    os.environ |= {
        _RANK: str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(n_ranks),
    }
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend, init_method=store.as_uri(), rank=rank, world_size=n_ranks, timeout=_PATIENCE
    )


def receive() -> tuple[torch.Tensor, int]:
    """Wait for rank 0's next batch."""
    header = torch.zeros(3, dtype=torch.int64)
    dist.broadcast(header, src=0)
    batch_size, prompt_tokens, gen_tokens = (int(value) for value in header)
    ids = torch.zeros((batch_size, prompt_tokens), dtype=torch.int64)
    dist.broadcast(ids, src=0)
    return ids, gen_tokens


class Ranks:
    """The other ranks, seen from rank 0."""

    def __init__(
        self,
        processes: "tuple[subprocess.Popen[bytes], ...]",
        directory: "tempfile.TemporaryDirectory[str]",
    ) -> None:
        self._processes = processes
        self._directory = directory

    @classmethod
    def start(cls, spec: EngineSpec, model: ModelReference) -> "Ranks":
        """Start ranks 1 to n-1 and join them as rank 0."""
        directory = tempfile.TemporaryDirectory(
            prefix="inferometer-ranks-", ignore_cleanup_errors=True
        )
        store = Path(directory.name) / "store"
        load = msgspec.json.encode(Load(spec=spec, model=model)).decode()
        module = "inferometer.measure.engines.transformers_rank"
        processes = tuple(
            subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(rank), str(store), load],
                stdin=subprocess.PIPE,
            )
            for rank in range(1, spec.tensor_parallel_size)
        )
        join(0, spec.tensor_parallel_size, store, spec.device)
        return cls(processes, directory)

    def announce(self, prompt_ids: torch.Tensor, gen_tokens: int) -> None:
        """Send the next batch to the other ranks, and wait until all are ready."""
        dist.broadcast(torch.tensor([*prompt_ids.shape, gen_tokens], dtype=torch.int64), src=0)
        dist.broadcast(prompt_ids.contiguous(), src=0)
        dist.barrier()

    def ran_out_of_memory(self) -> bool:
        """Did one of the other ranks run out of memory?"""
        for process in self._processes:
            try:
                if process.wait(timeout=2) == MEMORY_EXIT:
                    return True
            except subprocess.TimeoutExpired:
                continue
        return False

    def close(self) -> None:
        """Let the other ranks exit."""
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()
            process.wait()
        self._directory.cleanup()
