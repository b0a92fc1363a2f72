"""Do ServeGen's clients ask as often, as burstily and as long as their statistics say?

Tests at the level 0.001, seeds fixed.
"""

import json

import numpy as np
import pytest
from scipy import stats

from inferometer.errors import SpecError
from inferometer.inputs.workload.reading import resolve_workload, with_changes
from inferometer.inputs.workload.replay import draw_workload
from inferometer.inputs.workload.types import ServeGenSource, TraceSource, WorkloadSpec

LEVEL = 1e-3
HEADER = "client,window_start_s,rate_req_s,inter_arrival_cv,pattern,pattern_param1,pattern_param2\n"
RATES = HEADER + "7,0,2.5,1,Gamma,0.5,1\n7,600,5.0,1,Gamma,0.5,1\n9,600,1.25,1,Weibull,0.6,1\n"
LENGTHS = [
    {
        "client": 7,
        "window_start_s": 0,
        "input_tokens": {"10": 0.25, "20": 0.75},
        "output_tokens": {"0": 0.1, "5": 0.9},
    },
    {"client": 7, "window_start_s": 600, "input_tokens": {"30": 1}, "output_tokens": {"6": 1}},
    {"client": 9, "window_start_s": 0, "input_tokens": {"40": 1}, "output_tokens": {"7": 1}},
]


@pytest.fixture
def written(tmp_path):
    def write(rates=RATES, lengths=LENGTHS, **settings):
        (tmp_path / "rates.csv").write_text(rates)
        text = lengths if isinstance(lengths, str) else "\n".join(map(json.dumps, lengths))
        (tmp_path / "lengths.jsonl").write_text(text)
        source = ServeGenSource(
            rates_path=str(tmp_path / "rates.csv"),
            lengths_path=str(tmp_path / "lengths.jsonl"),
            **settings,
        )
        return WorkloadSpec(duration_s=1200, replay=source)

    return write


def test_clients_ask_as_often_as_they_say(written):
    drawn = draw_workload(written())
    plan = drawn.plan
    assert drawn.tenant_names == ("client-7", "client-9")
    window = plan.arrival_ns // (600 * 10**9)
    counts = {
        (t, w): int(((plan.tenant_index == t) & (window == w)).sum())
        for t in (0, 1)
        for w in (0, 1)
    }
    assert counts == {(0, 0): 1500, (0, 1): 3000, (1, 0): 0, (1, 1): 750}
    assert np.all(np.diff(plan.arrival_ns) >= 0)


def test_fractional_counts_are_right_on_average(written):
    """A tenth of a request in each window: whether it comes is drawn."""
    rows = "".join(f"7,{600 * k},{0.1 / 600},1,Gamma,1,1\n" for k in range(2000))
    spec = with_changes(written(HEADER + rows), {"duration_s": 1_200_000}, where="here")
    assert stats.binomtest(draw_workload(spec).plan.n_requests, 2000, 0.1).pvalue > LEVEL


def test_gaps_have_the_clients_pattern(written):
    plan = draw_workload(
        written(rates=HEADER + "7,0,30,1,Gamma,0.5,1\n9,0,30,1,Weibull,0.6,1\n")
    ).plan
    for tenant, known in ((0, stats.gamma(0.5)), (1, stats.weibull_min(0.6))):
        gaps = np.diff(plan.arrival_ns[plan.tenant_index == tenant]) / 1e9
        assert stats.kstest(gaps / gaps.mean() * known.mean(), known.cdf).pvalue > LEVEL


def test_lengths_are_those_of_client_and_time(written):
    drawn = draw_workload(written())
    plan = drawn.plan
    is_early = plan.arrival_ns < 600 * 10**9
    early = plan.prompt_tokens[is_early]
    assert stats.binomtest(int((early == 10).sum()), len(early), 0.25).pvalue > LEVEL
    assert set(plan.output_tokens[is_early].tolist()) == {1, 5}
    assert set(plan.prompt_tokens[~is_early & (plan.tenant_index == 0)].tolist()) == {30}
    assert set(plan.prompt_tokens[plan.tenant_index == 1].tolist()) == {40}
    codes = [one.code for one in drawn.cautions]
    assert codes == ["lengths_independent", "zero_lengths"]


def test_a_span_and_a_rate_can_be_chosen(written):
    plan = draw_workload(
        with_changes(written(start_s=300, rate_ratio=2), {"duration_s": 300}, where="x")
    ).plan
    assert plan.arrival_ns.min() >= 0
    assert plan.arrival_ns.max() < 300 * 10**9
    assert plan.n_requests == pytest.approx(
        1500, abs=4 * np.sqrt(1500 * 2)
    )  # half of a window of bursty gaps


def test_clients_without_lengths_are_never_passed_over_in_silence(written):
    lengths = LENGTHS[:2]
    with pytest.raises(SpecError, match=r"1 clients with 14.3 % of the requests have no tables"):
        draw_workload(written(lengths=lengths))
    dropped = draw_workload(written(lengths=lengths, without_lengths="drop"))
    assert dropped.plan.n_requests == 4500
    pooled = draw_workload(written(lengths=lengths, without_lengths="pool"))
    assert pooled.plan.n_requests == 5250
    assert set(pooled.plan.prompt_tokens[pooled.plan.tenant_index == 1].tolist()) == {10, 20, 30}
    for drawn in (dropped, pooled):
        assert "clients_without_lengths" in [one.code for one in drawn.cautions]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rates": RATES + "8,600,x,1,Gamma,1,1\n"}, "line 5 is broken.*rate_req_s"),
        ({"rates": RATES + "8,600,0,1,Gamma,1,1\n"}, "line 5 is broken.*rate_req_s"),
        ({"rates": RATES + "8,600,1,1,Pareto,1,1\n"}, "line 5 is broken.*pattern"),
        ({"rates": RATES + "8,600,1\n"}, "line 5 is broken: 3 fields"),
        ({"rates": "a,b\n"}, "line 1 is broken: the columns"),
        ({"rates": HEADER}, "no client asks"),
        ({"rates": HEADER + "7,0,1e7,1,Gamma,0.5,1\n"}, "about 6e[+]09 requests come"),
        ({"lengths": "{"}, "line 1 is broken"),
        ({"lengths": ""}, "no tables of lengths"),
        (
            {
                "lengths": (
                    '{"client": 7, "window_start_s": 0, "input_tokens": {}, "output_tokens":'
                    ' {"1": 1}}'
                )
            },
            "line 1 is broken: a table",
        ),
        (
            {
                "lengths": (
                    '{"client": 7, "window_start_s": 0, "input_tokens": {"x": 1}, "output_tokens":'
                    ' {"1": 1}}'
                )
            },
            "line 1 is broken",
        ),
    ],
)
def test_broken_lines_are_named(written, changes, what):
    with pytest.raises(SpecError, match=what):
        draw_workload(written(**changes))


def test_statistics_need_a_span(written):
    with pytest.raises(SpecError, match="span of time"):
        draw_workload(with_changes(written(), {"duration_s": None, "n_requests": 5}, where="x"))
    assert isinstance(written().replay, ServeGenSource)
    assert not isinstance(written().replay, TraceSource)


def test_rates_alone_are_a_workload(written, tmp_path):
    """The tables of lengths are found beside them; a folder and missing tables are refused with what to do."""
    written()
    (tmp_path / "rates.csv").rename(tmp_path / "small_client_rates_3days.csv")
    with pytest.raises(SpecError, match="0 files of tables of lengths") as caught:
        resolve_workload(str(tmp_path / "small_client_rates_3days.csv"))
    assert "small_length_pdfs.jsonl" in caught.value.allowed
    (tmp_path / "lengths.jsonl").rename(tmp_path / "small_length_pdfs.jsonl")
    (tmp_path / "mid_length_pdfs.jsonl").write_text("of others")
    spec = resolve_workload(str(tmp_path / "small_client_rates_3days.csv"))
    assert spec.replay.lengths_path == str(tmp_path / "small_length_pdfs.jsonl")
    assert draw_workload(spec).plan.n_requests == 1500, "the first ten minutes"
    with pytest.raises(SpecError, match="is a folder") as caught:
        resolve_workload(str(tmp_path))
    assert caught.value.try_ == str(tmp_path / "small_client_rates_3days.csv")


def test_published_clients(published):
    """The hour's requests are the sum of the clients' rates, each window's rounding apart."""
    source = ServeGenSource(
        rates_path=published("servegen-alibaba/reason_deepseek-r1_client_rates_3days.csv"),
        lengths_path=published("servegen-alibaba/reason_deepseek-r1_length_pdfs.jsonl.gz"),
        start_s=36_000,
        without_lengths="pool",
    )
    plan = draw_workload(WorkloadSpec(duration_s=3600, replay=source)).plan
    rows = np.genfromtxt(source.rates_path, delimiter=",", skip_header=1, usecols=(1, 2))
    here = rows[(rows[:, 0] >= 36_000) & (rows[:, 0] < 39_600)]
    assert abs(plan.n_requests - here[:, 1].sum() * 600) <= len(here)
