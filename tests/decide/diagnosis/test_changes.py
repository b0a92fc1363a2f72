"""Is a change predicted as it is made: to the value that is advised, of any server there may be?"""

from dataclasses import replace

from tests.decide.diagnosis.test_diagnosis import FOR_S, PLAN, ROOMY, START_S, STEPS

from inferometer.decide.diagnosis import causes
from inferometer.decide.diagnosis.rebuilding import Rebuilt

P95_TTFT = (("ttft", 0.95),)


def server(**limits):
    start_ns, until_ns = (round(at_s * 1e9) for at_s in (START_S, START_S + FOR_S))
    config = replace(ROOMY, **limits)
    return Rebuilt(config=config, steps=STEPS, plan=PLAN, start_ns=start_ns, until_ns=until_ns)


def cause(name):
    return next(one for one in causes.CAUSES if one.name == name)


def test_all_draws_get_the_advised_value_whichever_limit_each_has_now():
    for name, limits, value in (
        ("small_step_budget", [{"max_num_batched_tokens": n} for n in (256, 300, 420)], 1024),
        ("max_num_seqs", [{"max_num_seqs": n} for n in (4, 6, 9)], 24),
    ):
        draws = [server(**one) for one in limits]
        change = causes.Change(value, 4.0, ())
        (after,) = causes.predicted_with(draws, cause(name), change, P95_TTFT)
        assert after.low == after.high
        moved = causes.predicted_with(draws, cause("overload"), causes.Change(2, 2.0, ()), P95_TTFT)
        assert moved[0].low < moved[0].high


def test_a_value_that_a_draw_cannot_have_is_the_nearest_that_it_can():
    few_rows = server(max_num_seqs=8, max_num_batched_tokens=16)
    at_most = server(max_num_seqs=16, max_num_batched_tokens=16)
    both = [
        causes.predicted_with([one], cause("max_num_seqs"), causes.Change(64, 8.0, ()), P95_TTFT)
        for one in (few_rows, at_most)
    ]
    assert both[0] == both[1]
