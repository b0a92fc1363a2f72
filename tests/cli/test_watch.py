"""What does `inferometer watch` refuse, and what does it read of a prediction?"""

import json
import re
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from pathlib import Path
from threading import Thread

import pytest
from command_line import check_refused, run
from tests.records.server_pages import page, samples_of, zeroed

from inferometer.api.watch_exporter import WatchExporter
from inferometer.api.watch_prediction import prediction_of
from inferometer.api.watch_state import residuals_of
from inferometer.api.watched_pages import Wanted, WatchedUrl
from inferometer.records.server_summaries import summarise_server
from inferometer.units import NS_PER_S

GOLDEN = Path(__file__).parents[1] / "golden" / "answers"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("http://127.0.0.1:9",), 3, ("metrics cannot be read", "start the server")),
        (("nothing",), 3, ("is no address of a server",)),
        (("http://127.0.0.1:9", "--slo", "fast"), 2, ("fast", "ttft:p95<500ms")),
        (("http://127.0.0.1:9", "--known", "seats=3"), 2, ("seats=3", "max_num_seqs")),
        (("http://127.0.0.1:9", "--predicted", "none.json"), 2, ("none.json", "simulate")),
    ],
)
def test_what_cannot_be_is_refused(words, code, said, tmp_path):
    check_refused(run("watch", *words, folder=tmp_path), code, *said)


@contextmanager
def in_turn(*pages, path=None):
    """The address of what passes requests on to several servers, one after the other.

    Its pages are at any path, or at this one alone.
    """
    turns = cycle(pages)

    class Balancer(BaseHTTPRequestHandler):
        def do_GET(self):
            is_there = path in {None, self.path}
            text = next(turns).encode() if is_there else b""
            self.send_response(200 if is_there else 404)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Balancer) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def two_engines():
    """A page of two engines, one with ten requests and more."""
    lines = []
    for line in page("vllm-0.32-after").splitlines():
        if line.startswith("#") or 'engine="0"' not in line:
            lines.append(line)
            continue
        name, _, value = line.rpartition(" ")
        lines.append(line)
        other = name.replace('engine="0"', 'engine="1"')
        lines.append(f"{other} {4 * float(value) + 10}")
    return "\n".join(lines) + "\n"


WANTED = Wanted(objective=None, prediction=None, window_s=60.0, every_s=1.0)


def servers_of(*pages, wanted=None):
    """What is seen on these pages, one a second; the last one stays for four more."""
    with in_turn(*pages, *[pages[-1]] * 4) as address:
        url = WatchedUrl(address, replace(WANTED, replica=wanted))
        for at_s in range(len(pages) + 4):
            url.look(lambda at_s=at_s: at_s * NS_PER_S)
        url.close()
    return [one.state("2026-01-01T00:00:00Z") for one in url.servers]


def test_each_replica_on_a_page_is_a_row_of_its_own():
    """Before, it was the fullest at the first look alone, and once they were added up."""
    servers = servers_of(two_engines())
    assert [(one.replica, one.n_replicas) for one in servers] == [("engine=0", 2), ("engine=1", 2)]
    (alone,) = servers_of(page("vllm-0.32-after"))
    assert (alone.replica, alone.n_added_up) == (None, 1)
    assert [one.n_running for one in servers] == [alone.n_running, 4 * alone.n_running + 10]
    (wanted,) = servers_of(two_engines(), wanted="engine=1")
    assert wanted == replace(servers[1], url=wanted.url)


def test_the_answer_of_a_single_look_has_a_page_for_each_replica(tmp_path):
    flags = ("--once", "--window", "1.2s", "--every", "0.3s", "--no-limit")
    with in_turn(two_engines()) as url:
        found = run("watch", url, *flags, "--report", "page.html", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    for engine in (0, 1):
        assert f"{url} engine={engine} is healthy" in found.stdout
    assert "one of 2 replicas on its page" in found.stdout


def test_a_replica_that_comes_later_is_a_row_and_adds_to_no_other():
    """A page that had one server at the first look was added up from then on."""
    alone = page("vllm-0.32-after")
    first, second = servers_of(alone, alone, two_engines())
    (before,) = servers_of(alone)
    assert (first.replica, second.replica) == ("engine=0", "engine=1")
    assert first.n_running == before.n_running
    assert first.n_requests == second.n_requests == 0  # none ended while they were watched
    assert (first.window_s, second.window_s) == (6.0, 4.0)


def test_a_replica_that_is_not_on_the_page_is_refused(tmp_path):
    with in_turn(two_engines()) as url:
        found = run("watch", url, "--once", "--replica", "engine=7", folder=tmp_path)
    check_refused(found, 2, "none of the replicas", "--replica engine=0")


def test_a_replica_that_ends_while_others_go_on_is_unreachable():
    """What was left of the page, without a metric of a server, was an error."""
    pages = (two_engines(), page("vllm-0.32-after"))
    stays, left = servers_of(*pages)
    assert (stays.replica, stays.conditions) == ("engine=0", ())
    assert (left.replica, left.conditions) == ("engine=1", ("unreachable",))
    (wanted,) = servers_of(*pages, wanted="engine=1")
    assert wanted.conditions == ("unreachable",)


def test_a_page_that_loses_its_metrics_of_a_server_does_not_end_the_watch():
    (server,) = servers_of(page("vllm-0.32-after"), "process_start_time_seconds 1.795e+09\n")
    assert server.conditions == ("unreachable",)


def test_a_single_server_that_comes_back_under_another_name_is_the_same_row():
    before = page("vllm-0.32-after")
    renamed = re.sub(r'model_name="[^"]*"', 'model_name="other"', before)
    assert renamed != before
    (server,) = servers_of(before, renamed)
    assert (server.replica, server.conditions) == (None, ())


STARTED = "process_start_time_seconds 1.79527926839e+09"


@pytest.mark.parametrize(
    ("name", "kind", "running", "path"),
    [("nim", "nim", 6, "/v1/metrics"), ("trtllm", "tensorrt-llm", 4, "/prometheus/metrics")],
)
def test_the_page_of_a_single_look_shows_who_ran_and_waited(name, kind, running, path, tmp_path):
    how = ("--once", "--window", "1.2s", "--every", "0.3s", "--no-limit")
    with in_turn(page(name), path=path) as url:
        found = run("watch", url, *how, "--json", "--report", "page.html", folder=tmp_path)
    (server,), (history,) = (json.loads(found.stdout)[one] for one in ("servers", "histories"))
    assert (server["server"], server["n_running"], server["n_waiting"]) == (kind, running, 2)
    assert (set(history["running"]), set(history["waiting"])) == ({running}, {2})
    assert len(history["at_s"]) == len(history["running"]) >= 3
    text = (tmp_path / "page.html").read_text()
    assert f"At most {running} running and 2 waiting at once" in text
    assert "data-x-title" in text


@pytest.mark.slow
@pytest.mark.parametrize("start", [STARTED.replace("1.79", "1.80"), ""])
def test_servers_that_answer_in_turn_are_named_and_have_no_rates(start, tmp_path):
    first = page("vllm-0.32-after")
    second = zeroed(first).replace("process_start_time_seconds 0", start)
    first = first if start else first.replace(STARTED, "")
    report = tmp_path / "watched.html"
    words = ("--for", "2s", "--every", "100ms", "--no-limit", "--once", "--json")
    words += ("--report", str(report))
    with in_turn(first, second) as url, in_turn(first) as other:
        alone = run("watch", url, "--for", "1s", "--every", "100ms", folder=tmp_path)
        both = run("watch", url, other, *words, folder=tmp_path)
    assert alone.returncode == 3, alone.stderr
    assert "several servers answer at this address in turn" in alone.stderr
    assert "its own port" in alone.stderr
    assert alone.stdout.count("restarted") <= 1
    assert "several servers: they answer at this address in turn" in alone.stdout
    assert both.returncode == 0, both.stderr
    mixed, calm = json.loads(both.stdout)["servers"]
    assert (mixed["conditions"], mixed["requests_per_s"]) == (["several_servers"], None)
    assert (calm["conditions"], calm["requests_per_s"]) == ([], 0)
    shown = report.read_text()
    assert f"{url} is several servers" in shown
    assert f"{other} is healthy" in shown


def test_a_prediction_is_read_of_the_answer_of_simulate_and_says_for_which_traffic_it_is(tmp_path):
    (path, *_) = sorted(GOLDEN.glob("simulate-llama-3-1-8b-hardware-h100-sxm-rate-5-*.json"))
    answer = json.loads(path.read_text())["answer"]
    (tmp_path / "predicted.json").write_text(json.dumps(answer))
    made = prediction_of(tmp_path / "predicted.json")
    assert made.requests_per_s == answer["workload"]["rate_per_s"]
    likely = next(one for one in answer["levels"] if one["step_times"] == "likely")
    (ttft,) = (one for one in likely["summary"]["latencies"] if one["latency"] == "ttft")
    assert made.means_s["ttft"].mid_s == ttft["mean"]["seconds"]["value"]
    p95 = next(one for one in ttft["percentiles"] if one["percentile_fraction"] == 0.95)
    bounds = made.quantiles_s["ttft", 0.95]
    assert bounds.low_s <= p95["seconds"]["low"] <= bounds.mid_s <= bounds.high_s
    text = page("vllm-0.32-after")
    seen = summarise_server(samples_of(zeroed(text), text))
    assert "requests/s, predicted for 5" in made.why_not_valid(seen)
    (residual, *_) = residuals_of(seen, made)
    assert residual.residual_ratio == pytest.approx(
        seen.time("ttft").mean_s / made.means_s["ttft"].mid_s - 1
    )


def test_a_percentile_of_too_few_simulated_requests_has_no_bounds(tmp_path):
    (path, *_) = sorted(GOLDEN.glob("simulate-llama-3-1-8b-hardware-h100-sxm-rate-5-*.json"))
    answer = json.loads(path.read_text())["answer"]
    (slow,) = (one for one in answer["levels"] if one["step_times"] == "slow")
    (ttft,) = (one for one in slow["summary"]["latencies"] if one["latency"] == "ttft")
    (p95,) = (one for one in ttft["percentiles"] if one["percentile_fraction"] == 0.95)
    p95["seconds"] |= {"low": None, "high": None}
    (tmp_path / "predicted.json").write_text(json.dumps(answer))
    made = prediction_of(tmp_path / "predicted.json")
    assert made.quantiles_s["ttft", 0.95].low_s is None
    assert made.quantiles_s["ttft", 0.95].high_s is None
    assert made.quantiles_s["ttft", 0.95].mid_s > 0
    assert made.quantiles_s["ttft", 0.5].high_s > made.quantiles_s["ttft", 0.5].mid_s
    families = WatchExporter(lambda: (), made).collect()
    (ttft_family,) = (one for one in families if one.name == "inferometer_predicted_ttft_seconds")
    seen = {(one.labels["quantile"], one.labels["bound"]) for one in ttft_family.samples}
    assert {bound for quantile, bound in seen if quantile == "0.95"} == {"mid"}
    assert {bound for quantile, bound in seen if quantile == "0.5"} == {"low", "mid", "high"}
