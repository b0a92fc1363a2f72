"""Which two replicas would a router draw for each request?

The same for all rules, paces and both simulators.
"""

import numpy as np

from inferometer.inputs.workload.substreams import uniforms
from inferometer.records.columns import I32


def router_draws(seed: int, n_requests: int, n_replicas: int) -> I32:
    """(N, 2) Two different replicas for each request, evenly; twice the same where there is only one.

    Example
    -------
    >>> draws = router_draws(0, 1000, 3)
    >>> bool((draws[:, 0] != draws[:, 1]).all())
    True
    """
    first = np.floor(uniforms(seed, "router", n_requests) * n_replicas).astype(np.int32)
    if n_replicas == 1:
        return np.stack([first, first], axis=1)
    second = np.floor(uniforms(seed, "router, second", n_requests) * (n_replicas - 1)).astype(
        np.int32
    )
    return np.stack([first, second + (second >= first)], axis=1).astype(np.int32)
