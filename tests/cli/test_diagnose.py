"""What does `inferometer diagnose` refuse, and does it read a stored load test?"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
from command_line import check_refused, run
from tests.records.server_pages import page

from inferometer.api.diagnose_source import live_source
from inferometer.errors import MeasureError

PAST = ("--prometheus", "http://127.0.0.1:9")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nothing-here",), 4, ("nothing-here", "inferometer load URL --out RUN")),
        ((".",), 4, ("this is no run", "inferometer load URL --out RUN")),
        (
            ("http://127.0.0.1:9", "--steps", "nothing-here"),
            3,
            ("metrics cannot be read",),
        ),
        (("http://127.0.0.1:9",), 3, ("metrics cannot be read", "start the server")),
        (("127.0.0.1:9",), 3, ("metrics cannot be read", "http://127.0.0.1:9")),
        (("http://127.0.0.1:9", "--for", "1s"), 2, ("--for", "10 s or more")),
        (("http://127.0.0.1:9", "--slo", "fast"), 2, ("fast", "ttft:p95<500ms")),
        (("http://127.0.0.1:9", "--known", "seats=3"), 2, ("seats=3", "max_num_seqs")),
        (("a:1", "--last", "5min"), 2, ("--last without --prometheus",)),
        (("a:1", *PAST, "--range", "yesterday"), 2, ("no range of times", "START..END")),
        (("a:1", *PAST, "--last", "2h"), 2, ("2 h 0 min of metrics", "up to 1 h")),
        (("http://127.0.0.1:9", "--fpm", "http://x"), 2, ("is no endpoint", "tcp://HOST:PORT")),
        (("a:1", *PAST, "--probe"), 2, ("--probe without a server's URL",)),
        (("a-run", "--for", "20s"), 2, ("--for of a load test that was made",)),
        (("a:1", *PAST, "--local"), 2, ("--local without a server's URL",)),
        (("http://192.0.2.9:8000", "--local"), 2, ("is not on this machine", "--local")),
        (("http://127.0.0.1:9", "--local"), 3, ("no process of this machine listens",)),
        (("a:1", *PAST, "--fpm", "tcp://x:1"), 2, ("--fpm without a server's URL",)),
        (("http://127.0.0.1:9", "--fpm", "tcp://x:1", "--steps", "y"), 2, ("--fpm with --steps",)),
        (("a:1", *PAST), 3, ("Prometheus does not answer", "127.0.0.1:9")),
    ],
)
def test_what_cannot_be_is_refused(words, code, said, tmp_path):
    check_refused(run("diagnose", *words, folder=tmp_path), code, *said)


def test_a_server_that_stops_within_the_window_is_not_diagnosed():
    """Half of a window would be that of a server in health."""
    left = iter(range(3))

    class Dying(BaseHTTPRequestHandler):
        def do_GET(self):
            text = page("vllm-0.32-after").encode()
            self.send_response(200 if next(left, None) is not None else 503)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Dying) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(MeasureError, match=r"stopped answering \d s into the window"):
            live_source(url, 4.0)
        server.shutdown()


LINE = (
    "(EngineCore) INFO 11-25 00:12:37 [loggers.py:199] Engine 000: Iteration({}): {} context"
    " requests, {} context tokens, {} generation requests, {} generation tokens, iteration elapsed"
    " time: {:.2f} ms, GPU KV cache usage: 3.0%\n"
)


def vllm_log(folder, *, n_steps=400, row_ms=0.05, held_up=True):
    """Steps of 10 ms and 0.05 ms a row; every eighth computes a prompt."""
    rng = np.random.default_rng(1)
    lines = []
    for index in range(n_steps):
        n_answers = int(rng.integers(1, 20))
        prompt = int(rng.integers(100, 900)) if held_up and index % 8 == 0 else 0
        took_ms = (10 + row_ms * (prompt + n_answers)) * np.exp(rng.normal(0, 0.02))
        lines.append(LINE.format(index, int(prompt > 0), prompt, n_answers, n_answers, took_ms))
    (folder / "vllm.log").write_text("".join(lines))


def test_a_log_of_steps_tells_where_their_time_goes(tmp_path):
    vllm_log(tmp_path)
    answer = json.loads(run("diagnose", "vllm.log", "--json", folder=tmp_path).stdout)
    assert (answer["source"], answer["n_steps"]) == ("vLLM's iteration log", 400)
    assert answer["limited_by"] == "step_floor"
    shares = {part["name"]: part["fraction"] for part in answer["parts"]}
    true = 0.05 * 500 / 8 / (10 + 0.05 * (500 / 8 + 10))
    assert shares["prompt_compute"]["value"] == pytest.approx(true, abs=0.04)
    assert "kv_reads" not in shares  # the log does not tell the context
    assert answer["are_answers_held_up"]
    assert answer["gap_p99_s"] > 0.03 > answer["gap_p99_without_prompts_s"]["high"]


def test_a_log_of_steps_without_prompts_has_no_answers_held_up(tmp_path):
    vllm_log(tmp_path, held_up=False)
    done = run("diagnose", "vllm.log", folder=tmp_path)
    assert done.returncode == 0
    assert "most of the steps' time is what every step takes" in done.stdout
    assert "hold answers up" not in done.stdout
    assert "does not tell the context" in done.stdout


def test_steps_are_of_no_replica(tmp_path):
    (tmp_path / "x.log").write_text("nothing\n")
    refused = run("diagnose", "x.log", "--replica", "engine=1", folder=tmp_path)
    check_refused(refused, 2, "--replica", "'engine=1' of steps without metrics")


def test_a_file_without_steps_is_refused(tmp_path):
    (tmp_path / "x.log").write_text("nothing\n")
    check_refused(run("diagnose", "x.log", folder=tmp_path), 4, "no steps are in this file")
