"""What does the compiled router know?

Letters of shapes: N requests, R replicas, K contents, C classes.
"""

from typing import NamedTuple

import numpy as np

from inferometer.records.columns import I32, I64, Bools
from inferometer.simulate.cluster_config import ROUTERS, ClusterConfig, replicas_of_classes
from inferometer.simulate.demand import Demand
from inferometer.simulate.kernel.rows import Row, Rows, blank, f64, i64
from inferometer.simulate.router_draws import router_draws


class RouterRules(Row):
    """How does the router choose, and whom did it choose last?

    ``kind`` is the place in ``ROUTERS``; ``first`` the first of its replicas, from which it
    counts; ``last`` the one chosen last.
    """

    kind: i64
    first: i64
    last: i64
    balance_abs_threshold: i64
    report_interval_ns: i64
    next_report_ns: i64
    n_sent: i64
    cache_threshold_fraction: f64
    balance_rel_threshold_ratio: f64


class Report(Row):
    """What a replica reports as a step of it begins."""

    n_waiting: i64
    n_running: i64
    n_kv_blocks_used: i64


class RouterState(NamedTuple):
    """All arrays of one router; those that its rule does not ask for have no columns."""

    rules: Rows[RouterRules]
    """(1)"""
    draws: I32
    """(N, 2) ``router_draws``"""
    class_index: I32
    """(N)"""
    is_own: Bools
    """(C, R) May this class go to that replica?"""
    is_known: Bools
    """(R, K) Has this replica been sent a prompt with that content?"""
    n_known: I64
    """(R) How many contents?"""
    told: Rows[Report]
    """(R, or 0 where the rule asks for no reports), what each has reported last."""
    heard: Rows[Report]
    """(as told) What has come through of it, and those that were sent since as waiting."""


def new_router_state(requests: Demand, config: ClusterConfig, first: int = 0) -> RouterState:
    """A router that has sent nothing yet, to replicas from ``first`` on."""
    rules = blank(1, RouterRules)
    rules["kind"], rules["first"], rules["last"] = (
        ROUTERS.index(config.router),
        first,
        config.n_replicas - 1,
    )
    for name in (
        "report_interval_ns",
        "balance_abs_threshold",
        "cache_threshold_fraction",
        "balance_rel_threshold_ratio",
    ):
        rules[name] = getattr(config, name)
    is_drawing = config.router in {"random", "power-of-two"}
    n_reporting = config.n_replicas if config.router in {"vllm", "vllm-0.19"} else 0
    n_known = requests.n_contents if config.router == "prefix-affine" else 0
    return RouterState(
        rules=rules,
        draws=router_draws(
            config.seed, requests.n_requests if is_drawing else 0, config.n_replicas
        ),
        class_index=requests.class_index,
        is_own=_is_own(requests, config),
        is_known=np.zeros((config.n_replicas, n_known), np.bool_),
        n_known=np.zeros(config.n_replicas, np.int64),
        told=blank(n_reporting, Report),
        heard=blank(n_reporting, Report),
    )


def _is_own(requests: Demand, config: ClusterConfig) -> Bools:
    if config.router != "class-aware":
        return np.zeros((0, config.n_replicas), np.bool_)
    replicas = replicas_of_classes(config, int(requests.class_index.max()) + 1)
    is_own = np.zeros((len(replicas), config.n_replicas), np.bool_)
    for i_class, own in enumerate(replicas):
        is_own[i_class, list(own)] = True
    return is_own
