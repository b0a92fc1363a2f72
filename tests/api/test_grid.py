"""A grid equals its points, whatever its axes; what cannot be answered stands in it with its reason."""

import json
import re
from dataclasses import replace

import pytest

import inferometer as im
from inferometer.api.grid import Axis, GridPoint
from inferometer.api.size_grid import SIZE
from inferometer.api.studies import STUDIES
from inferometer.errors import SpecError
from inferometer.report.charts.plot import Line, Rule
from inferometer.stats.estimate import Estimate

MODEL = "llama-3.1-8b"
pytestmark = pytest.mark.usefixtures("one_core")


def test_a_grid_equals_the_single_answers() -> None:
    grid = im.predict(MODEL, hardware=["h100_sxm", "a100_80gb_sxm"], batch="1..4", prompt=1024)
    assert [point.values for point in grid.points] == [
        {"hardware": hardware, "batch": batch}
        for hardware in ("h100_sxm", "a100_80gb_sxm")
        for batch in (1, 2, 4)
    ]
    for point in grid.points:
        alone = im.predict(MODEL, prompt=1024, **point.values)  # type: ignore[arg-type]
        assert point.numbers["tpot_s"] == alone.fitted.tpot_s
        assert point.numbers["ttft_s"] == alone.fitted.ttft_s


@pytest.mark.slow
def test_a_simulated_grid_equals_the_single_simulations_and_keeps_their_order() -> None:
    options = {"hardware": "h100_sxm", "workload": "256x32", "requests": 100, "executor": "inline"}
    grid = im.simulate(MODEL, policy=["static", "vllm"], concurrency=[1, 4], **options)
    assert [tuple(point.values.values()) for point in grid.points] == [
        ("static", 1), ("static", 4), ("vllm", 1), ("vllm", 4),
    ]  # fmt: skip
    for point in grid.points:
        alone = im.simulate(MODEL, **options, **point.values)  # type: ignore[arg-type]
        likely = alone.levels[0].summary.output_tokens_per_s
        assert likely is not None
        assert point.numbers["output_tokens_per_s"].value == likely.value  # type: ignore[union-attr]
        values = [
            level.summary.output_tokens_per_s.value  # type: ignore[union-attr]
            for level in alone.levels
        ]
        low, high = (getattr(point.numbers["output_tokens_per_s"], end) for end in ("low", "high"))
        assert low <= min(values) <= max(values) <= high


def test_rows_csv_and_frame_hold_the_same_numbers() -> None:
    grid = im.study("batch", MODEL, hardware="h100_sxm", batch=[1, 8])
    rows = grid.rows()
    assert [row["batch"] for row in rows] == [1, 8]
    assert rows[1]["tpot_s_low"] <= rows[1]["tpot_s"] <= rows[1]["tpot_s_high"]
    head, first, *_ = grid.to_csv().splitlines()
    assert head.startswith("batch,ttft_s,ttft_s_low,ttft_s_high,")
    assert float(first.split(",")[1]) == rows[0]["ttft_s"]
    assert len(grid.to_frame()) == 2
    assert json.loads(json.dumps(grid.to_dict()))["axes"] == {"batch": [1, 8]}


def test_a_point_without_an_answer_stands_in_the_grid() -> None:
    # 8 KV heads cannot be split over 3 devices
    grid = im.predict(MODEL, hardware="h100_sxm", tp=[1, 3])
    assert grid.points[0].refused is None
    assert grid.points[1].refused is not None
    assert not grid.points[1].numbers
    assert any(finding.code == "REFUSED" for finding in grid.findings)
    assert "1 of 2 points answered" in str(grid)


@pytest.mark.parametrize(
    ("codes", "code"),
    [((0, 10), 0), ((10, 10), 10), ((10, 11), 11), ((6, 10), 10), ((6, 6), 6), ((0, 11, 6), 0)],
)
def test_a_grid_is_met_where_a_point_is(codes: tuple[int, ...], code: int) -> None:
    options = {"hardware": "h100_sxm", "batch": [1, 2], "slo": "tpot:p95<50ms"}
    grid = im.predict(MODEL, **options)
    assert grid.exit_code == 0
    points = tuple(replace(grid.points[0], exit_code=one) for one in codes)
    refused = replace(grid.points[1], refused="no such device", numbers={}, words={})
    assert replace(grid, points=(*points, refused)).exit_code == code


def test_a_grid_without_an_slo_is_answered_whether_or_not_it_fits() -> None:
    grid = im.predict("llama-3.1-70b", hardware="l4", batch=[1, 2])
    assert {point.exit_code for point in grid.points} == {6}
    assert grid.exit_code == 0


def test_a_device_that_nobody_knows_is_refused_in_a_list_too() -> None:
    with pytest.raises(SpecError, match="does not know the hardware 'h1000'"):
        im.simulate(MODEL, hardware="h100_sxm,h1000", requests=10)


def test_a_grid_of_nothing_but_refusals_is_an_error() -> None:
    with pytest.raises(SpecError):
        im.predict(MODEL, hardware="h100_sxm", tp=[3, 5])


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"batch": [0, 1]}, "batch"),
        ({"batch": "1,x"}, "batch"),
        ({"batch": []}, "batch"),
        ({"dtype": "bf16,float99"}, "dtype"),
        ({"batch": "1..5000:1", "prompt": "1,2"}, "batch, prompt"),
    ],
)
def test_a_bad_list_names_its_option(options: dict[str, object], where: str) -> None:
    with pytest.raises(SpecError) as caught:
        im.predict(MODEL, hardware="h100_sxm", **options)
    assert caught.value.where == where


def test_the_ends_of_a_study_are_told_apart() -> None:
    text = str(im.study("length", MODEL, hardware="h100_sxm"))
    assert "TTFT grows" in text
    assert "(more than linear)" in text
    precision = str(im.study("precision", MODEL, hardware="h100_sxm"))
    assert "Fastest per user: int4" in precision


def test_devices_that_are_too_small_are_counted() -> None:
    grid = im.study("devices", "llama-3.1-70b", hardware=["h100_sxm", "h200_sxm", "b200"])
    fitting = [point.values["hardware"] for point in grid.points if point.words["fits"] == "yes"]
    assert "h100_sxm" not in fitting
    assert any(finding.code == "OUT_OF_MEMORY" for finding in grid.findings)


def test_a_line_has_one_colour_in_all_charts_and_its_interval_the_right_name() -> None:
    """Where one policy has no TPOT, the colours of the others moved on; all were "90 %"."""
    grid = im.study(
        "policies", MODEL, hardware="h100_sxm", policy=["dynamic", "static", "vllm"],
        workload="64x8", requests=60, concurrency=[1, 8], executor="inline",
    )  # fmt: skip
    (page,) = grid.pages()
    charts = [page.chart, *page.sections[0].charts]
    colours = {
        (mark.name, mark.colour)
        for chart in charts
        for plot in chart.plots
        for mark in plot.marks
        if isinstance(mark, Line)
    }
    assert {name for name, _ in colours} == {"dynamic", "static", "vllm"}
    assert len(colours) == 3
    assert {plot.legend.partition(": ")[2] for chart in charts for plot in chart.plots} == {
        "all step times, and the noise of the requests",
        "",  # one number against the other, without intervals
    }
    (predicted,) = im.predict(MODEL, hardware="h100_sxm", batch=[1, 8]).pages()
    assert predicted.chart.plots[0].legend == "bands: 90 % intervals"


def test_a_grid_of_models_is_named_by_them() -> None:
    """It was "slo tpot:p95<20ms, by model"."""
    models = ["llama-3.1-8b", "qwen3-8b"]
    assert im.predict(models, hardware="h100_sxm").title == (
        "llama-3.1-8b, qwen3-8b on h100_sxm, by model"
    )
    several = [*models, "qwen3-4b", "qwen3-14b"]
    grid = im.predict(several, hardware=["h100_sxm", "l40s"], slo="tpot:p95<20ms")
    assert grid.title == "4 models, SLO tpot:p95<20ms, by model and hardware"


def test_policies_are_compared_on_the_same_device() -> None:
    """The rates of the last device replaced those of the others, and no device was named."""
    words = {"workload": "64x8", "requests": 60, "concurrency": [1, 8], "executor": "inline"}
    devices, policies = ["h100_sxm", "a100_80gb_sxm"], ["static", "vllm"]
    both = im.study("policies", MODEL, hardware=devices, policy=policies, **words)
    alone = [im.study("policies", MODEL, hardware=one, policy=policies, **words) for one in devices]
    told = [[one.sentence for one in grid.findings if one.code == "POLICY"] for grid in alone]
    assert [one.sentence for one in both.findings if one.code == "POLICY"] == [
        f"{sentences[0].removesuffix('.')} ({device})."
        for sentences, device in zip(told, devices, strict=True)
    ]


def test_a_memory_that_holds_nothing_ends_no_gain() -> None:
    told = str(im.predict("qwen3-30b-a3b", hardware="l40s", batch=[1, 8], prompt=2048, output=200))
    assert "2 of 2 points do not fit in memory" in told
    assert "The memory holds" not in told
    held = str(im.predict("llama-3.1-8b", hardware="l40s", batch=[1, 256], prompt=2048, output=200))
    assert "The memory holds" in held


@pytest.mark.parametrize("name", [name for name in STUDIES if STUDIES[name].verb.name == "predict"])
def test_each_study_of_predictions_speaks(name: str) -> None:
    options = {} if name == "devices" else {"hardware": "h100_sxm"}
    grid = im.study(name, MODEL, **options)
    assert len(grid.points) >= 4
    assert grid.findings


def test_an_unknown_study_names_the_known() -> None:
    with pytest.raises(SpecError) as caught:
        im.study("lenght", MODEL, hardware="h100_sxm")
    assert "length" in str(caught.value.allowed)


def test_the_page_of_a_grid_has_a_line_for_each_combination(tmp_path) -> None:
    grid = im.predict(MODEL, hardware=["h100_sxm", "a100_80gb_sxm"], batch="1..64")
    (page,) = grid.pages()
    assert page.chart is not None
    assert page.chart.title == "Decode throughput over batch"
    assert "1.5x decode throughput" in page.chart.finding
    assert {row[0] for row in page.chart.rows} == {"h100_sxm", "a100_80gb_sxm"}
    assert len(page.chart.rows) == len(grid.points)
    titles = [chart.title for section in page.sections for chart in section.charts]
    assert titles[0] == "Decode throughput against TPOT, a point for each batch"
    assert "TTFT over batch" in titles
    grid.report(tmp_path / "grid.html")
    assert (tmp_path / "grid.html").stat().st_size < 1.5e6


def test_the_table_of_a_grid_has_the_intervals_of_all_its_numbers() -> None:
    (page,) = im.predict(MODEL, hardware="h100_sxm", batch="1,8").pages()
    assert page.table is not None
    cells = dict(zip(page.table.header, page.table.rows[1], strict=True))
    for name in ("TTFT", "TPOT", "E2E", "decode tok/s", "output tok/s", "$/1M out", "MFU"):
        assert re.search(r" \[.+, .+\]$", cells[name]), name


def test_a_grid_without_numbers_on_its_axes_is_ranked() -> None:
    """It had a table alone: a study of devices or formats had no chart."""
    grid = im.predict("llama-3.1-70b", hardware=["l4", "h100_sxm", "h200_sxm", "b200"], tp=2)
    (page,) = grid.pages()
    assert page.chart is not None
    assert page.table is not None
    speeds = {
        point.values["hardware"]: point.numbers["decode_tokens_per_s"].value  # type: ignore[union-attr]
        for point in grid.points
    }
    order = ["b200", "h200_sxm", "h100_sxm"]
    assert sorted(order, key=lambda one: -speeds[one]) == order
    assert [row[0] for row in page.chart.rows] == order
    assert "1 do not fit" in page.chart.title
    assert [row[0] for row in page.table.rows] == [*order, "l4"]


def test_the_first_screen_of_a_grid_has_a_verdict_and_the_best_numbers() -> None:
    slo = "ttft:p95<500ms, tpot:p95<50ms"
    grid = im.predict(MODEL, hardware="h100_sxm", batch="1..256", prompt=1024, slo=slo)
    (page,) = grid.pages()
    met = [point for point in grid.points if point.words["slo"] == "met"]
    assert 0 < len(met) < len(grid.points)
    assert page.chips[0].text.startswith(f"{len(met)} of {len(grid.points)} points meet the SLO")
    numbers = {one.name: one for one in page.numbers}
    most = max(met, key=lambda point: point.values["batch"])  # type: ignore[arg-type, return-value]
    rate = most.numbers["decode_tokens_per_s"]
    assert rate is not None
    assert numbers["most decode"].value == rate.value
    assert numbers["most decode"].note == f"batch {most.values['batch']}"
    assert (numbers["lowest TTFT"].note, numbers["lowest TTFT"].limit) == ("batch 1", 500.0)
    assert 4 <= len(page.numbers) <= 6


def test_fewer_bits_name_the_command_that_measures_their_quality() -> None:
    told = im.study("precision", MODEL, hardware="h100_sxm").findings[-1].sentence
    assert told.endswith(
        "inferometer quality MODEL --quantization fp8 --quantization int8 --quantization int4"
    )
    plain = im.predict(MODEL, hardware="h100_sxm", quantization=[None, None], batch=[1, 2])
    assert "quality" not in str(plain.findings)


def test_a_grid_says_which_points_meet_an_slo_and_draws_its_limits() -> None:
    slo = "ttft:p95<500ms, tpot:p95<50ms"
    grid = im.predict(MODEL, hardware=["h100_sxm", "l40s"], batch="1..64", prompt=1024, slo=slo)
    for point in grid.points:
        ends = [point.numbers["ttft_s"], point.numbers["tpot_s"]]
        is_met = all(
            one.high <= limit  # type: ignore[union-attr, operator]
            for one, limit in zip(ends, (0.5, 0.05), strict=True)
        )
        assert (point.words["slo"] == "met") == is_met
    met = {"h100_sxm": 0, "l40s": 0}
    for point in grid.points:
        if point.words["slo"] == "met":
            met[str(point.values["hardware"])] = int(point.values["batch"])  # type: ignore[arg-type]
    (sentence,) = (one.sentence for one in grid.findings if one.code == "SLO")
    reached = "; ".join(
        f"{device} {f'up to batch {batch}' if batch else 'at no batch'}"
        for device, batch in met.items()
    )
    assert reached in sentence
    (page,) = grid.pages()
    charts = {chart.title: chart for section in page.sections for chart in section.charts}
    rules = {
        title: [
            (mark.at, mark.is_vertical) for mark in chart.plots[0].marks if isinstance(mark, Rule)
        ]
        for title, chart in charts.items()
    }
    assert rules["Decode throughput against TPOT, a point for each batch"] == [(50.0, True)]
    assert rules["TTFT over batch"] == [(500.0, False)]
    assert rules["MBU of decode over batch"] == []


def test_a_limit_far_from_all_points_is_not_drawn_but_judged() -> None:
    grid = im.predict(MODEL, hardware="h100_sxm", batch="1..4", slo="tpot:p95<10s")
    assert {point.words["slo"] for point in grid.points} == {"met"}
    (page,) = grid.pages()
    charts = [chart for section in page.sections for chart in section.charts]
    assert not any(isinstance(mark, Rule) for chart in charts for mark in chart.plots[0].marks)


def test_a_grid_without_an_slo_has_no_word_of_it() -> None:
    grid = im.predict(MODEL, hardware="h100_sxm", batch="1..4")
    assert "slo" not in grid.rows()[0]
    assert not any(one.code == "SLO" for one in grid.findings)


def test_one_prediction_is_judged_by_its_weakest_limit() -> None:
    answer = im.predict(MODEL, hardware="h100_sxm", batch=64, slo="tpot:p99<1s, e2e:p95<1s")
    assert answer.slo is not None
    assert [one.verdict for one in answer.slo.limits] == ["met", "missed"]
    assert answer.slo.verdict == "missed"
    assert answer.slo.weakest.threshold.metric == "e2e"
    with pytest.raises(SpecError, match="no queue"):
        im.predict(MODEL, hardware="h100_sxm", slo="queue:p95<1s")


def test_a_grid_whose_points_have_other_step_times_warns_of_it() -> None:
    """Captured graphs by the datasheet were called slower than an engine by published rows."""
    mixed = im.predict(MODEL, hardware="h100_sxm", batch=4, mode=["engine", "graphs"])
    alike = im.predict(
        MODEL, hardware="h100_sxm", batch=4, mode=["engine", "graphs"], datasheet=True
    )
    assert [point.words["step_times"] for point in mixed.points] == ["published", "datasheet"]
    warned, fine = (
        {one.code for one in grid.findings} & {"MIXED_STEP_TIMES"} for grid in (mixed, alike)
    )
    assert (warned, fine) == ({"MIXED_STEP_TIMES"}, set())
    assert "datasheet=True" in str(mixed)
    assert "step times" not in str(alike)
    assert "Fastest" not in str(mixed)
    assert "Fastest per user: graphs" in str(alike)


def test_points_whose_ratio_may_be_one_are_not_told_apart() -> None:
    """ "Fastest" was the one of them whose likely number is lower by a little."""
    near = im.predict(MODEL, hardware="h100_sxm,h200_sxm,l4", batch=4, datasheet=True)
    fast, cheap = (one.sentence for one in near.findings if one.code == "BEST")
    assert "h200_sxm (TPOT" in fast
    assert "; undecided against h100_sxm (1.2" in fast
    assert cheap.startswith("Cheapest: h")
    assert " more" not in fast  # the L4 is slower for certain
    apart = im.predict(MODEL, hardware="h100_sxm,l4", batch=4, datasheet=True)
    (fast, *_) = (one.sentence for one in apart.findings if one.code == "BEST")
    assert fast.endswith("of 2 that fit.")


def test_points_are_ranked_among_those_of_their_source() -> None:
    grid = im.predict(
        MODEL, hardware="h100_sxm", batch=4, mode=["engine", "graphs", "eager"], slo="tpot:p50<1s"
    )
    best = [one.sentence for one in grid.findings if one.code == "BEST"]
    assert [point.words["step_times"] for point in grid.points] == [
        "published", "datasheet", "datasheet",
    ]  # fmt: skip
    assert [one.partition(": ")[0] for one in best] == [
        "Most decode tok/s within the SLO", "Fastest per user", "Cheapest",
    ]  # fmt: skip
    for sentence in best:
        assert ": graphs (" in sentence
        assert "by datasheet" in sentence
    (page,) = grid.pages()
    assert page.chart is not None
    assert "Most" not in page.chart.finding  # bars of two sources are no ranking
    assert [row[0].partition(", by ")[2] for row in page.chart.rows].count("published") == 1


@pytest.mark.parametrize(
    ("ask", "options", "ranked"),
    [
        (im.simulate, {"rate": 1.0, "requests": 100, "slo": "ttft:p95<9s"}, "Most requests/s"),
        pytest.param(
            *(im.capacity, {"slo": "ttft:p95<1s", "time_limit": 1.0}, "Most load"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_grids_of_traffic_rank_within_one_source(ask, options, ranked) -> None:
    """The best of two sources may be the one whose source is kinder."""
    devices = ["h100_sxm", "mi300x", "tpu_v6e", "gaudi3"]
    grid = ask(MODEL, hardware=devices, workload="512x64", **options)
    origins = {one.values["hardware"]: one.words["step_times"] for one in grid.points}
    assert set(origins.values()) == {"published", "datasheet"}
    assert [one.code for one in grid.findings].count("MIXED_STEP_TIMES") == 1
    best = [one.sentence for one in grid.findings if one.code == "BEST"]
    assert best
    for sentence in best:
        assert ranked in sentence
        assert f"by {origins[sentence.split(': ')[1].split(' ')[0]]}" in sentence


def test_a_cached_prefix_changes_the_prefill_alone() -> None:
    """A prefix that was hit once made decode 21 % slower, for the datasheet answered in its place."""
    grid = im.predict(MODEL, hardware="h100_sxm", batch=4, prefix_hit=[0.0, 0.01, 0.5, 0.9])
    assert {point.words["step_times"] for point in grid.points} == {"published"}
    assert len({point.numbers["tpot_s"].value for point in grid.points}) == 1  # type: ignore[union-attr]
    ttft = [point.numbers["ttft_s"].value for point in grid.points]  # type: ignore[union-attr]
    assert ttft == sorted(ttft, reverse=True)
    assert ttft[-1] < ttft[0] / 2
    one_token, cached = (
        im.predict("llama-3.1-70b", hardware="h100_sxm", batch=2, prompt=1, prefix_hit=share)
        for share in (0.0, 0.5)
    )
    assert one_token.fitted == cached.fitted


def test_a_limit_of_one_batch_needs_no_percentile() -> None:
    """`--slo 'ttft<500ms'` was refused, though a batch has one latency."""
    bare = im.predict(MODEL, hardware="h100_sxm", batch=8, slo="ttft<500ms, TPOT under 40 ms")
    named = im.predict(MODEL, hardware="h100_sxm", batch=8, slo="ttft:p95<500ms, tpot:p95<40ms")
    assert bare.slo == named.slo
    (page,) = bare.pages()
    limits = {one.name: one.limit for one in page.numbers}
    assert (limits["TTFT"], limits["TPOT"]) == (500.0, 40.0)
    grid = im.predict(MODEL, hardware="h100_sxm", batch=[1, 8], slo="ttft<500ms")
    assert {point.words["slo"] for point in grid.points} == {"met"}
    with pytest.raises(SpecError, match="which percentile"):
        im.simulate(MODEL, hardware="h100_sxm", rate=1, slo="ttft<500ms")


@pytest.mark.parametrize(
    ("verb", "options", "chip"),
    [
        (
            im.capacity,
            {"slo": "ttft:p95<9s", "time_limit": 0.5},
            "2 of 2 points have their capacity",
        ),
        (im.simulate, {"rate": 1, "requests": 60}, "2 of 2 points answered"),
    ],
)
def test_a_grid_of_traffic_says_how_many_points_are_answered(verb, options, chip) -> None:
    """A grid of capacities has an SLO that no point meets or misses."""
    grid = verb(MODEL, hardware="h100_sxm", workload="64x8", tp=[1, 2], datasheet=True, **options)
    assert grid.pages()[0].chips[0].text == chip


def test_percentiles_that_unfinished_requests_bound_from_below_are_absent() -> None:
    """Where none of many had ended, the table said 0 ms."""
    answer = im.simulate(
        "llama-3.1-8b", hardware="h100_sxm", rate=[5, 400], requests=100, until="1s", datasheet=True
    )
    crowded = answer.points[1].numbers
    assert crowded.get("e2e_p95_s") is None
    assert 0.0 not in [one.value for name, one in crowded.items() if one and "_p95" in name]


def test_capacity_of_several_loads_is_refused_with_the_command_that_takes_them() -> None:
    """A curve of 9 loads was 9 times one capacity."""
    with pytest.raises(SpecError, match="3 loads, and capacity finds the load itself") as caught:
        im.capacity(MODEL, hardware="h100_sxm", slo="ttft:p95<1s", rate=[0.5, 1, 2])
    assert "simulate('MODEL', rate='0.5,1,2')" in str(caught.value.try_)


@pytest.mark.slow
def test_a_sizing_of_several_rates_shows_what_more_traffic_needs() -> None:
    options = {"gpus": "h100_sxm", "slo": "ttft:p95<2s", "workload": "64x8", "max_num_seqs": "64"}
    options |= {"tp": "1", "max_num_batched_tokens": "2048", "datasheet": True, "time_limit": 2.0}
    grid = im.size(MODEL, rate=[1, 2000], probe_requests=100, **options)
    few, many = (point.numbers["n_devices"].value for point in grid.points)
    assert 1 == few < many
    costs = [point.numbers["usd_per_hour"].value for point in grid.points]
    assert costs[1] / costs[0] == pytest.approx(many / few)
    assert grid.points[0].words["layout"] == "h100_sxm TP1 bfloat16"
    alone = im.size(MODEL, rate=1, probe_requests=100, **options)
    assert grid.points[0].words["slo"] == alone.verdict
    assert grid.rows()[0]["n_devices"] == alone.pick.n_devices


def _bought(value: object, usd: float, high: float, layout: str = "h100_sxm TP1") -> GridPoint:
    cost = Estimate(value=usd, low=usd, high=high, confidence_fraction=0.9, n_samples=1, method="")
    numbers = {"usd_per_hour": cost, "n_devices": cost}
    words = {"slo": "met", "layout": layout}
    return GridPoint(
        values={"rate" if layout != "" else "engine": value}, numbers=numbers, words=words
    )


def test_a_sizing_says_where_the_pick_changes_and_what_is_surely_cheaper() -> None:
    rates = Axis("rate", "--rate", (1.0, 2.0, 4.0))
    points = (_bought(1.0, 2, 2), _bought(2.0, 4, 4), _bought(4.0, 8, 8, "b200_sxm TP1"))
    sentences = [one.sentence for one in SIZE.findings((rates,), points)]
    assert "The pick changes: h100_sxm TP1 up to rate 2, b200_sxm TP1 from 4." in sentences
    assert any(one.startswith("Cost per hour grows 4x from rate 1 to 4") for one in sentences)
    engines = Axis("engine", "--engine", ("vllm", "sglang"))
    for high, ending in ((2.0, "($2/h)."), (3.0, "undecided against sglang.")):
        pair = (_bought("vllm", 2, high, ""), _bought("sglang", 3, 3, ""))
        [sentence] = [one.sentence for one in SIZE.findings((engines,), pair)]
        assert sentence.startswith("Cheapest within the SLO: vllm ($2/h)")
        assert sentence.endswith(ending)


def test_a_study_in_which_nothing_meets_the_slo_says_so() -> None:
    options = {"workload": "64x8", "datasheet": True, "time_limit": 0.5, "slo": "ttft:p95<1us"}
    grid = im.study("disaggregation", MODEL, hardware="h100_sxm", replicas=2, **options)
    sentence = "No load was found at which the SLO is met, with a split or without."
    assert sentence in [one.sentence for one in grid.findings]
