"""A run's requests as CSV: one line each, units in the header, absent cells empty."""

import csv
import io
from typing import Final

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.columns import F64, I32
from inferometer.records.tables import optional_ns
from inferometer.records.types import UNKNOWN_COUNT, RequestStatus, Run
from inferometer.units import NS_PER_S

HEADER: Final = (
    "request_index",
    "status",
    "class_index",
    "intended_send_s",
    "sent_s",
    "admitted_s",
    "first_token_s",
    "finished_s",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "n_preemptions",
    "ttft_s",
    "ttft_uncorrected_s",
    "tpot_s",
    "e2e_s",
)


def request_csv(run: Run) -> str:
    """The table's text.

    Latencies count from the intended send, ``ttft_uncorrected_s`` from the send.

    Raises
    ------
    RecordError
        The run has no requests.
    """
    requests = run.requests
    if requests is None:
        raise RecordError(
            "the run has no requests", where=run.manifest.run_id, try_="show or report, for a sweep"
        )
    names = ("intended_send_ns", "sent_ns", "admitted_ns", "first_token_ns", "finished_ns")
    intended_s, sent_s, admitted_s, first_s, finished_s = (
        optional_ns(getattr(requests, name)) / NS_PER_S for name in names
    )
    has_tpot = requests.output_tokens > 1
    tpot_s = np.where(
        has_tpot, (finished_s - first_s) / np.maximum(requests.output_tokens - 1, 1), np.nan
    )
    columns: tuple[list[str], ...] = (
        requests.request_index.astype(str).tolist(),
        [RequestStatus(status).name.lower() for status in requests.status.tolist()],
        requests.class_index.astype(str).tolist(),
        *(_texts(column_s) for column_s in (intended_s, sent_s, admitted_s, first_s, finished_s)),
        requests.prompt_tokens.astype(str).tolist(),
        _counts(requests.cached_tokens),
        requests.output_tokens.astype(str).tolist(),
        _counts(requests.n_preemptions),
        *(
            _texts(column_s)
            for column_s in (
                first_s - intended_s,
                first_s - sent_s,
                tpot_s,
                finished_s - intended_s,
            )
        ),
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    writer.writerows(zip(*columns, strict=True))
    return text.getvalue()


def _texts(column_s: F64) -> list[str]:
    return ["" if np.isnan(value_s) else f"{value_s:.9f}" for value_s in column_s.tolist()]


def _counts(column: I32) -> list[str]:
    return ["" if value == UNKNOWN_COUNT else str(value) for value in column.tolist()]
