"""Does `inferometer capacity` ask replicas behind a router together?"""

import json

from click.testing import CliRunner

from inferometer.cli.main import app

QUESTION = ("llama-3.1-8b", "--hardware", "l40s", "--slo", "ttft:p95<1s", "--probe-requests", "200", "--resolution", "0.2")


def capacity(*flags):
    done = CliRunner().invoke(app, ["capacity", *QUESTION, *flags])
    assert done.exit_code in {0, 11}, done.output
    return done.stdout


def test_replicas_behind_a_router_carry_together_what_pooling_gives_them():
    one, dealt, pooled = (
        json.loads(capacity("--json", *flags)) for flags in ((), ("--replicas", "3", "--router", "random"), ("--replicas", "3"))
    )
    assert (one["n_replicas"], one["router"]) == (1, None)
    assert (pooled["n_replicas"], pooled["router"]) == (3, "least-loaded")
    located = [said["levels"][0]["capacity"]["located_load"] for said in (one, dealt, pooled)]
    assert located[1] > located[0]
    assert located[2] > 1.05 * located[1], "the least loaded is better than chance"


def test_the_terminal_says_what_each_carries():
    text = " ".join(capacity("--replicas", "2").split())
    assert "ANSWER llama-3.1-8b, 2 replicas, chat:" in text
    assert "of 2 replicas behind a least-loaded router, simulated together" in text
