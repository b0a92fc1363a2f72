"""Does ``tune --start`` find the best settings, keep what does nothing, miss what gains?

``grid``: random servers under random traffic and SLOs. Every cell of a grid of settings is
simulated on the true server without noise; ``tune`` starts and loads servers (``tuned_servers.py``)
whose load tests differ as two equal ones of this machine do.

``nothing`` and ``gain``: whole tunings of servers to which settings do nothing, and of such servers
with one flag that makes the score 5 % better. No prediction skips a step.

``pairs``: the same at the level of pairs, many thousand times, at several noises.
"""

import argparse
import math
import tempfile
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from results_log import log_row
from scipy.optimize import brentq
from scipy.stats import binomtest, t as student_t
from tuned_servers import TunedServer, settings_of

import inferometer as im
from inferometer.api.server import Server
from inferometer.api.tune_paired import CONFIDENCE, CONFIDENCE_AGAIN, N_LEAST, N_LEAST_CONFIRMED
from inferometer.api.workload import Workload, workload_of
from inferometer.decide.tuning.trials import outcome_of, scored
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.workload import replay
from inferometer.stats.comparison import is_futile, judge_pairs

N_STEPS = 6
LEAST_GAIN = 0.02
SCATTERS = (0.01, 0.02, 0.03, 0.05)
PLACES = (
    ("llama-3.1-8b", "h100_sxm"),
    ("qwen2.5-7b", "a100_80gb_sxm"),
    ("qwen2.5-14b", "h100_sxm"),
    ("mistral-7b-v0.1", "l40s"),
)
NAMES = ("max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold")
AT_ONCE = (8, 16, 32, 64, 128, 256, 512, 1024)
BUDGETS = (512, 1024, 2048, 4096, 8192, 16384)
THRESHOLDS = (0, 512, 2048)
GRID_STEPS = "max_num_seqs,step_budget,prefill_shaping,again"
WORKLOADS = ("chat", "code", "512x64", "200x150")
N_REQUESTS = 200
CLOSE_RATIO = 0.95
MOST_SHARE = 0.25
FRESH_SEEDS = (9001, 9002, 9003)
NOISE = (-0.0008, 0.0081, -0.0109, 1.3587, -0.0029, 0.0029, 0.0029, 0.0147, -0.0393, 0.0051, 0.0054)
NOISE += (0.0074,)
"""ln of B's headroom over A's in pairs of `inferometer emulate` against itself on a machine of two
cores on which others computed as well (load average 3 to 13)."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A server as it is, its traffic and its SLO."""

    server: TunedServer
    settings: dict[str, int]
    workload: Workload
    slo: str
    goal: str

    def tuned(self, **more):
        """What ``tune`` answers."""
        with tempfile.TemporaryDirectory() as folder, self.server.in_place():
            load = {
                name: value
                for name in ("workload", "rate", "concurrency", "requests")
                if (value := getattr(self.workload, name)) is not None
            }
            return im.tune(
                "http://127.0.0.1:9", start=self.start, slo=self.slo, goal=self.goal,
                out=f"{folder}/tuned", **load, **more,
            )  # fmt: skip

    @property
    def start(self):
        """The command of the server as it is."""
        one = self.server.server
        at_once, budget, threshold = self.settings.values()
        words = f"inferometer emulate {one.model} --hardware {one.hardware}"
        words += f" --max-num-seqs {at_once} --max-num-batched-tokens {budget}"
        return words + f" --set long_prefill_token_threshold={threshold}" * bool(threshold)

    def score(self, settings):
        """Mean over fresh requests of the score's logarithm, without noise."""
        logs = []
        for seed in FRESH_SEEDS:
            spec = workload_of(replace(self.workload, seed=seed))
            run = self.server.simulated(settings, replay.draw_workload(spec).plan)
            outcome = outcome_of(run, parse_objective(self.slo))
            logs.append(math.log(scored(outcome, self.goal, 1).score))
        return float(np.mean(logs))


def question(seed, noise, *, load_share=(0.2, 0.8), open_share=0.7, **server):
    """A random server under random traffic, with a random SLO; ``load_share``: of its highest rate."""
    rng = np.random.default_rng([seed, 3])
    model, device = PLACES[rng.integers(len(PLACES))]
    true = TunedServer(
        server=Server(model=model, hardware=device),
        rank=int(rng.integers(19)),
        slower_ratio=math.exp(rng.normal(0, 0.1)),
        noise=noise,
        seed=seed,
        **server,
    )
    name = str(rng.choice(WORKLOADS))
    usual = {"max_num_seqs": 256, "max_num_batched_tokens": 8192}
    quiet = _latencies(true, usual, Workload(workload=name, rate=0.05, requests=60))
    flood = Workload(workload=name, rate=1e5, requests=N_REQUESTS)
    end_s = float(_table(true, usual, flood).finished_ns.max()) / 1e9
    ttft_s, tpot_s = quiet[0] * rng.uniform(2, 5), quiet[1] * rng.uniform(1.3, 2.5)
    is_open, budget = rng.random() < open_share, int(rng.choice(BUDGETS[1:]))
    return Question(
        server=true,
        settings={
            "max_num_seqs": int(rng.choice(AT_ONCE[:6])),
            "max_num_batched_tokens": budget,
            "long_prefill_token_threshold": int(rng.choice(THRESHOLDS[: 2 + (budget > 2048)])),
        },
        workload=Workload(
            workload=name,
            rate=N_REQUESTS / end_s * float(rng.uniform(*load_share)) if is_open else None,
            concurrency=None if is_open else int(rng.choice((8, 16, 32, 64))),
            requests=N_REQUESTS,
        ),
        slo=f"ttft:p95<{ttft_s:.4f}s, tpot:p95<{tpot_s:.5f}s",
        goal="interactive" if is_open else "throughput",
    )


def _table(true, settings, workload):
    return true.simulated(settings, replay.draw_workload(workload_of(workload)).plan).requests


def _latencies(true, settings, workload):
    """p95 of TTFT and of TPOT."""
    table = _table(true, settings, workload)
    several = table.output_tokens > 1
    ttft_s = (table.first_token_ns - table.intended_send_ns) / 1e9
    tpot_s = (table.finished_ns - table.first_token_ns)[several] / 1e9
    tpot_s = tpot_s / (table.output_tokens[several] - 1)
    return float(np.quantile(ttft_s, 0.95)), float(np.quantile(tpot_s, 0.95))


def share_words(n_hits, n):
    """``19/20 [75 %, 100 %]``: the exact interval of 95 %."""
    ends = binomtest(n_hits, n).proportion_ci()
    return f"{n_hits}/{n} [{ends.low:.0%}, {ends.high:.0%}]"


def mean_ratio(logs):
    """Of these logarithms; and its 90 % interval in words."""
    half = student_t.ppf(0.95, len(logs) - 1) * np.std(logs, ddof=1) / math.sqrt(len(logs))
    value, low, high = np.exp(np.mean(logs) + half * np.array((0, -1, 1)))
    return float(value), f"{len(logs)} fresh pairs, 90 % [{low:.3f}, {high:.3f}]"


def grid(seeds, noise, noise_words):
    """How near is what ``tune`` ends with to the best cell, after how many load tests?"""
    cells = [
        dict(zip(NAMES, one, strict=True))
        for one in product(AT_ONCE, BUDGETS, THRESHOLDS)
        if one[0] <= one[1] and one[2] < one[1]
    ]
    rows = []
    for seed in seeds:
        one = question(seed, noise)
        logs = np.array([one.score(cell) for cell in cells])
        answer = one.tuned(steps=GRID_STEPS)
        chosen = settings_of(answer.command.split())
        before, after = one.score(one.settings), one.score(chosen)
        best = logs.max()
        n_loads = answer.n_servers - 1
        n_changes = sum(step.n_pairs > 0 for step in answer.steps)
        rows.append(
            (math.exp(after - best), n_loads / len(cells), n_changes, math.exp(before - best))
        )
        print(
            f"{seed}: {one.server.server.model} {one.workload.workload} {one.goal}: as it was"
            f" {rows[-1][3]:.3f} of the best, then {rows[-1][0]:.3f}, after {n_loads} load tests;"
            f" {[(step.name, step.decision, step.n_pairs, step.why) for step in answer.steps]}"
            f" confirmed {answer.is_confirmed}; {one.settings} {chosen} best {cells[int(logs.argmax())]}",
            flush=True,
        )
    near, loads, changes, was = np.array(rows).T
    is_near, is_few = near >= CLOSE_RATIO, loads <= MOST_SHARE
    log_row(
        f"bench_tune grid, seeds {seeds[0]} to {seeds[-1]}, {noise_words}",
        f"within 5 % of the best cell with at most 25 % of the grid's load tests"
        f" {share_words(int((is_near & is_few).sum()), len(rows))}; within 5 %"
        f" {share_words(int(is_near.sum()), len(rows))}; at most 25 %"
        f" {share_words(int(is_few.sum()), len(rows))}",
        f"{len(cells)} cells (max_num_seqs, step budget, threshold of long prefills), one load test"
        f" each; the score after / the best's {np.median(near):.3f} in the median, least"
        f" {near.min():.3f}, before it {np.median(was):.3f}; load tests {np.median(loads):.0%} of the"
        f" grid's in the median, most {loads.max():.0%}; changes measured {np.median(changes):.0f}",
    )


def idle(seed, noise, gain):
    """A server to which settings do nothing, but for one flag that makes its score so much better.

    Its load is light: near saturation a gain is another one under each draw of the requests.
    """
    one = question(
        seed,
        noise,
        load_share=(0.05, 0.25),
        open_share=1.0,
        ignored=True,
        distrust="the benchmark's",
    )
    if not gain:
        return one
    before = one.score({})

    def more(faster):
        one.server.set_gain(faster)
        return one.score({"turbo": 1}) - before - math.log1p(gain)

    one.server.set_gain(float(brentq(more, 0.0, 2 * gain, xtol=1e-4)))
    return one


def whole(seeds, noise, noise_words, gain, n_each):
    """Whole tunings of servers to which settings do nothing: is anything kept, is the flag found?"""
    kept, taken, found, n_loads, n_steps = 0, 0, 0, [], []
    for seed in seeds:
        one = idle(seed, noise, gain)
        for again in range(n_each):
            one.server.reseed(again)
            own = {"own": ("--set turbo=1",)} if gain else {}
            answer = one.tuned(steps=GRID_STEPS, **own)
            rows = [step for step in answer.steps if step.n_pairs]
            wrong = [
                step for step in rows if step.decision == "keep" and step.title != "of your own"
            ]
            kept += bool(wrong)
            taken += bool(wrong) and answer.is_confirmed
            found += answer.is_confirmed and "turbo=1" in answer.command
            n_loads.append(answer.n_servers - 1)
            n_steps.append(len(rows))
        print(f"{seed}: {kept} kept, {taken} confirmed, {found} found", flush=True)
    n = len(n_loads)
    what = f"a flag that gains {gain:.0%}" if gain else "nothing"
    result = f"no step without an effect is kept {share_words(n - kept, n)}, none is taken"
    result += f" {share_words(n - taken, n)}"
    if gain:
        result = f"the flag is kept and confirmed {share_words(found, n)}; {result}"
    log_row(
        f"bench_tune {'gain' if gain else 'nothing'}, seeds {seeds[0]} to {seeds[-1]}, {noise_words}",
        result,
        f"whole tunings, {n_each} of each of {len(seeds)} servers at 5 to 25 % of their highest rate"
        f" to which settings do nothing, and"
        f" {what} besides; steps measured {np.mean(n_steps):.1f}, load tests {np.mean(n_loads):.0f}"
        " in the mean",
    )


def decided(rng, effect, draw, n_least, n_most, confidence):
    """Was it kept, and after how many pairs?"""
    logs = (effect + draw(rng, n_most)).tolist()
    limits = {"least_gain_ratio": LEAST_GAIN, "confidence_fraction": confidence}
    for n in range(n_least, n_most + 1):
        decision = judge_pairs([logs[:n]], **limits).decision
        if decision != "go on":
            return decision == "keep", n
        if is_futile(logs[:n], n_most=n_most, **limits):
            return False, n
    return False, n_most


class Tuned(NamedTuple):
    """One tuning of pairs."""

    is_changed: bool
    has_wrong_step: bool
    """Was a step without an effect kept, before the confirmation?"""
    n_pairs: int


def tuned(rng, effects, draw, n_most, n_confirmed):
    """One tuning: was anything kept at the end, in how many pairs?"""
    steps = [decided(rng, effect, draw, N_LEAST, n_most, CONFIDENCE) for effect in effects]
    kept = [effect for effect, (is_kept, _) in zip(effects, steps, strict=True) if is_kept]
    n_pairs = sum(n for _, n in steps)
    if not kept:
        return Tuned(is_changed=False, has_wrong_step=False, n_pairs=n_pairs)
    is_changed, n = decided(rng, sum(kept), draw, n_confirmed, n_most, CONFIDENCE_AGAIN)
    return Tuned(is_changed=is_changed, has_wrong_step=0.0 in kept, n_pairs=n_pairs + n)


NOISES = {
    "pairs as measured here, outlier included": lambda rng, n: (
        rng.choice(NOISE, n) * rng.choice((-1, 1), n)
    )
}
for scatter in SCATTERS:
    NOISES[f"pairs that scatter by {scatter:.0%} (normal)"] = lambda rng, n, scatter=scatter: (
        scatter * rng.standard_normal(n)
    )
    NOISES[f"pairs that scatter by {scatter:.0%} (t with 4 degrees of freedom)"] = (
        lambda rng, n, scatter=scatter: scatter * rng.standard_t(4, n) / math.sqrt(2)
    )


def simulated_pairs(asked):
    """Pairs alone, without servers: many tunings at several noises."""
    for name, draw in NOISES.items():
        found = {}
        for gain in (0.0, 0.05):
            effects = [math.log1p(gain), *[0.0] * (N_STEPS - 1)]
            rng = np.random.default_rng(7)
            found[gain] = [
                tuned(rng, effects, draw, asked.pairs, asked.confirmed) for _ in range(asked.runs)
            ]
        nothing, true = found.values()
        n_pairs = [float(np.mean([one.n_pairs for one in runs])) for runs in (nothing, true)]
        log_row(
            f"bench_tune pairs --confirmed {asked.confirmed}, {name}",
            f"nothing changed where nothing helps"
            f" {share_words(sum(not one.is_changed for one in nothing), asked.runs)}, no step kept"
            f" before the confirmation {share_words(sum(not one.has_wrong_step for one in nothing), asked.runs)};"
            f" a true gain of 5 % kept and confirmed"
            f" {share_words(sum(one.is_changed for one in true), asked.runs)}",
            f"simulated tunings of {N_STEPS} steps, at most {asked.pairs} pairs each:"
            f" {n_pairs[0]:.1f} and {n_pairs[1]:.1f} pairs in the mean",
        )


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("what", choices=("grid", "nothing", "gain", "pairs"))
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--n", type=int, default=20, help="servers")
    arguments.add_argument("--each", type=int, default=10, help="tunings of a server")
    arguments.add_argument("--scatter", type=float, help="normal noise in place of the measured")
    arguments.add_argument("--runs", type=int, default=4000, help="of pairs")
    arguments.add_argument("--pairs", type=int, default=16)
    arguments.add_argument(
        "--confirmed", type=int, default=N_LEAST_CONFIRMED, help="pairs of a confirmation, at least"
    )
    asked = arguments.parse_args()
    if asked.what == "pairs":
        simulated_pairs(asked)
        return
    seeds = range(asked.seed, asked.seed + asked.n)
    noise, words = NOISE, f"noise of {len(NOISE)} pairs measured here"
    if asked.scatter is not None:
        rng = np.random.default_rng(1)
        noise = tuple(asked.scatter * rng.standard_normal(1000))
        words = f"pairs scatter by {asked.scatter:.0%} (normal)"
    if asked.what == "grid":
        grid(seeds, noise, words)
    else:
        whole(seeds, noise, words, 0.05 if asked.what == "gain" else 0.0, asked.each)


if __name__ == "__main__":
    main()
