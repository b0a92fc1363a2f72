"""Do the five lines say what the rows carry, and no more?

The rows are those of a published sweep (its four prompt lengths at batch 1), changed where a case
needs it.
"""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from inferometer.api import analysis as analysis_of_runs
from inferometer.api.analysis import Analysis, analyse, fewer_bytes, point_rows
from inferometer.api.provenance import sweep_options_of
from inferometer.api.sweep_view import five_lines, useful_load
from inferometer.inputs.catalog import find_hardware
from inferometer.inputs.resolve import resolve_model
from inferometer.inputs.types import Caution, EngineSpec
from inferometer.records.reading import read_run
from inferometer.records.summaries import StepPart, StepShares, summarise_points
from inferometer.records.sweep_csv import TableFacts, read_sweep_csv
from inferometer.records.tables import select
from inferometer.report.views import PointRow
from inferometer.stats.estimate import Estimate

TABLE = Path(__file__).parents[1] / "records" / "fixtures" / "t1_prompt_axis.csv"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    model = resolve_model("qwen2.5-3b", load_format="dummy").spec
    facts = TableFacts(model=model, engine=EngineSpec(dtype="float16", device="cuda"))
    return analyse(
        read_sweep_csv(TABLE, facts), TABLE, label="t1", hardware=find_hardware("a100_80gb_sxm")
    )


def about(value: float, margin: float | None = None) -> Estimate:
    low, high = (None, None) if margin is None else (value - margin, value + margin)
    return Estimate(
        value=value, low=low, high=high, confidence_fraction=0.95, n_samples=7, method="median"
    )


def row_of(
    analysis: Analysis, batch_size: int, tokens_per_s: float | None, **changes: object
) -> PointRow:
    speed = None if tokens_per_s is None else about(tokens_per_s, 0.5)
    known: dict[str, object] = {"batch_size": batch_size, "decode_tokens_per_s": speed} | changes
    return replace(point_rows(analysis)[0], **known)  # type: ignore[arg-type]


def lines_of(analysis: Analysis, rows: list[PointRow]):
    return five_lines(analysis, rows, (), files="report.html")


@pytest.mark.parametrize(
    ("throughputs", "best"),
    [
        ({1: 10, 2: 18, 4: 30, 8: 33}, 4),  # the last doubling buys too little
        ({1: 10, 2: 8, 4: 40}, 4),  # a dip on the way hides nothing
        ({1: 10, 2: 18, 4: 17, 8: 16}, 2),
        ({1: 10, 2: 9, 4: 8}, 1),
        ({1: 10, 2: None, 4: 25}, 4),  # a point without a number is passed over
        ({2: 10}, 2),
    ],
)
def test_useful_load(analysis, throughputs, best):
    rows = [row_of(analysis, batch_size, speed) for batch_size, speed in throughputs.items()]
    found = useful_load(rows)
    assert found is not None
    assert found.batch_size == best
    assert useful_load(rows[::-1]) == found


def test_no_throughput_no_useful_load(analysis):
    assert useful_load([row_of(analysis, 1, None)]) is None
    assert useful_load([]) is None


def test_the_answer_carries_units_and_doubt(analysis):
    rows = [row_of(analysis, 1, 38.0, ttft_s=about(0.0348, 0.001)), row_of(analysis, 4, 140.0)]
    answer = lines_of(analysis, rows).answer
    assert answer.startswith(
        "1 user: first token after 34.8 ms [33.8 ms, 35.8 ms] (128-token prompt), then 38 tok/s [37.5, 38.5].\n"
    )
    assert (
        "Best useful load: 4 at once, 140 tok/s [140, 140] of output in total, 35 tok/s each"
        in answer
    )


def test_the_answer_without_some_times(analysis):
    assert (
        lines_of(analysis, [row_of(analysis, 1, None, ttft_s=None)]).answer
        == "1 user: no time was measured."
    )
    assert (
        lines_of(analysis, [row_of(analysis, 1, 38.0, ttft_s=None)]).answer
        == "1 user: 38 tok/s [37.5, 38.5]."
    )
    assert (
        lines_of(analysis, [row_of(analysis, 2, 38.0, status="out_of_memory")]).answer
        == "No point could be measured."
    )


def test_a_decided_limit_is_said_plainly(analysis):
    rows = [
        row_of(
            analysis,
            1,
            38.0,
            decode_limited_by="weight bandwidth",
            prefill_limited_by="compute",
            mbu_fraction=about(0.7),
        )
    ]
    limit = lines_of(analysis, rows).limit
    assert limit.startswith(
        "In decode at batch 1 the limit is weight bandwidth (MBU 70 % of the measured bandwidth)."
    )
    assert "In prefill of 1 x 128 tokens the limit is compute" in limit
    assert "undecided" not in limit


def test_an_undecided_limit_shows_how_close_it_is(analysis):
    rows = [
        row_of(analysis, 1, 38.0, decode_limited_by="undecided", prefill_limited_by=None),
        row_of(analysis, 4, 99.0, decode_limited_by="KV bandwidth"),
    ]
    limit = lines_of(analysis, rows).limit
    assert limit.startswith(
        "In decode at batch 1 the limit is undecided, no cause is clearly ahead: "
    )
    assert limit.split(":")[1].count(" %") == 2, "the two largest parts"
    assert "At batch 4 the limit is KV bandwidth." in limit


def test_without_a_model_the_limit_says_why(analysis):
    bare = replace(analysis, model=None, why_no_model="too few points")
    said = lines_of(
        bare, [row_of(analysis, 1, 38.0, decode_limited_by=None, prefill_limited_by=None)]
    )
    assert said.limit == "Undecided: too few points."
    assert "more batch sizes" in said.next
    assert "no model: too few points" in said.trust


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(1, 38.0, "launch overhead")], "--mode compiled"),
        ([(1, 38.0, "weight bandwidth")], "--quantization int8"),
        ([(1, 38.0, "compute"), (4, 140.0, "compute")], "--seq 128 --batch-sizes 4,8,16"),
        ([(1, 38.0, "compute"), (4, 50.0, "compute")], "--hardware this --batch 4"),
        ([(1, 38.0, "compute")], "--hardware this --batch 1"),  # one batch shows no growth
    ],
)
def test_next_follows_from_the_limit(analysis, rows, said):
    made = [
        row_of(analysis, batch_size, speed, decode_limited_by=limit)
        for batch_size, speed, limit in rows
    ]
    assert said in lines_of(analysis, made).next


def test_half_the_weights_gain_less_than_two(analysis):
    said = lines_of(
        analysis, [row_of(analysis, 1, 38.0, decode_limited_by="weight bandwidth")]
    ).next
    assert 1.0 < float(said.partition("(")[2].partition("x")[0]) < 2.0


def test_half_the_weights_gain_what_the_limit_says(analysis):
    """As the paired steps have it, where they were measured, and the model elsewhere."""
    parts = tuple(
        StepPart(cause=cause, fraction=about(share))
        for cause, share in (("weight bandwidth", 0.75), ("compute", 0.25))
    )
    steps = StepShares(
        step_s=about(0.1),
        parts=parts,
        limited_by="weight bandwidth",
        n_rounds=9,
        weight_bytes=2**29,
    )
    said = lines_of(
        replace(analysis, steps=steps),
        [row_of(analysis, 1, 38.0, decode_limited_by="weight bandwidth")],
    )
    assert "half the bytes would make it 1.6x as fast" in said.limit
    assert "Half the weight bytes would give about 60.8 tok/s (1.6x)" in said.next
    assert "--batch 1 --prompt 128 --output" in said.next


def test_the_share_of_launches_and_the_points_are_those_of_the_run(analysis):
    """One number in both lines, and the same points, so that the two sweeps compare."""
    shares = (("launch overhead", 0.81), ("compute", 0.12), ("weight bandwidth", 0.07))
    steps = StepShares(
        step_s=about(0.1),
        parts=tuple(StepPart(cause=cause, fraction=about(share)) for cause, share in shares),
        limited_by="launch overhead",
        n_rounds=9,
        weight_bytes=2**29,
    )
    lines = lines_of(
        replace(analysis, steps=steps),
        [row_of(analysis, 1, 38.0, decode_limited_by="launch overhead")],
    )
    assert "takes 81 %" in lines.limit
    assert "Launch overhead is 81 % of a step" in lines.next
    plan = analysis.run.manifest.plan
    assert " ".join(sweep_options_of(plan.points)) in lines.next


@pytest.mark.parametrize(
    ("engine", "device", "words"),
    [
        ({"dtype": "float32", "device": "cpu"}, None, ("--dtype", "bfloat16")),
        ({"dtype": "bfloat16", "device": "cpu"}, None, ("--quantization", "int4")),
        (
            {"dtype": "float32", "quantization": "int8", "device": "cuda"},
            "l4",
            ("--quantization", "int4"),
        ),
        ({"dtype": "float16", "device": "cuda"}, "l4", ("--quantization", "int8")),
        ({"dtype": "bfloat16", "device": "cuda"}, "rtx_5070ti_laptop", ("--quantization", "int4")),
    ],
)
def test_fewer_weight_bytes_are_of_a_format_whose_rate_is_known(engine, device, words, monkeypatch):
    monkeypatch.setattr(analysis_of_runs, "find_spec", lambda _name: "torch")
    known = None if device is None else find_hardware(device)
    assert fewer_bytes(EngineSpec(**engine), known) == words
    monkeypatch.setattr(analysis_of_runs, "find_spec", lambda _name: None)
    if engine.get("device") == "cpu":
        assert fewer_bytes(EngineSpec(**engine), known) == ("--quantization", "int4")


SWEEP = Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32"


@pytest.mark.parametrize(
    ("typed", "again"),
    [
        (
            ("quick", "smollm2-135m", "--budget", "30s", "--out", "runs/a b"),
            "--budget 60s --out 'runs/a b-longer'",
        ),
        pytest.param(
            ("quick", "smollm2-135m", "--budget=1min", "--out=elsewhere"),
            "--budget 120s --out 'runs/a b-longer'",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("quick", "smollm2-135m"),
            "--budget 240s --out 'runs/a b-longer'",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_budget_that_was_over_has_one_advice_which_runs(typed, again):
    run = read_run(Path(__file__).parents[1] / "fit" / "data" / "smollm2-135m-float32")
    some = replace(
        run, sweep=select(run.sweep, run.sweep.point_index < run.sweep.point_index.max())
    )
    over = Caution(
        code="TIME_OVER", text="1 of 27 points were left out: the time was over", remedy=""
    )
    manifest = replace(run.manifest, cautions=(over,), command=("inferometer", *typed))
    analysis = analyse(replace(some, manifest=manifest), Path("runs/a b"), label="x")
    said = five_lines(analysis, point_rows(analysis), (), files="").next
    assert said.endswith(f"try: inferometer quick smollm2-135m {again}")
    assert "The same command" not in said


@pytest.mark.slow
def test_a_sweep_that_was_stopped_says_so_and_how_it_goes_on():
    run = read_run(SWEEP)
    whole = analyse(run, SWEEP, label="sweep")
    assert "stopped" not in five_lines(whole, point_rows(whole), (), files="").next
    last = run.sweep.point_index.max()
    stopped = replace(run, sweep=select(run.sweep, run.sweep.point_index < last))
    analysis = replace(whole, run=stopped, points=summarise_points(stopped))
    lines = five_lines(analysis, point_rows(analysis), (), files="")
    assert "The sweep was stopped: 1 of 27 points lack repetitions." in lines.next
    assert lines.next.endswith(shlex.join(run.manifest.command))
    assert lines.answer.startswith("1 user")
    nothing = replace(stopped, sweep=select(run.sweep, run.sweep.point_index < 0))
    lines = five_lines(replace(analysis, run=nothing, points=()), (), (), files="")
    assert lines.answer == "No point is measured yet."
    assert "27 of 27 points" in lines.next
