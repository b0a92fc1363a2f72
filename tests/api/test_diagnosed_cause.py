"""Which cause does a diagnosis name where a number of the server or its machine shows one too?"""

from inferometer.api.diagnosis import cause_named
from inferometer.decide.diagnosis.causes import CAUSES
from inferometer.decide.diagnosis.shares import Change, Conclusion, Share
from inferometer.records.pitfalls import judged


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
