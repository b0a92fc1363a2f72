"""Is a server that we cannot see into found again from load tests alone, and does what is found foretell other rates?

Random servers: a model of the catalogue on a device, at random shares of its peaks, with random
host times, slots, step budgets, KV cache, chunking and prefix caching. Each is load-tested at three
rates for at most ten minutes in all: simulated, with a client's noise added (a front end that
varies, tokens seen late). Nothing but rates, lengths and timestamps is told. Then two other rates
are foretold and simulated in truth, and the highest rate that keeps a promise. One line for each
server, then the shares.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from results_log import log_row

from inferometer.decide.candidates import Alike
from inferometer.decide.capacity import CapacityQuestion, find_capacity
from inferometer.decide.probing import FleetProbe
from inferometer.decide.traffic import Traffic, at_load
from inferometer.errors import InferometerError
from inferometer.fit.loads.estimation import Address, Subject, fit_server
from inferometer.fit.loads.load_tests import LoadTest
from inferometer.fit.loads.server import ReportedSettings
from inferometer.fit.loads.server_fit import ServerFit
from inferometer.inputs.catalog import find_hardware, find_model
from inferometer.inputs.objectives import parse_objective
from inferometer.inputs.types import EngineSpec
from inferometer.inputs.workload import reading, replay
from inferometer.perfmodel.steptime import arrays_of
from inferometer.perfmodel.steptime_levels import StepTimes, datasheet_step_time
from inferometer.records.types import ABSENT, Run, RunManifest
from inferometer.simulate.deployment import Deployment, Knobs
from inferometer.simulate.run import demand_of, simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.verify.claims import spanned

PLACES = (
    ("llama-3.1-8b", "h100_sxm"),
    ("llama-3.1-8b", "l40s"),
    ("llama-2-13b", "a100_80gb_sxm"),
    ("qwen2.5-3b", "l4"),
    ("qwen2.5-7b", "a100_80gb_sxm"),
    ("smollm2-1.7b", "l4"),
    ("mistral-7b-v0.1", "l40s"),
)
LOADS = (0.35, 0.85, 1.6)
HELD_OUT = (0.6, 1.0)
ALL_LOADS_S = 600.0
MOST_REQUESTS = 450
QUANTILES = (0.5, 0.95)
LENGTHS = """
name = "random"
seed = {seed}
n_requests = 500
[arrivals]
kind = "open"
rate_per_s = 1.0
[[classes]]
name = "all"
prompt_tokens = {{ kind = "lognormal", median = {prompt}, sigma = {sigma}, min = 8, max = 3000 }}
output_tokens = {{ kind = "lognormal", median = {output}, sigma = 0.7, min = 2, max = 900 }}
"""
PREFIX = """
[classes.system_prompts]
n_prompts = 4
tokens = {{ kind = "constant", value = {tokens} }}
"""
ENGINE = EngineSpec(engine="vllm", mode="compiled", dtype="bfloat16", device="cuda")


class Truth:
    """A random server, and the traffic that it gets."""

    def __init__(self, rng):
        self.rng = rng
        name, device = PLACES[rng.integers(len(PLACES))]
        self.model, self.device = find_model(name), find_hardware(device)
        self.front_end_s = float(np.exp(rng.uniform(np.log(2e-3), np.log(12e-3))))
        self.steps = self._steps()
        self.spec = self._workload()
        self.config = self._config()

    def _steps(self):
        rng = self.rng
        ideal = arrays_of(datasheet_step_time(self.model, ENGINE, self.device))
        read, multiply = rng.uniform(0.8, 1.4), rng.uniform(0.8, 1.6)
        launch_s = float(np.exp(rng.uniform(np.log(3e-4), np.log(5e-3))))
        return ideal._replace(
            launch_s=launch_s,
            prefill_launch_s=launch_s,
            overlap_ratio=float(rng.choice([1.0, 4.0])),
            blend_ratio=float(rng.uniform(1.6, 2.4)),
            read_s=ideal.read_s * read,
            head_read_s=ideal.head_read_s * read,
            matmul_row_s=ideal.matmul_row_s * multiply,
            head_row_s=ideal.head_row_s * multiply,
            kv_token_s=ideal.kv_token_s * rng.uniform(1.0, 2.5),
            attention_pair_s=ideal.attention_pair_s * rng.uniform(1.5, 5.0),
            per_sequence_s=float(np.exp(rng.uniform(np.log(3e-6), np.log(5e-5)))),
        )

    def _workload(self):
        rng = self.rng
        text = LENGTHS.format(
            seed=int(rng.integers(10**6)),
            prompt=int(rng.integers(150, 700)),
            output=int(rng.integers(80, 250)),
            sigma=0.9,
        )
        if rng.random() < 0.5:
            text += PREFIX.format(tokens=int(rng.integers(100, 600)))
        return reading.workload_from_text(text, where="the benchmark")

    def _config(self):
        rng = self.rng
        slots = int(rng.choice([12, 16, 24, 32, 48, 64, 96, 128]))
        held = 700 * slots * float(np.exp(rng.uniform(np.log(0.35), np.log(2.5))))
        is_chunked = bool(rng.random() < 0.85)
        return SchedulerConfig(
            num_blocks=max(int(held / 16), 320) + 1,
            max_model_len=5000,
            max_num_seqs=slots,
            max_num_batched_tokens=(
                int(rng.choice([512, 1024, 2048, 4096, 8192])) if is_chunked else 8192
            ),
            enable_chunked_prefill=is_chunked,
            enable_prefix_caching=bool(rng.random() < 0.6),
        )

    def plan(self, rate_per_s, n_requests, seed):
        spec = reading.with_changes(
            at_load(self.spec, rate_per_s, n_requests), {"seed": seed}, where="the benchmark"
        )
        return replay.draw_workload(spec).plan

    def simulated(self, plan):
        asked = demand_of(plan, 16, has_contents=self.config.enable_prefix_caching)
        late_ns = np.sort(asked.arrival_ns + round(self.front_end_s * 1e9))
        return simulate(
            asked._replace(arrival_ns=late_ns), self.config, self.steps, record_steps=True
        )

    def load_test(self, rate_per_s, n_requests, seed):
        """What a client would have seen.

        A front end that varies by 20 % (the scheduler sees arrivals in order), tokens 0.3 ms late.
        """
        plan, rng = self.plan(rate_per_s, n_requests, seed), self.rng
        asked = demand_of(plan, 16, has_contents=self.config.enable_prefix_caching)
        delay_ns = np.round(
            self.front_end_s * 1e9 * np.exp(0.2 * rng.standard_normal(n_requests))
        ).astype(np.int64)
        came = simulate(
            asked._replace(arrival_ns=np.maximum.accumulate(asked.arrival_ns + delay_ns)),
            self.config,
            self.steps,
        )
        table, late = came.requests, lambda: rng.exponential(3e5, n_requests).astype(np.int64)
        first_ns = table.first_token_ns + late()
        requests = table._replace(
            intended_send_ns=plan.arrival_ns,
            sent_ns=plan.arrival_ns,
            admitted_ns=np.full(n_requests, ABSENT),
            first_token_ns=first_ns,
            finished_ns=np.maximum(table.finished_ns + late(), first_ns),
            cached_tokens=np.zeros(n_requests, np.int32),
            n_preemptions=np.zeros(n_requests, np.int32),
        )
        return (
            LoadTest(
                run=Run(
                    manifest=manifest(f"rate {rate_per_s:.3g}"),
                    sweep=None,
                    steps=None,
                    ceilings=None,
                    requests=requests,
                ),
                plan=plan,
            ),
            came,
        )


def manifest(run_id):
    return RunManifest(
        run_id=run_id,
        origin="simulated",
        created_utc="",
        command=(),
        tool_version="",
        plan=None,
        model=None,
        engine=None,
        host=None,
        source=None,
    )


def quantiles(requests, arrival_ns, front_end_s):
    ttft = (requests.first_token_ns - arrival_ns) / 1e9 + front_end_s
    several = requests.output_tokens > 1
    tpot = (
        (requests.finished_ns - requests.first_token_ns)[several]
        / 1e9
        / (requests.output_tokens[several] - 1)
    )
    return np.concatenate([np.quantile(ttft, QUANTILES), np.quantile(tpot, QUANTILES)])


def foretold(steps, config, plan, front_end_s):
    asked = demand_of(plan, config.block_size, has_contents=config.enable_prefix_caching)
    return quantiles(
        simulate(asked, config, steps, record_steps=False).requests, plan.arrival_ns, front_end_s
    )


def capacity(steps, config, spec, objective, start, truth):
    deployment = Deployment(
        model=truth.model, engine=ENGINE, hardware=None, config=config, kv_origin="", knobs=Knobs(),
        step_times=StepTimes(basis="fitted", origin="", engine=ENGINE, likely=steps, fast=steps, slow=steps),
    )  # fmt: skip
    probe = FleetProbe(
        fleet=Alike().fleet(deployment, "likely", 1),
        traffic=Traffic(spec=spec, n_requests=1000),
        objective=objective,
    )
    question = CapacityQuestion(
        kind="requests_per_s",
        start_load=start,
        lowest_load=start / 50,
        highest_load=start * 50,
        resolution_ratio=0.01,
        proof_effort=None,
    )
    return find_capacity(probe, question).located_load


def config_of(fit: ServerFit, knobs):
    budget = max(knobs["max_num_batched_tokens"], 5000 * (not knobs["enable_chunked_prefill"]))
    return SchedulerConfig(
        num_blocks=knobs["n_kv_blocks"] + 1,
        max_model_len=min(5000, knobs["n_kv_blocks"] * fit.block_tokens),
        max_num_seqs=min(knobs["max_num_seqs"], budget),
        max_num_batched_tokens=budget,
        enable_chunked_prefill=knobs["enable_chunked_prefill"],
        enable_prefix_caching=knobs["enable_prefix_caching"],
        async_scheduling=knobs["async_scheduling"],
    )


def likely_of(fit: ServerFit):
    return config_of(fit, {knob.name: knob.value for knob in fit.knobs})


def predictions(fit: ServerFit, plan):
    """Of the likely server, then of each draw, or of both ends of the step times where there are none: the same requests."""
    levels, config = fit.levels(), likely_of(fit)
    likely = foretold(fit.steps(), config, plan, fit.front_end_s)
    drawn = [
        foretold(
            fit.steps(np.log(draw.parameters)),
            config_of(fit, draw.knobs),
            plan,
            draw.parameters[-1],
        )
        for draw in fit.draws
    ]
    return likely, np.array(
        drawn
        or [foretold(steps, config, plan, fit.front_end_s) for steps in (levels.fast, levels.slow)]
    )


def one_server(seed, is_known):
    truth = Truth(np.random.default_rng(seed))
    quiet = foretold(truth.steps, truth.config, truth.plan(0.01, 200, 5), truth.front_end_s)
    slo = parse_objective(f"ttft:p95<{max(3 * quiet[1], 0.5):.4f}s, tpot:p95<{2.5 * quiet[3]:.5f}s")
    rate = capacity(truth.steps, truth.config, truth.spec, slo, 1.0, truth)
    n_each = [min(int(ALL_LOADS_S / 3 * rate * share), MOST_REQUESTS) for share in LOADS]
    tests = [
        truth.load_test(rate * share, max(n, 60), 11 + i)
        for i, (share, n) in enumerate(zip(LOADS, n_each, strict=True))
    ]
    began_s = time.process_time()
    subject = Subject(
        address=Address("http://server", "m"),
        model=truth.model if is_known else None,
        hardware=truth.device if is_known else None,
        engine=ENGINE,
        reported=ReportedSettings(),
    )
    fit = fit_server([test for test, _ in tests], subject)
    took_s = time.process_time() - began_s
    errors, if_known, reaches, draws = [], [], [], []
    for i, share in enumerate(HELD_OUT):
        plan = truth.plan(rate * share, 800, 77 + i)
        seen = foretold(truth.steps, truth.config, plan, truth.front_end_s)
        likely, drawn = predictions(fit, plan)
        claims = [
            spanned(value, ends)
            for value, ends in zip(likely.tolist(), drawn.T.tolist(), strict=True)
        ]
        errors.append(likely / seen - 1)
        draws.append(drawn / seen - 1)
        if_known.append(foretold(fit.steps(), truth.config, plan, fit.front_end_s) / seen - 1)
        reaches.append(
            [
                (claim.low / true - 1, claim.high / true - 1)
                for claim, true in zip(claims, seen.tolist(), strict=True)
            ]
        )
    found = capacity(fit.steps(), likely_of(fit), truth.spec, slo, rate, truth)
    true_limits = {
        "max_num_seqs": truth.config.max_num_seqs,
        "n_kv_blocks": truth.config.n_kv_blocks,
        "max_num_batched_tokens": truth.config.max_num_batched_tokens,
    }
    switches = ("enable_chunked_prefill", "enable_prefix_caching", "async_scheduling")
    knobs = {knob.name: knob for knob in fit.knobs}
    return {
        "seed": seed,
        "server": f"{truth.model.model_id} on {truth.device.hardware_id}",
        "known": is_known,
        "rate": rate,
        "seconds": sum(float(test.run.requests.sent_ns.max()) / 1e9 for test, _ in tests),
        "requests": sum(len(test.run.requests.status) for test, _ in tests),
        "cpu_s": took_s,
        "errors": np.array(errors).tolist(),
        "errors_limits_known": np.array(if_known).tolist(),
        "draws": np.round(draws, 5).tolist(),
        "reaches": np.array(reaches).tolist(),
        "capacity_error": None if found is None else found / rate - 1,
        "limits": {
            name: (value, knobs[name].value, knobs[name].low, knobs[name].high)
            for name, value in true_limits.items()
        },
        "switches": {
            name: (getattr(truth.config, name), knobs[name].value, knobs[name].informed_by)
            for name in switches
        },
        "scatter": fit.scatter_ratio,
        "has_prefixes": bool(truth.plan(1.0, 50, 1).prefix_tokens.any()),
    }


def within(limit):
    value, _, low, high = limit
    return (low is None or low <= value) and (high is None or value <= high)


def covered(row):
    """Of each held-out load and number: does its interval hold what was true?"""
    low, high = np.moveaxis(np.array(row["reaches"]), -1, 0)
    return (low <= 0) & (high >= 0)


def line(row):
    errors = np.array(row["errors"])
    limits = ", ".join(
        f"{name} {v} -> {b} [{lo}, {hi}]{'' if within((v, b, lo, hi)) else ' OUT'}"
        for name, (v, b, lo, hi) in row["limits"].items()
    )
    switches = ", ".join(f"{name} {t}->{v} ({by})" for name, (t, v, by) in row["switches"].items())
    capacity_error = row["capacity_error"]
    return (
        f"{row['seed']:4d} {row['server']}: {row['requests']} requests in {row['seconds']:.0f} s,"
        f" {row['cpu_s']:.0f} s CPU; errors % {np.round(100 * errors, 1).tolist()}; capacity"
        f" {'none' if capacity_error is None else f'{100 * capacity_error:+.1f} %'}; in interval"
        f" {int(np.sum(covered(row)))}/{errors.size}; {limits}; {switches}"
    )


def summary(rows):
    errors = np.abs(np.array([row["errors"] for row in rows])).reshape(-1, 4)
    capacities = np.array(
        [abs(row["capacity_error"]) for row in rows if row["capacity_error"] is not None]
    )
    told = "model and device told" if rows[0]["known"] else "nothing told"
    kinds = [
        f"{name} {spread(errors[:, k])}"
        for k, name in enumerate(("ttft p50", "ttft p95", "tpot p50", "tpot p95"))
    ]
    log_row(
        f"black box, {len(rows)} random servers, {told}: held-out errors, median / p90",
        "; ".join(kinds),
        f"capacity {spread(capacities)}; load tests simulated, with a client's noise",
    )
    inside = np.array([covered(row) for row in rows])
    widths = np.array([np.ptp(row["reaches"], axis=-1) / 2 for row in rows]).reshape(-1, 4)
    shares = {
        name: f"{np.mean([within(row['limits'][name]) for row in rows]):.0%}"
        for name in rows[0]["limits"]
    }
    closed = {
        name: sum(row["limits"][name][3] is not None for row in rows) for name in rows[0]["limits"]
    }
    by_kind = ", ".join(f"{share:.0%} (half as wide as {width:.1%})" for share, width in zip(
        inside.reshape(-1, 4).mean(axis=0), np.median(widths, axis=0), strict=True))  # fmt: skip
    log_row(
        f"black box, {len(rows)} random servers: truth in the interval of 90 %",
        f"{shares}; predictions {inside.mean():.0%}: ttft p50, ttft p95, tpot p50, tpot p95"
        f" {by_kind}",
        f"intervals with an upper end {closed}; switches decided, of which right"
        f" {switches_right(rows)}",
    )
    at_knee = np.abs(np.array([row["errors"][-1][1] for row in rows]))
    if_known = np.abs(np.array([row["errors_limits_known"][-1][1] for row in rows]))
    log_row(
        f"black box, {len(rows)} random servers: ttft p95 at capacity, whence the error",
        f"as found {spread(at_knee)}; with the true limits beside the step times that were found"
        f" {spread(if_known)}",
        "predicted and true are of the very same requests: no sampling is in the error",
    )


def spread(errors):
    return (
        f"{np.median(errors):.1%} / {np.quantile(errors, 0.9):.1%}, {np.mean(errors <= 0.05):.0%}"
        " within 5 %"
    )


def switches_right(rows):
    decided = {
        name: [row["switches"][name] for row in rows if row["switches"][name][2] == "load"]
        for name in rows[0]["switches"]
    }
    return {
        name: (len(found), sum(true == value for true, value, _ in found))
        for name, found in decided.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=50)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument(
        "--for-s", type=float, default=3600.0, help="start no further server after this time"
    )
    parser.add_argument(
        "--known", action="store_true", help="tell the model's architecture and the device"
    )
    parser.add_argument("--rows", type=Path, help="append each server's numbers as JSON lines")
    parser.add_argument("--summarise", type=Path, nargs="*", help="only summarise such files")
    flags = parser.parse_args()
    rows, began_s = [], time.monotonic()
    for file in flags.summarise or ():
        rows += [json.loads(text) for text in file.read_text().splitlines()]
    for seed in range(flags.first_seed, flags.first_seed + (0 if rows else flags.servers)):
        if time.monotonic() - began_s > flags.for_s:
            break
        try:
            row = one_server(seed, flags.known)
        except InferometerError as error:
            print(seed, "failed:", error, flush=True)
            continue
        rows.append(row)
        print(line(row), flush=True)
        if flags.rows:
            with flags.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
    summary(rows)


if __name__ == "__main__":
    main()
