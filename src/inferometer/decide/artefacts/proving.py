"""Is the service as it was predicted: a ``verify`` plan, a check of the SLO, and a live board.

The live board is Grafana's, of the replicas' own metrics beside the series of ``inferometer watch
--export-port``.
"""

import dataclasses
import json
import math
import shlex
from collections.abc import Mapping
from typing import Final

import msgspec

from inferometer.decide.artefacts import alerts, dashboard
from inferometer.decide.artefacts.dashboard import Panel, Query, Section
from inferometer.decide.artefacts.kubernetes import Manifest
from inferometer.decide.artefacts.packaging import Fleet, Packaging
from inferometer.inputs.objectives import METRICS, Metric, percentile_name
from inferometer.inputs.plans import Client, ServerTable, Traffic, VerifyPlan
from inferometer.simulate.scheduler_config import SchedulerConfig

WORKLOAD_FILE: Final = "workload.json"
_N_REQUESTS: Final = 2000
"""Enough for an interval of a 99th percentile of requests that hardly depend on one another."""
_LEAST_S: Final = 120
_SHARED: Final = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "block_size",
    "num_blocks",
)


def check_script(fleet: Fleet, packaging: Packaging) -> str:
    """A shell script that load-tests the deployment with the same traffic and SLO."""
    words = [
        "inferometer",
        "load",
        '"$url"',
        "--model",
        shlex.quote(packaging.served_name),
        "--workload",
        f'"$here/{WORKLOAD_FILE}"',
    ]
    load = f"--rate {fleet.rate_per_s:g}" if fleet.users is None else f"--concurrency {fleet.users}"
    words += [
        load,
        "--for",
        f"{duration_s(fleet)}s",
        "--slo",
        shlex.quote(fleet.objective.text),
        *(["--send-priorities"] if fleet.has_priorities else []),
        '"$@"',
    ]
    return "\n".join(
        [
            "#!/bin/sh",
            (
                "# Is the SLO met? check-promise.sh URL [flags of inferometer load]; exit 0"
                " met, 10 missed, 11 undecided."
            ),
            "set -eu",
            'here=$(cd "$(dirname "$0")" && pwd)',
            'url=${1:?"the address of the router, such as http://127.0.0.1:8080"}',
            "shift",
            f"exec {' '.join(words)}",
            "",
        ]
    )


def duration_s(fleet: Fleet) -> int:
    """So long a test takes, in whole seconds."""
    return max(_LEAST_S, math.ceil(_N_REQUESTS / fleet.rate_per_s))


def verify_plan(fleet: Fleet, packaging: Packaging) -> str | None:
    """A plan for ``inferometer verify`` as TOML.

    None where the fleet rests on a fit, whose file is unknown here, or on settings that a plan
    cannot state.
    """
    knobs = _own(fleet.scheduler)
    own = {
        name: value for name, value in knobs.items() if isinstance(value, str | bool | int | float)
    }
    if fleet.step_times_basis == "fitted" or fleet.has_stated_links or len(own) < len(knobs):
        return None
    said = {
        "model": fleet.model.model_id,
        "hardware": fleet.hardware.hardware_id,
        "dtype": fleet.engine.dtype,
        "kv_dtype": fleet.engine.kv_cache_dtype,
        "quantization": fleet.engine.quantization
        or (None if fleet.model.checkpoint_dtype is None else "none"),
        "tp": fleet.engine.tensor_parallel_size,
        "policy": "vllm",
        **{name: getattr(fleet.scheduler, name) for name in _SHARED},
        "gpu_memory_utilization": fleet.utilization_fraction,
        "own": own,
        "replicas": fleet.n_replicas,
        "router": fleet.router,
        "datasheet": fleet.step_times_basis == "datasheet" or None,
        "enforce_eager": fleet.is_eager or None,
    }
    server: ServerTable = {name: value for name, value in said.items() if value is not None}
    n_requests = round(fleet.rate_per_s * duration_s(fleet))
    traffic = Traffic(
        workload=WORKLOAD_FILE,
        rates_per_s=(fleet.rate_per_s,) if fleet.users is None else (),
        concurrencies=() if fleet.users is None else (fleet.users,),
        n_requests=n_requests,
        slo=fleet.objective.text,
    )
    client = Client(
        served_model=packaging.served_name,
        endpoint="chat",
        sends_priorities=fleet.has_priorities,
    )
    plan = VerifyPlan(name=packaging.name, server=server, traffic=traffic, client=client)
    return _toml(msgspec.to_builtins(plan))


def _own(scheduler: SchedulerConfig) -> dict[str, object]:
    """Settings that differ from vLLM's defaults, besides those common to all engines."""
    said = {
        field.name: (getattr(scheduler, field.name), field.default)
        for field in dataclasses.fields(scheduler)
    }
    return {
        name: value
        for name, (value, default) in said.items()
        if value != default and name not in _SHARED
    }


def _toml(table: Mapping[str, object], name: str = "") -> str:
    """Keys, then tables; a key, number, text or list of JSON is one of TOML."""
    keys = [
        f"{key} = {json.dumps(value)}"
        for key, value in table.items()
        if value is not None and not isinstance(value, Mapping)
    ]
    tables = [
        _toml(value, f"{name}.{key}" if name else key)
        for key, value in table.items()
        if isinstance(value, Mapping) and value
    ]
    heading = [f"[{name}]"] if name else []
    return "\n".join([*heading, *keys, "", *tables])


_METRICS: Final[tuple[Metric, ...]] = ("ttft", "tpot", "e2e")
_FRACTIONS: Final = (0.5, 0.95)
_WINDOW: Final = "[$__rate_interval]"
_BOUNDS: Final = ("low", "mid", "high")


def board(fleet: Fleet, packaging: Packaging) -> Manifest:
    """The board, as Grafana imports it."""
    return dashboard.board_of(
        f"{packaging.name}-live",
        f"{packaging.served_name}: predicted and live",
        summary(),
        sections(fleet, packaging),
    )


def summary() -> list[Panel]:
    """Panels of one number each: is the prediction right, what is its error, what room is left."""
    return [
        Panel(
            "Prediction holds",
            "short",
            "1 where rate and lengths are the predicted ones within a quarter; at 0 nothing of the"
            " prediction can be compared.",
            (Query("min(inferometer_model_valid)", "valid"),),
            (1.0,),
            is_bad_above=False,
        ),
        Panel(
            "Step time against what was learned",
            "percentunit",
            "Measured / expected - 1 at the present load: a server that is slower than it was.",
            (Query('max(inferometer_residual_ratio{metric="step"})', "step"),),
            (0.2,),
            has_zero=False,
        ),
        Panel(
            "Room below the SLO",
            "percentunit",
            "1 - percentile / limit, the least of all: 0 at the limit.",
            (Query("min(inferometer_headroom_ratio)", "room"),),
            (0.05,),
            is_bad_above=False,
            has_zero=False,
        ),
    ]


def sections(fleet: Fleet, packaging: Packaging) -> list[Section]:
    """Panels of each latency (measured, predicted, residual), and of the engine."""
    of = f"{{{alerts.selector(packaging)}}}"
    latencies = tuple(
        _latency(metric, fraction, of) for metric in _METRICS for fraction in _FRACTIONS
    )
    return [
        Section("Predicted and live", latencies),
        Section("What differs", _differences()),
        Section(
            "Batch, drafts and KV cache",
            (*dashboard.step_panels(fleet, of), *dashboard.kv_bytes_panels(fleet, of)),
        ),
    ]


def _latency(metric: Metric, fraction: float, of: str) -> Panel:
    name, family = percentile_name(fraction), f"inferometer_predicted_{metric}_seconds"
    predicted = (
        Query(f'max({family}{{quantile="{fraction:g}",bound="{bound}"}})', f"predicted, {bound}")
        for bound in _BOUNDS
    )
    says = (
        f"{METRICS[metric].meaning}. Live: between the edges of the replicas' histogram; predicted:"
        " with fast, likely and slow step times, their intervals included."
    )
    live = Query(alerts.quantile(metric, fraction, of, _WINDOW), "live")
    return Panel(f"{metric.upper()} {name}", "s", says, (live, *predicted))


def _differences() -> tuple[Panel, ...]:
    return (
        Panel(
            "Measured / predicted - 1",
            "percentunit",
            "Of means; `step` is the step time against what was learned of the server.",
            (Query("inferometer_residual_ratio", "{{server}} {{metric}}"),),
            has_zero=False,
        ),
        Panel(
            "Regime",
            "short",
            "1 while a condition is on.",
            (Query("inferometer_regime", "{{server}} {{replica}} {{condition}}"),),
        ),
        Panel(
            "What limits the server",
            "percentunit",
            "Share of the first latency that would go with each cause (`inferometer diagnose`).",
            (Query("inferometer_limit_share", "{{server}} {{replica}} {{cause}}"),),
        ),
    )
