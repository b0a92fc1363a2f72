"""Which arrivals are tested, and what must hold of their gaps and counts, whether intended or sent?"""

import numpy as np
from scipy import stats

from inferometer.inputs.workload.plan import request_plan
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload

N_REQUESTS, RATE_PER_S = 10_000, 1000.0
WINDOW_S = 0.2
RARE = 1e-4
"""A right client fails so often."""
ARRIVALS = {
    "constant": {"process": "constant"},
    "poisson": {"process": "poisson"},
    "gamma": {"process": "gamma", "burstiness_ratio": 0.25},
}
GAPS = {
    "poisson": stats.expon(scale=1 / RATE_PER_S),
    "gamma": stats.gamma(0.25, scale=4 / RATE_PER_S),
}
DISPERSION = {"poisson": 1.0, "gamma": 4.0}
"""Variance over mean of counts in long windows: the squared variation of gaps (renewal theory)."""


def plan_of(process):
    """Small requests at these arrivals."""
    asked = {
        "arrivals": {"kind": "open", "rate_per_s": RATE_PER_S, **ARRIVALS[process]},
        "n_requests": N_REQUESTS,
        "duration_s": None,
    }
    instants = draw_workload(
        with_changes(resolve_workload("chat"), asked, where="the test")
    ).plan.arrival_ns
    return request_plan(
        "the test",
        arrival_ns=instants,
        prompt_tokens=np.full(N_REQUESTS, 8),
        output_tokens=np.full(N_REQUESTS, 4),
    )


def check_dispersion(process, instants_ns):
    """Counts in windows vary as those of the process do."""
    counts = np.bincount((instants_ns / (WINDOW_S * 1e9)).astype(int))[1:-1]
    freedom = len(counts) - 1
    if process == "constant":
        assert abs(counts.mean() - RATE_PER_S * WINDOW_S) < 1
    else:
        statistic = freedom * counts.var(ddof=1) / counts.mean() / DISPERSION[process]
        assert RARE < stats.chi2.cdf(statistic, freedom) < 1 - RARE


def check_gaps(process, instants_ns, resolution_s):
    """Pearson's test of gaps in bins of equal probability, none of which ends below the resolution."""
    gaps_s = np.diff(np.sort(instants_ns)) / 1e9
    if process == "constant":
        assert (np.abs(gaps_s - 1 / RATE_PER_S) <= max(resolution_s, 2e-9)).mean() > 0.95
        return
    inner = np.unique(np.maximum(GAPS[process].ppf(np.linspace(0, 1, 21)[1:-1]), resolution_s))
    edges = np.concatenate([[0.0], inner, [np.inf]])
    assert len(edges) > 8
    expected = np.diff(GAPS[process].cdf(edges)) * len(gaps_s)
    assert stats.chisquare(np.histogram(gaps_s, edges)[0], expected).pvalue > RARE
