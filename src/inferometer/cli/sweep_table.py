"""How is a run written as the table that other tools read?"""

from pathlib import Path
from typing import Final

from inferometer.cli.analysis import Analysis
from inferometer.cli.point_rows import utilisations
from inferometer.records.collapse import flag_text
from inferometer.records.sweep_csv import SweepRow, write_sweep_csv

CSV_NAME: Final = "sweep.csv"


def write_table(analysis: Analysis, folder: Path) -> Path:
    """Write the sweep's table, with utilisation and flags, beside its record."""
    rows: list[SweepRow] = []
    for summary in analysis.points:
        used = utilisations(analysis, summary)
        flag = flag_text(analysis.collapses, summary.point_index) if summary.status == "ok" else summary.status.upper()
        rows.append(SweepRow(summary=summary, mbu_fraction=used.mbu_fraction, mfu_fraction=used.mfu_fraction, flag=flag))
    write_sweep_csv(folder / CSV_NAME, rows)
    return folder / CSV_NAME


__all__ = ["CSV_NAME", "write_table"]
