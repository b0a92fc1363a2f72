"""Where do the numbers of a run come from: the model, the engine, the machine, the command?"""

import shlex
from pathlib import Path

from inferometer.inputs.types import ModelSpec
from inferometer.perfmodel.kv_cache import kv_bytes_per_token
from inferometer.perfmodel.weights import n_parameters
from inferometer.records.types import EngineFacts, HostFacts, Run, RunManifest
from inferometer.report.views import FactGroup
from inferometer.units import format_bytes, format_count

_ABSENT = "not known"


def fact_groups(run: Run, label: str) -> tuple[FactGroup, ...]:
    """What is known of a run's origin, in groups; what is not known is marked as unknown."""
    manifest = run.manifest
    groups = [FactGroup(title=f"Run {label}", facts=_run_facts(manifest))]
    groups += (
        [FactGroup(title="Model", facts=_model_facts(manifest.model))] if manifest.model else []
    )
    groups += (
        [FactGroup(title="Engine", facts=_engine_facts(manifest.engine))] if manifest.engine else []
    )
    groups += (
        [FactGroup(title="Machine", facts=_host_facts(manifest.host))] if manifest.host else []
    )
    return tuple(groups)


def rerun_command(run: Run) -> str:
    """The command that made the run."""
    return shlex.join(run.manifest.command) if run.manifest.command else ""


def data_files(path: Path) -> tuple[tuple[str, str], ...]:
    """What lies in a run's folder."""
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
            f"{attention.n_heads}, {attention.n_kv_heads}, {attention.head_dim}",
        ),
        ("KV cache per token, 16 bit", format_bytes(kv_bytes_per_token(model, "bfloat16"))),
        ("source", f"{model.source.kind}: {model.source.where}"),
    )


def _engine_facts(engine: EngineFacts) -> tuple[tuple[str, str], ...]:
    weights = format_bytes(engine.weight_bytes) if engine.weight_bytes is not None else _ABSENT
    return (
        ("engine", f"{engine.engine} {engine.version}"),
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
