"""Which files are published tables, which of their rows can be simulated, and why not the others?"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from inferometer.errors import SpecError
from inferometer.fit.published.loads import PublishedLoad, published_loads
from inferometer.records.imports.detection import read_results
from inferometer.records.imports.inference_perf import is_stages
from inferometer.records.imports.inferencex import is_inferencex_csv, is_silicon
from inferometer.records.imports.json_fields import DOOR

WHERE = "the published tables"
_TABLES = "InferenceX's agg_*.json, or these points as CSV; AIConfigurator's silicon_sample.csv"


def are_published(paths: Sequence[Path]) -> bool:
    """Are these files of published tables, rather than runs or tables of a sweep?"""
    return all(
        path.is_file() and (path.suffix.lower() == ".json" or _is_collected(path)) for path in paths
    )


def table_rows(paths: Sequence[Path]) -> tuple[list[PublishedLoad], Counter[str]]:
    """Those of all tables that can be simulated, and why others cannot.

    Raises
    ------
    SpecError
        A file is no published table, or none of the rows can be simulated.
    """
    loads: list[PublishedLoad] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        results = read_results(path)
        if results.points is None:
            what = f"results of {results.tool}, no published table of closed loops"
            raise SpecError(
                what,
                where=str(path),
                allowed=_TABLES,
                try_="inferometer import, which reads them; fit --load for load tests",
            )
        found = published_loads(results.points)
        loads += found.loads
        left_out += found.left_out
    if not loads:
        raise SpecError(
            "no row can be simulated",
            where=WHERE,
            allowed="closed loops on one engine",
            try_=f"other rows; here: {reasons(left_out)}",
        )
    return loads, left_out


def reasons(left_out: Counter[str]) -> str:
    """Why rows are left out, in words."""
    return ", ".join(f"{number} {why}" for why, number in left_out.most_common())


def _is_collected(path: Path) -> bool:
    header = (
        DOOR.start_of(path, 2**16).decode("utf-8", "replace").partition("\n")[0].strip().split(",")
    )
    return is_silicon(header) or is_inferencex_csv(header) or is_stages(header)
