"""Differences of quality: right where they are known, undecided where nothing tells."""

import math

import numpy as np
import pytest

from inferometer.api.quality import QualityAnswer, QualityRow
from inferometer.records.quality import Reading, difference, judge_quality

SHAPE = (16, 255)


def reading(nll, *, seed=0, generated=()):
    ids = np.random.default_rng(seed).integers(0, 50, size=SHAPE)
    return Reading(nll=np.asarray(nll, dtype=float), top_ids=ids, generated_ids=tuple(generated))


def nll(seed=1):
    return np.random.default_rng(seed).gamma(1.5, 2.0, SHAPE)


def test_a_shift_of_all_tokens_is_the_ratio_of_perplexities():
    found = difference(reading(nll() + math.log(1.05)), reading(nll()))
    assert found.perplexity_ratio.value == pytest.approx(1.05)
    assert found.perplexity_ratio.high - found.perplexity_ratio.low < 1e-9
    assert [round(depth.ratio, 6) for depth in found.by_depth] == [1.05, 1.05]
    assert [(depth.first_token, depth.last_token) for depth in found.by_depth] == [
        (1, 64),
        (65, 255),
    ]
    assert found.top1_agreement.value == 1


def test_intervals_hold_the_truth_as_often_as_they_say():
    """Noise per token around a true difference of 1 %, with neighbours that move together."""
    n_inside, n_experiments = 0, 200
    for seed in range(n_experiments):
        rng = np.random.default_rng(seed)
        noise = rng.normal(0, 0.2, SHAPE)
        noise[:, 1:] += 0.5 * noise[:, :-1]
        ratio = difference(reading(nll() + math.log(1.01) + noise), reading(nll())).perplexity_ratio
        n_inside += ratio.low <= 1.01 <= ratio.high
    assert 0.90 <= n_inside / n_experiments <= 1.0


def test_verdicts_follow_the_margin():
    def verdict(shift, margin, noise=0.1):
        scatter = np.random.default_rng(3).normal(0, noise, SHAPE)
        ratio = difference(reading(nll() + shift + scatter), reading(nll())).perplexity_ratio
        return judge_quality(ratio, margin)

    assert verdict(0.0, 0.01) == "not worse"
    assert verdict(0.05, 0.01) == "worse"
    assert verdict(0.01, 0.01, noise=1.0) == "undecided"
    assert verdict(-0.05, 0.01) == "not worse"


def test_few_tokens_have_no_interval_and_no_verdict():
    few = Reading(nll=np.ones((1, 5)), top_ids=np.ones((1, 5), dtype=int), generated_ids=())
    found = difference(few, few)
    assert found.perplexity_ratio.low is None
    assert judge_quality(found.perplexity_ratio, 0.01) == "undecided"
    assert found.first_difference_tokens is None


def test_continuations_are_compared_token_by_token():
    mine = [(1, 2, 3, 4, 5, 6), (1, 2, 9, 9, 9, 9), (7, 7, 7, 7, 7, 7)]
    theirs = [(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6), (8, 7, 7, 7, 7, 7)]
    found = difference(reading(nll(), generated=mine), reading(nll(), generated=theirs))
    assert (found.n_greedy, found.n_greedy_same) == (3, 1)
    assert found.first_difference_tokens == 1.0  # 2 and 0
    # of the three sequences of four tokens in 7 7 7 7 7 7 two stood there before
    assert found.repeated_fraction == pytest.approx((0 + 0 + 2 / 3) / 3)
    assert found.reference_repeated_fraction == pytest.approx(1 / 3 / 3)  # 8 7 7 7 7 7


def test_an_engine_that_names_no_top_token_has_no_agreement():
    nll = np.random.default_rng(1).gamma(2.0, 1.0, (4, 200))
    reference = Reading(nll=nll, top_ids=np.ones((4, 200), dtype=int), generated_ids=())
    found = difference(Reading(nll=nll, top_ids=None, generated_ids=()), reference)
    assert found.top1_agreement is None
    assert found.perplexity_ratio.value == pytest.approx(1)


def test_the_page_has_a_number_and_a_line_for_each_change():
    """Its first screen had neither a number nor a chart."""

    def row(name, shift):
        found = difference(reading(nll() + shift), reading(nll()))
        return QualityRow(
            name=name,
            verdict=judge_quality(found.perplexity_ratio, 0.01),
            difference=found,
            tpot_gain_ratio=None,
            weight_bytes_saved_fraction=None,
        )

    same = difference(reading(nll()), reading(nll()))
    answer = QualityAnswer(
        model_id="m", text="a text", n_tokens=nll().size, window_tokens=SHAPE[1],
        margin_fraction=0.01, perplexity=same.perplexity, noise=same,
        changes=(row("int8 weights", 0.0), row("int4 weights", math.log(1.5))), cautions=(),
    )  # fmt: skip
    (page,) = answer.pages()
    numbers = {one.name: one for one in page.numbers}
    worse = numbers["int4 weights"]
    assert worse.value == pytest.approx(1.5 * same.perplexity)
    assert worse.limit == pytest.approx(1.01 * same.perplexity)
    assert worse.note.startswith("worse")
    assert page.chart is not None
    assert page.chart.finding.startswith("int4 weights cost most: perplexity +50.00%")
    assert {row[0] for row in page.chart.rows} == {"reference", "int8 weights", "int4 weights"}
    assert page.table in page.sections[1].tables  # the chart takes its place on the first screen
