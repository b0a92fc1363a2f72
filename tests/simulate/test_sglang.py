"""Is SGLang's scheduler simulated by its rules, and alike by both simulators?"""

import numpy as np
import pytest
from examples import examples
from hypothesis import given, strategies as st
from reference.sglang import SglangScheduler
from reference.sglang_tree import RadixTree
from reference.simulator import simulate_plainly
from simulator_strategies import assert_equal, costs, demands

from inferometer.errors import SpecError
from inferometer.records.types import RequestStatus
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.outcome import Outcome
from inferometer.simulate.run import simulate
from inferometer.simulate.sglang_config import QUEUE_ORDERS, SglangConfig
from inferometer.simulate.simulated_run import cautions_of
from inferometer.simulate.step_cost import linear_cost

COST = linear_cost(launch_s=1e-3)
MS = 1_000_000


@st.composite
def configs(draw, spare_pages=(0, 1, 3, 10, 100)):
    page_size = draw(st.sampled_from([1, 2, 4, 16]))
    context_length = draw(st.integers(12, 70))
    disable_radix_cache = draw(st.booleans())
    n_pages = -(-context_length // page_size) + draw(st.sampled_from(spare_pages))
    n_slots = draw(st.integers(1, 12))
    n_chunk = draw(st.sampled_from([1, 4, 16])) * page_size if draw(st.booleans()) else -1
    schedule_policy = draw(st.sampled_from(QUEUE_ORDERS))
    return SglangConfig(
        max_total_num_tokens=n_pages * page_size,
        context_length=context_length,
        max_running_requests=n_slots,
        page_size=page_size,
        chunked_prefill_size=n_chunk,
        max_prefill_tokens=draw(st.sampled_from([8, 32, 256])),
        schedule_policy=schedule_policy,
        radix_eviction_policy=draw(st.sampled_from(["lru", "fifo"])),
        enable_mixed_chunk=n_chunk >= n_slots and draw(st.booleans()),
        random_seed=draw(st.integers(0, 3)),
        enable_priority_scheduling=schedule_policy in {"fcfs", "lof"} and draw(st.booleans()),
        disable_priority_preemption=draw(st.sampled_from([False, False, True])),
        schedule_low_priority_values_first=draw(st.booleans()),
        priority_scheduling_preemption_threshold=draw(st.sampled_from([0, 0, 1, 10])),
        schedule_conservativeness_ratio=draw(st.sampled_from([0.05, 0.5, 1.0, 1.5])),
        ignore_eos=not disable_radix_cache and draw(st.booleans()),
        disable_radix_cache=disable_radix_cache,
        disable_overlap_schedule=draw(st.booleans()),
    )


@st.composite
def settings_of_a_run(draw, spare_pages=(0, 1, 3, 10, 100), **kinds):
    config = draw(configs(spare_pages))
    return config, draw(demands(config, **kinds)), draw(costs())


def run_of(config, requests):
    """Both simulators' result, which is one."""
    fast = simulate(requests, config, COST, record_parts=True)
    assert_equal(fast, simulate_plainly(requests, config, COST, record_parts=True))
    return fast


@examples(400)
@given(settings_of_a_run(), st.none() | st.integers(0, 1500))
def test_kernel_equals_reference(run, until_ns):
    config, requests, cost = run
    fast = simulate(requests, config, cost, until_ns=until_ns, record_parts=True)
    assert_equal(
        fast, simulate_plainly(requests, config, cost, until_ns=until_ns, record_parts=True)
    )


@pytest.mark.parametrize(
    ("policy", "page_size"),
    [("fcfs", 1), ("fcfs", 16), ("lpm", 1), ("dfs-weight", 16), ("lof", 1), ("random", 16)],
)
def test_kernel_equals_reference_at_size(policy, page_size):
    """Requests that share prefixes, more of them than the cache holds: hits, evictions, retractions and long queues."""
    rng = np.random.default_rng(5)
    n_requests = 300
    arrival = np.cumsum(rng.exponential(1e6, n_requests)).astype(np.int64)
    requests = demand(
        arrival,
        rng.integers(1, 400, n_requests),
        rng.integers(1, 120, n_requests),
        max_tokens=np.full(n_requests, 150),
    )
    n_shared = (
        rng.integers(0, 300, n_requests) // page_size % (requests.prompt_tokens // page_size + 1)
    )
    families = rng.integers(0, 9, n_requests)
    ids = np.concatenate(
        [family * 1000 + np.arange(n) for family, n in zip(families, n_shared, strict=True)]
    )
    requests = with_contents(
        requests, page_size, SharedBlocks(start=np.concatenate([[0], np.cumsum(n_shared)]), ids=ids)
    )
    config = SglangConfig(
        max_total_num_tokens=4000,
        context_length=2048,
        max_running_requests=64,
        page_size=page_size,
        chunked_prefill_size=512,
        schedule_policy=policy,
        schedule_conservativeness_ratio=0.05,
    )
    run = run_of(config, requests)
    assert run.outcome is Outcome.FINISHED
    assert run.requests.n_preemptions.sum() > 0 or policy not in {"fcfs", "lpm"}
    assert run.requests.cached_tokens.sum() > 1000
    assert run.steps.n_waiting_requests.max() > 128


@examples(200)
@given(settings_of_a_run(spare_pages=(2, 3, 10, 100)))
def test_every_request_is_served(run):
    """Where there is a page more than the longest request needs: SGLang wants it for each."""
    config, requests, cost = run
    run = simulate(requests, config, cost)
    table, steps = run.requests, run.steps
    assert run.outcome is Outcome.FINISHED
    prompt, said, most = (
        getattr(requests, name)[table.request_index]
        for name in ("prompt_tokens", "output_tokens", "max_tokens")
    )
    is_done = np.isin(table.status, (RequestStatus.STOPPED, RequestStatus.LENGTH))
    allowed = np.array(
        [max(config.max_new_tokens(int(n), int(m)), 1) for n, m in zip(prompt, most, strict=True)]
    )
    assert np.array_equal(table.output_tokens[is_done], np.minimum(said, allowed)[is_done])
    assert config.enable_mixed_chunk or np.all(
        (steps.n_prefill_requests == 0) | (steps.n_decode_requests == 0)
    )
    assert np.all(steps.n_prefill_requests + steps.n_decode_requests <= config.max_running_requests)
    assert np.all(steps.kv_blocks_used <= config.n_kv_blocks)
    if config.chunked_prefill_size != -1:
        assert np.all(steps.prefill_tokens <= config.chunked_prefill_size)


@examples(200)
@given(settings_of_a_run(spare_pages=(2, 3, 10, 100), can_abort=False, can_stop=False))
def test_tokens_are_conserved(run):
    """Whoever is never thrown out computes what was not cached of its prompt and each output but the last once, and no more."""
    config, requests, cost = run
    run = simulate(requests, config, cost)
    table, steps = run.requests, run.steps
    if table.n_preemptions.any():
        return
    needed = (table.prompt_tokens + table.output_tokens - 1 - table.cached_tokens)[
        table.status != RequestStatus.REJECTED
    ].sum()
    assert (steps.prefill_tokens + steps.n_decode_requests).sum() == needed


@examples(100)
@given(settings_of_a_run())
def test_pages_are_never_owned_twice_nor_lost(run):
    config, requests, cost = run
    schedule = SglangScheduler.schedule

    def checked(scheduler, now_ns):
        batch = schedule(scheduler, now_ns)
        cache = scheduler.cache
        nodes = set(cache.tree._node_of.values())
        contents = [content for node in nodes for content in node.contents]
        assert len(contents) == len(set(contents))
        assert cache.tree.n_evictable_pages == sum(
            len(node.contents) for node in nodes if node.lock_ref == 0
        )
        own = sum(row.n_pages - row.n_protected for row in cache.rows.values())
        assert cache.n_free_pages + len(contents) + own == config.n_kv_blocks
        assert cache.n_free_pages >= 0
        for node in nodes:
            n_users = sum(node in path_of(row.node) for row in cache.rows.values())
            assert node.lock_ref == n_users
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SglangScheduler, "schedule", checked)
        simulate_plainly(requests, config, cost)


def path_of(node):
    path = []
    while node is not None:
        path.append(node)
        node = node.parent
    return path


PLAIN = SglangConfig(
    max_total_num_tokens=1000,
    context_length=500,
    disable_overlap_schedule=True,
    disable_radix_cache=True,
)
TIGHT = SglangConfig(
    max_total_num_tokens=64,
    context_length=64,
    disable_overlap_schedule=True,
    disable_radix_cache=True,
    schedule_conservativeness_ratio=0.05,
)


def test_prompts_stall_those_who_generate():
    """The first request has said two tokens when prompts of 150 and 30 come.

    Three steps of up to 64 tokens go by without a third.
    """
    config = SglangConfig(
        max_total_num_tokens=1000,
        context_length=500,
        chunked_prefill_size=64,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
    )
    run = run_of(config, demand([0, 2 * MS, 2 * MS], [20, 150, 30], [8, 4, 4]))
    assert run.steps.prefill_tokens.tolist() == [20, 0, 64, 64, 22 + 30, 0, 0, 0, 0, 0, 0]
    assert run.steps.n_decode_requests.tolist() == [0, 1, 0, 0, 0, 3, 3, 3, 1, 1, 1]
    assert (run.requests.first_token_ns // MS).tolist() == [1, 5, 5]
    assert (run.requests.finished_ns // MS).tolist() == [11, 8, 8]


def test_mixed_chunks_let_those_who_generate_go_on():
    """Who generates takes one of eight tokens.

    Request 1 computes seven of its twelve, then five, and then both generate.
    """
    memory = {"max_total_num_tokens": 200, "context_length": 100, "disable_overlap_schedule": True}
    config = SglangConfig(
        **memory, max_running_requests=4, chunked_prefill_size=8, enable_mixed_chunk=True
    )
    found = run_of(config, demand([0, MS // 2], [4, 12], [5, 2]))
    parts = found.parts
    assert list(
        zip(parts.step_index, parts.request_index, parts.n_computed_tokens, strict=True)
    ) == [
        *[(0, 0, 4), (1, 1, 7), (1, 0, 1), (2, 1, 5), (2, 0, 1)],
        *[(3, 1, 1), (3, 0, 1), (4, 0, 1)],
    ]
    assert found.requests.finished_ns.tolist() == [5 * MS, 4 * MS]


@pytest.mark.parametrize(
    ("urgency", "finished_ms", "n_preempted"), [(20, [12, 4], 1), (10, [10, 12], 0)]
)
def test_who_is_much_more_urgent_takes_the_place_of_who_generates(
    urgency, finished_ms, n_preempted
):
    """More than the threshold of 10.

    Request 0 goes with two tokens said, computes them again with its prompt, and says eight more.
    """
    config = SglangConfig(
        max_total_num_tokens=200,
        context_length=100,
        max_running_requests=1,
        disable_overlap_schedule=True,
        enable_priority_scheduling=True,
    )
    found = run_of(config, demand([0, 3 * MS // 2], [4, 3], [10, 2], priority=[0, urgency]))
    assert found.requests.finished_ns.tolist() == [n * MS for n in finished_ms]
    assert found.requests.n_preemptions.tolist() == [n_preempted, 0]


def test_the_most_urgent_waits_least_of_equals_the_first():
    found = {}
    for low_first in (False, True):
        config = SglangConfig(
            max_total_num_tokens=200,
            context_length=100,
            max_running_requests=1,
            enable_priority_scheduling=True,
            schedule_low_priority_values_first=low_first,
        )
        simulation = run_of(
            config, demand([0, 1, 2, 3, 4], [4] * 5, [3] * 5, priority=[9, 1, 3, 1, 3])
        )
        found[low_first] = np.argsort(simulation.requests.admitted_ns).tolist()
        assert [caution.code for caution in cautions_of(simulation, config)] == ["priorities"] * (
            not low_first
        )
    assert found == {False: [0, 2, 4, 1, 3], True: [0, 1, 3, 2, 4]}


def test_who_has_said_least_is_thrown_out():
    """64 tokens of cache; the third request came last and has said least, though its prompt is the shortest."""
    requests = demand([0, MS, 6 * MS], [10, 12, 6], [30, 30, 24])
    assert next(gone for _, _, gone in ratios_of(TIGHT, requests) if gone) == [2]
    assert run_of(TIGHT, requests).requests.n_preemptions[2] == 1


def test_of_those_who_have_said_as_much_the_longest_prompt_goes():
    """One after the other, without a pause.

    Prompts stall all others, so that all have said 13 tokens when the cache is full.
    """
    run = run_of(TIGHT, demand([0, MS, 2 * MS], [10, 12, 6], [30, 30, 24]))
    assert run.requests.n_preemptions.tolist() == [0, 1, 0]
    assert run.steps.kv_blocks_used[14] == 64
    assert run.steps.n_preempted_requests.nonzero()[0].tolist() == [15]
    again = run.steps.n_prefill_requests.nonzero()[0][-1]
    assert (
        run.steps.prefill_tokens[again] == 12 + 13
    )  # what it had said is computed again with its prompt
    assert run.requests.admitted_ns[1] == 1 * MS


def ratios_of(config, requests):
    """``new_token_ratio`` after each call of ``schedule``, who generated then, and who was thrown out."""
    seen, schedule = [], SglangScheduler.schedule

    def noted(scheduler, now_ns):
        batch = schedule(scheduler, now_ns)
        seen.append(
            (
                scheduler.new_token_ratio,
                list(scheduler.running),
                [request.index for request in batch.preempted],
            )
        )
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SglangScheduler, "schedule", noted)
        simulate_plainly(requests, config, COST)
    return seen


def test_the_expected_share_of_new_tokens_decays_and_starts_anew_after_a_rest():
    """From 0.7 to 0.098 in 600 steps that generate; a prompt's step changes nothing."""
    seen = [ratio for ratio, _, _ in ratios_of(PLAIN, demand([0, 10**12], [10, 10], [5, 2]))]
    decay = (0.7 - 0.098) / 600
    assert seen == pytest.approx(
        [0.7, 0.7 - decay, 0.7 - 2 * decay, 0.7 - 3 * decay, 0.7 - 4 * decay, 0.7, 0.7 - decay]
    )
    long = SglangConfig(
        max_total_num_tokens=2000, context_length=1000, disable_overlap_schedule=True
    )
    assert ratios_of(long, demand([0], [10], [700]))[-1][0] == pytest.approx(0.098)


def test_after_somebody_was_thrown_out_more_is_expected():
    """(tokens said + 20 each) / (tokens allowed + 1) of those who stay.

    13 + 13 + 40 of 30 + 24 + 1 would be more than all.
    """
    seen = ratios_of(TIGHT, demand([0, MS, 2 * MS], [10, 12, 6], [30, 30, 24]))
    ((ratio, running, gone),) = [(ratio, running, gone) for ratio, running, gone in seen if gone]
    assert gone == [1]
    assert [request.index for request in running] == [2, 0]
    assert ratio == 1.0
    config = SglangConfig(
        max_total_num_tokens=250,
        context_length=250,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        schedule_conservativeness_ratio=0.05,
    )
    ratios = ratios_of(config, demand([0, MS], [10, 10], [200, 200]))
    ((ratio, _, gone),) = [row for row in ratios if row[2]]
    assert gone == [1]
    assert ratio == pytest.approx(
        (116 + 20) / 201
    )  # 20 tokens of prompts, then 115 steps of two fill the cache


def test_overlap_knows_the_last_allowed_token_but_not_the_stop_token():
    config = SglangConfig(max_total_num_tokens=1000, context_length=500)
    assert (
        run_of(config, demand([0], [10], [3], max_tokens=[10])).steps.n_decode_requests.sum() == 3
    )
    assert run_of(config, demand([0], [10], [3])).steps.n_decode_requests.sum() == 2


def test_prefixes_are_found_again_but_for_the_last_token():
    shared = SharedBlocks(
        start=np.array([0, 8, 16, 26]), ids=np.array([*range(8), *range(8), *range(8), 100, 101])
    )
    requests = with_contents(demand([0, 20 * MS, 40 * MS], [10, 12, 8], [4, 4, 2]), 1, shared)
    config = SglangConfig(
        max_total_num_tokens=100, context_length=40, disable_overlap_schedule=True
    )
    assert run_of(config, requests).requests.cached_tokens.tolist() == [0, 8, 7]


def test_the_queue_goes_by_the_longest_prefix():
    """A first request leaves 200 tokens in the cache.

    Of three that come together, which start as it did with 50, 150 and 100 tokens,

    the second goes first, the first last.
    """
    start, ids = [0], []
    for n_same in (200, 50, 150, 100):
        ids += range(n_same)
        start.append(len(ids))
    shared = SharedBlocks(start=np.array(start), ids=np.array(ids))
    requests = with_contents(
        demand([0, 20 * MS, 20 * MS, 20 * MS], [200, 210, 210, 210], [2, 2, 2, 2]), 1, shared
    )
    for policy, admitted in (("lpm", [0, 22, 20, 20]), ("fcfs", [0, 20, 22, 22])):
        config = SglangConfig(
            max_total_num_tokens=3000,
            context_length=500,
            chunked_prefill_size=-1,
            max_prefill_tokens=175,
            schedule_policy=policy,
            disable_overlap_schedule=True,
        )
        run = run_of(config, requests)
        assert run.requests.cached_tokens.tolist() == [0, 50, 150, 100]
        order = np.argsort(run.requests.admitted_ns[1:], kind="stable")
        assert order.tolist() == ([1, 2, 0] if policy == "lpm" else [0, 1, 2]), admitted


def one_after_the_other(requests, **knobs):
    """In which order are these admitted by a server that computes one prompt at a time?"""
    config = SglangConfig(
        max_total_num_tokens=5000,
        context_length=500,
        max_running_requests=1,
        chunked_prefill_size=-1,
        disable_overlap_schedule=True,
        **knobs,
    )
    run = run_of(config, requests)
    assert run.outcome is Outcome.FINISHED
    return np.argsort(run.requests.admitted_ns, kind="stable").tolist()


def test_the_queue_goes_by_the_longest_output_that_is_allowed():
    requests = demand(
        [0, 1, 1, 1, 1],
        [10] * 5,
        [2, 2, 3, 2, 2],
        max_tokens=[2, 20, 30, 40, 20],
        priority=[0, 0, 0, 1, 0],
    )
    assert one_after_the_other(requests, schedule_policy="lof") == [0, 3, 2, 1, 4]
    by_priority = {
        "enable_priority_scheduling": True,
        "schedule_low_priority_values_first": True,
        "disable_priority_preemption": True,
    }
    assert one_after_the_other(requests, schedule_policy="lof", **by_priority) == [0, 2, 1, 4, 3]


def test_the_queue_goes_depth_first_where_most_wait():
    """A first request leaves 30 tokens, then one that leaves 30 + 20 and one that leaves 20 others.

    Of those who wait, one ends at the

    first node, two behind it (at its child), one at the other root: the heavier subtree first, a
    child before its parent.
    """
    ids = [
        [*range(30)],
        [*range(50)],
        [*range(100, 120)],
        [*range(100, 120)],
        [*range(30)],
        [*range(50)],
        [*range(50)],
    ]
    shared = SharedBlocks(
        np.cumsum([0, *map(len, ids)]), np.array([one for row in ids for one in row])
    )
    requests = with_contents(
        demand([0, 0, 0, 9 * MS, 9 * MS, 9 * MS, 9 * MS], [60] * 7, [2] * 7), 1, shared
    )
    first = [0, 1, 2]
    requests = requests._replace(arrival_ns=np.array([0, 0, 0, *[5 * MS] * 4]))
    assert one_after_the_other(requests, schedule_policy="fcfs") == [*first, 3, 4, 5, 6]
    order = one_after_the_other(requests, schedule_policy="dfs-weight")
    assert sorted(order[:3]) == first
    assert order[3:] == [5, 6, 4, 3]


def test_a_random_queue_is_the_same_for_the_same_seed_and_another_for_another():
    requests = demand([0] * 30, [10] * 30, [2] * 30)
    orders = [
        one_after_the_other(requests, schedule_policy="random", random_seed=seed)
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(30)) != orders[0]


def test_without_a_radix_tree_only_what_does_not_ask_it_orders():
    """``SchedulePolicy._validate_and_adjust_policy``"""
    requests = demand([0, 1, 1, 1], [10] * 4, [2] * 4, max_tokens=[2, 20, 30, 40])
    for policy, order in (
        ("lpm", [0, 1, 2, 3]),
        ("dfs-weight", [0, 1, 2, 3]),
        ("lof", [0, 3, 2, 1]),
    ):
        assert (
            one_after_the_other(requests, schedule_policy=policy, disable_radix_cache=True) == order
        )


def test_of_those_who_share_what_is_not_cached_one_goes_first():
    """Two requests share 40 tokens that nobody has computed.

    Under lpm the second waits behind the third and then finds them.
    """
    shared = SharedBlocks(start=np.array([0, 40, 80, 80]), ids=np.array([*range(40), *range(40)]))
    requests = with_contents(demand([0, 0, 0], [60, 60, 60], [2, 2, 2]), 1, shared)
    found = {}
    for policy in ("lpm", "fcfs"):
        config = SglangConfig(
            max_total_num_tokens=1000,
            context_length=500,
            chunked_prefill_size=-1,
            max_prefill_tokens=121,
            schedule_policy=policy,
            disable_overlap_schedule=True,
        )
        run = run_of(config, requests)
        found[policy] = (
            (run.requests.admitted_ns // MS).tolist(),
            run.requests.cached_tokens.tolist(),
        )
    assert found["lpm"] == ([0, 1, 0], [0, 40, 0])
    assert found["fcfs"] == ([0, 0, 1], [0, 0, 0])


def test_the_tree_splits_nodes_and_evicts_the_leaf_that_was_unused_longest():
    tree = RadixTree()
    assert tree.insert([1, 2, 3, 4], 4)[0] == 0
    assert tree.insert([1, 2, 5, 6], 4)[0] == 2
    assert tree.insert([7, 8], 2)[0] == 0
    assert tree.n_evictable_pages == 8
    n_matched, node = tree.match([1, 2, 3, 9], 4)
    assert (n_matched, node.contents) == (3, [3])
    tree.lock(node)
    assert tree.n_evictable_pages == 5  # not 1, 2 and 3
    assert tree.evict(1) == 2  # 5 and 6 go together
    assert tree.match([1, 2, 5], 3)[0] == 2
    assert tree.evict(3) == 3  # 7 and 8, then 4
    tree.unlock(node)
    assert tree.evict(9) == 3
    assert tree.n_evictable_pages == 0


def test_by_age_the_oldest_leaf_goes_though_it_was_used_last():
    for is_evicting_oldest, kept in ((False, [1, 2]), (True, [3, 4])):
        tree = RadixTree(is_evicting_oldest=is_evicting_oldest)
        tree.insert([1, 2], 2)
        tree.insert([3, 4], 2)
        tree.match([1, 2], 2)  # the older is used again
        assert tree.evict(1) == 2 == tree.n_evicted
        assert tree.match(kept, 2)[0] == 2


def test_who_goes_by_last_use_and_by_age_and_how_many_pages_that_are():
    """A, B, A, C, A of 41 tokens each, one after the other, where two of them find room."""
    ids = {name: np.arange(41) + 100 * place for place, name in enumerate("ABC")}
    asked = [ids[name] for name in "ABACA"]
    shared = SharedBlocks(start=np.arange(0, 206, 41), ids=np.concatenate(asked))
    arrivals = [50 * MS * place for place in range(5)]
    requests = with_contents(demand(arrivals, [41] * 5, [1] * 5), 1, shared)
    for policy, cached, evicted in (
        ("lru", [0, 0, 40, 0, 40], 41),
        ("fifo", [0, 0, 40, 0, 0], 82),
    ):
        config = SglangConfig(
            max_total_num_tokens=100,
            context_length=80,
            radix_eviction_policy=policy,
            disable_overlap_schedule=True,
        )
        run = run_of(config, requests)
        assert run.requests.cached_tokens.tolist() == cached, policy
        assert run.evicted_blocks.tolist() == [evicted], policy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_total_num_tokens", 1001),
        ("chunked_prefill_size", 0),
        ("max_running_requests", 0),
        ("context_length", 7),
        ("schedule_conservativeness_ratio", 0.0),
        ("ignore_eos", True),
    ],
)
def test_what_the_server_refuses_is_refused(name, value):
    shared = {
        "max_total_num_tokens": 1000,
        "page_size": 4,
        "context_length": 500,
        "disable_radix_cache": True,
    }
    with pytest.raises(SpecError, match=name):
        SglangConfig(**(shared | {name: value}))
