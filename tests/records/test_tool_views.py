"""Do other tools' numbers come out of our record as they came out of the tools?

Measured on one server that sent 4 tokens a chunk at a true 5.00 ms a token: AIPerf ITL 4.79 ms and
ICL 20.1; GuideLLM ITL 4.7, TPOT 5.1; inference-perf ITL mean 4.76, median 0.00; vLLM TPOT 4.77, ITL
20.0. Answers had 64 tokens.
"""

from dataclasses import replace

import numpy as np
import pytest
from tests.records.load_run import MS, changed, load_run

from inferometer.records.request_summaries import inter_token_summary
from inferometer.records.tool_views import tool_views
from inferometer.records.types import ABSENT, RequestStatus

RUN = load_run(tokens=64, tokens_per_chunk=4, ttft_s=0.0264, tpot_s=0.005)
HUNDREDTH_MS = 1e-5


def rows(run=RUN):
    return {one.tool: one for one in tool_views(run)}


def test_the_numbers_that_the_tools_reported():
    seen = rows()
    assert seen["AIPerf"].itl.mean_s == pytest.approx(4.79e-3, abs=5 * HUNDREDTH_MS)
    assert seen["GuideLLM"].itl.mean_s == pytest.approx(4.7e-3, abs=10 * HUNDREDTH_MS)
    assert seen["GuideLLM"].tpot.mean_s == pytest.approx(5.1e-3, abs=HUNDREDTH_MS * 5)
    assert seen["inference-perf"].itl.mean_s == pytest.approx(4.76e-3, abs=HUNDREDTH_MS)
    assert seen["inference-perf"].itl.median_s == 0
    assert seen["vLLM bench"].tpot.mean_s == pytest.approx(4.77e-3, abs=HUNDREDTH_MS)
    assert seen["vLLM bench"].itl.mean_s == pytest.approx(20.0e-3, abs=HUNDREDTH_MS)
    assert seen["MLC endpoints"].itl.mean_s == pytest.approx(20.0e-3, abs=HUNDREDTH_MS)


def test_ours_knows_the_true_time_of_a_token():
    ours = rows()["inferometer"]
    assert (ours.itl.mean_s, ours.itl.median_s) == (pytest.approx(5e-3), pytest.approx(5e-3))
    assert ours.tpot.mean_s == pytest.approx(15 * 20e-3 / 63), (
        "the definition: last - first token, over n - 1"
    )
    summary = inter_token_summary(RUN)
    assert summary.per_chunk.percentiles[0].seconds.value == pytest.approx(20e-3)
    assert summary.per_token.percentiles[0].seconds.value == pytest.approx(5e-3)
    assert (summary.n_chunks, summary.n_chunks_of_several, summary.tokens_per_chunk_ratio) == (
        400 * 16,
        400 * 16,
        4,
    )
    assert (summary.per_chunk.n_samples, summary.per_token.n_samples) == (400 * 15, 400 * 60)


def test_clocks_start_and_end_where_each_tool_starts_and_ends_them():
    run = load_run(tokens=4, ttft_s=0.1, tpot_s=0.01, send_lag_s=0.02)
    run = changed(run, "exchanges", last_byte_ns=run.requests.finished_ns + 5 * MS, is_reused=False)
    seen = rows(run)
    ttft = {tool: round(one.ttft.median_s, 6) for tool, one in seen.items()}
    from_intended, from_sent = 0.12, 0.1
    assert ttft == {
        "inferometer": from_intended,
        "AIPerf": from_intended,
        "GuideLLM": from_sent,
        "inference-perf": from_sent,
        "vLLM bench": from_intended,
        "SGLang bench": from_intended,
        "MLC endpoints": from_sent,
        "MLPerf LoadGen": from_intended,
    }
    assert rows(changed(run, "exchanges", is_reused=True))[
        "vLLM bench"
    ].ttft.median_s == pytest.approx(from_sent)
    e2e = {tool: round(one.e2e.median_s, 6) for tool, one in seen.items()}
    assert (e2e["inferometer"], e2e["vLLM bench"], e2e["GuideLLM"], e2e["MLPerf LoadGen"]) == (
        0.15,
        0.15,
        0.135,
        0.155,
    )
    assert seen["SGLang bench"].tpot.median_s == pytest.approx(0.035 / 3)
    assert seen["MLC endpoints"].tpot.median_s == pytest.approx(0.035 / 3)


def test_answers_of_one_token():
    seen = rows(load_run(tokens=1))
    assert seen["inference-perf"].ttft is None
    assert seen["vLLM bench"].tpot is None
    assert seen["inferometer"].itl is None
    assert seen["GuideLLM"].tpot.n_samples == 400
    assert inter_token_summary(load_run(tokens=1)).per_chunk.mean_s is None


def test_chunks_that_nobody_knows_are_taken_to_be_even():
    unknown = changed(RUN, "chunks", n_tokens=ABSENT)
    summary = inter_token_summary(unknown)
    assert summary.n_chunks_assumed == 400 * 16
    assert summary.per_token.mean_s == pytest.approx(5e-3)
    odd = changed(unknown, "requests", output_tokens=np.full(400, 50))
    assert inter_token_summary(odd).tokens_per_chunk_ratio == pytest.approx(50 / 16)


def test_only_completed_answers_count_and_only_of_load_tests():
    assert tool_views(replace(RUN, exchanges=None)) == ()
    assert tool_views(changed(RUN, "requests", status=RequestStatus.FAILED)) == ()
    half = changed(
        RUN,
        "requests",
        status=np.where(np.arange(400) < 200, RequestStatus.FAILED, RequestStatus.LENGTH),
    )
    assert rows(half)["inferometer"].ttft.n_samples == 200
