"""Is there one offered rate, and is it said where sessions hold it below the one that was asked for?"""

import dataclasses

from inferometer.api.workload import held_back
from inferometer.inputs.workload import reading, replay


def drawn_at(workload, rate_per_s, n_requests=300):
    changes = {"arrivals": {"kind": "open", "rate_per_s": rate_per_s}, "n_requests": n_requests}
    return replay.draw_workload(
        reading.with_changes(reading.resolve_workload(workload), changes, where="a test")
    )


def test_sessions_that_hold_the_rate_are_named():
    drawn = drawn_at("long-context", 1.0)
    (caution,) = held_back(drawn, 0.107)
    assert caution.text.startswith(
        "0.107 requests/s were offered of 1 asked for: 95 of 300 requests are later turns"
    )
    assert "all took 46.6 min" in caution.text
    assert "--requests" in caution.remedy


def test_a_rate_that_came_is_no_matter_of_sessions():
    drawn = drawn_at("long-context", 1.0)
    assert held_back(drawn, 0.95) == ()
    assert held_back(drawn, None) == ()
    assert held_back(drawn_at("chat", 1.0), 0.1) == (), "nobody waits there"
    assert held_back(dataclasses.replace(drawn, asked_rate_per_s=None), 0.1) == ()
