"""Where do the numbers of a run come from: the model, the engine, the machine, the command?"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from inferometer import suggestions
from inferometer.inputs.plans import LoadPlan
from inferometer.inputs.types import ModelSpec, SweepPoint
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.weights import n_parameters
from inferometer.records.types import (
    EngineFacts,
    HostFacts,
    Run,
    RunManifest,
    SchedulerFacts,
    ServerSampleTable,
)
from inferometer.report.views import FactGroup
from inferometer.stats.quantiles import min_samples
from inferometer.units import format_bytes, format_count, format_number

_ABSENT = "not known"
REPORT_NAME: Final = "report.html"
"""File name of the report beside a run's data."""


def fact_groups(run: Run, label: str) -> tuple[FactGroup, ...]:
    """Facts on a run's origin, in groups; unknown ones are marked."""
    manifest = run.manifest
    groups = [FactGroup(title=f"Run {label}", facts=_run_facts(manifest))]
    groups += (
        [FactGroup(title="Model", facts=_model_facts(manifest.model))] if manifest.model else []
    )
    groups += (
        [FactGroup(title="Engine", facts=_engine_facts(manifest.engine, manifest.load))]
        if manifest.engine
        else []
    )
    groups += (
        [FactGroup(title="Machine", facts=_host_facts(manifest.host))] if manifest.host else []
    )
    groups += (
        [FactGroup(title="Devices while it ran", facts=_device_facts(run.devices))]
        if run.devices is not None
        else []
    )
    return tuple(groups)


_OF_DEVICES: Final = {
    "DCGM_FI_DEV_POWER_USAGE": ("power", "W"),
    "DCGM_FI_DEV_SM_CLOCK": ("SM clock", "MHz"),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory clock", "MHz"),
    "DCGM_FI_DEV_GPU_UTIL": ("busy", "%"),
    "DCGM_FI_DEV_FB_USED": ("memory used", "MiB"),
}


def _device_facts(samples: ServerSampleTable) -> tuple[tuple[str, str], ...]:
    """Mean, least, most and number of samples of each counter of each device."""
    facts = list[tuple[str, str]]()
    for labels in sorted(set(samples.labels.tolist())):
        for name, (word, unit) in _OF_DEVICES.items():
            values = samples.value[(samples.name == name) & (samples.labels == labels)]
            if len(values):
                low, mean, high = (
                    format_number(float(one)) for one in (values.min(), values.mean(), values.max())
                )
                text = f"mean {mean} {unit}, {low} … {high}, {len(values):,} samples"
                facts.append((f"{labels} {word}", text))
    return tuple(facts)


def rerun_command(run: Run) -> str:
    """The command that made the run."""
    return shlex.join(run.manifest.command) if run.manifest.command else ""


def sweep_options_of(points: Sequence[SweepPoint]) -> tuple[str, ...]:
    """Options with which `sweep` measures these points.

    Points that are neither a grid nor two axes give the grid that holds them.
    """
    prompts = sorted({point.prompt_tokens for point in points})
    batches = sorted({point.batch_size for point in points})
    at_most = max(points, key=lambda point: (point.batch_size, -point.prompt_tokens))
    n_generated = max(point.gen_tokens for point in points)
    pairs = {(point.prompt_tokens, point.batch_size) for point in points}
    axis_prompt = at_most.prompt_tokens
    separate = {(one, batches[0]) for one in prompts} | {(axis_prompt, one) for one in batches}
    is_grid = len(pairs) == len(prompts) * len(batches)
    return (
        *("--seq", ",".join(map(str, prompts)), "--batch-sizes", ",".join(map(str, batches))),
        *("--gen-tokens", str(n_generated)),
        *(("--batch-prompt-len", str(axis_prompt)) if pairs == separate and not is_grid else ()),
    )


def longer_command(run: Run, percentiles: Iterable[float | None]) -> str:
    """The command that made the run, with more requests and another folder.

    Four times as many, which halves an interval, or what these percentiles need. Empty where the
    run is not known to come from a command line, or is longer in no other way than more at once.
    """
    n_requests = 0 if run.requests is None else len(run.requests.status)
    needed = max((min_samples(one) for one in percentiles if one is not None), default=0)
    if run.manifest.validity is not None:
        # Of percentiles that were requested when it was measured; only its words are stored.
        found = re.search(r"--requests (\d+)", run.manifest.validity.reasons[0].remedy)
        needed = max(needed, int(found[1]) if found else 0)
    n_longer = needed if needed > n_requests else _LONGER_RATIO * n_requests
    words = run.manifest.command
    is_known = words[:2] in {("inferometer", "load"), ("inferometer", "simulate")}
    if not is_known or "inf" in " ".join(words).replace("=", " ").split():
        return ""  # at a rate of inf more requests are another load: more at once
    changed, out, before = list[str](), "", ""
    for word in words[2:]:
        flag, _, value = word.partition("=")
        if before == "--out" or flag == "--out":
            out = word if before == "--out" else value
        if before not in _OF_LENGTH and flag not in _OF_LENGTH:
            changed.append(word)
        before = word if word in _OF_LENGTH else ""
    new_out = ("--out", f"{out}-longer") if out else ()
    return suggestions.command(words[1], *changed, "--requests", n_longer, *new_out)


_LONGER_RATIO: Final = 4
_OF_LENGTH: Final = frozenset({"--requests", "--for", "--out"})
"""Options of a run's length and folder, which a longer run has anew."""


def page_beside(path: Path | None) -> Path | None:
    """The report in a run's folder; None without one."""
    beside = None if path is None else path / REPORT_NAME
    return beside if beside is not None and beside.is_file() else None


def data_files(path: Path) -> tuple[tuple[str, str], ...]:
    """Files in a run's folder, with their contents."""
    if not path.is_dir():
        return (("table", str(path)),)
    return tuple(
        (file.name, str(file))
        for file in sorted(path.iterdir())
        if file.suffix in {".parquet", ".json", ".csv", ".html"}
    )


def _run_facts(manifest: RunManifest) -> tuple[tuple[str, str], ...]:
    facts = [
        ("run", manifest.run_id),
        ("origin", manifest.origin + (f": {manifest.source.where}" if manifest.source else "")),
        ("started", manifest.created_utc),
        ("ended", manifest.ended_utc or ("complete" if manifest.is_complete else "incomplete")),
        (
            "inferometer",
            manifest.tool_version + (f" at {manifest.git_commit}" if manifest.git_commit else ""),
        ),
    ]
    if manifest.plan is not None:
        plan = manifest.plan
        repeats = f"{plan.n_warmup} warm-ups, {plan.n_reps} repetitions in {plan.n_rounds} rounds"
        facts.append(("plan", f"{len(plan.points)} points, {repeats}, seed {plan.seed}, shuffled"))
    return tuple(facts)


def _model_facts(model: ModelSpec) -> tuple[tuple[str, str], ...]:
    attention = model.attention
    return (
        ("model", model.model_id),
        ("architecture", model.architecture),
        ("parameters", f"{format_count(n_parameters(model))} ({n_parameters(model):,})"),
        ("layers, hidden", f"{model.n_layers}, {model.hidden_size}"),
        (
            "heads, KV heads, head dim",
            attention.shape_text if model.n_attention_layers else "none: no layer attends",
        ),
        ("KV cache per token, 16 bit", format_bytes(kv_bytes_per_token(model, "bfloat16"))),
        ("source", f"{model.source.kind}: {model.source.where}"),
    )


def _engine_facts(engine: EngineFacts, load: LoadPlan | None) -> tuple[tuple[str, str], ...]:
    """Limits that a server reports; for an engine in this process what was loaded."""
    name = ("engine", f"{engine.engine} {engine.version}")
    if engine.scheduler is not None:
        return (name, *_scheduler_facts(engine.scheduler))
    if load is not None:
        return (name,)
    weights = format_bytes(engine.weight_bytes) if engine.weight_bytes is not None else _ABSENT
    return (
        name,
        (
            "libraries",
            ", ".join(f"{name} {version}" for name, version in engine.libraries) or _ABSENT,
        ),
        ("weights", f"{weights}, {engine.weights_origin}"),
        ("sha256 of the weights", engine.weights_sha256 or _ABSENT),
        ("attention", engine.attention_implementation or _ABSENT),
        ("loading", f"{engine.load_s:.1f} s" if engine.load_s is not None else _ABSENT),
        ("compiling", f"{engine.compile_s:.1f} s" if engine.compile_s is not None else "none"),
        *(
            (("computed whole on every rank", ", ".join(engine.replicated_parts)),)
            if engine.replicated_parts
            else ()
        ),
    )


def _scheduler_facts(scheduler: SchedulerFacts) -> tuple[tuple[str, str], ...]:
    """Limits that a server reports."""
    return tuple(
        (one.name, _ABSENT if (value := getattr(scheduler, one.name)) is None else str(value))
        for one in fields(scheduler)
    )


def _host_facts(host: HostFacts) -> tuple[tuple[str, str], ...]:
    memory = format_bytes(host.memory_bytes) if host.memory_bytes is not None else _ABSENT
    facts = [
        ("CPU", host.cpu_model or _ABSENT),
        ("cores, threads used", f"{host.n_cores or _ABSENT}, {host.n_threads_used or _ABSENT}"),
        ("memory", memory),
        ("governor", host.cpu_governor or _ABSENT),
        ("accelerator", host.accelerator or "none"),
        ("system", f"{host.os} {host.kernel}, Python {host.python}"),
    ]
    if host.accelerator_driver:
        facts.append(("driver", host.accelerator_driver))
    facts += [(name, value) for name, value in host.environment]
    return tuple(facts)
