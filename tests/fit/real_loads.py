"""Recorded load tests of real vLLM servers whose limits are known from their own configuration."""

from pathlib import Path

from inferometer.records.imports.llmservingsim import read_llmservingsim
from inferometer.records.reading import read_run

DATA = Path(__file__).parents[3] / "shared" / "data" / "llmservingsim-vllm-bench"
RTX4090 = Path(__file__).parent / "recorded_loads" / "vllm-rtx4090-llama-3.1-8b"
BLOCKS = 2588
"""``num_gpu_blocks`` of its configuration: one is never handed out."""


def rtx4090():
    """A server that is short of KV blocks."""
    return read_llmservingsim(RTX4090).run


def vllm_cpu(name):
    """A load test, ``low``, ``high`` or ``third``, of a server that schedules synchronously."""
    return read_run(Path(__file__).parent / "recorded_loads" / "vllm-cpu-smollm2-6-layers" / name)
