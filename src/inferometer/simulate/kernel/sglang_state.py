"""What does SGLang's compiled scheduler keep beside what all engines keep?"""

from typing import Final

import numpy as np

from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.kernel.rows import Row, Rows, blank, f64, i32, i64
from inferometer.simulate.sglang_config import SglangConfig

_NOBODY: Final = -1


class Node(Row):
    """A run of pages of the radix tree.

    ``start`` is where its first content is among all contents, ``born`` its place among its
    parent's children. ``weight`` and what follows it are scratch of the policy dfs-weight, 0 for
    nothing: nodes, and requests + 1.
    """

    start: i64
    parent: i32
    n_pages: i32
    lock_ref: i32
    n_children: i32
    previous: i32
    next: i32
    born: i32
    weight: i32
    first_child: i32
    next_sibling: i32
    first_waiting: i32
    last_waiting: i32


class Sglang(Row):
    """Where does SGLang's scheduler stand?

    ``cut`` is the request whose prompt is computed in part.
    """

    new_token_ratio: f64
    initial_new_token_ratio: f64
    least_new_token_ratio: f64
    new_token_ratio_decay: f64
    total_offset: f64
    current_offset: i64
    n_input_left: i64
    n_chunk_left: i64
    n_chosen: i64
    cut: i64
    n_generating: i64
    n_joining: i64
    is_batch_full: i64
    n_looks: i64
    n_turns: i64
    n_orders: i64
    n_drawn: i64
    n_born: i64
    n_evictable: i64
    first_unused_node: i64


def sglang_record(config: EngineConfig) -> Rows[Sglang]:
    """The record (1), or none (0) for other engines."""
    if not isinstance(config, SglangConfig):
        return blank(0, Sglang)
    record = blank(1, Sglang)
    record["new_token_ratio"] = record["initial_new_token_ratio"] = config.initial_new_token_ratio
    record["least_new_token_ratio"] = config.least_new_token_ratio
    record["new_token_ratio_decay"] = config.new_token_ratio_decay_ratio
    record["cut"] = _NOBODY
    record["first_unused_node"] = 1
    return record


def node_records(config: EngineConfig) -> Rows[Node]:
    """The root and room for a node for each page, chained through ``next``; none for other engines."""
    if not isinstance(config, SglangConfig):
        return blank(0, Node)
    nodes = blank(config.n_kv_blocks + 2, Node)
    nodes["next"][1:-1] = np.arange(2, len(nodes))
    return nodes
