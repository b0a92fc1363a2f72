"""Are a sweep's points those that were asked for, in an order that the seed alone decides?"""

import pytest
from hypothesis import given, strategies as st

from inferometer.api.provenance import sweep_options_of
from inferometer.api.question import parse_counts
from inferometer.errors import SpecError
from inferometer.inputs.plans import shuffled, sweep_points, visits_of
from inferometer.inputs.types import EngineSpec, SweepPlan

COUNTS = st.lists(st.integers(1, 5000), min_size=1, max_size=6, unique=True)


@given(COUNTS)
def test_counts_are_parsed_sorted_and_once(counts):
    text = ", ".join(str(count) for count in counts * 2)
    assert parse_counts(text, where="--seq") == tuple(sorted(counts))


@pytest.mark.parametrize("text", ["", "1,", "a", "0", "-1", "1.5", "1 2", "1;2"])
def test_bad_lists_are_refused_with_the_flag(text):
    with pytest.raises(SpecError) as caught:
        parse_counts(text, where="--batch-sizes")
    assert caught.value.where == "--batch-sizes"


@given(COUNTS, COUNTS)
def test_the_grid_has_every_pair_and_separate_axes_share_one_point(prompts, batches):
    grid = sweep_points(prompts=prompts, batches=batches, gen_tokens=8, axes="grid")
    assert {(point.prompt_tokens, point.batch_size) for point in grid} == {
        (p, b) for p in prompts for b in batches
    }
    axes = sweep_points(prompts=prompts, batches=batches, gen_tokens=8, axes="separate")
    assert len(axes) == len(prompts) + len(batches) - 1
    assert all(
        point.prompt_tokens == min(prompts) or point.batch_size == min(batches) for point in axes
    )


def test_the_batch_axis_may_have_a_prompt_length_of_its_own():
    points = sweep_points(
        prompts=(32, 64), batches=(1, 2, 4), gen_tokens=8, axes="separate", batch_prompt_tokens=48
    )
    assert {(point.prompt_tokens, point.batch_size) for point in points} == {
        (32, 1),
        (64, 1),
        (48, 1),
        (48, 2),
        (48, 4),
    }


@given(st.integers(0, 2**31))
def test_the_order_is_the_seeds_and_nothing_is_lost(seed):
    points = sweep_points(prompts=(16, 32, 64), batches=(1, 2, 4, 8), gen_tokens=4, axes="grid")

    def plan():
        return shuffled(
            SweepPlan(
                model="m", engine=EngineSpec(), points=points, n_warmup=1, n_reps=3, seed=seed
            )
        )

    assert plan() == plan()
    assert sorted(plan().points) == sorted(points)


def test_different_seeds_give_different_orders():
    points = sweep_points(prompts=(16, 32, 64), batches=(1, 2, 4, 8), gen_tokens=4, axes="grid")
    orders = {
        shuffled(
            SweepPlan(
                model="m", engine=EngineSpec(), points=points, n_warmup=1, n_reps=3, seed=seed
            )
        ).points
        for seed in range(5)
    }
    assert len(orders) == 5


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 3), st.integers(1, 9))
def test_rounds_share_the_repetitions_of_each_point(n_points, n_reps, n_warmup, n_rounds):
    points = sweep_points(prompts=range(1, n_points + 1), batches=(1,), gen_tokens=4, axes="grid")
    question = {
        "model": "m",
        "engine": EngineSpec(),
        "points": points,
        "n_warmup": n_warmup,
        "n_reps": n_reps,
        "seed": 0,
    }
    if n_rounds > n_reps:
        with pytest.raises(SpecError, match="rounds"):
            shuffled(SweepPlan(**question, n_rounds=n_rounds))
        return
    visits = visits_of(shuffled(SweepPlan(**question, n_rounds=n_rounds)))
    assert sorted(visit.number for visit in visits) == list(range(n_points * n_rounds))
    for point_index in range(n_points):
        mine = [visit for visit in visits if visit.point_index == point_index]
        assert sum(visit.n_reps for visit in mine) == n_reps
        assert [visit.n_warmup for visit in mine] == [n_warmup] + [min(n_warmup, 1)] * (
            n_rounds - 1
        )
        runs = [
            visit.first_repetition + i
            for visit in mine
            for i in range(visit.n_warmup + visit.n_reps)
        ]
        assert runs == list(range(len(runs))), "every repetition has its own number"


def test_every_other_round_runs_backwards():
    points = sweep_points(prompts=(1, 2, 3), batches=(1,), gen_tokens=4, axes="grid")
    plan = shuffled(
        SweepPlan(
            model="m", engine=EngineSpec(), points=points, n_warmup=0, n_reps=2, seed=0, n_rounds=2
        )
    )
    assert [visit.point_index for visit in visits_of(plan)] == [0, 1, 2, 2, 1, 0]


@given(COUNTS, COUNTS, st.sampled_from(["grid", "separate"]))
def test_the_sweep_options_of_points_give_the_points_again(prompts, batches, axes):
    points = sweep_points(prompts=prompts, batches=batches, gen_tokens=8, axes=axes)
    words = sweep_options_of(points)
    given_by = dict(zip(words[::2], words[1::2], strict=True))
    own_length = given_by.get("--batch-prompt-len")
    again = sweep_points(
        prompts=parse_counts(given_by["--seq"], where="--seq"),
        batches=parse_counts(given_by["--batch-sizes"], where="--batch-sizes"),
        gen_tokens=int(given_by["--gen-tokens"]),
        axes="grid" if own_length is None else "separate",
        batch_prompt_tokens=None if own_length is None else int(own_length),
    )
    assert again == points


def test_the_words_of_an_axis_with_a_length_of_its_own_hold_its_points():
    points = sweep_points(
        prompts=(32, 64), batches=(1, 2, 4), gen_tokens=8, axes="separate", batch_prompt_tokens=48
    )
    assert sweep_options_of(points) == (
        *("--seq", "32,48,64", "--batch-sizes", "1,2,4"),
        *("--gen-tokens", "8", "--batch-prompt-len", "48"),
    )
