"""How far are simulations from published measured runs, and how far were other people's?

LLMServingSim's three runs of vLLM on RTX PRO 6000, one row a request, with the authors' own
simulator's summary. Their step times are learned from the first half of the requests, starting from
kernels measured on that device; the other half was not looked at. ``bench/accuracy.py`` shows them.
"""

import time

import numpy as np

from inferometer.fit.loads.load_tests import agreements, latencies
from inferometer.fit.loads.requests import fit_requests
from inferometer.fit.published.serving import published_subject
from inferometer.inputs.catalog import find_hardware
from inferometer.records.imports.kernel_tables import read_kernel_tables
from inferometer.records.imports.llmservingsim import read_llmservingsim

RUNS = {
    "rtxpro6000_llama-3.1-8b_tp1": "llama-3.1-8b",
    "rtxpro6000_qwen3-32b_tp2": "qwen3-32b",
    "rtxpro6000_qwen3-30b-a3b_dp2ep2": "qwen3-30b-a3b",
}
RUN_TABLES = ("llmservingsim-vllm-bench", "aiconfigurator-kernels")
DEVICE = "rtx_pro_6000_server"


def scorecard(data, name):
    """Errors of one run's twelve statistics: of its second half, and of the whole beside the authors'."""
    serving_folder, kernel_folder = (data / name for name in RUN_TABLES)
    serving = read_llmservingsim(
        serving_folder / name, serving_folder / f"workload_sharegpt-{RUNS[name]}-300-sps10.jsonl"
    )
    tables = read_kernel_tables(kernel_folder / DEVICE)
    replay, prior = published_subject(serving, tables, find_hardware(DEVICE))
    table = serving.run.requests
    seen = latencies(table, table)
    first_half = np.arange(len(table.sent_ns)) < len(table.sent_ns) // 2
    start_s = time.process_time()
    fit = fit_requests(serving.run, replay, prior, keep=first_half)
    print(f"  {name}: {time.process_time() - start_s:.0f} CPU s", flush=True)
    found = latencies(table, replay.simulated(table, fit.model, fit.front_end_s.value).requests)
    held, whole = agreements(seen, found, ~first_half), agreements(seen, found)
    claims = {(claim.metric, claim.statistic): claim for claim in serving.claims}
    theirs = [claims[one.metric, one.statistic] for one in whole]
    their_errors = [claim.simulated_s / claim.measured_s - 1 for claim in theirs]
    worst = max(held, key=lambda one: abs(one.error_fraction))
    means = [k for k, one in enumerate(whole) if one.statistic == "mean"]
    return {
        "run": name,
        "n_fitted": int(fit.n_requests),
        "held_out": [round(held[k].error_fraction, 4) for k in means],
        "worst": round(worst.error_fraction, 4),
        "worst_of": f"{worst.metric} {worst.statistic}",
        "whole": [round(whole[k].error_fraction, 4) for k in means],
        "theirs": [round(their_errors[k], 4) for k in means],
        "n_nearer": sum(
            abs(mine.error_fraction) <= abs(error)
            for mine, error in zip(whole, their_errors, strict=True)
        ),
    }
