"""Tables of a server's samples, made of its pages."""

from pathlib import Path

import numpy as np

from inferometer.records.exposition import PageReader
from inferometer.records.types import ServerSampleTable

FOLDER = Path(__file__).parent / "expositions"


def page(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def zeroed(text: str) -> str:
    """The page as it was before anything was counted; gauges that say what is configured stay."""
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    kept = (line if "_info{" in line else f"{line.rpartition(' ')[0]} 0" for line in lines)
    return "\n".join(kept)


def samples_of(*pages: str, every_s: float = 1.0) -> ServerSampleTable:
    """Every sample of every page, the first scraped at 1 s."""
    rows = [
        (
            round((i_page + 1) * every_s * 1e9),
            sample.series.name,
            sample.series.labels,
            sample.value,
        )
        for i_page, text in enumerate(pages)
        for sample in PageReader().read(text.encode())
    ]
    scraped_ns, names, labels, values = zip(*rows, strict=True) if rows else ((), (), (), ())
    return ServerSampleTable(
        np.array(scraped_ns, np.int64),
        np.array(names, np.str_),
        np.array(labels, np.str_),
        np.array(values, np.float64),
    )
