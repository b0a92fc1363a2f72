"""Do requests wait at the gate as long as theory says?

Tolerances are intervals across repetitions; bounds hold in every run.
"""

from itertools import combinations

import numpy as np
import pytest
from examples import examples
from gate_driver import CompiledGate, drive
from gate_strategies import gate_demands, tenant_rules
from hypothesis import given, strategies as st
from scipy import stats

from inferometer.simulate.compiling import entry
from inferometer.simulate.demand import demand
from inferometer.simulate.gate_config import NOTHING, ClassRules, GateConfig, TenantRules
from inferometer.simulate.kernel import gating
from inferometer.simulate.kernel.gate_state import new_gate_state
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.pointers import pointed
from inferometer.units import NS_PER_S

N_REPETITIONS, N_REQUESTS, N_WARM = 12, 20_000, 2_000
CONFIDENCE = 0.999
TOKEN_NS = 1_000


@entry
def serve(gate, arrival_ns, n_tokens, begun_ns):
    """A loop with one server and no idle time while somebody waits: when does each begin?"""
    n_come, inside, end_ns = 0, NOTHING, FAR_NS
    while n_come < len(arrival_ns) or inside != NOTHING:
        now_ns = end_ns if n_come == len(arrival_ns) else min(end_ns, arrival_ns[n_come])
        if inside != NOTHING and end_ns == now_ns:
            gating.ended(gate, inside, n_tokens[inside], now_ns)
            inside, end_ns = NOTHING, FAR_NS
        while n_come < len(arrival_ns) and arrival_ns[n_come] == now_ns:
            gating.offer(gate, n_come, now_ns)
            n_come += 1
        if inside == NOTHING:
            inside = gating.release(gate, now_ns, 1)
            if inside != NOTHING:
                begun_ns[inside] = now_ns
                end_ns = now_ns + n_tokens[inside] * TOKEN_NS


def waits_ns(config, lengths, arrival, **columns):
    """The wait of each: a request of so many tokens takes a microsecond for each of them."""
    requests = demand(arrival, np.ones(len(arrival)), lengths, **columns)
    begun = np.zeros(len(arrival), np.int64)
    serve(pointed(new_gate_state(requests, config)), requests.arrival_ns, lengths, begun)
    return begun - requests.arrival_ns


def interval(values):
    """Two-sided t interval of the mean of independent repetitions."""
    half = (
        stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1)
        * np.std(values, ddof=1)
        / np.sqrt(len(values))
    )
    return np.mean(values) - half, np.mean(values) + half


def cobham_ns(loads, mean_square_tokens2, rate_per_token):
    """Mean wait of each class, the most urgent first, nobody interrupted.

    W0 / ((1 - sigma before) (1 - sigma with it)) (Cobham 1954).
    """
    residual_ns = rate_per_token * mean_square_tokens2 / 2 * TOKEN_NS
    sigma = np.concatenate([[0], np.cumsum(loads)])
    return residual_ns / ((1 - sigma[:-1]) * (1 - sigma[1:]))


def geometric(rng, mean_tokens):
    return np.minimum(rng.geometric(1 / mean_tokens, N_REQUESTS), 10**6)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_priorities_wait_as_cobham_says(load):
    """M/M/1 in whole tokens, a third of the requests urgent: E[S^2] of a geometric length of mean m is m (2 m - 1)."""
    mean, share = 50, 1 / 3
    config = GateConfig(order="priority", classes=(ClassRules(priority=1), ClassRules(priority=0)))
    found = []
    for seed in range(N_REPETITIONS):
        rng = np.random.default_rng([17, seed])
        arrival = np.cumsum(rng.exponential(mean * TOKEN_NS / load, N_REQUESTS)).astype(np.int64)
        is_urgent = rng.random(N_REQUESTS) < share
        waited = waits_ns(config, geometric(rng, mean), arrival, class_index=is_urgent.astype(int))[
            N_WARM:
        ]
        found.append([waited[is_urgent[N_WARM:]].mean(), waited[~is_urgent[N_WARM:]].mean()])
    expected = cobham_ns([load * share, load * (1 - share)], mean * (2 * mean - 1), load / mean)
    for values, wait_ns in zip(np.transpose(found), expected, strict=True):
        low, high = interval(values)
        assert low <= wait_ns <= high
    assert expected[1] > 1.4 * expected[0]


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_shortest_first_waits_as_phipps_says(load):
    """Each length is a class of its own (Phipps 1956), and less in the mean than first come first served."""
    lengths, shares = np.array([1, 20, 100]), np.array([0.6, 0.3, 0.1])
    mean, mean_square = shares @ lengths, shares @ lengths**2
    shortest, first_come = [], []
    for seed in range(N_REPETITIONS):
        rng = np.random.default_rng([19, seed])
        arrival = np.cumsum(rng.exponential(mean * TOKEN_NS / load, N_REQUESTS)).astype(np.int64)
        drawn = rng.choice(lengths, N_REQUESTS, p=shares)
        shortest.append(
            waits_ns(GateConfig(order="shortest-remaining"), drawn, arrival)[N_WARM:].mean()
        )
        first_come.append(waits_ns(GateConfig(), drawn, arrival)[N_WARM:].mean())
    expected_ns = shares @ cobham_ns(load * shares * lengths / mean, mean_square, load / mean)
    low, high = interval(shortest)
    assert low <= expected_ns <= high
    low, high = interval(first_come)
    assert low <= load * mean_square * TOKEN_NS / (2 * mean * (1 - load)) <= high
    assert np.all(np.array(shortest) < first_come)


@examples(60)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=12),
    st.sampled_from(["fcfs", "shortest-remaining"]),
)
def test_no_order_has_a_smaller_worst_lateness_than_earliest_deadline(requests, order):
    """One server, all there at once (Jackson 1955)."""
    lengths, class_index = np.transpose(requests)
    classes = tuple(ClassRules(ttft_limit_ns=limit) for limit in (10_000, 30_000, 60_000, 100_000))
    limits = np.array([rules.ttft_limit_ns for rules in classes])[class_index]

    def worst_ns(order):
        config = GateConfig(order=order, classes=classes)
        return (
            waits_ns(config, lengths, np.zeros(len(lengths)), class_index=class_index)
            + lengths * TOKEN_NS
            - limits
        ).max()

    assert worst_ns("earliest-deadline") <= worst_ns(order)


@examples(60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_no_order_has_a_smaller_mean_wait_than_shortest_first(lengths):
    """One server, all there at once (Smith 1956)."""
    lengths, at_once = np.array(lengths), np.zeros(len(lengths))
    by_length = waits_ns(GateConfig(order="shortest-remaining"), lengths, at_once).sum()
    assert by_length <= waits_ns(GateConfig(), lengths, at_once).sum()
    assert by_length == (np.sort(lengths)[::-1] * np.arange(len(lengths))).sum() * TOKEN_NS


@st.composite
def backlogs(draw):
    """All there at once, three tenants with weights, lengths known to the gate."""
    n_requests = draw(st.integers(3, 60))
    numbers = st.lists(st.integers(0, 100), min_size=n_requests, max_size=n_requests)
    requests = demand(
        np.zeros(n_requests),
        1 + np.array(draw(numbers)),
        1 + np.array(draw(numbers)),
        tenant_index=np.array(draw(numbers)) % 3,
    )
    return requests, tuple(draw(st.lists(tenant_rules(has_bucket=False), min_size=3, max_size=3)))


ROUNDING = 1e-9
"""Of sums of thirds."""


@examples(300)
@given(backlogs(), st.integers(1, 3))
def test_tenants_who_wait_are_served_alike(backlog, n_servers):
    """While two tenants have somebody waiting, what one was served by its weight leads the other's by at most one of its requests.

    The bound of virtual token counters (Sheng et al. 2024) where lengths are known beforehand: what
    a single release charges.
    """
    requests, tenants = backlog
    config = GateConfig(order="fair", tenants=tenants)
    released = drive(
        CompiledGate(requests, config), requests, requests.output_tokens, n_servers
    ).released()
    price = requests.prompt_tokens + 2 * requests.output_tokens
    weights = np.array([rules.weight for rules in tenants])
    served, left = np.zeros(3), np.bincount(requests.tenant_index, minlength=3)
    most = (
        np.array([max(price[requests.tenant_index == tenant], default=0) for tenant in range(3)])
        / weights
    )
    for index in released:
        tenant = requests.tenant_index[index]
        for one, other in combinations(range(3), 2):
            if left[one] and left[other]:
                lead = served[one] - served[other]
                assert -most[other] - ROUNDING <= lead <= most[one] + ROUNDING
        served[tenant] += price[index] / weights[tenant]
        left[tenant] -= 1


def test_a_patient_tenant_is_not_starved():
    """One tenant sends three times what the other does and more than the server takes; each gets half while both wait."""
    rng = np.random.default_rng(2)
    n_requests = 4_000
    tenant = (rng.random(n_requests) < 0.25).astype(int)
    arrival = np.cumsum(rng.exponential(20 * TOKEN_NS, n_requests)).astype(np.int64)
    lengths = rng.integers(20, 180, n_requests)
    for order, least, most in (("fcfs", 0.2, 0.3), ("fair", 0.48, 0.52)):
        begun = arrival + waits_ns(GateConfig(order=order), lengths, arrival, tenant_index=tenant)
        in_time = begun < arrival[-1]
        assert least <= lengths[in_time & (tenant == 1)].sum() / lengths[in_time].sum() <= most


@st.composite
def throttled(draw):
    requests = draw(gate_demands(n_classes=1, can_leave=False))
    rules = TenantRules(
        tokens_per_s=draw(st.sampled_from([10**8, 333_333_333, 2 * 10**9 + 7])),
        burst_tokens=draw(st.integers(60, 90)),
    )
    return requests, (rules, TenantRules(), TenantRules())


@examples(300)
@given(throttled(), st.integers(1, 3))
def test_buckets_are_never_overdrawn_and_never_idle(case, n_servers):
    """In any time the tenant with a bucket gets at most the burst and what flows in.

    And each of its requests goes in at the first

    instant at which it is the tenant's turn, a server is free, and the bucket pays.
    """
    requests, tenants = case
    config = GateConfig(tenants=tenants)
    passage = drive(CompiledGate(requests, config), requests, requests.output_tokens, n_servers)
    price = requests.prompt_tokens + requests.max_tokens
    mine = [
        (now, index) for index, now in passage.times().items() if requests.tenant_index[index] == 0
    ]
    rate, burst = tenants[0].tokens_per_s, tenants[0].burst_tokens
    for begin in range(len(mine)):
        taken = np.cumsum([int(price[index]) for _, index in mine[begin:]])
        for (now, _), tokens in zip(mine[begin:], taken.tolist(), strict=True):
            assert tokens * NS_PER_S <= burst * NS_PER_S + rate * (now - mine[begin][0])
    is_free = free_servers(passage, requests, n_servers)
    level, last = burst * NS_PER_S, 0
    for (now, index), before in zip(mine, [0, *(now for now, _ in mine)], strict=False):
        asked = max(int(requests.arrival_ns[index]), before)
        for instant in range(asked, now):
            pays = (
                min(level + rate * (instant - last), burst * NS_PER_S)
                >= int(price[index]) * NS_PER_S
            )
            assert not (pays and is_free(instant))
        level = min(level + rate * (now - last), burst * NS_PER_S) - int(price[index]) * NS_PER_S
        last = now


def free_servers(passage, requests, n_servers):
    begun = [
        (now, now + int(requests.output_tokens[index])) for index, now in passage.times().items()
    ]
    return lambda instant: sum(begin <= instant < end for begin, end in begun) < n_servers
