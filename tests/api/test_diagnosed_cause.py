"""Which cause does a diagnosis name where a number of the server or its machine shows one too?"""

from inferometer.api.diagnosis import cause_named
from inferometer.decide.diagnosis.causes import CAUSES, Change, Conclusion, Share, conclusion
from inferometer.records.pitfalls import judged
from inferometer.stats.estimate import Estimate


def concluded(name, finding="limited"):
    cause = next(one for one in CAUSES if one.name == name)
    return Conclusion(
        finding=finding, cause=Share(cause=cause, shares=(), change=Change(None, 1.0, ()))
    )


def test_waiting_for_cores_is_named_before_the_work_itself():
    waiting = (judged("waits_for_cores", 0.6),)
    assert cause_named(concluded("step_floor"), waiting) == ("limited", "waits_for_cores")
    assert cause_named(concluded("step_floor", "undecided"), waiting)[1] == "waits_for_cores"


def test_a_setting_is_named_before_waiting_for_cores():
    waiting = (judged("waits_for_cores", 0.6),)
    assert cause_named(concluded("max_num_seqs"), waiting) == ("limited", "max_num_seqs")


def test_what_is_ruled_out_or_slows_no_step_names_nothing():
    checks = (judged("waits_for_cores", 0.1), judged("unbound_numa", 2), judged("throttled", None))
    assert cause_named(concluded("step_floor"), checks) == ("limited", "step_floor")
    healthy = Conclusion(finding="healthy", cause=None)
    assert cause_named(healthy, (judged("waits_for_cores", 0.6),)) == ("healthy", None)


def seconds(low, value, high):
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.9, n_samples=19, method="draws"
    )


def share(name, *shares):
    cause = next(one for one in CAUSES if one.name == name)
    return Share(cause=cause, shares=shares, change=Change(None, 1.0, ()))


def test_a_setting_that_lengthens_another_latency_beyond_its_limit_is_not_the_cause():
    """As measured of a real server: the batch is full, and its steps are too long already."""
    now = seconds(5.5, 6.3, 7.1)
    shares = (
        share("max_num_seqs", seconds(4.1, 4.8, 5.5), seconds(-0.17, -0.15, -0.12)),
        share("overload", seconds(5.3, 6.0, 6.9), seconds(0.09, 0.11, 0.12)),
    )
    for verdicts, cause in (
        (("missed", "missed"), "overload"),
        (("missed", "undecided"), "max_num_seqs"),
        ((), "max_num_seqs"),
    ):
        found = conclusion(shares, now, "missed", verdicts)
        assert (found.finding, found.cause.cause.name) == ("limited", cause)


def test_a_server_before_which_nobody_waits_is_not_overloaded():
    """Fewer requests shorten what they wait for each other's steps: 12 of 22 ms, and no queue."""
    now = seconds(0.020, 0.0216, 0.023)
    shares = (share("overload", seconds(0.011, 0.0126, 0.014)),)
    for mean_waiting, finding in ((0.0, "healthy"), (40.0, "limited")):
        assert conclusion(shares, now, None, mean_waiting=mean_waiting).finding == finding


def test_a_setting_that_gains_much_less_than_fewer_requests_is_not_the_cause():
    now = seconds(40.0, 45.0, 50.0)
    shares = (
        share("small_step_budget", seconds(15.0, 25.0, 33.0)),
        share("overload", seconds(40.0, 44.5, 49.0)),
    )
    found = conclusion(shares, now, None)
    assert found.cause.cause.name == "overload"


def test_an_unsure_setting_that_would_gain_much_less_leaves_nothing_open():
    """Were it sure, the traffic would be named: it is named where the gain may be nothing, too."""
    now = seconds(33.0, 40.0, 49.0)
    for gain_s, finding in ((18.7, "limited"), (35.0, "undecided")):
        shares = (
            share("small_step_budget", seconds(0.0, gain_s, 37.0)),
            share("overload", seconds(33.0, 39.8, 48.0)),
        )
        found = conclusion(shares, now, None)
        assert found.finding == finding
        assert (found.cause.cause.name == "overload") == (finding == "limited")
