"""Is what is promised understood, and is what is not a promise refused with what is allowed?"""

import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.objectives import (
    METRICS,
    PRESET_OBJECTIVES,
    ObjectiveSpec,
    Threshold,
    parse_objective,
)

THRESHOLDS = st.builds(
    Threshold,
    metric=st.sampled_from(sorted(METRICS)),
    percentile_fraction=st.integers(1, 999).map(lambda permille: permille / 1000),
    limit_s=st.integers(1, 99_999_999).map(lambda ms: ms / 1000),
)


@pytest.mark.parametrize(
    "text",
    [
        "ttft:p95<500ms, tpot:p95<50ms",
        "ttft p95 < 500ms,tpot p95<=50ms",
        " TTFT:p95 < 0.5s , tpot : p95 < 50 ms,",
    ],
)
def test_spellings_of_one_promise(text):
    assert parse_objective(text) == ObjectiveSpec(
        thresholds=(
            Threshold(metric="ttft", percentile_fraction=0.95, limit_s=0.5),
            Threshold(metric="tpot", percentile_fraction=0.95, limit_s=0.05),
        )
    )


@given(
    st.lists(
        THRESHOLDS, min_size=1, max_size=4, unique_by=lambda t: (t.metric, t.percentile_fraction)
    )
)
def test_what_is_written_is_read(thresholds):
    objective = ObjectiveSpec(thresholds=tuple(thresholds))
    assert parse_objective(objective.text, has_workflows=True) == objective


def test_a_bare_number_is_taken_for_what_was_most_likely_meant():
    for text, try_ in (
        ("ttft:p95<500", "ttft:p95<500ms"),
        ("tpot p50 < 5", "tpot:p50<5ms"),
        ("ttft:p95<1.5", "ttft:p95<1.5s"),
    ):
        with pytest.raises(SpecError) as caught:
            parse_objective(text)
        assert caught.value.try_ == try_
        parse_objective(try_)


@pytest.mark.parametrize(
    ("text", "what", "allowed"),
    [
        ("", "promises nothing", "METRIC:STATISTIC<LIMIT"),
        ("fast", "'fast' is no threshold", "METRIC:STATISTIC<LIMIT"),
        ("ttft<500ms", "'ttft<500ms' is no threshold", "p95"),
        ("speed:p95<1s", "'speed' of 'speed:p95<1s' is no latency", "tpot: time per output token"),
        ("ttft:mean<1s", "'mean' of 'ttft:mean<1s' is no percentile", "p50"),
        ("ttft:p100<1s", "is no percentile", "p99.9"),
        ("ttft:p0<1s", "is no percentile", "p99.9"),
        ("ttft:p95>1s", "an upper limit", "<"),
        ("ttft:p95<500", "'500' of 'ttft:p95<500' has no unit", "ms"),
        ("ttft:p95<0ms", "is not above 0", "a duration"),
        ("ttft:p95<-1ms", "is not a duration", "ms"),
        ("ttft:p95<1s, ttft:p95<2s", "ttft:p95 has two limits", "one limit"),
    ],
)
def test_what_is_no_promise_is_refused(text, what, allowed):
    with pytest.raises(SpecError) as caught:
        parse_objective(text)
    assert what in caught.value.what
    assert allowed in caught.value.allowed
    assert caught.value.where == "--slo"
    assert caught.value.try_


@pytest.mark.parametrize(
    "text", ["itl:p99<50ms", "inter-token latency p99 < 50ms", "TBT p99 < 50ms"]
)
def test_a_limit_on_gaps_is_answered_with_the_mean_of_them(text):
    with pytest.raises(SpecError, match="no latency that is known") as caught:
        parse_objective(text)
    assert parse_objective(caught.value.try_.partition(": ")[2]).text == "tpot:p99<50ms"


@pytest.mark.parametrize(
    "text", ["ttft<2s", "ttft <= 2s", "ttft under 2 s", "time_to_first_token<2s"]
)
def test_a_limit_without_a_percentile_is_told_how_it_is_said(text):
    with pytest.raises(SpecError, match="which percentile") as caught:
        parse_objective(text)
    assert parse_objective(caught.value.try_).text == "ttft:p95<2000ms"


@pytest.mark.parametrize(
    ("text", "missing", "meant"),
    [
        ("ttft<500", "which percentile", "ttft:p95<500ms"),
        ("latency < 5", "which percentile", "e2e:p95<5000ms"),
        ("p99<500ms", "which latency", "ttft:p99<500ms"),
        ("P99.9 <= 2", "which latency", "ttft:p99.9<2000ms"),
        ("ttft 2s", "which percentile", "ttft:p95<2000ms"),
    ],
)
def test_a_limit_that_lacks_more_is_answered_with_all_of_it(text, missing, meant):
    with pytest.raises(SpecError, match=missing) as caught:
        parse_objective(text)
    assert parse_objective(caught.value.try_).text == meant


def test_two_percentiles_of_one_latency():
    assert [t.text for t in parse_objective("ttft:p50<100ms, ttft:p99.9<2s").thresholds] == [
        "ttft:p50<100ms",
        "ttft:p99.9<2000ms",
    ]


@pytest.mark.parametrize(
    ("fraction", "limit"), [(0.0, 1.0), (1.0, 1.0), (0.5, 0.0), (0.5, float("nan"))]
)
def test_impossible_thresholds_are_not_born(fraction, limit):
    with pytest.raises(SpecError):
        Threshold(metric="ttft", percentile_fraction=fraction, limit_s=limit)


def test_mlperf_limits_have_names():
    """As the rules have them: Llama2-70b interactive 450 ms / 40 ms, DeepSeek-r1 server 2000 ms / 80 ms, both at p99."""
    assert parse_objective("mlperf:llama2-70b-interactive").text == "ttft:p99<450ms, tpot:p99<40ms"
    assert parse_objective(" MLPerf:DeepSeek-R1-server").text == "ttft:p99<2000ms, tpot:p99<80ms"
    with pytest.raises(SpecError, match="no objective is called 'mlperf:llama5'"):
        parse_objective("mlperf:llama5")


def test_every_preset_promises_something_and_has_a_source():
    for preset in PRESET_OBJECTIVES.values():
        assert {one.percentile_fraction for one in parse_objective(preset.name).thresholds} == {
            0.99
        }
        assert preset.source.kind == "repository"
        assert preset.source.checked_utc


@pytest.mark.parametrize(
    "text",
    [
        "p99 ttft < 2s",
        "P99 TTFT under 2 s",
        "p99 time to first token is below 2s",
        "ttft P99<2s",
        "p99_ttft<2s",
        "p99(ttft) <= 2s",
        "ttft_p99<2s",
        "time_to_first_token_p99<2s",
        "p99 TTFT 2 s",
        "ttft p99 2s",
        "ttft:p99:2s",
        "time to first token p99 2000 ms",
    ],
)
def test_a_percentile_may_come_first_and_a_limit_be_said_in_words(text):
    assert parse_objective(text).text == "ttft:p99<2000ms"


def test_a_limit_of_workflows_is_taken_where_there_may_be_some():
    found = parse_objective("workflow p95 < 20s, p99 agent latency < 1min", has_workflows=True)
    assert found.text == "workflow:p95<20s, workflow:p99<60s"
    with pytest.raises(SpecError, match="no workflow is known here") as refused:
        parse_objective("ttft:p95<1s, workflow p95 < 20s")
    assert parse_objective(refused.value.try_).text == "ttft:p95<1000ms, e2e:p95<20s"


@pytest.mark.parametrize(
    "text",
    [
        "ttft:p95<500ms tpot:p95<50ms",
        "TTFT p95 < 500 ms and TPOT p95 < 50 ms",
        "ttft:p95<0.5s & tpot:p95<=50ms",
        "p95 ttft < 500 ms   p95 tpot < 50 ms",
        "ttft:p95<500ms\ntpot:p95<50ms",
    ],
)
def test_limits_are_parted_by_commas_words_or_spaces(text):
    assert parse_objective(text).text == "ttft:p95<500ms, tpot:p95<50ms"


def test_a_limit_of_two_words_is_one():
    assert parse_objective("ttft:p95<1 min").text == "ttft:p95<60s"


def test_limits_with_nothing_between_them_are_named_so():
    with pytest.raises(SpecError, match="no comma between") as caught:
        parse_objective("ttft:p95<500tpot:p95<50ms")
    assert caught.value.try_ == "ttft:p95<500ms, tpot:p95<50ms"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("ttft:100 tpot:50", "ttft:p95<100ms, tpot:p95<50ms"),
        ("ttft:100", "ttft:p95<100ms"),
        ("ttft:200 itl:20", "ttft:p95<200ms, tpot:p95<20ms"),
        ("e2el=5000", "e2e:p95<5000ms"),
        ("ttft_p90=800ms", "ttft:p90<800ms"),
        ("ITL<30ms", "tpot:p95<30ms"),
    ],
)
def test_a_limit_of_another_tool_is_answered_with_ours(text, meant):
    with pytest.raises(SpecError) as caught:
        parse_objective(text)
    assert parse_objective(caught.value.try_.rpartition("tokens: ")[2]).text == meant


@pytest.mark.parametrize(
    "text",
    [
        "TTFT<200ms p99, TPOT<50ms p95",
        "TTFT < 200ms (p99) and tpot under 50 ms at p95",
        "ttft<200ms @p99; TPOT p95 < 50ms",
        "time to first token < 200 ms p99, tpot:p95<50ms",
    ],
)
def test_a_percentile_may_come_behind_the_limit(text):
    assert parse_objective(text).text == "ttft:p99<200ms, tpot:p95<50ms"


def test_a_percentile_before_the_next_latency_is_its_own():
    with pytest.raises(SpecError, match="which percentile"):
        parse_objective("ttft < 1s p99 tpot < 50ms")
