"""Is bad input refused by name, and are shared prefixes kept apart from what nobody shares?"""

import numpy as np
import pytest
from reference.simulator import simulate_plainly

from inferometer.errors import SpecError
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import SharedBlocks, contents_checked, demand, with_contents
from inferometer.simulate.run import simulate
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.step_cost import linear_cost


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (([5, 4], [1, 1], [1, 1]), "request 1 arrives at 4 ns"),
        (([-1, 4], [1, 1], [1, 1]), "arrival_ns of request 0 is -1"),
        (([0, 4], [1, 0], [1, 1]), "prompt_tokens of request 1 is 0"),
        (([0, 4], [1, 1], [0, 1]), "output_tokens of request 0 is 0"),
        (([0, 4], [1, 1, 1], [1, 1]), "prompt_tokens has the shape"),
        (([0, 4], [1, 1], [1, 1.5]), "output_tokens does not fit"),
        (([0, 4], [1, 2**40], [1, 1]), "prompt_tokens does not fit"),
        (([0, 4], [1, float("nan")], [1, 1]), "prompt_tokens does not fit"),
        (([], [], []), "no requests"),
    ],
)
def test_bad_columns_are_named(columns, what):
    with pytest.raises(SpecError, match=what):
        demand(*columns)


def test_impossible_ends_are_named():
    with pytest.raises(SpecError, match="max_tokens of request 1"):
        demand([0, 4], [1, 1], [1, 3], max_tokens=[1, 2])
    with pytest.raises(SpecError, match="request 1 is aborted before it arrives"):
        demand([0, 4], [1, 1], [1, 3], abort_ns=[ABSENT, 3])


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"follows": [-1, 1, -1]}, "follows of request 1 is 1"),
        ({"follows": [2, -1, -1]}, "follows of request 0 is 2"),
        ({"follows": [-1, -2, -1]}, "follows of request 1 is -2"),
        ({"joins": [2, -1, -1]}, "request 0 joins request 2"),
        ({"follows": [-1, 0, -1], "joins": [-1, -1, 1]}, "request 2 joins request 1"),
        ({"follows": [-1, 0, -1], "joins": [-1, 1, -1]}, "request 1 joins request 1"),
        ({"follows": [-1, 0, 0], "joins": [3, -1, -1]}, "request 0 joins request 3"),
        ({"follows": [-1, 0, 0], "joins": [-1, -2, -1]}, "request 1 joins request -2"),
        (
            {"follows": [-1, 0, 0], "accompanies": [-1, -1, 1], "joins": [2, -1, -1]},
            "request 0 joins request 2",
        ),
        ({"accompanies": [-1, 0, -1]}, "request 1 accompanies request 0"),
        ({"follows": [-1, 0, 0], "accompanies": [-1, 2, -1]}, "accompanies of request 1 is 2"),
        ({"follows": [-1, 0, 1], "accompanies": [-1, -1, 1]}, "request 2 accompanies request 1"),
        ({"follows": [-1, 0, 1], "think_ns": [0, -1, 0]}, "think_ns of request 1 is -1"),
        (
            {"follows": [-1, 0, 1], "abort_ns": [50, ABSENT, -2]},
            "request 2 is aborted before it arrives",
        ),
        ({"follows": [-1, -1, 1], "arrival_ns": [4, 3, 0]}, "request 1 arrives at 3 ns"),
        (
            {"follows": [-1, 0, 1], "arrival_ns": [0, 0, -1]},
            "request 2 is aborted before it arrives, or arrives before 0",
        ),
    ],
)
def test_impossible_followers_are_named(columns, what):
    arrival = columns.pop("arrival_ns", [0, 0, 0])
    with pytest.raises(SpecError, match=what):
        demand(arrival, [1, 1, 1], [1, 1, 1], **columns)


def test_unshared_blocks_have_contents_of_their_own():
    requests = demand([0, 0], [64, 48], [20, 20])
    shared = SharedBlocks(start=np.array([0, 3, 5]), ids=np.array([900, 901, 902, 900, 901]))
    contents = with_contents(requests, 16, shared)
    first, second = (
        contents.contents[start:end].tolist()
        for start, end in zip(contents.content_start, contents.content_start[1:], strict=False)
    )
    assert len(first) == (64 + 20) // 16
    assert first[:2] == second[:2]
    assert len(set(first + second)) == len(first) + len(second) - 2


def test_contents_of_another_block_size_are_refused():
    requests = with_contents(demand([0], [64], [20]), 16)
    config = SchedulerConfig(num_blocks=100, max_model_len=128, block_size=32)
    with pytest.raises(SpecError, match="blocks of another size"):
        contents_checked(requests, config)


def test_too_many_shared_blocks_are_refused():
    with pytest.raises(SpecError, match="do not fit"):
        with_contents(
            demand([0], [16], [1]), 16, SharedBlocks(start=np.array([0, 2]), ids=np.array([1, 2]))
        )


@pytest.mark.parametrize("run", [simulate, simulate_plainly])
def test_a_prefix_is_computed_once(run):
    """Two equal prompts of 64 tokens in one step.

    64 tokens and 16 tokens, as the real scheduler does; the last block is never a hit.
    """
    requests = demand([0, 0], [64, 64], [2, 2])
    shared = SharedBlocks(start=np.array([0, 4, 8]), ids=np.tile(np.arange(4), 2))
    config = SchedulerConfig(num_blocks=100, max_model_len=128, async_scheduling=False)
    table, steps = run(with_contents(requests, 16, shared), config, linear_cost(launch_s=1e-3))[2:4]
    assert table.cached_tokens.tolist() == [0, 48]
    assert steps.prefill_tokens.tolist() == [80, 0]
    assert steps.prefill_context_product_tokens2.tolist() == [
        64 * 65 // 2 + 16 * 48 + 16 * 17 // 2,
        0,
    ]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"num_blocks": 7}, "num_blocks = 7"),
        ({"max_model_len": 1}, "max_model_len = 1"),
        ({"max_num_batched_tokens": 200}, "max_num_batched_tokens = 200"),
        (
            {"enable_chunked_prefill": False, "max_model_len": 4096, "num_blocks": 1000},
            "max_num_batched_tokens = 2048",
        ),
        ({"long_prefill_token_threshold": 129}, "long_prefill_token_threshold = 129"),
        ({"watermark_fraction": 1.0}, "watermark_fraction = 1.0"),
        ({"block_size": 0}, "block_size = 0"),
    ],
)
def test_what_the_engine_refuses_is_refused(changes, what):
    with pytest.raises(SpecError, match=what):
        SchedulerConfig(**({"num_blocks": 100, "max_model_len": 128} | changes))


def test_a_cost_without_time_is_refused():
    with pytest.raises(SpecError, match="coefficients"):
        linear_cost(launch_s=0.0)
