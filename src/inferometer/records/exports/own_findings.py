"""What do we know of a run that other tools' formats have no place for, as plain JSON?

Intervals, latencies from the intended send, the objective's verdict and goodput, validity with its
reasons, the server's own numbers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import numpy as np

from inferometer.errors import RecordError
from inferometer.records.promises import Judgement
from inferometer.records.request_summaries import RequestSummary
from inferometer.records.server_summaries import ServerSummary, summarise_server
from inferometer.records.types import Run

JsonObject: TypeAlias = dict[str, Any]


def own_findings(run: Run, summary: RequestSummary, judgement: Judgement | None) -> JsonObject:
    """Under our own names, units in them.

    What is not known is not there; an infinite end of an interval is null.
    """
    server = _server(run)
    told = {
        "origin": run.manifest.origin,
        "summary": asdict(summary),
        "validity": None if run.manifest.validity is None else asdict(run.manifest.validity),
        "objective": None if judgement is None else asdict(judgement),
        "server": None
        if server is None
        else asdict(server) | {"prefix_hit_fraction": server.prefix_hit_fraction},
        "cautions": [asdict(caution) for caution in run.manifest.cautions],
    }
    return {name: _plain(value) for name, value in told.items() if value is not None}


def _server(run: Run) -> ServerSummary | None:
    try:
        return None if run.server is None else summarise_server(run.server)
    except RecordError:
        return None  # a server that was asked once, or is of no known kind, tells nothing


def _plain(value: Any) -> Any:  # noqa: ANN401 - JSON of any depth
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
