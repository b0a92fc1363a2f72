"""Is a change taken where it truly helps, and nothing where nothing does?"""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from inferometer.api.cluster import Cluster
from inferometer.api.fleet import FleetOptions
from inferometer.api.server import Server, deployment_of
from inferometer.api.tune import Tune, tune
from inferometer.api.tune_answer import answer_of
from inferometer.api.tune_measured import together_first
from inferometer.api.tune_subject import Wanted, now_of, subject_of
from inferometer.api.workload import Workload
from inferometer.decide.artefacts.vllm_command import serve_command
from inferometer.decide.tuning import playbook, search, trials
from inferometer.stats.estimate import Estimate

SLO = "ttft:p95<500ms, tpot:p95<40ms"
NARROW = Server(model="llama-3.1-8b", hardware="h100_sxm", max_num_seqs=8)
BUSY = Workload(workload="chat", rate=8.0, requests=300)
USERS = Workload(workload="1024x8", concurrency=2, requests=10)


RANKS = FleetOptions(cluster=Cluster(data_parallel_size=8))


def subject(server=NARROW, workload=BUSY, goal="interactive", slo=SLO, fleet=None):
    wanted = Wanted(goal, slo, 0.02)
    return subject_of(wanted, server, workload, fleet or FleetOptions(), server.policy or "vllm")


def tuned(server=NARROW, workload=BUSY, slo=SLO, **more):
    return tune(Tune(server=server, workload=workload, slo=slo, **more))


@pytest.fixture(scope="module")
def narrow():
    return tuned(steps="memory,max_num_seqs,kv_precision,speculation")


@pytest.mark.slow
def test_too_small_a_batch_is_found_and_confirmed_in_fresh_pairs(narrow):
    found = {one.name: one for one in narrow.steps}
    assert found["max_num_seqs"].decision == "keep"
    assert int(found["max_num_seqs"].settings["max_num_seqs"]) > 8
    assert narrow.is_confirmed
    assert narrow.gain_fraction.low > 1
    assert narrow.gain_fraction != narrow.selected_gain_fraction
    assert "--max-num-seqs 8 " not in narrow.command
    before, after = narrow.latencies[0].before_s, narrow.latencies[0].after_s
    assert after.value < before.value / 2


@pytest.mark.slow
def test_what_changes_nothing_is_not_worth_measuring(narrow):
    memory = next(one for one in narrow.steps if one.name == "memory")
    assert memory.decision == "not worth measuring"
    assert memory.gain_ratio.low == memory.gain_ratio.high == 0


@pytest.mark.slow
def test_pitfalls_of_the_server_as_it_is_are_named(narrow):
    found = {one.name: one for one in narrow.checks}
    assert found["preemption_thrash"].finding == "ruled out"
    assert found["kv_fragmentation"].finding == "ruled out"
    assert found["speculation_not_paying"].finding == "not reported"
    assert found["too_much_tp"].finding == "not reported"


WRONG = replace(
    NARROW,
    tp=4,
    max_num_seqs=256,
    set=("num_speculative_tokens=4", "acceptance_fraction=0.1", "block_size=512"),
)


def test_a_wrong_draft_and_large_blocks_are_pitfalls():
    answer = answered(WRONG, open_step("parallelism", {"tp": 2, "replicas": 2}))
    found = {one.name: one for one in answer.checks}
    assert found["speculation_not_paying"].measured_ratio == pytest.approx(1.1111)
    assert found["speculation_not_paying"].finding == "found"
    assert found["kv_fragmentation"].finding == "found"


@pytest.mark.long
@pytest.mark.slow
def test_too_much_tp_is_a_pitfall():
    """A whole search for the cost: it looks for the capacity in each draw of each layout."""
    answer = tuned(
        WRONG,
        Workload(workload="256x32", rate=1.0, requests=60),
        slo="ttft:p95<20s, tpot:p95<1s",  # that one device meets in every draw of step times
        goal="cost",
        steps="parallelism",
    )
    found = {one.name: one for one in answer.checks}
    assert found["too_much_tp"].finding == "found"
    assert found["too_much_tp"].measured_ratio == answer.steps[0].gain_ratio.value


def test_tp_is_too_much_where_less_is_taken():
    step = open_step("parallelism", {"tp": 1, "replicas": 4})
    taken = replace(step, decision="keep", gain_ratio=gain(0.5, 0.3, 0.7))
    answer = answered(replace(NARROW, tp=4), taken, (("replicas", 4), ("tp", 1)))
    found = {one.name: one for one in answer.checks}
    assert found["too_much_tp"].finding == "found"
    assert found["too_much_tp"].measured_ratio == 0.5


def test_whether_tp_is_too_much_is_not_known_where_pairs_do_not_decide_it():
    answer = answered(replace(NARROW, tp=4), open_step("parallelism", {"tp": 2, "replicas": 2}))
    found = {one.name: one for one in answer.checks}
    assert found["too_much_tp"].finding == "not reported"
    box = next(one for one in answer.checklist if one.name == "TP minimal")
    assert box.is_ticked is None
    assert box.evidence == "TP 4 against tp 2, replicas 2: +50% [-10%, x2]; a measurement decides"


def open_step(name, settings):
    words = ", ".join(f"{setting} {value}" for setting, value in settings.items())
    return search.StepFound(
        name=name,
        decision="measure",
        change=words,
        settings={setting: str(value) for setting, value in settings.items()},
        gain_ratio=gain(0.5, -0.1, 1),
        why="",
        tried=(search.TriedChange(words=words, gain_ratio=gain(0.5, -0.1, 1)),),
    )


def answered(server, step, variant=(), workload=BUSY, fleet=None):
    """The answer of a search that found this."""
    one = subject(server, replace(workload, requests=60), fleet=fleet)
    pairs = trials.pairs_of(trials.N_PAIRS, 0)
    done = search.Tuned(
        variant=variant,
        steps=(step,),
        selected_gain_ratio=None,
        gain_ratio=None,
        is_confirmed=bool(variant),
        before=one.trials.outcomes([()], pairs),
        after=one.trials.outcomes([variant], pairs),
        n_simulations=0,
    )
    question = Tune(
        server=server, slo=SLO, given=frozenset({"hardware", "slo", "steps"}), steps="again"
    )
    return answer_of(question, one, done, None)


def test_replicas_that_are_started_are_named():
    step = replace(open_step("parallelism", {"tp": 1, "replicas": 2}), decision="keep")
    answer = answered(replace(NARROW, tp=2), step, (("replicas", 2), ("tp", 1)))
    shown = next(line for line in answer.pages()[0].lines if line.label == "ANSWER")
    assert shown.text == "2 replicas behind a router (least-loaded), each of them:"
    assert answer.next_step.startswith("start all 2 and their router")


@pytest.mark.parametrize(
    ("policy", "words"),
    [("vllm", "--enable-expert-parallel"), ("sglang", "--ep-size 2")],
)
def test_experts_that_are_spread_are_in_the_command(policy, words):
    server = Server(model="gpt-oss-20b", hardware="h200_sxm", tp=2, policy=policy)
    deployment = deployment_of(replace(server, ep=True))
    assert serve_command(deployment, has_expert_parallelism=True).endswith(words)
    assert words not in serve_command(deployment)
    lone = deployment_of(replace(server, ep=True, tp=1))
    assert words.split()[0] not in serve_command(lone, has_expert_parallelism=True)


@pytest.mark.parametrize(
    ("policy", "flag"), [("vllm", "--enforce-eager"), ("sglang", "--disable-cuda-graph")]
)
def test_a_server_without_graphs_is_started_so(policy, flag):
    server = Server(model="qwen3-8b", hardware="l40s", policy=policy)
    assert serve_command(deployment_of(replace(server, enforce_eager=True))).endswith(flag)
    assert flag not in serve_command(deployment_of(server))


@pytest.mark.slow  # SGLang's replicas in lockstep have a loop of their own, which takes 7 CPU s to compile
def test_ranks_that_share_experts_have_no_command_and_the_router_of_the_engine():
    """A lone server was started, behind vLLM's router; what fits on 8 alone was refused."""
    server = Server(model="deepseek-r1", hardware="h200_sxm", policy="sglang")
    few = Workload(workload="64x4", concurrency=2, requests=4)
    step = open_step("step_budget", {"max_num_batched_tokens": 2048})
    answer = answered(server, step, workload=few, fleet=RANKS)
    assert (answer.command, answer.n_replicas, answer.router) == (None, 8, "round-robin")
    assert answer.command_why_not.startswith(
        "no command line of replicas that share experts in SGLang"
    )


def test_ranks_that_share_experts_in_vllm_are_one_server_with_its_own_router():
    server = Server(model="deepseek-r1", hardware="h200_sxm")
    few = Workload(workload="64x4", concurrency=2, requests=4)
    step = open_step("step_budget", {"max_num_batched_tokens": 2048})
    answer = answered(server, step, workload=few, fleet=RANKS)
    assert answer.command.endswith("--data-parallel-size 8 --enable-expert-parallel")
    assert (answer.n_replicas, answer.router) == (8, None)
    assert answer.next_step.startswith("start it, and see")
    others = replace(RANKS, cluster=replace(RANKS.cluster, router="least-loaded"))
    behind = answered(server, step, workload=few, fleet=others)
    assert behind.command is None
    assert behind.command_why_not.endswith("its own router, not least-loaded")


def test_what_cannot_be_enough_is_no_command_to_check(tmp_path):
    busy = Workload(workload="8192x128", rate=30.0)
    answer = answered(NARROW, open_step("step_budget", {"max_num_batched_tokens": 512}), (), busy)
    assert answer.slo_after == "missed"
    assert answer.next_step.startswith("no change of the settings is enough: fewer requests")
    assert "inferometer capacity llama-3.1-8b" in answer.next_step


def test_the_load_test_has_the_traffic_of_the_question(tmp_path):
    named = tmp_path / "mine.toml"
    named.write_text(
        'name = "of another name"\n[arrivals]\nkind = "open"\nrate_per_s = 1.0\n'
        '[[classes]]\nname = "one"\nprompt_tokens = { kind = "constant", value = 128 }\noutput_tokens = { kind = "constant", value = 16 }\n'
    )
    traffic = Workload(workload=str(named), burstiness=0.5)
    answer = answered(
        NARROW, open_step("step_budget", {"max_num_batched_tokens": 512}), (), traffic
    )
    assert f"load URL --workload {named} --burstiness 0.5 --slo" in answer.next_step


@pytest.mark.parametrize(("policy", "sends"), [("priority", True), ("fcfs", False)])
def test_the_load_test_sends_the_priorities_that_the_server_goes_by(policy, sends, tmp_path):
    named = tmp_path / "mine.toml"
    lengths = (
        'prompt_tokens = { kind = "constant", value = 128 }\n'
        'output_tokens = { kind = "constant", value = 16 }\n'
    )
    named.write_text(
        'name = "two"\n[arrivals]\nkind = "open"\nrate_per_s = 1.0\n'
        f'[[classes]]\nname = "chat"\n{lengths}[[classes]]\nname = "bulk"\npriority = 5\n{lengths}'
    )
    server = replace(NARROW, set=(f"policy={policy}",))
    step = open_step("step_budget", {"max_num_batched_tokens": 512})
    answer = answered(server, step, (), Workload(workload=str(named)))
    assert (" --send-priorities" in answer.next_step) == sends


def test_a_context_that_follows_from_the_memory_was_not_given():
    settings = replace(NARROW.settings, num_blocks=1500)
    step = open_step("step_budget", {"max_num_batched_tokens": 512})
    answer = answered(replace(NARROW, settings=settings), step)
    why = {one.name: one.why for one in answer.settings}
    assert why["max_model_len"] == "as many tokens as the KV cache holds"
    assert why["max_num_seqs"] == "as it was given"


def test_what_changes_answers_or_rests_on_acceptance_is_never_taken(narrow):
    found = {one.name: one for one in narrow.steps}
    assert found["kv_precision"].decision != "keep"
    assert found["speculation"].decision != "keep"
    assert "fp8" not in narrow.command


def test_the_gain_is_that_of_a_plain_simulation(narrow):
    """The same requests through the simulator by hand: latencies of the fresh pairs' first one."""
    at_once = next(one for one in narrow.steps if one.name == "max_num_seqs").settings
    one = subject()
    variant = playbook.changed((), {"max_num_seqs": int(at_once["max_num_seqs"])})
    fresh = trials.pairs_of(trials.N_PAIRS, one.aim.spec.seed, is_fresh=True)
    outcomes = one.trials.outcomes([variant], fresh)
    values = [outcome.latencies_s[0] for outcome in outcomes]
    assert narrow.latencies[0].after_s.value == pytest.approx(float(np.median(values)))


@pytest.mark.slow
def test_an_idle_server_is_left_as_it_is():
    idle = tuned(
        Server(model="llama-3.1-8b", hardware="h100_sxm"),
        Workload(workload="128x16", rate=0.1, requests=200),
        steps="memory,max_num_seqs,prefix_cache,routing,kernels",
    )
    assert {one.decision for one in idle.steps} <= {"not worth measuring", "not predicted"}
    assert idle.settings == ()
    assert idle.gain_fraction is None


def test_pairs_share_their_requests_and_fresh_ones_do_not():
    plans = subject().trials
    first, fresh = trials.pairs_of(19, 7), trials.pairs_of(19, 7, is_fresh=True)
    assert sorted(one.rank for one in first) == sorted(one.rank for one in fresh) == [*range(19)]
    assert not {one.seed for one in first} & {one.seed for one in fresh}
    assert not np.array_equal(
        plans.plan(first[0].seed).arrival_ns, plans.plan(fresh[0].seed).arrival_ns
    )


def test_the_rate_of_a_throughput_goal_is_where_the_slo_breaks():
    one = subject(Server(model="llama-3.1-8b", hardware="h100_sxm"), goal="throughput")
    pair = trials.pairs_of(1, one.aim.spec.seed)
    rate = one.trials.outcomes([()], pair)[0].score
    below, above = (
        subject(
            Server(model="llama-3.1-8b", hardware="h100_sxm"),
            replace(BUSY, rate=rate * factor, requests=one.aim.n_requests_at(1.5 * rate)),
        )
        for factor in (0.9, 1.1)
    )
    assert below.trials.outcomes([()], pair)[0].margin_ratio < 1
    assert above.trials.outcomes([()], pair)[0].margin_ratio > 1


def highest_rate(n_requests, slo=SLO):
    few = replace(BUSY, requests=n_requests)
    one = subject(Server(model="llama-3.1-8b", hardware="h100_sxm"), few, "throughput", slo)
    return one.trials.outcomes([()], trials.pairs_of(1, one.aim.spec.seed))[0].score


def test_a_burst_of_few_requests_is_no_rate_that_a_server_carries():
    """60 requests at 100 a second are over before the queue is long."""
    assert highest_rate(60) == pytest.approx(highest_rate(960), rel=0.2)


def test_a_queue_that_grows_without_bound_ends_the_search_where_tpot_does_not():
    assert highest_rate(200, "tpot:p95<5s") < 60


def test_cost_counts_devices():
    two = FleetOptions()
    two = replace(two, cluster=replace(two.cluster, replicas=2))
    wanted = Wanted("cost", SLO, 0.02)
    closed = Workload(workload="chat", concurrency=8, requests=200)
    server = Server(model="llama-3.1-8b", hardware="h100_sxm")
    pairs = trials.pairs_of(1, 0)
    scores = {
        goal: subject_of(wanted._replace(goal=goal), server, closed, two, "vllm").trials.outcomes(
            [()], pairs
        )[0]
        for goal in ("cost", "throughput")
    }
    assert scores["cost"].score == pytest.approx(scores["throughput"].score / 2)
    assert scores["throughput"].score == pytest.approx(scores["throughput"].good_requests_per_s)


def test_an_interval_needs_19_pairs():
    assert trials.estimate_of([1.0] * 18).low is None
    assert trials.estimate_of([*range(19)]).high == 18
    assert trials.estimate_of([math.nan]) is None


def test_where_nothing_meets_the_slo_the_score_is_0_and_no_change_is_blamed():
    hopeless = subject(slo="ttft:p95<1ms", goal="throughput", workload=USERS)
    step = STEP["step_budget"]
    tuning = search.Tuning(
        trials=hopeless.trials,
        steps=(step,),
        now_of=lambda variant: now_of(hopeless, variant),
        least_gain_ratio=0.02,
        seed=0,
        on_step=lambda _: None,
    )
    done = tuning.run()
    score = trials.score_of(done.before)
    assert (score.value, score.low, score.high) == (0, 0, 0)
    assert done.steps[0].why == "nothing meets the SLO, with it or without it"


STEP = {one.name: one for one in playbook.PLAYBOOK}


def gain(value, low, high):
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.9, n_samples=19, method="pairs"
    )


@pytest.mark.parametrize(
    ("step", "found", "decision"),
    [
        ("max_num_seqs", gain(0.1, 0.05, 0.2), "keep"),
        ("max_num_seqs", gain(0.01, 0.005, 0.019), "not worth measuring"),
        ("max_num_seqs", gain(0.01, -0.019, 0.019), "not worth measuring"),
        ("max_num_seqs", gain(-0.1, -0.3, 0.01), "drop"),
        ("max_num_seqs", gain(-0.1, -0.3, 0.5), "drop"),
        ("max_num_seqs", gain(0.1, -0.01, 0.5), "measure"),
        ("max_num_seqs", gain(0.01, 0.001, 0.5), "measure"),
        ("kv_precision", gain(0.5, 0.4, 0.6), "check quality"),
        ("kv_precision", gain(-0.5, -0.6, -0.4), "drop"),
        ("speculation", gain(0.5, 0.4, 0.6), "measure"),
    ],
)
def test_what_an_interval_decides(step, found, decision):
    assert search.decision_of(STEP[step], found, 0.02)[0] == decision


def test_what_gains_nothing_in_some_pairs_loses_in_none():
    for low, words in (
        (-0.01, "it loses in some pairs"),
        (0.0, "it changes nothing in some pairs"),
    ):
        decision, why = search.decision_of(STEP["max_num_seqs"], gain(0.05, low, 43.4), 0.02)
        assert decision == "measure"
        assert why.startswith(words)


def test_of_equals_the_nearest_is_the_best():
    near, far, best = (playbook.Change(name, ({},)) for name in ("near", "far", "best"))
    seen = [(0.100, near), (0.105, far), (0.110, best)]
    assert search.best_of(seen, 1, 0.08) == [near]
    assert search.best_of(seen, 1, 0.02) == [best]
    assert search.best_of(seen, 2, 0.02) == [far, best]


class Known:
    """Trials whose score is known of every value and machine."""

    n_simulations = 0

    def __init__(self, score_of):
        self.score_of = score_of

    def outcomes(self, variants, pairs):
        return tuple(
            trials.Outcome(
                self.score_of(dict(variants[0]).get("at", 1), one.rank), 1, (), 0, 0, 0, 1
            )
            for one in pairs
        )


def test_a_sure_gain_is_taken_where_a_larger_one_may_lose():
    def score_of(value, rank):
        return {1: 1.0, 2: 1.1, 3: 1.15, 4: 0.8 + rank / 20}[value]

    changes = tuple(playbook.Change(f"at {one}", ({"at": one},)) for one in (2, 3, 4))
    tuning = search.Tuning(
        trials=Known(score_of),
        steps=(replace(STEP["step_budget"], tries=lambda _: changes),),
        now_of=lambda variant: variant,
        least_gain_ratio=0.02,
        seed=0,
        on_step=lambda _: None,
    )
    best = tuning.step(tuning.steps[0])
    assert (best.change, best.decision) == ("at 4", "measure")
    done = tuning.run()
    assert done.variant == (("at", 3),)
    assert done.gain_ratio.value == pytest.approx(0.15)
    assert "at 4, better in the mean, loses in some" in done.steps[0].why


def test_what_a_draw_does_to_a_gain_is_its_difference_from_the_mean_of_draws(monkeypatch):
    monkeypatch.setattr(trials, "_N_DRAWS", 8)
    one = subject(workload=Workload(workload="chat", rate=8.0, requests=100))
    spec, variant = one.aim.spec, (("max_num_seqs", 64),)
    effects = trials.draw_effects(one.trials, variant, spec)
    seeds = range(spec.seed + 2_000_000, spec.seed + 2_000_008)
    known = [effects.of(msgspec.structs.replace(spec, seed=seed)) for seed in seeds]
    assert sum(known) == pytest.approx(0, abs=1e-9)
    assert max(known) - min(known) > 0.1  # one draw gains far more than another
    of_nothing = trials.draw_effects(one.trials, (), spec)
    assert of_nothing.mean_log_ratio == of_nothing.of(spec) == 0


def test_combinations_are_tried_before_their_parts():
    by_name = {step.name: step for step in playbook.PLAYBOOK}

    def order(*names):
        return [one.name for one in together_first([by_name[name] for name in names])]

    assert order("memory", "max_num_seqs", "scheduling", "again") == [
        "memory", "again", "max_num_seqs", "scheduling",
    ]  # fmt: skip
    assert order("memory", "again") == ["memory", "again"]
    assert order("step_budget", "routing") == ["step_budget", "routing"]


def test_each_step_says_what_it_tries_or_why_nothing():
    one = subject(Server(model="llama-3.1-8b", hardware="h100_sxm", tp=2))
    built = one.trials.built(())
    now = playbook.Now(
        deployment=built.deployment,
        plan=one.trials.plan(0),
        n_replicas=2,
        router="least-loaded",
        is_plain=True,
        has_fewer_devices=False,
    )
    assert [change.words for change in STEP["parallelism"].tries(now)] == [
        "TP 1 x 4 replicas",
        "TP 4 x 1 replica",
    ]
    fewer = STEP["parallelism"].tries(now._replace(has_fewer_devices=True))
    assert "TP 1 x 1 replica" in [change.words for change in fewer]
    assert STEP["prefix_cache"].tries(now).startswith("no prompt")
    assert STEP["kernels"].tries(now) == "no kernel's speed is predicted"
    assert STEP["scheduling"].tries(now) == "all requests have one priority"
    urgent = now.plan.priority.copy()
    urgent[::2] += 1
    plan = now.plan._replace(priority=urgent)
    config = replace(now.deployment.config, policy="priority")
    by_priority = now._replace(plan=plan, deployment=replace(now.deployment, config=config))
    assert STEP["scheduling"].tries(by_priority) == "it goes by priority already"
    (change,) = STEP["scheduling"].tries(now._replace(plan=plan))
    assert change.words == "policy priority"
    values = [
        dict(change.settings[0])["max_num_seqs"] for change in STEP["max_num_seqs"].tries(now)
    ]
    assert values[0] == 768, "the nearest to 1024 first"
    assert max(values) <= built.deployment.config.max_num_batched_tokens
