"""Does an answer of Prometheus give the samples that the server's own pages give?"""

import json
import re

import numpy as np
import pytest

from inferometer.errors import RecordError
from inferometer.measure.prometheus import instances_of, samples_of, selector
from inferometer.records.exposition import PageReader, labels_of
from inferometer.records.server_series import (
    counter_series,
    gauge_series,
    sample_table,
    server_record,
)

TARGET = {"instance": "10.0.0.1:8000", "job": "vllm", "pod": "a"}
BEGAN_S = 1_763_900_000.25
PAGES = [
    (
        0,
        (
            b'vllm:num_requests_running{engine="0"} 2\n'
            b'vllm:generation_tokens_total{engine="0"} 10\n'
            b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="90"} 1\n'
        ),
    ),
    (15, b'vllm:num_requests_running{engine="0"} 3\nvllm:generation_tokens_total{engine="0"} 40\n'),
    (30, None),
    (45, b'vllm:num_requests_running{engine="0"} 1\nvllm:generation_tokens_total{engine="0"} 90\n'),
]


def answered(pages, target=TARGET):
    """What Prometheus would answer: one list of values for each series, and ``up``."""
    found = {}
    reader = PageReader()
    for at_s, page in pages:
        rows = [] if page is None else reader.read(page)
        rows = [(one.series.name, labels_of(one.series.labels), one.value) for one in rows]
        for name, labels, value in (*rows, ("up", {}, 0.0 if page is None else 1.0)):
            metric = {"__name__": name, **labels, **target}
            key = json.dumps(metric, sort_keys=True)
            found.setdefault(key, (metric, []))[1].append([BEGAN_S + at_s, f"{value:g}"])
    result = [{"metric": metric, "values": values} for metric, values in found.values()]
    return {"status": "success", "data": {"resultType": "matrix", "result": result}}


def read(answer):
    return samples_of(json.dumps(answer).encode(), where="Prometheus")


def test_the_scrapes_are_those_of_the_pages():
    of_pages = sample_table((at_s * 10**9, page) for at_s, page in PAGES)
    found = read(answered(PAGES))
    for name in of_pages._fields:
        np.testing.assert_array_equal(getattr(found, name), getattr(of_pages, name))
    record = server_record(found)
    assert record.n_failed_scrapes == 1
    np.testing.assert_array_equal(gauge_series(record, "running").value, [2, 3, 1])
    np.testing.assert_array_equal(counter_series(record, "output_tokens").value, [0, 30, 80])


@pytest.mark.parametrize(
    ("name", "is_wanted"),
    [
        ("vllm:num_requests_running", True),
        ("ray_vllm_num_requests_running", True),
        ("trtllm_prompt_tokens_total", True),
        ("num_requests_running", True),
        ("time_to_first_token_seconds_bucket", True),
        ("num_request_max", True),
        ("up", True),
        ("go_num_requests_running", False),
        ("prompt_tokens_total_created", False),
    ],
)
def test_prometheus_is_wanted_for_what_is_read(name, is_wanted):
    pattern = re.search('__name__=~"(.*?)"', selector("10.0.0.1:8000", 60))[1]
    assert bool(re.fullmatch(pattern, name)) is is_wanted


def test_of_two_jobs_the_one_with_more_scrapes_is_read():
    both = answered(PAGES)
    both["data"]["result"] += answered(PAGES[:1], TARGET | {"job": "other"})["data"]["result"]
    for name, column in read(answered(PAGES))._asdict().items():
        np.testing.assert_array_equal(getattr(read(both), name), column)


def test_a_nan_of_prometheus_is_none_of_the_server():
    answer = answered(PAGES[:1])
    answer["data"]["result"][0]["values"][0][1] = "NaN"
    assert np.isnan(read(answer).value).sum() == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, "has no scrape"),
        ({"status": "error", "error": "bad"}, "damaged"),
        ([], "damaged"),
    ],
)
def test_what_is_no_answer_is_refused(answer, said):
    with pytest.raises(RecordError, match=said):
        read(answer)


def test_a_value_that_is_no_number_is_refused():
    answer = answered(PAGES)
    answer["data"]["result"][0]["values"][0][1] = "many"
    with pytest.raises(RecordError, match="'many' is no number"):
        read(answer)


def test_instances_are_listed_once():
    rows = [{"metric": {"instance": name}, "value": [1, "1"]} for name in ("b:1", "a:1", "b:1")]
    answer = json.dumps({"data": {"result": rows}}).encode()
    assert instances_of(answer, where="Prometheus") == ("a:1", "b:1")
