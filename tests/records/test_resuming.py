"""Is what differs between two runs named, and what does not matter left out?"""

from dataclasses import replace

from inferometer.inputs.types import SweepPoint
from inferometer.records.store import differences, resumed

POINTS = [SweepPoint(prompt_tokens=128, batch_size=1, gen_tokens=8)]


def test_what_one_side_does_not_know_is_no_difference_and_is_filled_in(make_manifest, make_plan):
    stored = make_manifest(make_plan(POINTS), engine=None, host=None)
    asked = make_manifest(make_plan(POINTS), run_id="r2", created_utc="later")
    assert differences(stored, asked) == ()
    kept = resumed(stored, asked, where="here")
    assert (kept.engine, kept.host) == (asked.engine, asked.host)
    assert (kept.run_id, kept.created_utc) == ("r1", stored.created_utc)


def test_every_leaf_that_differs_is_named(make_manifest, make_plan):
    stored = make_manifest(make_plan(POINTS))
    other_plan = replace(
        stored.plan, seed=8, points=(SweepPoint(prompt_tokens=128, batch_size=2, gen_tokens=8),)
    )
    asked = replace(
        stored, plan=other_plan, engine=replace(stored.engine, libraries=(("torch", "2.14.0"),))
    )
    assert differences(stored, asked) == (
        "plan.points[0].batch_size is 2, stored is 1",
        "plan.seed is 8, stored is 7",
        "engine.libraries[0][1] is '2.14.0', stored is '2.13.0'",
    )
