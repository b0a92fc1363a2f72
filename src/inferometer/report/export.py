"""How are the charts of a report put into other documents: as SVG, PNG and CSV files?"""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import vl_convert

from inferometer.errors import SpecError
from inferometer.records.durability import make_folder, replace_file
from inferometer.report.charts.frame import INK, MUTED, ChartSpec

ExportFormat: TypeAlias = Literal["svg", "png", "csv"]

PNG_SCALE: Final = 2.0


def export_charts(
    charts: Sequence[ChartSpec],
    folder: Path,
    formats: Sequence[ExportFormat] = ("svg", "png", "csv"),
) -> tuple[Path, ...]:
    """Write each chart to ``folder`` in each format, as ``<chart>.<format>``; the files written, in order.

    Raises
    ------
    SpecError
        A format that is not one of svg, png, csv.
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


def _svg(chart: ChartSpec) -> bytes:
    text: str = vl_convert.vegalite_to_svg(_titled(chart), allowed_base_urls=[])
    return text.encode()


def _png(chart: ChartSpec) -> bytes:
    picture: bytes = vl_convert.vegalite_to_png(
        _titled(chart), scale=PNG_SCALE, allowed_base_urls=[]
    )
    return picture


def _csv(chart: ChartSpec) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([chart.header, *chart.rows])
    return text.getvalue().encode()


def _titled(chart: ChartSpec) -> dict[str, Any]:
    """Alone in another document, a picture carries its own title and paper."""
    title = {
        "text": chart.title,
        "anchor": "start",
        "frame": "bounds",
        "offset": 12,
        "fontSize": 15,
        "color": INK,
        "subtitleColor": MUTED,
    }
    config = {**chart.spec.get("config", {}), "background": "white"}
    return {**chart.spec, "title": title, "config": config}


_WRITERS: Final[Mapping[str, Callable[[ChartSpec], bytes]]] = {
    "svg": _svg,
    "png": _png,
    "csv": _csv,
}
