"""How are the charts of a report put into other documents: as SVG and CSV files?"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

from inferometer.errors import SpecError
from inferometer.records.durability import make_folder, replace_file
from inferometer.report.charts.plot import Chart
from inferometer.report.charts.svg import svg_file

ExportFormat: TypeAlias = Literal["svg", "csv"]


def export_charts(
    charts: Sequence[Chart],
    folder: Path,
    formats: Sequence[ExportFormat] = ("svg", "csv"),
) -> tuple[Path, ...]:
    """Write each chart to ``folder`` in each format, as ``<chart>.<format>``; the files written, in order.

    Raises
    ------
    SpecError
        A format that is not one of svg, csv.
    """
    unknown = [name for name in formats if name not in _WRITERS]
    if unknown:
        raise SpecError(
            f"format {unknown[0]!r} is unknown", allowed=f"one of {', '.join(_WRITERS)}", try_="svg"
        )
    make_folder(folder)
    written: list[Path] = []
    for chart in charts:
        for name in formats:
            path = folder / f"{chart.chart_id}.{name}"
            replace_file(path, _WRITERS[name](chart))
            written.append(path)
    return tuple(written)


def _csv(chart: Chart) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([chart.header, *chart.rows])
    return text.getvalue().encode()


_WRITERS: Final[Mapping[str, Callable[[Chart], bytes]]] = {
    "svg": lambda chart: svg_file(chart).encode(),
    "csv": _csv,
}
