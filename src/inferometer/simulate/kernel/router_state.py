"""What does the compiled router know?

Letters of shapes: N requests, R replicas, K contents, C classes.
"""

from typing import Final, NamedTuple

import numpy as np

from inferometer.simulate.cluster_config import ROUTERS, ClusterConfig, replicas_of_classes
from inferometer.simulate.demand import Demand
from inferometer.simulate.kernel.state import Records, Whole
from inferometer.simulate.router_draws import router_draws

RULES: Final = np.dtype(
    [
        *(
            (name, np.int64)
            for name in (
                "kind",
                "first",
                "last",
                "balance_abs_threshold",
                "report_interval_ns",
                "next_report_ns",
                "n_sent",
            )
        ),
        ("cache_threshold_fraction", np.float64),
        ("balance_rel_threshold_ratio", np.float64),
    ],
    align=True,
)
"""``kind`` is the place in ``ROUTERS``; ``first`` the first of its replicas, from which it
counts; ``last`` the one chosen last."""

REPORT: Final = np.dtype(
    [(name, np.int64) for name in ("n_waiting", "n_running", "n_kv_blocks_used")], align=True
)
"""What a replica says of itself as a step of it begins."""


class RouterState(NamedTuple):
    """All arrays of one router; those that its rule does not ask for have no columns."""

    rules: Records
    """(1) ``RULES``"""
    draws: Whole
    """(N, 2) ``router_draws``"""
    class_index: Whole
    """(N)"""
    is_own: Whole
    """(C, R) May this class go to that replica?"""
    is_known: Whole
    """(R, K) Has this replica been sent a prompt with that content?"""
    n_known: Whole
    """(R) How many contents?"""
    told: Records
    """(R, or 0 where the rule asks for no reports) ``REPORT``, what each has reported last."""
    heard: Records
    """(as told) What has come through of it, and those that were sent since as waiting."""


def new_router_state(requests: Demand, config: ClusterConfig, first: int = 0) -> RouterState:
    """A router that has sent nothing yet, to replicas from ``first`` on."""
    rules = np.zeros(1, RULES)
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
        told=np.zeros(n_reporting, REPORT),
        heard=np.zeros(n_reporting, REPORT),
    )


def _is_own(requests: Demand, config: ClusterConfig) -> Whole:
    if config.router != "class-aware":
        return np.zeros((0, config.n_replicas), np.bool_)
    replicas = replicas_of_classes(config, int(requests.class_index.max()) + 1)
    is_own = np.zeros((len(replicas), config.n_replicas), np.bool_)
    for i_class, own in enumerate(replicas):
        is_own[i_class, list(own)] = True
    return is_own
