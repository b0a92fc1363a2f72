"""Which rows does the CSV table of a sweep have?"""

from typing import Final

from inferometer.api.analysis import Analysis
from inferometer.api.point_rows import utilisations
from inferometer.records.summaries import flag_text
from inferometer.records.sweep_csv import SweepRow

CSV_NAME: Final = "sweep.csv"
"""Inside the run's folder, where no other file is named."""


def table_rows(analysis: Analysis) -> list[SweepRow]:
    """The points of the sweep, with utilisation and flags."""
    rows: list[SweepRow] = []
    for summary in analysis.points:
        used = utilisations(analysis, summary)
        flag = (
            flag_text(analysis.collapses, summary.point_index)
            if summary.status == "ok"
            else summary.status.upper()
        )
        rows.append(
            SweepRow(
                summary=summary,
                mbu_fraction=used.mbu_fraction,
                mfu_fraction=used.mfu_fraction,
                flag=flag,
            )
        )
    return rows
