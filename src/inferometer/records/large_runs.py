"""How long did requests take in a run that does not fit in memory?

The same numbers as ``request_summaries``, by scans of the file.

duckdb reads the columns that a latency needs, row group after row group, within a limit of memory;
Python sees counts and the few samples that are asked for. Order is that of the file, which is that
of sending.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, get_args

import duckdb
import numpy as np

from inferometer.errors import RecordError
from inferometer.records.latencies import COMPLETED, NOT_SERVED, Latency
from inferometer.records.layout import REQUESTS_NAME, STEPS_NAME
from inferometer.records.reading import directory_of
from inferometer.records.request_summaries import (
    MEAN_NAME,
    PERCENTILES,
    LatencyMean,
    LatencySummary,
    Percentile,
    latency_mean,
)
from inferometer.stats import autocorrelated
from inferometer.stats.estimate import Estimate

DEFAULT_MEMORY: Final = "1GB"

_COMPLETED: Final = ", ".join(str(int(status)) for status in COMPLETED)
_NOT_SERVED: Final = ", ".join(str(int(status)) for status in NOT_SERVED)
_DONE_NS: Final[dict[Latency, str]] = {
    "ttft": "first_token_ns",
    "ttft_uncorrected": "first_token_ns",
    "queue": "admitted_ns",
    "e2e": f"CASE WHEN status IN ({_COMPLETED}) THEN finished_ns END",
}
_CAME_NS: Final[dict[Latency, str]] = {
    "ttft": "intended_send_ns",
    "ttft_uncorrected": "sent_ns",
    "queue": "sent_ns",
    "e2e": "intended_send_ns",
}
_TPOT: Final = f"""
    SELECT (finished_ns - first_token_ns) / (output_tokens - 1) / 1e9 AS lower_s, lower_s AS upper_s, file_row_number AS place
    FROM requests WHERE status IN ({_COMPLETED}) AND output_tokens > 1 AND finished_ns > first_token_ns
"""  # noqa: S608 -- our own text


def summarise_stored_latencies(
    path: Path, *, percentiles: Sequence[float] = PERCENTILES, memory_limit: str = DEFAULT_MEMORY
) -> tuple[LatencySummary, ...]:
    """Percentiles of every latency of the stored run, with the intervals of ``stats.autocorrelated``.

    Raises
    ------
    RecordError
        There is no run of requests, or its file cannot be read within that memory.
    """
    directory = directory_of(path)
    if not (directory / REQUESTS_NAME).is_file():
        raise RecordError(
            "the run has no table of requests",
            where=str(directory),
            allowed="a simulated run or a load test",
        )
    try:
        with duckdb.connect(
            ":memory:", config={"memory_limit": memory_limit, "threads": 1}
        ) as connection:
            connection.execute("SET temp_directory = ?", [str(directory / "spill.tmp")])
            _views(connection, directory)
            return tuple(
                _summarised(connection, latency, percentiles) for latency in get_args(Latency)
            )
    except duckdb.Error as error:
        problem = f"the requests cannot be summarised: {str(error).partition(chr(10))[0]}"
        raise RecordError(
            problem,
            where=str(directory / REQUESTS_NAME),
            try_="more memory, or a copy of the record",
        ) from error


def _views(connection: duckdb.DuckDBPyConnection, directory: Path) -> None:
    """A view of the requests, and one row that says when those that are not done were last seen."""
    requests = connection.read_parquet(str(directory / REQUESTS_NAME), file_row_number=True)
    requests.create_view("requests")
    ends = (
        "SELECT greatest(max(intended_send_ns), max(first_token_ns), max(finished_ns)) AS at_ns"
        " FROM requests"
    )
    if (directory / STEPS_NAME).is_file():
        connection.read_parquet(str(directory / STEPS_NAME)).create_view("steps")
        ends = f"SELECT greatest((SELECT at_ns FROM ({ends})), max(start_ns + greatest(duration_ns, 0))) AS at_ns FROM steps"  # noqa: S608 -- our own text
    connection.execute(f"CREATE TABLE ending AS {ends}")


def _samples_of(latency: Latency) -> str:
    if latency == "tpot":
        return _TPOT
    done, came = _DONE_NS[latency], _CAME_NS[latency]
    # A client cannot see when its requests were admitted, and then nobody can tell how long they
    # queued.
    seen = (
        "(SELECT count(admitted_ns) > 0 OR count(first_token_ns) = 0 FROM requests)"
        if latency == "queue"
        else "TRUE"
    )
    return f"""
        SELECT (coalesce({done}, finished_ns, at_ns) - {came}) / 1e9 AS lower_s,
               CASE WHEN {done} IS NULL THEN 'infinity'::DOUBLE ELSE lower_s END AS upper_s, file_row_number AS place
        FROM requests, ending WHERE status NOT IN ({_NOT_SERVED}) AND {came} IS NOT NULL AND {seen}
    """  # noqa: S608 -- our own text


def _summarised(
    connection: duckdb.DuckDBPyConnection, latency: Latency, percentiles: Sequence[float]
) -> LatencySummary:
    connection.execute(f"CREATE OR REPLACE TEMP VIEW samples AS {_samples_of(latency)}")
    n, n_bounded = _row(
        connection, "SELECT count(*), count(*) FILTER (isinf(upper_s)) FROM samples"
    )
    found: list[Percentile] = []
    if n:
        ranks = [autocorrelated.quantile_rank(n, fraction) for fraction in percentiles]
        values = _at_ranks(connection, "lower_s", ranks, n)
        above = _at_ranks(connection, "upper_s", ranks, n)
        worths = _worths(connection, values, n)
        for i, fraction in enumerate(percentiles):
            plan = autocorrelated.interval_plan(n, worths[i], fraction)
            low = high = None
            if plan.low_rank is not None and plan.high_rank is not None:
                low = min(_at_ranks(connection, "lower_s", [plan.low_rank], n)[0], values[i])
                high = max(_at_ranks(connection, "upper_s", [plan.high_rank], n)[0], values[i])
            estimate = Estimate(
                value=values[i],
                low=low,
                high=high,
                confidence_fraction=plan.confidence_fraction,
                n_samples=n,
                method=plan.method,
            )
            found.append(
                Percentile(
                    percentile_fraction=fraction,
                    seconds=estimate,
                    is_lower_bound=above[i] > values[i],
                )
            )
    mean = _mean(connection, n, n_bounded) if n else None
    return LatencySummary(
        latency=latency,
        n_samples=n,
        n_bounded_below_only=n_bounded,
        mean=mean,
        percentiles=tuple(found),
    )


def _mean(connection: duckdb.DuckDBPyConnection, n: int, n_bounded: int) -> LatencyMean:
    (value,) = _row(connection, "SELECT avg(lower_s) FROM samples")
    if n < max(autocorrelated.N_BATCHES):
        estimate = autocorrelated.run_mean_estimate(np.empty(n), value, name=MEAN_NAME)
    else:
        means = [
            _of_batches(connection, "avg(lower_s)", n, n_batches)
            for n_batches in autocorrelated.N_BATCHES
        ]
        estimate = autocorrelated.mean_of_batches(means, value, n_samples=n, name=MEAN_NAME)
    return latency_mean(estimate, n_bounded_below_only=n_bounded)


def _worths(connection: duckdb.DuckDBPyConnection, values_s: Sequence[float], n: int) -> list[int]:
    """How many independent samples is the run worth for the share below each value?"""
    if n < autocorrelated.MIN_SAMPLES:
        return [n] * len(values_s)
    below = ", ".join(
        f"avg(CASE WHEN lower_s <= {value_s!r} THEN 1.0 ELSE 0.0 END)" for value_s in values_s
    )
    shares = _row(connection, f"SELECT {below} FROM samples")  # noqa: S608 -- numbers of ours
    enough = [
        n_batches
        for n_batches in autocorrelated.N_BATCHES
        if n // n_batches >= autocorrelated.MIN_SAMPLES_OF_A_BATCH
    ]
    means = [_of_batches(connection, below, n, n_batches) for n_batches in enough]
    return [
        autocorrelated.worth_of_batches(n, share, [batch[:, i] for batch in means])
        for i, share in enumerate(shares)
    ]


def _of_batches(
    connection: duckdb.DuckDBPyConnection, columns: str, n: int, n_batches: int
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """These columns of each of ``n_batches`` consecutive batches of one length.

    What does not fill a batch is left out at the start.
    """
    n_each = n // n_batches
    query = f"""
        SELECT {columns} FROM (SELECT lower_s, row_number() OVER (ORDER BY place) - 1 - {n - n_each * n_batches} AS nth FROM samples)
        WHERE nth >= 0 GROUP BY nth // {n_each} ORDER BY nth // {n_each}
    """  # noqa: S608 -- numbers and text of ours
    return np.array(connection.execute(query).fetchall(), np.float64)


def _at_ranks(
    connection: duckdb.DuckDBPyConnection, column: str, ranks: Sequence[int], n: int
) -> list[float]:
    """The samples of these ranks (from 0) of a column; quantile_disc takes the least at or below which that share lies."""
    shares = [(rank + 0.5) / n for rank in ranks]
    (values,) = _row(connection, f"SELECT quantile_disc({column}, {shares}) FROM samples")  # noqa: S608 -- numbers of ours
    return [float(value) for value in values]


def _row(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    return () if row is None else row
