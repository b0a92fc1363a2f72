"""Do the plain gate and the compiled one do the same, call by call, whatever the rules?"""

import numpy as np
import pytest
from examples import examples
from gate_driver import CompiledGate, drive
from gate_strategies import gate_configs, gate_demands
from hypothesis import given, strategies as st
from reference.gate import Gate

from inferometer.simulate.demand import demand
from inferometer.simulate.gate_config import ClassRules, GateConfig, Reason, TenantRules


@st.composite
def passages(draw):
    config, requests = draw(gate_configs()), draw(gate_demands())
    service = draw(
        st.lists(st.integers(1, 50), min_size=requests.n_requests, max_size=requests.n_requests)
    )
    return config, requests, service, draw(st.integers(1, 4))


class Both:
    """Two gates in step; each answer of one is that of the other."""

    def __init__(self, requests, config):
        self.plain, self.compiled = Gate(requests, config), CompiledGate(requests, config)

    def __getattr__(self, name):
        plain, compiled = getattr(self.plain, name), getattr(self.compiled, name)
        if not callable(plain):
            assert plain == compiled, name
            return plain

        def call(*arguments):
            expected, said = plain(*arguments), compiled(*arguments)
            assert expected == said, (name, arguments)
            return expected

        return call


@examples(150)
@given(passages())
def test_both_forms_do_the_same(passage):
    check_both_forms(*passage)


@pytest.mark.slow
@pytest.mark.long
@examples(1000)
@given(passages())
def test_both_forms_do_the_same_whatever_the_rules(passage):
    check_both_forms(*passage)


def check_both_forms(config, requests, service, n_servers):
    gate = Both(requests, config)
    events, reasons = drive(gate, requests, service, n_servers)
    if config.order == "fair":
        assert [tenant.service for tenant in gate.plain._tenants] == gate.compiled.state.tenants[
            "service"
        ].tolist()
    fates = {
        kind: {event.index for event in events if event.what == kind}
        for kind in ("in", "gone", "refused", "shed")
    }
    assert sum(map(len, fates.values())) == len(set().union(*fates.values())) == requests.n_requests
    assert {i for i, reason in enumerate(reasons) if reason != Reason.NONE} == fates[
        "refused"
    ] | fates["shed"]


@pytest.mark.parametrize("order", ["shortest-remaining", "least-slack", "fair"])
def test_both_forms_do_the_same_for_long(order):
    """Heaps of many, buckets over minutes: beyond what Hypothesis draws."""
    rng = np.random.default_rng(5)
    n_requests = 600
    config = GateConfig(
        order=order,
        classes=(
            ClassRules(ttft_limit_ns=10**9, max_in_flight=2),
            ClassRules(window_ns=5 * 10**8, window_size=20, max_wait_ns=10**10),
        ),
        tenants=(
            TenantRules(weight=3),
            TenantRules(tokens_per_s=3_001, burst_tokens=4_000),
            TenantRules(tokens_per_s=7, burst_tokens=10**9),
        ),
        lateness="hopeless" if order == "least-slack" else "keep",
        first_token_per_prompt_token_ns=1e5,
    )
    requests = demand(
        np.sort(rng.integers(0, 3 * 10**10, n_requests)),
        rng.integers(1, 3_000, n_requests),
        rng.integers(1, 500, n_requests),
        class_index=rng.integers(0, 2, n_requests),
        tenant_index=rng.integers(0, 3, n_requests),
    )
    passage = drive(Both(requests, config), requests, rng.integers(10**6, 3 * 10**8, n_requests), 3)
    assert len(passage.released()) > n_requests // 4
