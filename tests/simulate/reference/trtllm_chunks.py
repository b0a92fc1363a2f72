"""How is a budget of tokens split among contexts that do not all fit?

TensorRT-LLM's chunking policies in plain Python.
"""

from collections.abc import Sequence

from inferometer.simulate.trtllm_config import ChunkingPolicy


def chunk_sizes(
    remaining: Sequence[int], budget: int, unit: int, policy: ChunkingPolicy
) -> list[int]:
    """How many of its ``remaining`` tokens does each context compute now? 0 leaves it out."""
    return (
        _by_arrival(remaining, budget, unit)
        if policy == "FIRST_COME_FIRST_SERVED"
        else _in_lockstep(remaining, budget, unit)
    )


def _by_arrival(remaining: Sequence[int], budget: int, unit: int) -> list[int]:
    """Each in order takes what is left; a chunk that is not the last one is a whole number of units."""
    sizes = list[int]()
    for n_tokens in remaining:
        size = n_tokens if n_tokens <= budget else budget // unit * unit
        sizes.append(size)
        budget -= size
    return sizes


def _in_lockstep(remaining: Sequence[int], budget: int, unit: int) -> list[int]:
    """Each in turn takes one more unit, until nobody can."""
    sizes = [0] * len(remaining)
    grows = True
    while grows and budget > 0:
        grows = False
        for i, n_tokens in enumerate(remaining):
            more = min(unit, n_tokens - sizes[i])
            if 0 < more <= budget:
                sizes[i] += more
                budget -= more
                grows = True
    return sizes
