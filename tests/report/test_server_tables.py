"""Are the server's own numbers shown where it told them, left out where it did not, and is the largest part of the TTFT named?"""

import json
from dataclasses import replace

import jsonschema
import msgspec
import pytest
from tests.records.load_run import load_run
from tests.records.server_pages import page, samples_of, zeroed
from tests.report.test_online_report import text_of

from inferometer.api.request_answer import RequestRunAnswer, answer_of
from inferometer.api.request_view import request_view
from inferometer.api.show import Judged, question_of
from inferometer.cli.answer import json_schema
from inferometer.errors import SpecError
from inferometer.inputs.catalog import find_hardware
from inferometer.records.server_summaries import TtftParts
from inferometer.report.html import render_page
from inferometer.report.request_page import request_page_of
from inferometer.report.request_tables import limit_sentence, server_table, tables_of


def scraped(*pages):
    """A load test of 64-token answers beside which a server was scraped twice."""
    return replace(load_run(tokens=64, ttft_s=0.03), server=samples_of(*pages))


@pytest.fixture(scope="module")
def vllm():
    return request_view(scraped(page("vllm-0.32-before"), page("vllm-0.32-after")))


def rows_of(table):
    return {row[0]: row[1] for row in table.rows}


def test_the_terminal_says_where_the_time_goes(vllm):
    text = text_of(vllm)
    assert "Where the mean time to the first token goes" in text
    assert "What the server reports (vllm, 2 scrapes)" in text
    assert rows_of(server_table(vllm.online.server))["output tokens"] == "149"
    assert (
        rows_of(server_table(vllm.online.server))["prompt tokens found in the prefix cache"]
        == "73.8 %"
    )
    assert vllm.five_lines.limit.endswith("as the server reports.")


def test_the_parts_shown_add_up(vllm):
    parts = vllm.online.ttft_parts
    found = (parts.client_s, parts.network_s, parts.queue_s, parts.prefill_s, parts.handover_s)
    assert sum(found) == pytest.approx(parts.total_s)
    assert [row[0] for row in tables_of(vllm.online)[0].rows] == [
        "client",
        "network",
        "queue",
        "prefill",
        "hand-over",
        "all",
    ]


def test_the_page_has_them_too(vllm):
    page_text = render_page(request_page_of(vllm))
    assert "What the server reports" in page_text
    assert "hand-over" in page_text


def test_json_holds_them_and_obeys_the_schema(vllm):
    answer = json.loads(msgspec.json.encode(answer_of(vllm)))
    jsonschema.validate(answer, json_schema(RequestRunAnswer))
    assert answer["online"]["server"]["output_tokens"] == 149
    assert {time["name"] for time in answer["online"]["server"]["times"]} >= {
        "ttft",
        "queue",
        "prefill",
    }


def test_levels_say_what_they_count(vllm):
    server = json.loads(msgspec.json.encode(answer_of(vllm)))["online"]["server"]
    assert set(server["running"]) == {"mean_load", "highest_load"}
    assert set(server["kv_usage"]) == {"mean_fraction", "highest_fraction"}
    assert 0 <= server["kv_usage"]["mean_fraction"] <= server["kv_usage"]["highest_fraction"] <= 1


def test_what_the_server_estimates_of_its_work_is_shown(vllm):
    rows = rows_of(server_table(vllm.online.server))
    assert rows["computed, each accelerator"] == "261 MFLOP/s"
    assert rows["moved in memory, each accelerator"] == "68.8 MB/s"
    assert answer_of(vllm).online.server.use is None


def test_shares_of_the_peaks_are_shown_where_the_device_is_named():
    run = scraped(page("vllm-0.32-before"), page("vllm-0.32-after"))
    view = request_view(run, question_of(Judged(server_hardware="l40s:float8")))
    use, l40s = answer_of(view).online.server.use, find_hardware("l40s")
    assert use.flop_utilisation_fraction == pytest.approx(
        2.60836608e08 / l40s.peak_flop_per_s("float8").value
    )
    assert use.bandwidth_utilisation_fraction == pytest.approx(
        6.8807252e07 / l40s.memory_bytes_per_s.value
    )
    rows = rows_of(server_table(view.online.server, view.online.server_use))
    assert rows["computed, each accelerator"].endswith(f"of the peak of {l40s.name}")
    assert f"of the peak of {l40s.name}" in render_page(request_page_of(view))


@pytest.mark.parametrize("text", ["l41", "l40s:float7", "nothing"])
def test_a_device_or_format_that_is_none_is_refused(text):
    with pytest.raises(SpecError):
        question_of(Judged(server_hardware=text))


def test_a_device_says_nothing_of_a_server_that_estimates_nothing():
    view = request_view(
        scraped(zeroed(page("tgi")), page("tgi")), question_of(Judged(server_hardware="h100_sxm"))
    )
    use = answer_of(view).online.server.use
    assert (use.flop_utilisation_fraction, use.bandwidth_utilisation_fraction) == (None, None)
    assert "computed, each accelerator" not in rows_of(
        server_table(view.online.server, view.online.server_use)
    )


def test_what_a_server_does_not_say_is_left_out():
    view = request_view(scraped(zeroed(page("llamacpp")), page("llamacpp")))
    rows = rows_of(server_table(view.online.server))
    assert "preemptions" not in rows
    assert "KV cache" not in rows
    assert rows["running"].endswith("requests")


@pytest.mark.parametrize("pages", [(), ("vllm-0.32-after",)])
def test_no_scrape_or_a_single_one_is_no_server(pages):
    view = request_view(scraped(*map(page, pages)) if pages else load_run(tokens=64, ttft_s=0.03))
    assert view.online.server is None
    assert tables_of(view.online) == ()
    assert "what limits the server a client cannot see" in view.five_lines.limit


def test_the_largest_part_is_named():
    view = request_view(scraped(zeroed(page("sglang")), page("sglang")))
    parts = TtftParts(
        n_requests=40,
        n_server_requests=40,
        total_s=0.4,
        client_s=0.0,
        network_s=0.0,
        queue_s=0.2,
        prefill_s=0.1,
        handover_s=0.1,
    )
    assert "50 % of the mean TTFT is queue" in limit_sentence(view.online.server, parts)
    longer = replace(parts, queue_s=0.5)
    assert "of the mean TTFT" not in limit_sentence(view.online.server, longer), "more than all"
    assert limit_sentence(view.online.server, None).startswith(
        "at most 162 requests ran and 2826 waited"
    )


def test_the_times_of_others_requests_are_no_parts_of_ours():
    view = request_view(scraped(zeroed(page("sglang")), page("sglang")))
    text = text_of(view)
    assert "others use the server: it counted 40 first tokens, and 11 of them are of this" in text
    assert "of the mean TTFT" not in text
    assert "Where the mean time to the first token goes" not in text


def test_a_server_whose_requests_no_scrape_met_is_not_called_empty():
    view = request_view(scraped(zeroed(page("sglang")), page("sglang")))
    server = view.online.server
    unseen = replace(server, running=server.running._replace(mean=0.0, highest=0.0))
    sentence = limit_sentence(unseen, view.online.ttft_parts)
    assert f"no request ran at any of {server.n_scrapes} scrapes" in sentence
    assert "full" not in sentence
    assert "0 requests" not in sentence
