"""The intervals that a watcher of a simulated server would see, for days, in seconds."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from served_pages import poisson

from inferometer.decide.watching.intervals import Interval
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.types import EngineSpec
from inferometer.perfmodel.steptime_levels import datasheet_levels
from inferometer.simulate import run
from inferometer.simulate.fleet import lone_replica
from inferometer.simulate.scheduler_config import SchedulerConfig

DAY_S = 86_400.0
BLOCK_TOKENS = 16
STEPS = datasheet_levels(
    find_model("llama-3.1-8b"), EngineSpec(dtype="bfloat16"), find_hardware("l4")
).likely
ROOMY = SchedulerConfig(
    num_blocks=4000, max_model_len=20_100, max_num_seqs=64, enable_prefix_caching=True
)


def daily_traffic(rate_per_s, for_s, seed, *, swing=0.6):
    """Poisson arrivals whose rate swings over the day; the mean is ``rate_per_s``."""
    plan = poisson(rate_per_s, round(rate_per_s * for_s), seed, prompt=(300, 0.8))
    at_s = np.linspace(0, for_s, 4096)
    phase = 2 * np.pi * at_s / DAY_S
    expected = rate_per_s * (at_s + swing * DAY_S / (2 * np.pi) * (1 - np.cos(phase)))
    came_s = np.interp(plan.arrival_ns / 1e9 * rate_per_s, expected, at_s)
    return plan._replace(arrival_ns=(came_s * 1e9).astype(np.int64))


def intervals(plan, for_s, seed, *, config=ROOMY, steps=STEPS, noise=0.05):
    """One a second; the host's noise is on the time between tokens."""
    done = run.run(lone_replica(config, steps), plan, until_ns=round(for_s * 1e9))
    n, log, rng = round(for_s), done.steps, np.random.default_rng(seed)
    end_ns = log.start_ns + log.duration_ns
    at = np.minimum(end_ns // 10**9, n - 1)
    gap_s = np.diff(end_ns, prepend=log.start_ns[:1]) / 1e9 * log.n_decode_requests

    def summed(column):
        return np.bincount(at, column, n)

    def counted(instants_ns):
        seen = instants_ns[(instants_ns >= 0) & (instants_ns < for_s * 1e9)]
        return np.bincount(seen // 10**9, minlength=n).astype(float)

    second_ends_ns = (np.arange(n) + 1) * 10**9
    last = np.searchsorted(log.start_ns, second_ends_ns, side="right") - 1
    is_at_work = (last >= 0) & (end_ns[last] > second_ends_ns)
    gauges = {
        name: np.where(is_at_work, column[last], 0).astype(float)
        for name, column in (
            ("running", log.n_prefill_requests + log.n_decode_requests),
            ("waiting", log.n_waiting_requests),
            ("blocks", log.kv_blocks_used),
        )
    }
    n_prompts = counted(done.requests.first_token_ns)
    columns = (
        gauges["running"],
        gauges["waiting"],
        gauges["blocks"] / config.num_blocks,
        gauges["blocks"] * BLOCK_TOKENS,
        counted(done.requests.finished_ns),
        summed(log.n_preempted_requests),
        n_prompts,
        summed(log.prefill_tokens),
        np.zeros(n),
        summed(log.prefill_tokens),
        summed(log.n_decode_requests) + n_prompts,
        summed(np.ones(len(at))),
        summed(log.n_decode_requests),
        summed(gap_s) * np.exp(rng.normal(0, noise, n)),
    )
    requests = done.requests
    has_ended = (requests.finished_ns >= 0) & (requests.finished_ns < for_s * 1e9)
    waited_s = (requests.admitted_ns - requests.intended_send_ns)[has_ended] / 1e9
    queued_s = np.bincount(requests.finished_ns[has_ended] // 10**9, waited_s, n)
    for second, row in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        yield Interval(
            second + 1.0,
            1.0,
            *row,
            draft_tokens=None,
            accepted_tokens=None,
            queued_s=float(queued_s[second]),
        )


COUNTED = (
    "took_s", "n_finished", "n_preempted", "n_prompts", "prompt_tokens", "hit_tokens",
    "queried_tokens", "output_tokens", "n_steps", "n_gaps", "gaps_s", "queued_s",
)  # fmt: skip


def seen_late(series, seed):
    """The same, by a watcher on a busy machine: it looks after 1 to 5 s, whenever it gets to it."""
    rng, pending, due = np.random.default_rng(seed), [], 1
    for one in series:
        pending.append(one)
        if len(pending) == due:
            sums = {name: sum(getattr(each, name) for each in pending) for name in COUNTED}
            yield one._replace(**sums)
            pending, due = [], int(rng.integers(1, 6))
