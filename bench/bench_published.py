"""How far are simulations from published measured runs, and how far were other people's?

``--llmservingsim`` three runs of vLLM on RTX PRO 6000, one row a request, with the authors' own
simulator's summary beside them. Their step times are learned from the first half of the requests,
starting from kernels measured on that device; the scorecard shows the other half, which was not
looked at, and the whole run beside the authors' numbers. ``kernels`` is what kernels alone
foretell.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
from results_log import log_row

from inferometer.fit.loads.replay import STATISTICS, agreements, latencies, noticed_ns, statistic_of
from inferometer.fit.loads.requests import fit_requests
from inferometer.fit.published.serving import published_subject
from inferometer.inputs.catalog import find_hardware
from inferometer.records.imports.kernel_tables import read_kernel_tables
from inferometer.records.imports.llmservingsim import read_llmservingsim

DATA = Path(__file__).parents[2] / "shared" / "data"
RUNS = {
    "rtxpro6000_llama-3.1-8b_tp1": "llama-3.1-8b",
    "rtxpro6000_qwen3-32b_tp2": "qwen3-32b",
    "rtxpro6000_qwen3-30b-a3b_dp2ep2": "qwen3-30b-a3b",
}
FRONT_END_S = 3e-3


def scorecard(folder, name, tables, hardware):
    serving = read_llmservingsim(
        folder / name, folder / f"workload_sharegpt-{RUNS[name]}-300-sps10.jsonl"
    )
    replay, prior = published_subject(serving, tables, hardware)
    table = serving.run.requests
    seen = latencies(table, table)
    first_half = np.arange(len(table.sent_ns)) < len(table.sent_ns) // 2
    start_s = time.process_time()
    fit = fit_requests(serving.run, replay, prior, keep=first_half)
    took_s = time.process_time() - start_s
    simulation = replay.simulated(table, fit.model, fit.front_end_s.value)
    found = latencies(table, simulation.requests)
    kernels = latencies(table, replay.simulated(table, prior, FRONT_END_S).requests)
    print(
        f"\n{name}: {fit.n_requests} of {len(table.sent_ns)} requests fitted, {fit.n_simulations}"
        f" simulations, {took_s:.1f} CPU s"
    )
    for entry in fit.model.parameters:
        if entry.told_by != "fixed":
            value = entry.estimate
            print(
                f"  {entry.name:22} {value.value:10.4g} [{value.low:.4g}, {value.high:.4g}]"
                f" {entry.told_by}"
            )
    front = fit.front_end_s
    print(f"  {'front_end_s':22} {front.value:10.4g} [{front.low:.4g}, {front.high:.4g}]")
    held = agreements(seen, found, ~first_half)
    whole = agreements(seen, found)
    alone = agreements(seen, kernels)
    theirs = {(claim.metric, claim.statistic): claim for claim in serving.claims}
    noticed = noticed_ns(simulation.steps, table.sent_ns + round(front.value * 1e9))
    own_ttft_s = (simulation.requests.first_token_ns - noticed) / 1e9
    print(
        f"  {'':11}| {'held-out half':^26} | {'whole run':^26} | {'kernels':>8} | authors'"
        " simulator, TTFT from the queue (ours)"
    )
    print(
        f"  {'':11}| {'measured':>9} {'ours':>9} {'error':>6} | {'measured':>9} {'ours':>9}"
        f" {'error':>6} | {'error':>8} |"
    )
    errors = []
    for mine, half, kernel in zip(whole, held, alone, strict=True):
        claim = theirs[mine.metric, mine.statistic]
        their_error = claim.simulated_s / claim.measured_s - 1
        own = ""
        if mine.metric == "ttft":
            own = f" ({statistic_of(own_ttft_s, mine.statistic) / claim.measured_s - 1:+.1%})"
        print(
            f"  {mine.metric:5}{mine.statistic:6}| {half.measured_s:9.4f} {half.simulated_s:9.4f}"
            f" {half.error_fraction:+6.1%} | {mine.measured_s:9.4f} {mine.simulated_s:9.4f}"
            f" {mine.error_fraction:+6.1%} | {kernel.error_fraction:+8.1%} |"
            f" {their_error:+.1%}{own}"
        )
        errors.append(
            (mine.metric, mine.statistic, half.error_fraction, mine.error_fraction, their_error)
        )
    worst = max(errors, key=lambda row: abs(row[2]))
    n_closer = sum(abs(row[3]) <= abs(row[4]) for row in errors)
    log_row(
        f"published: {name}, second half foretold from the first",
        f"{max(abs(row[2]) for row in errors if row[:2] != worst[:2]):.1%} at most, but {worst[0]}"
        f" {worst[1]} {worst[2]:+.1%}",
        f"12 statistics of TTFT, TPOT and E2E; whole run: mean TTFT {errors[0][3]:+.1%} (authors"
        f" {errors[0][4]:+.1%}), mean TPOT {errors[len(STATISTICS)][3]:+.1%}"
        f" ({errors[len(STATISTICS)][4]:+.1%}), mean E2E {errors[2 * len(STATISTICS)][3]:+.1%}"
        f" ({errors[2 * len(STATISTICS)][4]:+.1%}); as close as the authors or closer in {n_closer}"
        f" of 12; {took_s:.0f} CPU s",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data", type=Path, default=os.environ.get("INFEROMETER_PUBLISHED_DATA", DATA)
    )
    data = Path(parser.parse_args().data)
    tables = read_kernel_tables(data / "aiconfigurator-kernels" / "rtx_pro_6000_server")
    hardware = find_hardware("rtx_pro_6000_server")
    for name in RUNS:
        scorecard(data / "llmservingsim-vllm-bench", name, tables, hardware)


if __name__ == "__main__":
    main()
