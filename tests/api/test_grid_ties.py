"""Points of a grid that err together are told apart by their ratio, not by each point's own interval."""

import math
from dataclasses import replace

import pytest

import inferometer as im
from inferometer.api.grid import Axis, GridPoint, PacedNumber, Value
from inferometer.api.grid_findings import disaggregation_findings
from inferometer.api.grid_ties import is_tie, ratio_of
from inferometer.api.server import Server, deployment_of
from inferometer.api.studies import study_options
from inferometer.perfmodel.steptime_terms import shape_duration_s
from inferometer.perfmodel.types import decode_shape
from inferometer.stats.estimate import Estimate

MODEL = "llama-3.1-8b"


def _estimate(value: float, factor: float) -> Estimate:
    return Estimate(
        value=value, low=value / factor, high=value * factor, confidence_fraction=0.9,
        n_samples=1, method="test",
    )  # fmt: skip


def _point(value: float, source: str = "published", **values: Value) -> GridPoint:
    return GridPoint(
        values=values, numbers={"tpot_s": _estimate(value, 1.3)}, words={"step_times": source}
    )


@pytest.mark.parametrize(
    ("source", "first", "second", "shared"),
    [
        ("published", {"batch": 1}, {"batch": 2}, 0.75),
        ("published", {"batch": 1, "tp": 2}, {"batch": 2, "tp": 4}, 0.5),
        ("published", {"quantization": "none"}, {"quantization": "int8"}, 0.5),
        ("published", {"hardware": "h100_sxm"}, {"hardware": "h200_sxm"}, 0.0),
        ("published", {"model": "a"}, {"model": "b"}, 0.0),
        ("published", {"policy": "vllm"}, {"policy": "sglang"}, 0.0),
        ("published", {"policy": "vllm"}, {"policy": "static"}, 0.75),
        ("datasheet", {"hardware": "h100_sxm"}, {"hardware": "h200_sxm"}, 0.7),
        ("datasheet", {"policy": "vllm"}, {"policy": "sglang"}, 0.7),
        ("datasheet", {"model": "a"}, {"model": "b"}, 0.0),
        ("fitted", {"batch": 1}, {"batch": 2}, 0.0),
    ],
)
def test_only_what_is_shared_cancels(source, first, second, shared) -> None:
    """Equal intervals: what is shared leaves the ratio, what is not adds in quadrature."""
    ratio = ratio_of(_point(2.0, source, **first), _point(1.0, source, **second), "tpot_s")
    assert ratio is not None
    assert ratio.low is not None
    assert ratio.high is not None
    expected = math.sqrt(2 * (1 - shared)) * math.log(1.3)
    assert math.log(2 / ratio.low) == pytest.approx(expected)
    assert math.log(ratio.high / 2) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        ({"tp": 1}, {"tp": 2}, 0.6 + 0.4 * 0.5),
        ({"batch": 1}, {"batch": 2}, 0.6 + 0.4 * 0.75),
        ({"hardware": "h100_sxm"}, {"hardware": "h200_sxm"}, 0.0),
        ({"policy": "vllm"}, {"policy": "sglang"}, 0.0),
        ({"model": "a"}, {"model": "b"}, 0.0),
    ],
)
def test_the_machines_own_error_cancels_between_layouts_of_one_device(
    first, second, shared
) -> None:
    """The machine is the same one under another layout, whatever its speed; not another device."""
    one, other = (
        replace(_point(value, **values), machine_share_fraction=share)
        for value, values, share in ((2.0, first, 0.6), (1.0, second, 0.7))
    )
    ratio = ratio_of(one, other, "tpot_s")
    assert ratio is not None
    expected = math.sqrt(2 * (1 - shared)) * math.log(1.3)
    assert math.log(ratio.high / 2) == pytest.approx(expected)


def test_the_machines_share_is_that_of_the_interval_of_a_step() -> None:
    """Without the machine's own error the interval of a step is narrower by as much."""
    times = deployment_of(Server(model=MODEL, hardware="h100_sxm")).step_times
    assert 0.2 < times.machine_share_fraction < 0.95
    grid = im.predict(MODEL, hardware="h100_sxm", tp=[1, 2])
    assert [point.machine_share_fraction for point in grid.points] == [
        pytest.approx(times.machine_share_fraction, rel=0.02)
    ] * 2


def _drawn(rate: float, others: tuple[float, ...], noise: float, **values: Value) -> GridPoint:
    number = PacedNumber(likely=_estimate(rate, noise), others=others)
    return GridPoint(
        values=values,
        numbers={"requests_per_s": _estimate(rate, max(others) / rate)},
        words={"step_times": "published"},
        paced={"requests_per_s": number},
    )


def test_draws_of_the_same_step_times_are_paired_by_index() -> None:
    """Of draws that go together the ratio does not move; of draws that go apart it moves twice."""
    others = (0.8, 1.25, 1.0)
    slow, fast = (
        _drawn(rate, tuple(rate * one for one in others), 1.0, concurrency=n)
        for rate, n in ((1.0, 8), (2.0, 16))
    )
    turned = _drawn(2.0, tuple(2 / one for one in others), 1.0, concurrency=16)
    paired, crossed = (
        ratio_of(fast, slow, "requests_per_s"),
        ratio_of(turned, slow, "requests_per_s"),
    )
    assert paired is not None
    assert crossed is not None
    own = math.sqrt(0.25 * 2) * math.log(1.25)
    assert math.log(paired.high / paired.value) == pytest.approx(own)
    assert math.log(crossed.high / crossed.value) == pytest.approx(
        math.hypot(2 * math.log(1.25), own)
    )


def test_the_noise_of_requests_is_each_points_own() -> None:
    slow, fast = (
        _drawn(rate, (rate, rate), 1.1, concurrency=n) for rate, n in ((1.0, 8), (1.1, 16))
    )
    ratio = ratio_of(fast, slow, "requests_per_s")
    assert ratio is not None
    assert math.log(ratio.high / ratio.value) == pytest.approx(math.sqrt(2) * math.log(1.1))
    assert is_tie(ratio)


def test_numbers_without_an_interval_may_be_a_tie() -> None:
    exact = _estimate(1.0, 1.0)
    bare = GridPoint(
        values={"tp": 1},
        numbers={"memory_bytes": Estimate(
            value=1.0, low=None, high=None, confidence_fraction=0.9, n_samples=1, method="exact"
        ), "tpot_s": exact},
        words={"step_times": "published"},
    )  # fmt: skip
    assert ratio_of(bare, bare, "memory_bytes") is None
    assert is_tie(None)


def test_noise_down_to_zero_is_noise() -> None:
    """Where few requests complete, an end at 0 was taken for no noise at all."""
    seen = _drawn(1.0, (1.0, 1.0), 1.01, max_num_seqs=1)
    open_ = replace(seen.paced["requests_per_s"].likely, low=0.0, high=2.0)
    few = replace(seen, paced={"requests_per_s": PacedNumber(likely=open_, others=(1.0, 1.0))})
    other = _drawn(0.6, (0.6, 0.6), 1.01, max_num_seqs=9)
    assert not is_tie(ratio_of(seen, other, "requests_per_s"))
    assert is_tie(ratio_of(few, other, "requests_per_s"))


def test_layouts_that_err_together_are_told_apart() -> None:
    """Each interval alone overlaps; both are of one model on one device, so their errors cancel."""
    grid = im.predict(MODEL, hardware="h100_sxm", tp=[1, 2], quantization=["none", "float8"])
    lines = [one.sentence for one in grid.findings if one.code == "BEST"]
    both = [point.numbers["tpot_s"] for point in grid.points if point.values["tp"] == 2]
    assert both[0] is not None
    assert both[1] is not None
    assert (both[1].high or 0) > (both[0].low or 0)
    assert "TP 2 (TPOT" in lines[0] or "TP 2, float8 (TPOT" in lines[0]
    assert "undecided against" not in lines[0]


def _split(n_prefill: int, per_gpu: float, others: tuple[float | None, ...]) -> GridPoint:
    name = "gpu_capacity_requests_per_s"
    return GridPoint(
        values={"prefill_replicas": n_prefill},
        numbers={name: _estimate(per_gpu, 1.1)},
        words={"step_times": "published"},
        paced={name: PacedNumber(likely=_estimate(per_gpu, 1.01), others=others)},
    )


@pytest.mark.parametrize(
    ("split", "others", "said"),
    [
        (20.0, (19.0, 21.0), "Splitting prefill and decode is worth it: the best split, with"),
        (5.0, (4.8, 5.2), "Splitting prefill and decode is not worth it: the best split"),
        (10.2, (9.0, 11.0), "It is undecided whether splitting prefill and decode is worth it"),
        (20.0, (None, None), "It is undecided whether splitting prefill and decode is worth it"),
    ],
)
def test_a_split_is_judged_by_its_paired_ratio_to_replicas_that_do_both(split, others, said):
    axes = (Axis("prefill_replicas", "--prefill-replicas", (0, 1, 2)),)
    points = (_split(0, 10.0, (9.5, 10.5)), _split(1, 3.0, (2.9, 3.1)), _split(2, split, others))
    (finding,) = (
        one for one in disaggregation_findings(axes, points) if one.code == "DISAGGREGATION"
    )
    assert finding.sentence.startswith(said)
    assert "with prefill replicas 2" in finding.sentence


def test_the_splits_are_those_of_the_replicas() -> None:
    options = study_options("disaggregation", {"model": MODEL, "replicas": 3})
    assert options["prefill_replicas"] == [0, 1, 2]
    given = study_options("disaggregation", {"model": MODEL, "prefill_replicas": "0,1"})
    assert (given["replicas"], given["prefill_replicas"]) == ("4", "0,1")


def test_a_draw_is_the_same_machine_under_all_settings_of_one_server() -> None:
    """Pairing by index rests on it; other layouts have draws of their own, by their own quantiles."""
    words = {"model": MODEL, "hardware": "h100_sxm", "tp": 1}
    few, many, split = (
        deployment_of(Server(**{**words, **more}))
        for more in ({"max_num_seqs": 64}, {"max_num_seqs": 256}, {"tp": 2})
    )
    costs = [
        [shape_duration_s(draw.steps, decode_shape(batch_size=8, context_tokens=512))
         for draw in one.draws]
        for one in (few, many, split)
    ]  # fmt: skip
    assert len(costs[0]) == 19
    assert costs[0] == costs[1]
    assert [draw.front_end_s for draw in few.draws] == [draw.front_end_s for draw in many.draws]
    assert [cost / costs[0][9] for cost in costs[0]] != pytest.approx(
        [cost / costs[2][9] for cost in costs[2]]
    )
