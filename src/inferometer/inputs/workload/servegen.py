"""Requests from ServeGen's statistics of clients.

They have a rate and a gap pattern for each ten minutes, and tables of lengths.

Source: Xiang et al. 2025, ServeGen, arXiv 2505.09999: gaps of a client are drawn from its gamma or
Weibull distribution and stretched to fill the window.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np

from inferometer.errors import SpecError
from inferometer.inputs.types import Caution
from inferometer.inputs.workload import arrivals, trace_formats
from inferometer.inputs.workload.distributions import Floats, Table, exp, log, quantile
from inferometer.inputs.workload.drawing import MAX_REQUESTS
from inferometer.inputs.workload.plan import I64, DrawnWorkload, request_plan
from inferometer.inputs.workload.types import ServeGenSource, WorkloadSpec
from inferometer.units import NS_PER_S

WINDOW_S: Final = 600
_COLUMNS: Final = (
    "client,window_start_s,rate_req_s,inter_arrival_cv,pattern,pattern_param1,pattern_param2"
)

Share = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class RateWindow(msgspec.Struct, frozen=True):
    """Rate and burstiness of a client in a window."""

    client: int
    window_start_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    rate_req_s: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    pattern: Literal["Gamma", "Weibull"]
    pattern_param1: Annotated[float, msgspec.Meta(ge=1e-3, le=1e6)]


class LengthWindow(msgspec.Struct, frozen=True):
    """Length distributions of a client from a time on: value -> probability."""

    client: int
    window_start_s: Annotated[float, msgspec.Meta(ge=0, le=1e9)]
    input_tokens: dict[Tokens, Share]
    output_tokens: dict[Tokens, Share]


def is_servegen(path: Path) -> bool:
    """Does the file begin like one of ServeGen's client rates?"""
    return next(trace_formats.DOOR.lines_of(path), (0, b""))[1] == _COLUMNS.encode()


def servegen_beside(rates: Path) -> ServeGenSource:
    """Clients of a file of rates and of the tables of lengths next to it.

    Clients without tables draw from the tables of all others.

    Raises
    ------
    SpecError
        There is no table of lengths with a name like that of the rates, or several.
    """
    begin = rates.name.partition("client_rates")[0]
    found = sorted(
        path for path in rates.parent.glob("*length_pdfs.jsonl*") if path.name.startswith(begin)
    )
    if len(found) != 1:
        raise SpecError(
            f"{len(found)} files of tables of lengths beside ServeGen's rates",
            where=str(rates),
            allowed=f"one {begin}length_pdfs.jsonl or .jsonl.gz in the same folder",
            try_='a workload file with [replay] kind = "servegen", rates_path and lengths_path',
        )
    return ServeGenSource(rates_path=str(rates), lengths_path=str(found[0]), without_lengths="pool")


class _Lengths(NamedTuple):
    """Length tables of all clients by time, and pooled over clients."""

    of_client: dict[int, list[tuple[float, Table, Table]]]
    pooled: tuple[Table, Table]


def draw_servegen(spec: WorkloadSpec, source: ServeGenSource) -> DrawnWorkload:
    """The requests of ``duration_s`` from ``start_s`` on, clients as tenants.

    Raises
    ------
    SpecError
        A malformed line (the message has its number); no duration; clients without tables of
        lengths, if the source refuses them.
    """
    if spec.duration_s is None or spec.arrivals is not None:
        raise SpecError(
            "ServeGen's rates are those of a span of time",
            where="the workload",
            allowed="duration_s, and no arrivals",
            try_="duration_s = 600",
        )
    end_s = source.start_s + spec.duration_s
    windows = _windows_within(spec, source)
    expected = _expected_requests(windows, source)
    if expected > MAX_REQUESTS:
        raise SpecError(
            f"about {expected:.3g} requests come in the windows of this span",
            where=source.rates_path,
            allowed=f"{MAX_REQUESTS:,}",
            try_="a smaller rate_ratio, or a shorter duration_s",
        )
    lengths = _lengths(Path(source.lengths_path))
    windows, cautions = _with_lengths(windows, lengths, source)
    at_s, client = _arrivals(windows, spec.seed, source, end_s)
    prompt, output = _drawn_lengths(spec.seed, at_s, client, lengths)
    n_zero = int(((prompt < 1) | (output < 1)).sum())
    if n_zero:
        text = f"{n_zero} of {len(at_s)} requests drew a length of 0 tokens and have 1"
        cautions.append(
            Caution(code="zero_lengths", text=text, remedy="none: the tables hold them")
        )
    order = np.argsort(at_s, kind="stable")[: spec.n_requests]
    names, tenant = np.unique(client[order], return_inverse=True)
    plan = request_plan(
        source.rates_path,
        arrival_ns=np.rint((at_s[order] - source.start_s) * NS_PER_S).astype(np.int64),
        prompt_tokens=np.maximum(prompt[order], 1),
        output_tokens=np.maximum(output[order], 1),
        tenant_index=tenant,
    )
    return DrawnWorkload(
        name=spec.name,
        plan=plan,
        class_names=("servegen",),
        class_slos=(None,),
        tenant_names=tuple(f"client-{name}" for name in names.tolist()),
        cautions=tuple(cautions),
    )


def _arrivals(
    windows: list[RateWindow], seed: int, source: ServeGenSource, end_s: float
) -> tuple[Floats, I64]:
    """Arrival and client of each request."""
    times: list[Floats] = [np.empty(0)]
    clients: list[I64] = [np.empty(0, np.int64)]
    for one in windows:
        at_s = _instants_s(one, seed, source.rate_ratio)
        at_s = at_s[(at_s >= source.start_s) & (at_s < end_s)]
        times.append(at_s)
        clients.append(np.full(len(at_s), one.client))
    return np.concatenate(times), np.concatenate(clients)


def expected_requests(spec: WorkloadSpec, source: ServeGenSource) -> float:
    """Expected number of requests at the rates of these windows."""
    return _expected_requests(_windows_within(spec, source), source)


def _expected_requests(windows: list[RateWindow], source: ServeGenSource) -> float:
    return sum(one.rate_req_s for one in windows) * source.rate_ratio * WINDOW_S


def _windows_within(spec: WorkloadSpec, source: ServeGenSource) -> list[RateWindow]:
    """The windows of the span that is replayed."""
    end_s = source.start_s + (spec.duration_s or 0.0)
    return [
        one
        for one in _rate_windows(Path(source.rates_path))
        if source.start_s - WINDOW_S < one.window_start_s < end_s
    ]


def _rate_windows(path: Path) -> Iterator[RateWindow]:
    for number, line in trace_formats.DOOR.lines_of(path):
        fields = line.decode("utf-8", errors="replace").split(",")
        if number == 1:
            if ",".join(fields) != _COLUMNS:
                trace_formats.broken(path, number, f"the columns are not {_COLUMNS}")
            continue
        if len(fields) != 7:
            trace_formats.broken(path, number, f"{len(fields)} fields for 7 columns")
        values = dict(zip(_COLUMNS.split(","), fields, strict=True))
        try:
            yield msgspec.convert(values, RateWindow, strict=False)
        except msgspec.ValidationError as error:
            trace_formats.broken(path, number, str(error))


def _lengths(path: Path) -> _Lengths:
    of_client: dict[int, list[tuple[float, Table, Table]]] = {}
    pools: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for number, line in trace_formats.DOOR.lines_of(path):
        one = trace_formats.decoded(line, LengthWindow, path, number)
        tables = (one.input_tokens, one.output_tokens)
        if not all(any(table.values()) for table in tables):
            trace_formats.broken(path, number, "a table of lengths without probability")
        for table, pool in zip(tables, pools, strict=True):
            for value, share in table.items():
                pool[value] = pool.get(value, 0.0) + share
        of_client.setdefault(one.client, []).append(
            (one.window_start_s, _table(tables[0]), _table(tables[1]))
        )
    if not of_client:
        raise SpecError(
            "no tables of lengths",
            where=str(path),
            allowed="at least one line",
            try_="the whole file of ServeGen's length distributions",
        )
    for windows in of_client.values():
        windows.sort(key=lambda window: window[0])
    return _Lengths(of_client=of_client, pooled=(_table(pools[0]), _table(pools[1])))


def _table(shares: dict[int, float]) -> Table:
    return Table(values=tuple(shares), weights=tuple(shares.values()))


def _with_lengths(
    windows: list[RateWindow], lengths: _Lengths, source: ServeGenSource
) -> tuple[list[RateWindow], list[Caution]]:
    """Windows that take part, and notes on them."""
    if not windows:
        raise SpecError(
            "no client asks in this span",
            where=source.rates_path,
            allowed="a span with rates",
            try_="another start_s",
        )
    cautions = [
        Caution(
            code="lengths_independent",
            text=(
                "ServeGen's tables say nothing of prompt and answer together: they are drawn"
                " independently"
            ),
            remedy="a trace of requests",
        )
    ]
    known = [one for one in windows if one.client in lengths.of_client]
    if len(known) == len(windows):
        return windows, cautions
    missing_fraction = 1 - sum(one.rate_req_s for one in known) / sum(
        one.rate_req_s for one in windows
    )
    n_clients = len({one.client for one in windows} - lengths.of_client.keys())
    what = (
        f"{n_clients} clients with {missing_fraction * 100:.3g} % of the requests have no tables of"
        " lengths"
    )
    if source.without_lengths == "refuse" or not known:
        raise SpecError(
            what, where=source.lengths_path, allowed='without_lengths = "drop" or "pool"'
        )
    is_drop = source.without_lengths == "drop"
    done = (
        "they are left out, and the rate with them"
        if is_drop
        else "they draw from the tables of the others, pooled line by line"
    )
    cautions.append(
        Caution(
            code="clients_without_lengths", text=f"{what}: {done}", remedy="the whole set of tables"
        )
    )
    return (known if is_drop else windows), cautions


def _instants_s(one: RateWindow, seed: int, rate_ratio: float) -> Floats:
    """Send times of a client in a window: gaps of its pattern, scaled to fill it."""
    name = f"servegen/{one.client}/{one.window_start_s:g}"
    n_requests = int(
        one.rate_req_s * rate_ratio * WINDOW_S + arrivals.uniforms(seed, f"{name}/count", 1)[0]
    )
    if one.pattern == "Gamma":
        gaps = arrivals.gamma_draws(one.pattern_param1, seed, name, n_requests + 1)
    else:
        gaps = exp(log(-log(arrivals.uniforms(seed, name, n_requests + 1))) / one.pattern_param1)
    reached = np.cumsum(gaps)
    instants_s: Floats = one.window_start_s + reached[:-1] * (WINDOW_S / reached[-1])
    return instants_s


def _drawn_lengths(seed: int, at_s: Floats, client: I64, lengths: _Lengths) -> tuple[I64, I64]:
    prompt, output = np.zeros(len(at_s), np.int64), np.zeros(len(at_s), np.int64)
    for name in np.unique(client).tolist():
        mine = np.flatnonzero(client == name)
        windows = lengths.of_client.get(name, [(0.0, *lengths.pooled)])
        which = np.maximum(
            np.searchsorted([start for start, _, _ in windows], at_s[mine], side="right") - 1, 0
        )
        for column, drawn in enumerate((prompt, output), start=1):
            u = arrivals.uniforms(seed, f"servegen/{name}/length {column}", len(mine))
            for index in np.unique(which).tolist():
                here = which == index
                table = windows[index][column]
                assert isinstance(table, Table)  # noqa: S101 -- a tuple's items have one type each
                drawn[mine[here]] = quantile(table, u[here])
    return prompt, output
