"""Are the server's own numbers those that its pages say, whatever the engine, and is what it does not say None?"""

import math
from pathlib import Path

import numpy as np
import pytest
from tests.records.server_pages import page, samples_of, zeroed

from inferometer.errors import RecordError
from inferometer.records.server_names import SERVERS
from inferometer.records.server_series import (
    Growth,
    counter_series,
    gauge_series,
    is_of_several,
    server_record,
)
from inferometer.records.server_summaries import bucket_percentile, summarise_server, ttft_parts
from inferometer.records.tables import concat, select
from inferometer.records.types import ABSENT, RequestStatus, RequestTable, ServerSampleTable

CANONICAL = {
    "vllm-0.32-after": ("vllm", 0, 0, 0.0, 128, 8192),
    "vllm-0.8": ("vllm", 1, 3, 0.75, 16, 2048),
    "sglang": ("sglang", 2826, 162, 0.28, 64, 4096),
    "trtllm": ("tensorrt-llm", 2, 4, 0.2, 32, 6239),
    "triton": ("triton", 2, 5, 0.25, 64, 6239),
    "llamacpp": ("llama.cpp", 46, 4, None, None, None),
    "tgi": ("tgi", 5, 8, None, None, None),
    "nim": ("nim", 2, 6, 0.35, None, None),
}


def test_vllm_0_33_still_has_each_name_that_is_read():
    """Of names with an old form the new one; the exporter adds ``_total`` to a counter that lacks it."""
    listed = (
        (Path(__file__).parent / "vllm_0_33_metric_names.txt").read_text().replace(":", "_").split()
    )
    exported = {*listed, *(f"{name}_total" for name in listed)}
    (vllm,) = (names for names in SERVERS if names.kind == "vllm")
    read = [
        names[0].family
        for table in (vllm.gauges, vllm.counters, vllm.histograms)
        for names in table.values()
    ]
    assert len(read) > 20
    assert set(read) - {"num_request_max"} <= exported  # NIM 2 adds it


def grown(name):
    return summarise_server(samples_of(zeroed(page(name)), page(name)))


@pytest.mark.parametrize("name", CANONICAL)
@pytest.mark.parametrize("colon", [":", "_"])
def test_the_five_canonical_fields(name, colon):
    summary = summarise_server(
        samples_of(page(name).replace(":", colon), page(name).replace(":", colon))
    )
    usage = None if summary.kv_usage is None else summary.kv_usage.mean
    found = (
        summary.kind,
        summary.waiting.mean,
        summary.running.mean,
        usage,
        summary.kv_block_tokens,
        summary.n_kv_blocks,
    )
    assert found == CANONICAL[name]


def test_a_recorded_server_says_what_was_sent():
    """Nine requests, 149 output tokens: see SOURCE.md.

    The page before shows that a server's counters begin at 0.
    """
    summary = summarise_server(samples_of(page("vllm-0.32-before"), page("vllm-0.32-after")))
    assert (summary.n_finished, summary.output_tokens, summary.prompt_tokens) == (9, 149, 1214)
    assert summary.prefix_hit_fraction == pytest.approx(896 / 1214)
    assert (summary.n_preemptions, summary.n_rejected, summary.n_restarts) == (0, 0, 0)
    assert {time.name: time.n for time in summary.times} == {
        "ttft": 9, "itl": 140, "tpot": 9, "e2e": 9, "queue": 9, "prefill": 9, "decode": 9, "inference": 9,
    }  # fmt: skip
    means_s = {time.name: time.mean_s for time in summary.times}
    assert means_s["ttft"] == pytest.approx(0.18627524375915527 / 9)
    assert means_s["inference"] == pytest.approx(means_s["prefill"] + means_s["decode"])
    assert summary.flop_per_s == pytest.approx(2.60836608e08)
    assert summary.moved_bytes_per_s == pytest.approx(6.4902144e07 + 3.905108e06)
    assert summary.flop_utilisation_fraction(1e12) == pytest.approx(2.60836608e-4)


def test_other_engines_say_what_they_have():
    sglang = grown("sglang")
    assert (sglang.n_preemptions, sglang.output_tokens, sglang.n_finished) == (3, 7000, 40)
    assert sglang.prefix_hit_fraction == 0.25
    assert {time.name: time.mean_s for time in sglang.times} == {
        "ttft": 0.5,
        "queue": 0.2,
        "prefill": 0.1,
    }
    p50, *_, p99 = sglang.time("ttft").percentiles
    assert (p50.low_s, p50.high_s, p99.low_s, p99.high_s) == (0.1, 1.0, 1.0, math.inf)
    trtllm = grown("trtllm")
    assert (trtllm.n_finished, trtllm.n_preemptions) == (15, None)
    assert trtllm.time("queue").percentiles == ()
    triton = grown("triton")
    assert {time.name: (time.n, time.mean_s) for time in triton.times} == {
        "queue": (10, 0.25),
        "e2e": (10, 3.0),
    }
    assert grown("llamacpp").time("itl").mean_s == 0.025
    assert grown("tgi").time("queue").mean_s == 0.1
    assert grown("vllm-0.8").time("itl").mean_s == 0.02


def test_an_ensemble_of_triton_counts_each_request_once():
    """Before and behind TensorRT-LLM each request is one of two further models, and of the whole."""
    names = "ensemble", "preprocessing", "postprocessing"
    others = "".join(
        f'nv_inference_{family}{{model="{name}",version="1"}} {value}\n'
        for family, value in (("request_success", 10), ("queue_duration_us", 5))
        for name in names
    )
    told = page("triton") + others
    assert summarise_server(samples_of(zeroed(told), told)) == grown("triton")
    assert grown("triton").n_finished == 10


def test_nim_has_the_names_of_vllm_without_the_prefix():
    """What it names itself is read; what vLLM has besides is not there."""
    summary = grown("nim")
    assert (summary.prompt_tokens, summary.output_tokens, summary.n_finished) == (6000, 2000, 20)
    assert {time.name: time.mean_s for time in summary.times} == {
        "ttft": 0.125,
        "itl": pytest.approx(0.02),
        "e2e": 2.2,
    }
    assert (summary.n_preemptions, summary.prefix_hit_fraction) == (None, None)
    assert gauge_series(server_record(samples_of(page("nim"))), "max_num_seqs").value == [256]


def test_the_same_bare_names_of_another_server_are_not_of_nim():
    others = "\n".join(
        line for line in page("nim").splitlines() if not line.startswith("num_request_max")
    )
    with pytest.raises(RecordError, match="no metric of a known model server") as caught:
        summarise_server(samples_of(others, others))
    assert "nim (num_request_max)" in caught.value.allowed


def test_nim_2_is_the_vllm_that_it_wraps():
    both = page("vllm-0.32-after") + 'num_request_max{model_name="m"} 64.0\n'
    record = server_record(samples_of(both))
    assert record.names.kind == "vllm"
    assert gauge_series(record, "max_num_seqs").value == [64]


def test_tgi_counts_tokens_in_histograms_of_requests():
    told = page("tgi") + (
        "tgi_request_input_length_sum 662\ntgi_request_input_length_count 20\n"
        "tgi_request_generated_tokens_sum 400\ntgi_request_generated_tokens_count 20\n"
    )
    summary = summarise_server(samples_of(zeroed(told), told))
    assert (summary.prompt_tokens, summary.output_tokens, summary.n_finished) == (662, 400, 20)


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_"])
def test_ray_has_the_names_of_its_replicas(prefix):
    """Ray Serve exports vLLM's metrics with ``ray_`` before each name."""
    before, after = (page(f"vllm-0.32-{name}") for name in ("before", "after"))
    of_ray = (text.replace("vllm:", prefix) for text in (before, after))
    assert summarise_server(samples_of(*of_ray)) == summarise_server(samples_of(before, after))


def test_absent_is_none_and_never_0():
    summary = grown("tgi")
    absent = (
        summary.kv_usage,
        summary.n_preemptions,
        summary.prompt_tokens,
        summary.prefix_hit_fraction,
        summary.flop_per_s,
    )
    assert absent == (None, None, None, None, None)
    assert summary.time("ttft") is None
    assert summary.flop_utilisation_fraction(1e12) is None
    quiet = page("vllm-0.32-after").replace(
        'flops_per_gpu_total{engine="0",model_name="tiny"} 2.60836608e+08', "flops_per_gpu_total 0"
    )
    assert summarise_server(samples_of(zeroed(quiet), quiet)).flop_per_s is None, (
        "a server that does not estimate shows 0"
    )


@pytest.mark.parametrize(
    ("pages", "complaint"),
    [((), "no scrape"), (("go_threads 5",), "no metric of a known model server")],
)
def test_nothing_known_is_an_error(pages, complaint):
    with pytest.raises(RecordError, match=complaint):
        summarise_server(samples_of(*pages))


def test_one_scrape_is_no_window():
    with pytest.raises(RecordError, match="1 scrapes of the server in the window"):
        summarise_server(samples_of("tgi_queue_size 1"))


def counted(*values):
    return samples_of(*(f"vllm:generation_tokens_total {value}" for value in values))


def test_a_counter_that_fell_was_reset():
    summary = summarise_server(counted(10, 30, 5, 12))
    assert (summary.output_tokens, summary.n_restarts) == (32, 1)


def test_the_start_time_tells_restarts_that_counters_do_not():
    pages = [
        f"vllm:generation_tokens_total {value}\nprocess_start_time_seconds {start}"
        for value, start in ((5, 1.0), (9, 2.0))
    ]
    assert summarise_server(samples_of(*pages)).n_restarts == 1


STARTED = "process_start_time_seconds 1.0"


def started(*starts):
    return samples_of(
        *(f"vllm:generation_tokens_total 5\nprocess_start_time_seconds {one}" for one in starts)
    )


@pytest.mark.parametrize(
    ("samples", "is_several"),
    [
        (started(1.0, 1.0, 2.0, 2.0, 3.0), False),
        (started(1.0, 2.0, 1.0), True),
        (counted(10, 30, 5, 12), False),
        (counted(100, 0, 20, 60, 110, 0, 15), False),
        (counted(100, 50, 101, 51), True),
        (counted(90, 60, 30, 91, 61), True),
        (samples_of(*(f"{STARTED}\nvllm:prompt_tokens_total {n}" for n in (9, 5, 9, 5))), True),
    ],
)
def test_servers_that_answer_in_turn_are_no_server_that_restarts(samples, is_several):
    assert is_of_several(server_record(samples)) is is_several


def test_a_series_that_comes_later_began_at_0():
    pages = [
        "vllm:num_requests_waiting 0",
        "vllm:request_success_total 3",
        "vllm:request_success_total 5",
    ]
    assert summarise_server(samples_of(*pages)).n_finished == 5


def test_engines_of_one_server_are_added_up():
    pages = [
        "\n".join(
            f'vllm:num_requests_running{{engine="{engine}"}}'
            f' {running}\nvllm:kv_cache_usage_perc{{engine="{engine}"}}'
            f' {usage}\nvllm:estimated_flops_per_gpu_total{{engine="{engine}"}} {flop}'
            for engine, running, usage, flop in ((0, 3, 0.2, i * 100), (1, 5, 0.6, i * 300))
        )
        for i in range(2)
    ]
    summary = summarise_server(samples_of(*pages))
    assert (summary.running.highest, summary.kv_usage.mean, summary.flop_per_s) == (
        8,
        pytest.approx(0.4),
        200,
    )


def test_a_table_of_changes_reads_like_one_of_every_sample():
    whole = counted(1, 1, 4, 4, 9)
    up = ServerSampleTable(
        scraped_ns=np.unique(whole.scraped_ns),
        name=np.full(5, "up"),
        labels=np.full(5, ""),
        value=np.array([1.0, 1, 1, 1, 1]),
    )
    failed = up._replace(scraped_ns=up.scraped_ns + 500_000_000, value=np.zeros(5))
    changes = concat(ServerSampleTable, [select(whole, np.array([0, 2, 4])), up, failed])
    ours, theirs = (
        counter_series(server_record(changes), "output_tokens"),
        counter_series(server_record(whole), "output_tokens"),
    )
    assert (
        (ours.at_s.tolist(), ours.value.tolist())
        == (theirs.at_s.tolist(), theirs.value.tolist())
        == ([1, 2, 3, 4, 5], [0, 0, 3, 3, 8])
    )
    assert summarise_server(changes).n_failed_scrapes == 5


def test_a_gauge_that_went_away_is_not_kept():
    record = server_record(
        samples_of(
            "vllm:num_requests_waiting 4",
            "vllm:num_requests_waiting NaN",
            "vllm:num_requests_waiting 2",
        )
    )
    series = gauge_series(record, "waiting")
    assert np.array_equal(series.value, [4, np.nan, 2], equal_nan=True)
    assert gauge_series(record, "kv_usage") is None


def test_percentiles_lie_in_their_buckets():
    rng = np.random.default_rng(5)
    times_s = rng.gamma(2.0, 0.2, 1000)
    edges_s = np.array([0.1, 0.25, 0.5, 1.0, np.inf])
    counts = np.diff([0, *(float((times_s <= edge).sum()) for edge in edges_s)])
    for fraction in (0.01, 0.5, 0.9, 0.99, 1.0):
        found = bucket_percentile(Growth(1000, 0.0, edges_s, counts), fraction)
        assert found.low_s < np.quantile(times_s, fraction, method="inverted_cdf") <= found.high_s
    assert bucket_percentile(Growth(0, 0.0, edges_s, np.zeros(5)), 0.5) is None


def requests_of(*rows):
    """(intended, sent, first token) in ms."""
    n = len(rows)
    instants = np.array(
        [[ABSENT if one is None else one * 1_000_000 for one in row] for row in rows], np.int64
    )
    zeros = np.zeros(n, np.int32)
    return RequestTable(
        intended_send_ns=instants[:, 0],
        sent_ns=instants[:, 1],
        admitted_ns=np.full(n, ABSENT),
        first_token_ns=instants[:, 2],
        finished_ns=instants[:, 2],
        prompt_tokens=zeros,
        cached_tokens=zeros,
        output_tokens=zeros,
        n_preemptions=zeros,
        status=np.full(n, RequestStatus.LENGTH, np.int8),
        priority=zeros,
        class_index=zeros,
        request_index=np.arange(n, dtype=np.int32),
    )


def test_the_parts_of_ttft_add_up():
    server = grown("sglang")  # TTFT 500, queue 200, prefill 100 ms, scraped at 1 and 2 s
    requests = requests_of((500, 510, 1030), (1000, 1030, 1550), (1900, 1900, None), (0, 0, 900))
    parts = ttft_parts(requests, server)
    assert (parts.n_requests, parts.n_server_requests) == (2, 40)
    found = (parts.client_s, parts.network_s, parts.queue_s, parts.prefill_s, parts.handover_s)
    assert found == pytest.approx((0.02, 0.02, 0.2, 0.1, 0.2))
    assert parts.total_s == pytest.approx(sum(found))
    untold = ttft_parts(requests, grown("tgi"))
    assert (untold.network_s, untold.queue_s, untold.handover_s) == (None, 0.1, None)
    assert ttft_parts(requests_of((0, 0, 900)), server) is None


@pytest.mark.parametrize("total", [',priority=""', ""], ids=["as SGLang writes it", "Prometheus"])
def test_requests_of_each_priority_are_counted_once(total):
    """SGLang's total has an empty priority, and each priority stands beside it."""
    rows = [(f'model_name="m"{total}', 8), ('model_name="m",priority="0"', 5),
            ('model_name="m",priority="1"', 3)]  # fmt: skip
    text = "# TYPE sglang:num_running_reqs gauge\n" + "".join(
        f"sglang:num_running_reqs{{{labels}}} {n}\n" for labels, n in rows
    )
    alone = text.replace(f"{{{rows[0][0]}}}", '{model_name="other",priority="2"}')
    for page_text, expected in ((text, 8), (alone, 16)):
        record = server_record(samples_of(page_text, page_text))
        assert gauge_series(record, "running").value.tolist() == [expected] * 2


def test_llama_cpps_drafts_are_read():
    text = "".join(
        f"# TYPE llamacpp:spec_decode_num_{name}_total counter\n"
        f"llamacpp:spec_decode_num_{name}_total {n}\n"
        for name, n in (("drafts", 8), ("draft_tokens", 20), ("accepted_tokens", 12))
    )
    record = server_record(samples_of(zeroed(text), text))
    grown_by = [
        counter_series(record, name).value[-1]
        for name in ("drafts", "draft_tokens", "accepted_tokens")
    ]
    assert grown_by == [8, 20, 12]
