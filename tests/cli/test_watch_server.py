"""inferometer watch against emulated servers: the state, the changes, and what Prometheus sees of it."""

import json
import math
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import run
from tests.decide.fleets import fleet
from tests.decide.peers import free_port, program, prometheus

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from watched_servers import SCENES, STEP_S, emulated, staged

import inferometer as im
from inferometer.api.watch_prediction import prediction_of
from inferometer.decide.artefacts import proving
from inferometer.decide.artefacts.packaging import Wishes, packaging_of

pytestmark = pytest.mark.slow  # real seconds

GOLDEN = Path(__file__).parents[1] / "golden" / "answers"
HEALTHY_S = 12.0
LEARNING_S = 80.0
"""A minute of traffic, of which a busy machine makes a little less."""
FOUND_S = 30.0


@pytest.mark.parametrize("is_learned", [False, pytest.param(True, marks=pytest.mark.long)])
def test_what_happens_to_servers_under_traffic_is_said_within_30_s(is_learned):
    names = [name for name, scene in SCENES.items() if scene.is_learned == is_learned]
    healthy_s = LEARNING_S if is_learned else HEALTHY_S
    seen = staged(names, healthy_s, FOUND_S, ends_when_found=True)
    assert seen.false_alarms == []
    assert set(seen.found_s) == set(names)
    assert all(took_s is not None for took_s in seen.found_s.values()), seen


def test_twelve_kinds_of_change_are_staged():
    assert len(SCENES) == 12
    assert len({(scene.condition, scene.has_begun) for scene in SCENES.values()}) == 12


def test_a_watch_that_sees_no_change_ends_with_what_it_saw(tmp_path):
    with emulated({"calm": {}}) as servers:
        address = servers["calm"].url.removeprefix("http://")
        done = run("watch", address, "--for", "4s", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing changed in 4 s; http://" in done.stderr
    assert "no condition is on" in done.stderr


def test_once_in_json_has_the_state_and_in_a_pipe_there_are_only_changes(tmp_path):
    with emulated({"full": {"max_num_seqs": 2}}) as servers:
        emulator = servers["full"]
        emulator.traffic.change(n_users=6)
        time.sleep(3)
        words = ("--slo", "ttft:p95<50ms, tpot:p95<2s")
        once = run(
            "watch", emulator.url, *words, "--once", "--window", "25s", "--json",
            folder=tmp_path,
        )  # fmt: skip
        piped = subprocess.run(
            [
                Path(sys.executable).parent / "inferometer",
                "watch",
                emulator.url,
                "--for",
                "15s",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert once.returncode == 10, once.stderr
    (server,) = json.loads(once.stdout)["servers"]
    assert (server["server"], server["conditions"]) == ("vllm", ["max_num_seqs_full"])
    assert (server["n_running"], server["n_waiting"]) == (2, 4)
    by_name = {one["name"]: one for one in server["latencies"]}
    assert set(by_name) == {
        f"{name}:{p}" for name in ("ttft", "tpot", "e2e") for p in ("p50", "p95")
    }
    tpot = by_name["tpot:p95"]
    assert tpot["low_s"] <= STEP_S <= tpot["high_s"]
    assert by_name["ttft:p95"]["breach_soonest_s"] == 0
    assert server["limit"]["cause"] == "max_num_seqs", server["limit"]
    assert server["headroom_ratio"] < 0
    assert piped.returncode == 0, piped.stderr
    (line,) = piped.stdout.splitlines()
    assert line.endswith(f"{emulator.url} batch full (max_num_seqs): requests wait for a place")


SCRAPES = """
global:
  scrape_interval: 15s
scrape_configs:
  - job_name: watch
    scrape_interval: 5s
    static_configs: [{{targets: ["127.0.0.1:{port}", "{server}"]}}]
"""
LEARNED = {"Step time against what was learned", "What limits the server"}
"""Panels that are empty until a minute of traffic was seen."""
OF_A_FLEET = {"KV cache, used and free", "Evicted prefixes"}
"""Panels with lines that need the fleet's recording rules, or a metric of blocks of the real vLLM."""


def test_prometheus_reads_predictions_residuals_and_the_regime(tmp_path):
    program("prometheus", "prometheus")
    (golden, *_) = sorted(GOLDEN.glob("simulate-llama-3-1-8b-hardware-h100-sxm-rate-5-*.json"))
    predicted = tmp_path / "predicted.json"
    predicted.write_text(json.dumps(json.loads(golden.read_text())["answer"]))
    port = free_port()
    (tmp_path / "prometheus-rules.yaml").write_text("groups: []\n")
    with emulated({"one": {}}) as servers:
        url = servers["one"].url
        settings = SCRAPES.format(port=port, server=url.removeprefix("http://"))
        (tmp_path / "prometheus.yml").write_text(settings)
        check_what_prometheus_reads(tmp_path, url, predicted, port)


def check_what_prometheus_reads(folder, url, predicted, port):
    with prometheus(folder) as server:
        answer = im.watch(
            url, duration=25, predicted=predicted, slo="tpot:p95<1s", limit=False, export_port=port
        )

        def values(name):
            found = server.values(f"last_over_time(inferometer_{name}[5m])")
            return {tuple(sorted(labels.items())): value for labels, value in found}

        ended_s = datetime.now(
            UTC
        ).timestamp()  # soon after, a series of the exporter that is gone is stale
        (state,) = answer.servers
        bounds = values('predicted_tpot_seconds{quantile="0.95"}')
        assert len(bounds) == 3
        (row,) = [one for one in state.latencies if one.name == "tpot:p95"]
        assert sorted(bounds.values()) == [
            row.predicted_low_s, row.predicted_s, row.predicted_high_s
        ]  # fmt: skip
        assert list(values("model_valid").values()) == [0.0]
        assert list(values("model_info").values()) == [1.0]
        assert set(values('regime{condition="overloaded"}').values()) == {0.0}
        assert all(0 < value <= 1 for value in values("headroom_ratio").values())
        (residual,) = values('residual_ratio{metric="tpot"}').values()
        assert residual == pytest.approx(
            STEP_S / prediction_of(predicted).means_s["tpot"].mid_s - 1, rel=0.2
        )
        check_board(server, ended_s)


def check_board(server, at_s):
    """Each line of the board has finite values; live stands where the emulator's steps put it."""
    seen = {}
    sections = proving.sections(fleet(), packaging_of(fleet(), Wishes(served_name="m")))
    shown = (panel for section in sections for panel in section.panels)
    for panel in (*proving.summary(), *shown):
        for query in panel.queries:
            text = query.expression.replace("$__rate_interval", "30s")
            seen[panel.title, query.legend] = [value for _, value in server.values(text, at_s)]
    assert {title for (title, _), values in seen.items() if not values} == LEARNED | OF_A_FLEET
    assert all(math.isfinite(value) for values in seen.values() for value in values)
    assert STEP_S / 2 < seen["TPOT p50", "live"][0] < 3 * STEP_S
    for title in ("TTFT p50", "TTFT p95", "TPOT p50", "TPOT p95", "E2E p50", "E2E p95"):
        low, mid, high = (seen[title, f"predicted, {bound}"][0] for bound in ("low", "mid", "high"))
        assert low <= mid <= high
