"""Do users of a class wait for answers of their own class alone?"""

import msgspec
import numpy as np
import pytest
from hypothesis import given, strategies as st

from inferometer.errors import SpecError
from inferometer.inputs.workload.arrivals import users_of_classes
from inferometer.inputs.workload.plan import NONE, first_of_each
from inferometer.inputs.workload.reading import with_changes, workload_from_text
from inferometer.inputs.workload.replay import draw_workload

TEXT = """
n_requests = 300
[[classes]]
name = "chat"
concurrency = 6
weight_ratio = 3
prompt_tokens = { kind = "constant", value = 30 }
output_tokens = { kind = "constant", value = 10 }
[[classes]]
name = "report"
concurrency = 2
prompt_tokens = { kind = "constant", value = 400 }
output_tokens = { kind = "constant", value = 40 }
"""


def test_each_chain_is_of_one_class_and_there_are_as_many_as_users():
    spec = workload_from_text(TEXT, where="here")
    assert spec.arrivals.concurrency == 8
    plan = draw_workload(spec).plan
    follows = plan.follows != NONE
    assert (plan.class_index[follows] == plan.class_index[plan.follows[follows]]).all()
    assert np.bincount(plan.class_index[~follows]).tolist() == [6, 2]
    assert len(np.unique(plan.follows[follows])) == follows.sum(), "one after the other"
    assert (plan.class_index == 0).mean() == pytest.approx(0.75, abs=0.06)


def test_other_users_in_all_are_shared_in_the_same_proportions():
    spec = with_changes(
        workload_from_text(TEXT, where="here"), {"arrivals": {"concurrency": 20}}, where="here"
    )
    plan = draw_workload(spec).plan
    assert np.bincount(plan.class_index[plan.follows == NONE]).tolist() == [15, 5]


def test_they_start_one_after_the_other():
    spec = workload_from_text(
        'arrivals = { kind = "closed", concurrency = 8, start_over_s = 4 }\n' + TEXT, where="here"
    )
    plan = draw_workload(spec).plan
    began_ns = plan.arrival_ns[plan.follows == NONE]
    assert len(began_ns) == 8
    assert (np.diff(began_ns) >= 0).all()
    assert began_ns[0] == 0
    assert began_ns.max() <= 4_000_000_000


def test_without_it_users_ask_for_every_class():
    text = TEXT.replace("concurrency = 6\n", "").replace("concurrency = 2\n", "")
    spec = workload_from_text(
        'arrivals = { kind = "closed", concurrency = 8 }' + text, where="here"
    )
    plan = draw_workload(spec).plan
    follows = plan.follows != NONE
    assert (plan.class_index[follows] != plan.class_index[plan.follows[follows]]).any()


@given(st.integers(1, 500), st.lists(st.integers(1, 100), min_size=1, max_size=6))
def test_all_users_and_no_more_have_a_class(n_users, wanted):
    users = users_of_classes(n_users, tuple(wanted))
    assert min(users) >= 1
    assert sum(users) == max(n_users, len(wanted))
    if n_users == sum(wanted):
        assert users == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT.replace("concurrency = 2\n", ""), "only chat has a concurrency"),
        ('arrivals = { kind = "open", rate_per_s = 2 }' + TEXT, "whose users wait for answers"),
    ],
)
def test_what_cannot_be_is_refused(text, message):
    with pytest.raises((SpecError, msgspec.ValidationError), match=message):
        workload_from_text(text, where="here")


def test_the_next_session_goes_to_whoever_is_likely_to_be_done_first():
    text = """
    n_requests = 400
    arrivals = { kind = "closed", concurrency = 8 }
    [[classes]]
    name = "a"
    prompt_tokens = { kind = "constant", value = 16 }
    output_tokens = { kind = "lognormal", median = 200, sigma = 1.0, max = 4000 }
    """
    plan = draw_workload(workload_from_text(text, where="here")).plan
    user = first_of_each(plan.follows)
    assert np.array_equal(np.unique(user), np.arange(8))
    busy = np.bincount(user, weights=plan.output_tokens, minlength=8)
    # in turns each user's sum is of 50 random answers: they differ by half
    in_turns = np.bincount(np.arange(400) % 8, weights=plan.output_tokens)
    assert busy.max() - busy.min() <= plan.output_tokens.max()
    assert np.ptp(busy) < np.ptp(in_turns) / 2
