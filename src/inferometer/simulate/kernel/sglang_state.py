"""What does SGLang's compiled scheduler keep beside what all engines keep?"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.sglang_config import SglangConfig

_NOBODY: Final = -1

NODE: Final = np.dtype(
    [
        ("start", np.int64),
        *(
            (name, np.int32)
            for name in ("parent", "n_pages", "lock_ref", "n_children", "previous", "next", "born")
        ),
        *(
            (name, np.int32)
            for name in ("weight", "first_child", "next_sibling", "first_waiting", "last_waiting")
        ),
    ],
    align=True,
)
"""A run of pages of the radix tree; ``start`` is where its first content is among all contents,
``born`` its place among its parent's children. ``weight`` and what follows it are scratch of the
policy dfs-weight, 0 for nothing: nodes, and requests + 1."""

SGLANG: Final = np.dtype(
    [
        *(
            (name, np.float64)
            for name in (
                "new_token_ratio",
                "initial_new_token_ratio",
                "least_new_token_ratio",
                "new_token_ratio_decay",
            )
        ),
        ("total_offset", np.float64),
        *(
            (name, np.int64)
            for name in (
                "current_offset",
                "n_input_left",
                "n_chunk_left",
                "n_chosen",
                "cut",
                "n_generating",
                "n_joining",
                "is_batch_full",
                "n_looks",
                "n_turns",
                "n_orders",
                "n_drawn",
                "n_born",
                "n_evictable",
                "first_unused_node",
            )
        ),
    ],
    align=True,
)
"""``cut`` is the request whose prompt is computed in part."""


def sglang_record(config: EngineConfig) -> NDArray[Any]:
    """The record (1), or none (0) for other engines."""
    if not isinstance(config, SglangConfig):
        return np.zeros(0, SGLANG)
    record = np.zeros(1, SGLANG)
    record["new_token_ratio"] = record["initial_new_token_ratio"] = config.initial_new_token_ratio
    record["least_new_token_ratio"] = config.least_new_token_ratio
    record["new_token_ratio_decay"] = config.new_token_ratio_decay_ratio
    record["cut"] = _NOBODY
    record["first_unused_node"] = 1
    return record


def node_records(config: EngineConfig) -> NDArray[Any]:
    """The root and room for a node for each page, chained through ``next``; none for other engines."""
    if not isinstance(config, SglangConfig):
        return np.zeros(0, NODE)
    nodes = np.zeros(config.n_kv_blocks + 2, NODE)
    nodes["next"][1:-1] = np.arange(2, len(nodes))
    return nodes
