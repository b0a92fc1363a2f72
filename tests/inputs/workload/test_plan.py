"""Is what cannot be sent refused by row, and are shared tokens found for blocks of any size?"""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from plan_strategies import plans

from inferometer.errors import SpecError
from inferometer.inputs.workload.plan import (
    NONE,
    block_contents,
    check_plan,
    column_types,
    first_requests,
    request_plan,
)

GOOD = {
    "arrival_ns": [0, 5, NONE],
    "prompt_tokens": [4, 5, 6],
    "output_tokens": [2, 2, 2],
    "follows": [NONE, NONE, 0],
    "think_ns": [NONE, NONE, 3],
}


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"arrival_ns": [5, 4, NONE]}, "request 1 arrives at 4 ns, before its predecessor"),
        ({"arrival_ns": [-7, 4, NONE]}, "arrival_ns of request 0 is -7"),
        ({"arrival_ns": [0, 4, 9]}, "arrival_ns of request 2, which follows another, is 9"),
        ({"arrival_ns": [0, NONE, NONE]}, "arrival_ns of request 1 is -1"),
        ({"prompt_tokens": [4, 0, 6]}, "prompt_tokens of request 1 is 0"),
        ({"output_tokens": [0, 0, 6]}, r"output_tokens of request 0 is 0 \(and 1 rows more\)"),
        ({"max_tokens": [2, 2, 1]}, "max_tokens of request 2 is 1, below"),
        ({"follows": [NONE, NONE, 2]}, "follows of request 2 is 2"),
        ({"joins": [1, NONE, NONE]}, "request 0 joins request 1"),
        ({"joins": [NONE, NONE, 2]}, "request 2 joins request 2"),
        ({"joins": [NONE, 3, NONE]}, "request 1 joins request 3"),
        ({"joins": [NONE, -2, NONE]}, "request 1 joins request -2"),
        ({"think_ns": [NONE, 1, 1]}, "think_ns of request 1 is 1"),
        ({"think_ns": [NONE, NONE, NONE]}, "think_ns of request 2 is -1"),
        ({"prefix_request": [NONE, 1, NONE]}, "prefix_request of request 1 is 1"),
        (
            {"prefix_request": [NONE, 0, NONE], "prefix_tokens": [0, 6, 0]},
            "prefix_tokens of request 1 is 6",
        ),
        (
            {
                "prompt_tokens": [4, 5, 90],
                "prefix_request": [NONE, NONE, 0],
                "prefix_tokens": [0, 0, 7],
            },
            "prefix_tokens of request 2 is 7",
        ),
        ({"prefix_tokens": [0, 1, 0]}, "prefix_tokens of request 1 is 1"),
        ({"session_index": [-2, 0, 0]}, "session_index of request 0 is -2"),
        ({"class_index": [0, -1, 0]}, "class_index of request 1 is -1"),
        ({"prompt_tokens": [4, 5.5, 6]}, "prompt_tokens does not fit"),
        ({"prompt_tokens": [4, 2**31, 6]}, "prompt_tokens does not fit"),
        ({"prompt_tokens": [4, 5]}, "prompt_tokens has the shape"),
        ({name: [] for name in GOOD}, "no requests"),
    ],
)
def test_what_cannot_be_sent_is_named(changes, what):
    request_plan("here", **GOOD)
    with pytest.raises(SpecError, match=what) as caught:
        request_plan("here", **(GOOD | changes))
    assert caught.value.where == "here"


def tokens_of(plan):
    """Every request's tokens, written out: shared ones copied, own ones unique."""
    sequences = []
    for row in range(plan.n_requests):
        owner, n_shared = int(plan.prefix_request[row]), int(plan.prefix_tokens[row])
        shared = sequences[owner][:n_shared] if owner != NONE else []
        n_own = int(plan.prompt_tokens[row] + plan.output_tokens[row]) - n_shared
        sequences.append([*shared, *((row, place) for place in range(n_own))])
    return sequences


@given(plans(), st.integers(1, 12))
def test_the_first_requests_of_a_plan_are_a_plan(plan, n_requests):
    cut = first_requests(plan, n_requests)
    check_plan(cut, "here")
    assert cut.n_requests == min(plan.n_requests, n_requests)
    kept = plan.joins[: cut.n_requests] < cut.n_requests
    assert np.array_equal(cut.joins[kept], plan.joins[: cut.n_requests][kept])
    assert (cut.joins[~kept] == NONE).all()


@given(plans(), st.integers(1, 9))
def test_ids_are_equal_exactly_where_all_tokens_are(plan, block_size):
    contents = block_contents(plan, block_size)
    known = {}
    for row, sequence in enumerate(tokens_of(plan)):
        ids = contents.ids[contents.start[row] : contents.start[row + 1]].tolist()
        assert len(ids) == len(sequence) // block_size
        for block, found in enumerate(ids):
            beginning = tuple(sequence[: (block + 1) * block_size])
            assert known.setdefault(beginning, found) == found
    assert len(set(known.values())) == len(known)
    assert set(known.values()) == set(range(len(known)))


@given(plans())
def test_columns_have_their_types(plan):
    check_plan(plan, "here")
    assert {name: column.dtype for name, column in plan._asdict().items()} == column_types()


def test_too_many_blocks_are_refused():
    plan = request_plan(
        "here", arrival_ns=[0, 0], prompt_tokens=[2**31 - 1] * 2, output_tokens=[1, 1]
    )
    with pytest.raises(SpecError, match="blocks of 1 tokens"):
        block_contents(plan, 1)
    assert len(block_contents(plan, 2**20).ids) == 2 * 2**11


def test_rows_are_called_as_their_file_calls_them():
    with pytest.raises(SpecError, match="prompt_tokens of line 11 is 0"):
        request_plan(
            "here",
            "line {}1".format,
            arrival_ns=[0, 0],
            prompt_tokens=[1, 0],
            output_tokens=np.array([1, 1]),
        )
