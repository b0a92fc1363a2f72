"""How often does ``diagnose`` name the right cause, and how right is what it says of the change?

Servers of random models' step times are limited in a known way (or not at all) under random
traffic; the truth is their own simulation. Right is what the same rules name where the server is known exactly:
a server whose batch was made small may suffer more from something else. The change that is advised
is then made to the true server: it must not do worse under the same requests, and its latency under
those of another time must lie inside the predicted interval. Kinds of the same seed share no random
numbers: one crowded minute of the other time is one case, not six. The server's page is that of
``--names``: what it shows is the same, what can be known from it is not; llama.cpp's comes with the
requests of its clients, as a load test has them.
"""

import argparse
import time
from dataclasses import replace

import numpy as np
from results_log import log_row
from served_pages import clients_of, poisson, served_pages

from inferometer.api import diagnosis
from inferometer.api.diagnose_source import Source, StatedLimit, stated_limits
from inferometer.decide.diagnosis import causes, rebuilding, window
from inferometer.decide.diagnosis.observed import check_balanced
from inferometer.decide.diagnosis.rebuilding import Rebuilt
from inferometer.errors import InferometerError
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.perfmodel.steptime_terms import slowed
from inferometer.records.types import ABSENT
from inferometer.simulate import run
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

MODELS = (
    ("llama-3.1-8b", "h100_sxm"),
    ("qwen2.5-3b", "l4"),
    ("llama-2-7b", "a100_80gb_sxm"),
    ("qwen2.5-14b", "h100_sxm"),
)
KINDS = ("healthy", "max_num_seqs", "kv_cache", "small_step_budget", "overload", "long_prompts")
NAMES = ("vllm", "sglang", "sglang-no-lengths", "tensorrt-llm", "llama.cpp")
START_S, FOR_S = 20.0, 60.0
P95_TTFT = (("ttft", 0.95),)
AS_GOOD_FRACTION = 0.8


def truth(kind, seed):
    """A server limited so, its requests, and those of another time."""
    own = [seed, KINDS.index(kind)]
    rng = np.random.default_rng(own)
    model, device = MODELS[rng.integers(len(MODELS))]
    levels = datasheet_levels(
        find_model(model), EngineSpec(dtype="bfloat16"), find_hardware(device)
    )
    steps = slowed(levels.likely, float(np.exp(rng.normal(0, 0.2))))
    prompt = (float(rng.uniform(150, 800)), float(rng.uniform(0.3, 0.9)))
    output = (float(rng.uniform(60, 250)), float(rng.uniform(0.3, 0.8)))
    knobs = {"max_num_seqs": 256, "max_num_batched_tokens": 8192, "num_blocks": 40_000}
    if kind == "overload":  # not the batch, but the device is full
        knobs |= {"max_num_seqs": 2048, "num_blocks": 400_000}
    whole = SchedulerConfig(max_model_len=20_100, enable_prefix_caching=True, **knobs)
    most = _throughput(whole, steps, prompt, output, [*own, 1])
    share = {"healthy": rng.uniform(0.1, 0.45), "overload": rng.uniform(1.6, 2.4)}
    rate = most * float(share.get(kind, rng.uniform(0.35, 0.6)))
    n = max(round(rate * (START_S + FOR_S) * 1.1), 60)
    plan, again = (poisson(rate, n, [*own, one], prompt=prompt, output=output) for one in (2, 3))
    in_flight = _in_flight(whole, steps, plan)
    if kind == "max_num_seqs":
        knobs["max_num_seqs"] = max(round(in_flight * rng.uniform(0.6, 0.95)), 2)
    elif kind == "kv_cache":
        tokens = in_flight * (prompt[0] + output[0] / 2) * float(np.exp(prompt[1] ** 2 / 2))
        least = -(-int((plan.prompt_tokens + plan.output_tokens).max()) // 16) + 4
        knobs["num_blocks"] = max(round(tokens / 16 * rng.uniform(0.5, 0.8)), least)
    elif kind == "small_step_budget":
        knobs |= {"max_num_batched_tokens": int(rng.choice([96, 128, 192])), "max_num_seqs": 64}
    elif kind == "long_prompts":
        plan, again = (_some_long(one, rng) for one in (plan, again))
    longest = max(int((one.prompt_tokens + one.max_tokens).max()) + 1 for one in (plan, again))
    knobs["num_blocks"] = max(knobs["num_blocks"], -(-longest // 16) + 2)
    config = SchedulerConfig(max_model_len=longest, enable_prefix_caching=True, **knobs)
    return config, steps, plan, again


def _some_long(plan, rng):
    prompts = plan.prompt_tokens.copy()
    prompts[rng.random(len(prompts)) < 0.03] = 12_000
    return plan._replace(prompt_tokens=prompts)


def _throughput(config, steps, prompt, output, seed):
    plan = poisson(1e6, 400, seed, prompt=prompt, output=output)
    done = run.run(lone_replica(config, steps), plan, record_steps=False)
    return plan.n_requests / (done.end_ns / 1e9)


def _in_flight(config, steps, plan):
    table = run.run(lone_replica(config, steps), plan, record_steps=False).requests
    took_ns = (table.finished_ns - table.intended_send_ns)[table.finished_ns != ABSENT]
    return max(float(took_ns.sum()) / float(table.finished_ns.max()), 2.0)


def rebuilt(config, steps, plan):
    """The true server, as if it had been rebuilt without any doubt."""
    ends_ns = [round(at_s * 1e9) for at_s in (START_S, START_S + FOR_S)]
    return Rebuilt(config=config, steps=steps, plan=plan, start_ns=ends_ns[0], until_ns=ends_ns[1])


def p95_ttft_s(config, steps, plan):
    one = rebuilt(config, steps, plan)
    return float(causes.seconds_at(one, one.simulation(), P95_TTFT)[0])


def right_names(config, steps, plan):
    """What would be said of the true server itself, and of settings whose change gains as much."""
    one = rebuilt(config, steps, plan)
    done = one.simulation()
    base = causes.seconds_at(one, done, P95_TTFT)[None]
    found = causes.shares_of([one], base, P95_TTFT)
    table, edges = done.requests, (one.start_ns, one.until_ns)
    waited_ns = np.clip(table.admitted_ns, *edges) - np.clip(table.intended_send_ns, *edges)
    mean_waiting = float(waited_ns.sum()) / (one.until_ns - one.start_ns)
    now = causes.estimates(base)[0]
    first = causes.conclusion(found, now, None, mean_waiting=mean_waiting).cause
    if first is None:
        return {"healthy"}
    least_s = AS_GOOD_FRACTION * first.shares[0].value
    rivals = (one for one in found if one.cause.kind == first.cause.kind == "setting")
    return {first.cause.name, *(one.cause.name for one in rivals if one.shares[0].value >= least_s)}


def changed(config, row):
    """The true server with the advised value; None where the advice is no setting."""
    number = next((int(word) for word in row.change.split() if word.isdecimal()), None)
    names = {
        "max_num_seqs": "max_num_seqs",
        "kv_cache": "num_blocks",
        "small_step_budget": "max_num_batched_tokens",
        "large_step_budget": "max_num_batched_tokens",
        "long_prompts": "long_prefill_token_threshold",
    }
    if number is None or row.name not in names:
        return None
    return replace(config, **{names[row.name]: number})


def told_of(config, names):
    """What the server's page about itself says: ``/server_info``, and llama.cpp's ``/props``."""
    names = ("max_num_seqs", "max_num_batched_tokens")[: 1 if names == "llama.cpp" else 2]
    return {name: StatedLimit(getattr(config, name), "server") for name in names}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=10, help="of each kind")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--names", choices=NAMES, default="vllm", help="whose page")
    parser.add_argument(
        "--tells-limits", action="store_true", help="as SGLang does at /server_info to all who ask"
    )
    asked = parser.parse_args()
    began_s, seeds = time.process_time(), range(asked.seed, asked.seed + asked.n)
    how = asked.names, asked.tells_limits
    rows = [(kind, *judged(kind, seed, *how)) for kind in asked.only for seed in seeds]
    right = {
        kind: [row[1] for row in rows if row[0] == kind and row[1] is not None]
        for kind in asked.only
    }
    for kind, hits in right.items():
        print(f"{kind:18s} {sum(hits)}/{len(hits)} right")
    inside = [row[2] for row in rows if row[2] is not None]
    better = [row[3] for row in rows if row[3] is not None]
    print(f"predicted p95 TTFT with the change inside its interval: {sum(inside)}/{len(inside)}")
    print(f"advice that made it worse: {len(better) - sum(better)}/{len(better)}")
    print(f"{(time.process_time() - began_s) / len(rows):.1f} CPU s each")
    page = f"{asked.names}{' --tells-limits' if asked.tells_limits else ''}"
    log_row(
        f"bench_diagnose --names {page}, seeds {asked.seed} to {asked.seed + asked.n - 1}",
        ", ".join(f"{kind} {sum(hits)}/{len(hits)}" for kind, hits in right.items()),
        f"right cause; the change's p95 TTFT inside its interval {sum(inside)}/{len(inside)};"
        f" advice that made it worse {len(better) - sum(better)}/{len(better)}",
    )


def judged(kind, seed, names, tells_limits):
    """(right?, truth inside the predicted interval?, not worse?): None where it does not apply."""
    config, steps, plan, again = truth(kind, seed)
    samples, done = served_pages(config, steps, plan, start_s=START_S, for_s=FOR_S, names=names)
    clients = clients_of(done, start_s=START_S) if names == "llama.cpp" else None
    try:
        found = window.observed_window(samples, clients)
        check_balanced(found)
        told = stated_limits(Source(window=found), {}) | (
            told_of(config, names) if tells_limits else {}
        )
        limits = {name: one.value for name, one in told.items()}
        agreement = rebuilding.rebuilt_servers(found, limits)
        agreement.check()
        answer = diagnosis.answer_of("server", Source(window=found), agreement, None, told).answer
    except InferometerError as error:
        print(f"{kind:18s} {seed}: {error.what}")
        return None, None, None
    named = "healthy" if answer.cause is None else answer.cause
    right = right_names(config, steps, plan)
    is_right = named in right and answer.finding != "undecided"
    first = (
        answer.causes[0]
        if answer.cause is None
        else next(row for row in answer.causes if row.name == answer.cause)
    )
    now_s = answer.latencies[0].simulated_s
    true_s = p95_ttft_s(config, steps, plan)
    print(
        f"{kind:18s} {seed}: {'' if is_right else f'NOT {right}: '}{answer.finding} {named};"
        f" p95 TTFT {true_s:.3f} s, said"
        f" {now_s.value:.3f} [{now_s.low:.3f}, {now_s.high:.3f}]; share"
        f" {first.name} {first.shares_s[0].value:.3f}"
    )
    after = changed(config, first) if answer.finding == "limited" else None
    if after is None:
        return is_right, None, None
    later_s, said = p95_ttft_s(after, steps, again), first.predicted_s[0]
    print(f"{'':18s} changed: {later_s:.3f} s later, said {said.low:.3f} to {said.high:.3f}")
    is_not_worse = p95_ttft_s(after, steps, plan) <= 1.05 * true_s
    return is_right, said.low <= later_s <= said.high, is_not_worse


if __name__ == "__main__":
    main()
