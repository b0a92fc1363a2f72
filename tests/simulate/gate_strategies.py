"""Hypothesis strategies: gates with any rules, and requests that meet all of them."""

import numpy as np
from hypothesis import strategies as st

from inferometer.records.types import ABSENT
from inferometer.simulate.demand import demand
from inferometer.simulate.gate_config import ClassRules, GateConfig, TenantRules

ORDERS = ("fcfs", "priority", "shortest-remaining", "earliest-deadline", "least-slack", "fair")


def maybe(most, least=1):
    """No such rule, or a number."""
    return st.just(0) | st.integers(least, most)


@st.composite
def class_rules(draw):
    window_ns = draw(maybe(40))
    grows = draw(st.booleans()) if window_ns else False
    return ClassRules(
        priority=draw(st.none() | st.integers(-1, 2)),
        window_ns=window_ns,
        window_size=draw(maybe(4)) if window_ns else 0,
        widest_window_ns=window_ns + draw(st.integers(0, 60)) if grows else 0,
        widest_at=draw(st.integers(1, 5)) if grows else 0,
        max_in_flight=draw(maybe(3)),
        max_tokens=draw(maybe(12)),
        max_queue=draw(maybe(4)),
        max_wait_ns=draw(maybe(60)),
        ttft_limit_ns=draw(maybe(80)),
    )


@st.composite
def tenant_rules(draw, *, has_bucket=True):
    rate = draw(st.sampled_from([0, 100_000_000, 333_333_333, 2_000_000_007])) if has_bucket else 0
    return TenantRules(
        tokens_per_s=rate,
        burst_tokens=draw(st.integers(5, 80)) if rate else 0,
        weight=draw(st.integers(1, 4)),
    )


@st.composite
def gate_configs(draw, n_classes=3, n_tenants=3, **fixed):
    values = {
        "order": draw(st.sampled_from(ORDERS)),
        "has_bands": draw(st.booleans()),
        "lengths": draw(st.sampled_from(["declared", "oracle"])),
        "classes": tuple(draw(st.lists(class_rules(), min_size=n_classes, max_size=n_classes))),
        "tenants": tuple(draw(st.lists(tenant_rules(), min_size=n_tenants, max_size=n_tenants))),
        "max_queue": draw(maybe(8)),
        "max_queued_tokens": draw(maybe(200, 30)),
        "max_wait_ns": draw(maybe(100)),
        "lateness": draw(st.sampled_from(["keep", "passed", "hopeless"])),
        "first_token_ns": draw(maybe(10)),
        "first_token_per_prompt_token_ns": draw(st.sampled_from([0.0, 0.5, 1.7])),
        "output_token_weight": draw(st.integers(1, 3)),
        "oversized_above_tokens": 0 if "classes" in fixed else draw(maybe(30)),
        "oversized_class": 0 if "classes" in fixed else n_classes - 1,
    }
    return GateConfig(**(values | fixed))


@st.composite
def gate_demands(draw, n_classes=3, n_tenants=3, *, can_leave=True):
    n_requests = draw(st.integers(1, 30))

    def numbers():
        return np.array(
            draw(st.lists(st.integers(0, 200), min_size=n_requests, max_size=n_requests))
        )

    arrival, output, patience = np.sort(numbers()), 1 + numbers() % 15, numbers()
    return demand(
        arrival,
        1 + numbers() % 30,
        output,
        max_tokens=output + numbers() % 10,
        priority=numbers() % 3,
        class_index=numbers() % n_classes,
        tenant_index=numbers() % n_tenants,
        abort_ns=np.where(can_leave & (patience < 60), arrival + patience, ABSENT),
    )
