"""May a run that was broken off be gone on with, or would the result be a mixture of two?"""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from inferometer.errors import RecordError
from inferometer.records.types import Caution, EngineFacts, HostFacts, RunManifest

_MAX_SHOWN = 5


def resumed(stored: RunManifest, asked: RunManifest, *, where: str) -> RunManifest:
    """The manifest of a run that is gone on with: the stored one, with facts that it lacked.

    Raises
    ------
    RecordError
        Plan, engine, model or machine differ; the message names what does.
    """
    found = differences(stored, asked)
    if found:
        shown = "; ".join(found[:_MAX_SHOWN]) + (
            f"; and {len(found) - _MAX_SHOWN} more" if len(found) > _MAX_SHOWN else ""
        )
        raise RecordError(
            f"the folder holds another run: {shown}",
            where=where,
            allowed="the same plan, engine, model and machine, to go on with a run",
            try_="the command that the run was started with, or another folder with --out",
        )
    return replace(
        stored,
        model=stored.model or asked.model,
        engine=stored.engine or asked.engine,
        host=stored.host or asked.host,
        cautions=without_repeats((*stored.cautions, *asked.cautions)),
    )


def differences(stored: RunManifest, asked: RunManifest) -> tuple[str, ...]:
    """What of the plan, the model, the engine and the machine is not the same?

    What one side does not know is no difference.
    """
    pairs = (
        ("plan", stored.plan, asked.plan),
        ("model", stored.model, asked.model),
        ("engine", _lasting(stored.engine), _lasting(asked.engine)),
        ("machine", _machine(stored.host), _machine(asked.host)),
    )
    found: list[str] = []
    for name, before, now in pairs:
        if before is not None and now is not None:
            found += _leaf_differences(name, msgspec.to_builtins(before), msgspec.to_builtins(now))
    return tuple(found)


def without_repeats(cautions: Iterable[Caution]) -> tuple[Caution, ...]:
    """Each caution once, in the order of its first appearance."""
    return tuple(dict.fromkeys(cautions))


def _lasting(facts: EngineFacts | None) -> EngineFacts | None:
    """What must not change between sessions.

    All but how long loading took this time, and how much memory was free for the cache.
    """
    return None if facts is None else replace(facts, load_s=None, compile_s=None, n_kv_blocks=None)


def _machine(host: HostFacts | None) -> dict[str, object] | None:
    """What makes it the same machine for a measurement; names of hosts change with every container."""
    if host is None:
        return None
    return {
        "cpu_model": host.cpu_model,
        "accelerator": host.accelerator,
        "n_threads_used": host.n_threads_used,
    }


def _leaf_differences(name: str, before: object, now: object) -> list[str]:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = dict.fromkeys([*before, *now])
        return [
            line
            for key in keys
            for line in _leaf_differences(f"{name}.{key}", before.get(key), now.get(key))
        ]
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        if len(before) != len(now):
            return [f"{name} has {len(now)} entries, stored are {len(before)}"]
        return [
            line
            for i, pair in enumerate(zip(before, now, strict=True))
            for line in _leaf_differences(f"{name}[{i}]", *pair)
        ]
    return [] if before == now else [f"{name} is {now!r}, stored is {before!r}"]
