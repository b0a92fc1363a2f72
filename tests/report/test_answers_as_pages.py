"""Are answers that are computed pages too: their charts, their cautions, and how they look in a browser?"""

import pytest
from tests.report.browser import check_looks_right, needs_browser
from tests.report.marks import marks

import inferometer as im
from inferometer.report.charts.plot import Band, Boxes, Dots, Rule
from inferometer.report.charts.roofline import PhaseBounds, bounds_chart
from inferometer.report.html import render_page


@pytest.fixture(scope="module")
def predicted():
    return im.predict("llama-3.1-8b", hardware="h100_sxm", batch=32)


@pytest.fixture(scope="module")
def simulated():
    return im.simulate(
        "llama-3.1-8b", hardware="h100_sxm", rate=5, requests=300, slo="ttft:p95<1s", datasheet=True
    )


def page_of(answer):
    (page,) = answer.pages()
    return page


def test_percentiles_stand_in_what_is_not_known_of_step_times(simulated):
    chart = page_of(simulated).chart
    likely, fast, slow = (
        level.summary.latency("ttft").percentile(0.95).seconds.value for level in simulated.levels
    )
    (dots,), (band,), (rule,) = (marks(chart, kind) for kind in (Dots, Band, Rule))
    assert dots.ys[2] == pytest.approx(1e3 * likely)
    ends = [y for x, y in band.outline if x == 2.0]
    assert sorted(ends) == pytest.approx(sorted((1e3 * min(fast, likely), 1e3 * max(slow, likely))))
    assert rule.at == 1000
    assert chart.finding.startswith("TTFT p95 is ")
    assert chart.finding.endswith("; the limit is 1000 ms.")
    (number,) = [one for one in page_of(simulated).numbers if one.name == "TTFT p95"]
    assert number.limit == 1000
    assert number.low == pytest.approx(1e3 * fast)
    assert number.high >= 1e3 * slow * 0.999


def test_the_longest_resource_bounds_a_step():
    chart = bounds_chart(
        [PhaseBounds("prefill", 0.2, 0.02, 0.0), PhaseBounds("decode", 0.001, 0.005, 0.0)]
    )
    assert chart.finding == (
        "prefill is bound by compute, 200 ms (10 times memory); decode is bound by memory, 5 ms"
        " (5 times compute)."
    )
    boxes = {mark.name: [box[1] for box in mark.boxes] for mark in marks(chart, Boxes)}
    assert boxes == {"compute": pytest.approx([100, 20]), "memory": pytest.approx([10, 100])}


def test_a_page_has_every_caution(predicted, simulated):
    for answer in (predicted, simulated):
        page = page_of(answer)
        assert page.cautions
        text = render_page(page)
        assert all(caution.text in text for caution in page.cautions)


def test_an_answer_writes_its_page(predicted, tmp_path):
    predicted.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == render_page(page_of(predicted))


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize(("width", "is_dark"), [(390, True), (1280, False), (1440, False)])
def test_a_browser_shows_them(predicted, simulated, tmp_path, width, is_dark):
    for name, answer, n_charts in (("predicted", predicted, 1), ("simulated", simulated, 2)):
        folder = tmp_path / name
        folder.mkdir()
        page = render_page(page_of(answer))
        check_looks_right(page, folder, width=width, n_charts=n_charts, is_dark=is_dark)


@pytest.fixture(scope="module")
def decisions(tmp_path_factory):
    """Answers whose pages no other test looks at: a study, a tuning, a comparison."""
    folder = tmp_path_factory.mktemp("decisions")
    server = {"hardware": "h100_sxm", "requests": 150}
    for name, steps in (("a", 8), ("b", 64)):
        im.simulate(
            "llama-3.1-8b", rate=8, max_num_seqs=steps, datasheet=True, out=folder / name, **server
        )
    return {
        "study": im.study("batch", "llama-3.1-8b", hardware="h100_sxm"),
        "devices": im.study("devices", "llama-3.1-8b"),
        "grid": im.predict(
            "llama-3.1-8b", hardware="h100_sxm", tp=[1, 2, 4], batch="1..64", slo="ttft<500ms"
        ),
        "tune": im.tune(
            "llama-3.1-8b",
            max_num_seqs=8,
            rate=8,
            slo="ttft:p95<500ms, tpot:p95<40ms",
            steps="max_num_seqs",
            **server,
        ),
        "compare": im.compare(folder / "a", folder / "b"),
    }


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("name", ["study", "devices", "grid", "tune", "compare"])
@pytest.mark.parametrize(("width", "is_dark"), [(390, True), (1280, False), (1440, True)])
def test_a_browser_shows_decisions(decisions, tmp_path, name, width, is_dark):
    page = page_of(decisions[name])
    n_charts = len({chart.chart_id for chart in all_charts(page)})
    assert page.chips
    assert page.numbers
    assert page.chart is not None
    check_looks_right(render_page(page), tmp_path, width=width, n_charts=n_charts, is_dark=is_dark)


def all_charts(page):
    lead = () if page.chart is None else (page.chart,)
    return (*lead, *(chart for section in page.sections for chart in section.charts))
