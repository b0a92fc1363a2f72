"""How close are simulations to published runs of vLLM.

One half of the requests foretold from the other, beside the authors' own?

The bounds are those that were reached (bench/RESULTS.md has the numbers), with room for another
machine's last bits.
"""

from pathlib import Path

import numpy as np
import pytest

from inferometer.fit.loads.load_tests import agreements, latencies
from inferometer.fit.loads.requests import fit_requests
from inferometer.fit.published.serving import published_subject
from inferometer.inputs.catalog import find_hardware
from inferometer.records.imports.kernel_tables import read_kernel_tables
from inferometer.records.imports.llmservingsim import read_llmservingsim

DATA = Path(__file__).parents[4] / "shared" / "data"
RUNS = DATA / "llmservingsim-vllm-bench"
KERNELS = DATA / "aiconfigurator-kernels" / "rtx_pro_6000_server"

pytestmark = pytest.mark.skipif(
    not (RUNS.is_dir() and KERNELS.is_dir()), reason="the published runs are not at hand"
)


def subject_of(folder, workload):
    serving = read_llmservingsim(
        RUNS / folder, RUNS / f"workload_sharegpt-{workload}-300-sps10.jsonl"
    )
    return serving, *published_subject(
        serving, read_kernel_tables(KERNELS), find_hardware("rtx_pro_6000_server")
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "workload", "bound", "ttft_bound", "n_closer"),
    [
        ("rtxpro6000_llama-3.1-8b_tp1", "llama-3.1-8b", 0.02, 0.02, 11),
        pytest.param(
            "rtxpro6000_qwen3-32b_tp2", "qwen3-32b", 0.02, 0.02, 11, marks=pytest.mark.long
        ),
        ("rtxpro6000_qwen3-30b-a3b_dp2ep2", "qwen3-30b-a3b", 0.02, 0.04, 10),
    ],
)
def test_the_second_half_foretold_from_the_first(folder, workload, bound, ttft_bound, n_closer):
    serving, replay, prior = subject_of(folder, workload)
    table = serving.run.requests
    is_first = np.arange(300) < 150
    fit = fit_requests(serving.run, replay, prior, keep=is_first)
    seen = latencies(table, table)
    found = latencies(table, replay.simulated(table, fit.model, fit.front_end_s.value).requests)
    for row in agreements(seen, found, ~is_first):
        assert abs(row.error_fraction) < (ttft_bound if row.metric == "ttft" else bound), row
    theirs = {
        (claim.metric, claim.statistic): claim.simulated_s / claim.measured_s - 1
        for claim in serving.claims
    }
    closer = [
        abs(row.error_fraction) <= abs(theirs[row.metric, row.statistic])
        for row in agreements(seen, found)
    ]
    assert sum(closer) >= n_closer


@pytest.mark.parametrize(
    ("folder", "workload", "least", "most"),
    [
        ("rtxpro6000_llama-3.1-8b_tp1", "llama-3.1-8b", -0.1, 0.02),
        pytest.param("rtxpro6000_qwen3-32b_tp2", "qwen3-32b", -0.35, 0.02, marks=pytest.mark.slow),
        pytest.param(
            "rtxpro6000_qwen3-30b-a3b_dp2ep2",
            "qwen3-30b-a3b",
            -0.25,
            0.02,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_kernels_alone_are_a_lower_bound_of_the_time_per_token(folder, workload, least, most):
    """The device's kernels, timed alone by others, and no look at the run.

    Too fast, as kernels without their surroundings are.
    """
    serving, replay, prior = subject_of(folder, workload)
    table = serving.run.requests
    found = latencies(table, replay.simulated(table, prior, 3e-3).requests)
    errors = {row[:2]: row.error_fraction for row in agreements(latencies(table, table), found)}
    assert least < errors["tpot", "mean"] < most
    assert least < errors["e2e", "mean"] < most
