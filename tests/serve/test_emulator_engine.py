"""Does the live engine do what the simulator says, to the nanosecond, though it is told of nobody beforehand?"""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from reference.simulator import simulate_plainly

from inferometer.perfmodel.steptime_terms import slowed
from inferometer.records.types import ABSENT
from inferometer.simulate import live
from inferometer.simulate.batch_config import DynamicBatching
from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.fleet import (
    ROUTERS,
    ClusterConfig,
    Fleet,
    KvLink,
    Placement,
    PrefillReplicas,
    ReplicaGroup,
    lone_replica,
)
from inferometer.simulate.gate_config import ClassRules, GateConfig, TenantRules
from inferometer.simulate.live import LiveFleet, LiveRequest
from inferometer.simulate.live_front import Kind
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.run import simulate_fleet
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.step_cost import linear_cost
from inferometer.simulate.trtllm_config import TrtllmConfig

COST = linear_cost(launch_s=5e-3, per_row_s=3e-5, per_request_s=1e-5, per_context_token_s=1e-8)
EVEN_NS = 10_000_000
EVEN = linear_cost(
    launch_s=EVEN_NS / 1e9, per_row_s=0.0, per_request_s=0.0, per_context_token_s=0.0
)
VLLM = SchedulerConfig(num_blocks=40, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64)
CONFIGS = {
    "vllm": SchedulerConfig(
        num_blocks=60, max_model_len=256, max_num_seqs=6, max_num_batched_tokens=64
    ),
    "vllm, one step at a time": SchedulerConfig(
        num_blocks=60, max_model_len=256, max_num_seqs=6, async_scheduling=False
    ),
    "vllm with windows": SchedulerConfig(
        num_blocks=120,
        max_model_len=256,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        sliding_window=48,
        num_sliding_groups=2,
    ),
    "vllm with drafts": SchedulerConfig(
        num_blocks=60,
        max_model_len=256,
        max_num_seqs=6,
        num_speculative_tokens=3,
        acceptance_fraction=0.6,
        draft_method="ngram",
    ),
    "vllm whose drafts cost": SchedulerConfig(
        num_blocks=60,
        max_model_len=256,
        max_num_seqs=6,
        num_speculative_tokens=3,
        acceptance_fraction=0.6,
        draft_method="eagle",
        draft_cost_ratio=0.15,
    ),
    "vllm on a pipeline": SchedulerConfig(
        num_blocks=60, max_model_len=256, max_num_seqs=6, pipeline_parallel_size=3
    ),
    "vllm that swaps": SchedulerConfig(
        num_blocks=24,
        max_model_len=256,
        max_num_seqs=6,
        enable_prefix_caching=False,
        preemption_mode="swap",
        swap_bytes_per_s=1e9,
        kv_block_bytes=2**20,
    ),
    "trtllm": TrtllmConfig(
        num_blocks=60, max_seq_len=256, max_batch_size=6, max_num_tokens=256, tokens_per_block=16
    ),
    "sglang": SglangConfig(
        max_total_num_tokens=900,
        context_length=256,
        max_running_requests=6,
        chunked_prefill_size=64,
    ),
    "dynamic": DynamicBatching(
        num_blocks=200,
        max_model_len=256,
        max_batch_size=4,
        max_queue_delay_microseconds=3000,
        default_timeout_microseconds=40_000,
    ),
    "dynamic, short queue": DynamicBatching(
        num_blocks=200, max_model_len=256, max_batch_size=2, max_queue_size=3
    ),
}
N_SEEDS = 8
"""Traffics in the fast suite; the slow one has 20 of each kind."""
FREE = {
    "vllm whose drafts cost": {"draft_cost_ratio": 0.0},
    "vllm that swaps": {"swap_bytes_per_s": 1e30},
}
"""What takes away the cost of what is done around the steps."""


LINK = KvLink(block_bytes=2**16, bytes_per_s=1e8, latency_s=1e-3)
GATE = GateConfig(
    order="fair",
    max_in_flight=3,
    max_queue=9,
    max_wait_ns=150_000_000,
    classes=(
        ClassRules(name="chat", window_ns=4_000_000, window_size=3),
        ClassRules(name="report", max_in_flight=2, max_tokens=20, ttft_limit_ns=300_000_000),
    ),
    tenants=(TenantRules(tokens_per_s=20_000, burst_tokens=2_000), TenantRules(weight=3)),
    lateness="hopeless",
)


def fleet_of(n_replicas=3, engine=VLLM, **more):
    own = {name: more.pop(name) for name in ("prefill", "gate", "step_times") if name in more}
    replicas = ClusterConfig(engine=engine, n_replicas=n_replicas, **more)
    return Fleet(replicas=replicas, **{"step_times": COST} | own)


def split(answer_begins_at, **more):
    prefill = PrefillReplicas(
        replicas=ClusterConfig(
            engine=replace(VLLM, num_blocks=60), n_replicas=2, router="least-loaded"
        ),
        step_times=COST,
        link=LINK,
        answer_begins_at=answer_begins_at,
    )
    return fleet_of(2, router="least-loaded", prefill=prefill, **more)


def groups(*kinds, **more):
    placement = Placement(groups=tuple(ReplicaGroup(**kind) for kind in kinds), **more)
    first = placement.groups[0]
    return Fleet(replicas=placement.cluster, step_times=first.step_times, placement=placement)


FLEETS = {
    **{router: fleet_of(router=router, seed=3) for router in ROUTERS if router != "class-aware"},
    "class-aware": fleet_of(router="class-aware", class_replicas=((0, 2), (1,))),
    "in lockstep": fleet_of(
        2, engine=replace(VLLM, async_scheduling=True), in_lockstep=True, router="vllm"
    ),
    "ranks of sglang": fleet_of(
        2, engine=CONFIGS["sglang"], in_lockstep=True, router="round-robin"
    ),
    "ranks of trtllm": fleet_of(
        2, engine=CONFIGS["trtllm"], in_lockstep=True, router="least-loaded"
    ),
    "a gate": fleet_of(2, router="least-loaded", gate=GATE),
    "a gate before one": fleet_of(1, gate=replace(GATE, order="shortest-remaining")),
    "a gate that fills engines": fleet_of(
        2, gate=GateConfig(order="shortest-remaining", classes=(ClassRules(),) * 2)
    ),
    "prefill replicas": split("decode"),
    "prefill replicas that answer first": split("prefill"),
    "a gate before prefill replicas": split("decode", gate=GATE),
    "two instances": fleet_of(
        1,
        engine=DynamicBatching(
            num_blocks=200,
            max_model_len=256,
            max_batch_size=4,
            max_queue_delay_microseconds=3000,
            instance_count=2,
        ),
    ),
    "sglang": fleet_of(2, engine=CONFIGS["sglang"], router="prefix-affine"),
    "trtllm": fleet_of(2, engine=CONFIGS["trtllm"], router="round-robin"),
    "groups": groups(
        {
            "engine": replace(VLLM, max_num_seqs=3),
            "step_times": COST,
            "n_replicas": 2,
            "max_prompt_tokens": 60,
        },
        {"engine": VLLM, "step_times": slowed(COST, 0.4), "classes": (1,)},
        {
            "engine": replace(VLLM, num_blocks=80, enable_prefix_caching=False),
            "step_times": slowed(COST, 2.0),
        },
    ),
    "groups of tenants": groups(
        {"engine": VLLM, "step_times": slowed(COST, 3.0), "tenants": (1,)},
        {"engine": VLLM, "step_times": COST, "n_replicas": 2},
    ),
}
COMPILED_FOR_IT_ALONE = {
    "a gate before prefill replicas",
    "sglang",
    "trtllm",
    "ranks of sglang",
    "ranks of trtllm",
}
"""Nothing else in the fast suite has their loops compiled, which takes 15, 10 and 5 CPU s.

The slow suite has them for ``test_disaggregated.py`` and ``test_cluster.py`` too; one replica of
each engine is tested above.
"""
NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.slow if name in COMPILED_FOR_IT_ALONE else (),
    )
    for name in FLEETS
]


class Notes:
    """What a listener was told."""

    def __init__(self):
        self.tokens = {}
        self.ended = {}

    def on_scheduled(self, admitted, n_preempted, replica):
        pass

    def on_step(self, deliveries, now_ns):
        for request, n_tokens in deliveries:
            self.tokens.setdefault(request.index, []).extend([now_ns] * n_tokens)
            if request.status.is_finished:
                self.ended[request.index] = now_ns

    def on_dropped(self, request, now_ns):
        self.ended[request.index] = now_ns


def live_requests(asked):
    start, contents = asked.content_start.tolist(), asked.contents.tolist()
    return [
        LiveRequest(
            i,
            arrival_ns=int(asked.arrival_ns[i]),
            prompt=int(asked.prompt_tokens[i]),
            stop=int(asked.output_tokens[i]),
            max_tokens=int(asked.max_tokens[i]),
            priority=int(asked.priority[i]),
            contents=contents[start[i] : start[i + 1]],
            kind=Kind(
                class_index=int(asked.class_index[i]), tenant_index=int(asked.tenant_index[i])
            ),
        )
        for i in range(asked.n_requests)
    ]


def play(asked, fleet, lateness_ns):
    """Tell the engine of arrivals and departures as a server would: when they happen, waking late each time."""
    notes = Notes()
    engine = LiveFleet(fleet, notes)
    requests = live_requests(asked)
    events = [(request.arrival_ns, 0, request) for request in requests]
    events += [
        (int(when), 1, requests[i]) for i, when in enumerate(asked.abort_ns) if when != ABSENT
    ]
    events.sort(key=lambda event: (event[0], event[1], event[2].index))
    wake_ns = FAR_NS
    for when_ns, together in groupby(events, key=lambda event: event[0]):
        while wake_ns + lateness_ns < when_ns:
            wake_ns = engine.advance(wake_ns + lateness_ns)
        for _, kind, request in together:
            (engine.abort(request, when_ns) if kind else engine.submit(request))
        wake_ns = engine.advance(when_ns)
    while wake_ns != FAR_NS:
        wake_ns = engine.advance(wake_ns + lateness_ns)
    return notes


def check_equal(asked, config, cost, lateness_ns):
    said = simulate_plainly(asked, config, cost, record_parts=True)
    check_same(asked, said, play(asked, lone_replica(config, cost), lateness_ns))
    return said


def check_same(asked, said, lived):
    said_tokens = {i: [] for i in range(asked.n_requests)}
    end_ns = said.steps.start_ns + said.steps.duration_ns
    for step, request, n_tokens in zip(
        said.parts.step_index, said.parts.request_index, said.parts.n_delivered_tokens, strict=True
    ):
        said_tokens[int(request)] += [int(end_ns[step])] * int(n_tokens)
    assert lived.tokens == {i: tokens for i, tokens in said_tokens.items() if tokens}
    finished = said.requests.finished_ns.tolist()
    assert lived.ended == {i: when for i, when in enumerate(finished) if when != ABSENT}


def asked_of(config, seed, every_ns=1):
    """Some traffic, of which a fifth leaves early; instants are multiples of ``every_ns``."""
    rng = np.random.default_rng(seed)
    n_requests = 25
    arrival = np.cumsum(rng.exponential(6e6, n_requests)).astype(np.int64) // every_ns * every_ns
    output = rng.integers(1, 40, n_requests)
    most = output + rng.integers(0, 2, n_requests) * rng.integers(1, 20, n_requests)
    leaves = rng.random(n_requests) < 0.2
    aborts = np.where(
        leaves, arrival + -(-rng.integers(1, 60_000_000, n_requests) // every_ns) * every_ns, ABSENT
    )
    asked = demand(
        arrival, rng.integers(1, 120, n_requests), output, max_tokens=most, abort_ns=aborts
    )
    return with_contents(asked, config.block_size) if config.enable_prefix_caching else asked


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("lateness_ns", [0, pytest.param(700_000, marks=pytest.mark.slow)])
def test_it_is_the_simulator(name, lateness_ns):
    for seed in range(20 if lateness_ns else N_SEEDS):
        check_equal(asked_of(CONFIGS[name], seed), CONFIGS[name], COST, lateness_ns)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    "seeds", [range(N_SEEDS), pytest.param(range(N_SEEDS, 20), marks=pytest.mark.slow)]
)
def test_it_is_the_simulator_where_clients_come_and_go_in_the_instant_in_which_a_step_ends(
    name, seeds
):
    for seed in seeds:
        check_equal(
            asked_of(CONFIGS[name], seed, every_ns=EVEN_NS // 2), CONFIGS[name], EVEN, lateness_ns=0
        )


@pytest.mark.parametrize("name", FREE)
def test_drafts_and_copies_take_time(name):
    config = CONFIGS[name]
    asked = asked_of(config, seed=0)
    free = simulate_plainly(asked, replace(config, **FREE[name]), COST)
    assert (
        check_equal(asked, config, COST, lateness_ns=0).requests.finished_ns.max()
        > free.requests.finished_ns.max()
    )


def test_who_comes_during_a_step_before_another_leaves_finds_the_queue_full():
    config = DynamicBatching(num_blocks=200, max_model_len=256, max_batch_size=1, max_queue_size=1)
    ms = 1_000_000
    for comes_ms, ends_ms in ((15, 15), (16, 60), (17, 60)):
        asked = demand(
            [0, 12 * ms, comes_ms * ms], [8, 8, 8], [3, 3, 3], abort_ns=[ABSENT, 16 * ms, ABSENT]
        )
        check_equal(asked, config, EVEN, lateness_ns=0)
        assert play(asked, lone_replica(config, EVEN), lateness_ns=0).ended == {
            0: 30 * ms,
            1: 16 * ms,
            2: ends_ms * ms,
        }


def test_a_prompt_that_does_not_fit_is_refused_at_once():
    config = CONFIGS["vllm"]
    notes = Notes()
    engine = LiveFleet(lone_replica(config, COST), notes)
    engine.submit(
        LiveRequest(
            0, arrival_ns=5, prompt=256, stop=1, max_tokens=1, priority=0, contents=[0] * 16
        )
    )
    assert engine.advance(10) == FAR_NS
    assert notes.ended == {0: 5}
    assert engine.n_unfinished == 0


def of_kinds(asked, seed):
    """The same requests of two classes and two tenants."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 2, (2, asked.n_requests)).astype(np.int32)
    return asked._replace(class_index=kinds[0], tenant_index=kinds[1])


def check_fleet(asked, fleet, lateness_ns):
    said = simulate_fleet(fleet, asked, record_parts=True)
    check_same(asked, said, play(asked, fleet, lateness_ns))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lateness_ns", [0, pytest.param(700_000, marks=pytest.mark.slow)])
def test_a_fleet_is_the_simulator(name, lateness_ns):
    fleet = FLEETS[name]
    for seed in range(6):
        asked = of_kinds(asked_of(fleet.replicas.engine, seed), seed)
        check_fleet(asked, fleet, lateness_ns)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n_together", [4, 7])
def test_memory_of_a_fleet_grows_or_is_used_again(name, n_together, monkeypatch):
    monkeypatch.setattr(live, "_N_SLOTS", 4)
    monkeypatch.setattr(live, "_N_CONTENTS", 16)
    fleet = FLEETS[name]
    check_fleet(of_kinds(bursts(fleet.replicas.engine, n_together), 1), fleet, lateness_ns=0)


def bursts(config, n_together):
    """Bursts of requests with an idle minute between them; every other request begins as the others like it."""
    n_requests, rng = 6 * n_together, np.random.default_rng(3)
    place = np.arange(n_requests)
    arrival = place // n_together * 60_000_000_000 + place % n_together * 3_000_000
    prompt = rng.integers(70, 120, n_requests)
    asked = demand(
        arrival, prompt, rng.integers(1, 30, n_requests), max_tokens=np.full(n_requests, 40)
    )
    if not config.enable_prefix_caching:
        return asked
    n_shared = 64 // config.block_size
    ids = np.concatenate([i % 2 * 1000 + np.arange(n_shared) for i in place])
    shared = SharedBlocks(start=np.arange(n_requests + 1) * n_shared, ids=ids)
    return with_contents(asked, config.block_size, shared)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("n_together", [4, 7])
def test_memory_that_is_full_grows_or_is_used_again(name, n_together, monkeypatch):
    """Bursts of 4 requests use the same 4 slots; 7 together need more."""
    monkeypatch.setattr(live, "_N_SLOTS", 4)
    monkeypatch.setattr(live, "_N_CONTENTS", 16)
    check_equal(bursts(CONFIGS[name], n_together), CONFIGS[name], COST, lateness_ns=0)
