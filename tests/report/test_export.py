import csv

from inferometer.report.charts.catalogue import charts_of
from inferometer.report.charts.svg import export_charts


def test_every_chart_in_every_format(one_run_view, tmp_path):
    paths = export_charts(charts_of(one_run_view), tmp_path / "charts")
    assert {path.name for path in paths} == {path.name for path in (tmp_path / "charts").iterdir()}
    assert len(paths) == 2 * len(charts_of(one_run_view))
    for path in paths:
        start = path.read_bytes()[:8]
        assert {
            "svg": start.startswith(b"<svg"),
            "csv": True,
        }[path.suffix[1:]]


def test_csv_has_the_table(one_run_view, tmp_path):
    (path,) = [
        path
        for path in export_charts(charts_of(one_run_view), tmp_path)
        if path.name == "ttft-vs-prompt.csv"
    ]
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["prompt tokens", "TTFT ms [95 %]"]
    assert rows[1][0] == "128"
