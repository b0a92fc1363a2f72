"""Does the script of servers that other people run find what made-up servers have?"""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import between_servers
from between_servers import Value, servers_of, share_inside, spread_of

KIND = ("nvidia", "vllm", True)


def _values(log_slower, scatter, *, n_sources=40, kind=KIND, is_own=False, own=0.1):
    """Three loads of each source: one machine each, whose speed scatters."""
    rng = np.random.default_rng(7)
    machines = rng.normal(-log_slower, scatter, n_sources)
    return [
        Value(kind, f"{kind} {is_own} {k}", is_own, float(one + load), own, own)
        for k, one in enumerate(machines)
        for load in (-0.03, 0.0, 0.03)
    ]


def test_the_factor_and_the_scatter_of_servers_are_found():
    found = servers_of(KIND, _values(0.3, 0.2))
    assert (found.n_values, found.n_sources) == (120, 40)
    assert found.slower_ratio == pytest.approx(math.exp(0.3 * 40 / 42), rel=0.1)
    assert 0.13 < found.spread_ratio < 0.27


def test_few_sources_move_the_centre_less_and_have_no_narrower_a_spread_than_all():
    few, others = _values(0.3, 0.0, n_sources=3), _values(0.0, 0.2, kind=("amd", "vllm", True))
    found = servers_of(KIND, [*few, *others])
    assert found.slower_ratio == pytest.approx(math.exp(0.3 * 3 / 5), abs=0.01)
    assert found.spread_ratio >= spread_of([*few, *others], 0.0) - 0.05
    assert servers_of(KIND, _values(0.3, 0.0, n_sources=1)).slower_ratio == 1.0
    assert servers_of(("other", "sglang", False), few).slower_ratio == 1.0


def test_rows_of_their_own_do_not_move_the_factor_but_the_spread():
    """A model whose launch was measured on the device is as its rows say."""
    values = [*_values(0.2, 0.02), *_values(0.0, 0.02, is_own=True)]
    alone = servers_of(KIND, values[:120])
    assert servers_of(KIND, values).slower_ratio == alone.slower_ratio
    shift = math.log(alone.slower_ratio)
    assert share_inside(values, shift, alone.spread_ratio) > 0.86


def test_a_slow_dense_server_by_vllm_does_not_widen_what_is_capped():
    kind = ("nvidia", "vllm", False)
    assert (
        servers_of(kind, _values(0.0, 0.4, kind=kind)).spread_ratio == between_servers.CAPPED[kind]
    )
