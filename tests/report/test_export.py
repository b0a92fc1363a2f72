import csv

import pytest

from inferometer.errors import SpecError
from inferometer.report.charts.catalogue import charts_of
from inferometer.report.export import export_charts


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
        for path in export_charts(charts_of(one_run_view), tmp_path, ("csv",))
        if path.stem == "ttft-vs-prompt"
    ]
    rows = list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    assert rows[0] == ["prompt tokens", "TTFT ms [95 %]"]
    assert rows[1][0] == "128"


def test_unknown_format_is_refused(one_run_view, tmp_path):
    with pytest.raises(SpecError, match="'pdf' is unknown"):
        export_charts(charts_of(one_run_view), tmp_path, ("pdf",))
