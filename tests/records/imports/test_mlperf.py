"""Is loadgen's summary read as loadgen defines it? Written here as ``loadgen/results.cc`` writes it."""

from dataclasses import replace

import pytest

from inferometer.errors import RecordError
from inferometer.records.imports.detection import read_results

HEAD = (
    "================================================\nMLPerf Results Summary\n"
    "================================================\n"
)
SERVER = (
    HEAD
    + """SUT name : PySUT
Scenario : Server
Mode     : PerformanceOnly
Completed samples per second    : 103.90
Result is : INVALID
  Performance constraints satisfied : NO
  Min duration satisfied : Yes
  Min queries satisfied : Yes
  Early stopping satisfied: Yes
Recommendations:
 * TTFT constrain not met: Reduce target QPS to improve latency.
TTFT Early Stopping Result:
 * Run successful.

================================================
Additional Stats
================================================
Scheduled samples per second : 104.15
Min latency (ns)                : 756127764
Max latency (ns)                : 150606473583
Mean latency (ns)               : 37756807070
50.00 percentile latency (ns)   : 32917446649
90.00 percentile latency (ns)   : 68033586908
99.00 percentile latency (ns)   : 121801757289
99.90 percentile latency (ns)   : 145708791529

Completed tokens per second                 : 29522.56
Min First Token latency (ns)                : 46040396
Max First Token latency (ns)                : 2522969250
Mean First Token latency (ns)               : 963332124
50.00 percentile first token latency (ns)   : 950532291
99.00 percentile first token latency (ns)   : 1760966679

Min Time to Output Token (ns)                : 32461425
Max Time to Output Token (ns)                : 1358427611
Mean Time to Output Token (ns)               : 126269215
50.00 percentile time to output token (ns)   : 132613828
99.00 percentile time to output token (ns)   : 164964162

================================================
Test Parameters Used
================================================
samples_per_query : 1
target_qps : 104
ttft_latency (ns): 2000000000
tpot_latency (ns): 200000000
max_async_queries : 0
"""
)
OFFLINE = (
    HEAD
    + """SUT name : Offline_SUT
Scenario : Offline
Mode     : PerformanceOnly
Samples per second: 33.5
Tokens per second: 9865.75
Result is : VALID
  Min duration satisfied : Yes

================================================
Additional Stats
================================================
Min latency (ns)                : 16325180
Max latency (ns)                : 733573134328
Mean latency (ns)               : 366325180169
50.00 percentile latency (ns)   : 366000000000
99.00 percentile latency (ns)   : 726000000000

================================================
Test Parameters Used
================================================
samples_per_query : 24576
target_qps : 30
"""
)


def read(text, tmp_path):
    path = tmp_path / "mlperf_log_summary.txt"
    path.write_text(text)
    (summary,) = read_results(path).summaries
    return summary


def test_a_server_has_all_latencies_and_its_verdict(tmp_path):
    summary = read(SERVER, tmp_path)
    assert (summary.tool, summary.label) == ("mlperf", "PySUT, Server, INVALID")
    assert (summary.offered_requests_per_s, summary.concurrency) == (104, None)
    assert summary.completed_requests_per_s == 103.9
    assert summary.mean_output_tokens == pytest.approx(29522.56 / 103.9)
    assert summary.latency("ttft").mean_s == pytest.approx(0.963332124)
    assert summary.latency("ttft").percentile_s(0.99) == pytest.approx(1.760966679)
    assert summary.latency("tpot").percentile_s(0.5) == pytest.approx(0.132613828)
    assert summary.latency("e2e").max_s == pytest.approx(150.606473583)
    assert summary.latency("e2e").percentile_s(0.999) == pytest.approx(145.708791529)
    assert ("ttft_latency (ns)", "2000000000") in summary.settings


def test_the_newer_words_for_tpot_beside_the_older_of_its_percentiles(tmp_path):
    newer = SERVER.replace("Time to Output", "Time per Output")
    found, expected = (read(text, tmp_path).latency("tpot") for text in (newer, SERVER))
    assert replace(found, named=expected.named) == expected


def test_offline_all_come_at_once_and_no_first_token_is_known(tmp_path):
    summary = read("a log before it\n" + OFFLINE, tmp_path)
    assert summary.offered_requests_per_s == float("inf")
    assert not summary.is_closed_loop
    assert summary.output_tokens_per_s == 9865.75
    assert [one.name for one in summary.latencies] == ["e2e"]
    assert summary.mean_output_tokens == pytest.approx(294.5, abs=0.1)


@pytest.mark.parametrize(
    ("text", "said", "try_"),
    [
        (':::MLLOG {"key": "result_validity", "value": "VALID"}\n', "detailed log", "import"),
        (HEAD + "Mode     : AccuracyOnly\n\nNo errors encountered during test.\n", "Accuracy", ""),
        (SERVER.replace("37756807070", "soon"), "mean latency .* is 'soon'", ""),
    ],
)
def test_what_tells_no_performance_is_refused(text, said, try_, tmp_path):
    with pytest.raises(RecordError, match=said) as refused:
        read(text, tmp_path)
    assert try_ in (refused.value.try_ or "")
