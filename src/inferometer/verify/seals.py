"""Seals: predictions with their questions and basis, which nobody can change unnoticed.

A seal is written as canonical JSON (keys sorted, no blanks, shortest numbers), whose SHA-256 is
its name. All times are UTC.

The identity of a measured run is the SHA-256 of its files, so that the ledger can show changes.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import msgspec

from inferometer.errors import RecordError
from inferometer.inputs.foreign_bytes import Door
from inferometer.inputs.plans import PlanKind, VerifyPlan
from inferometer.inputs.types import ModelSpec
from inferometer.inputs.workload.plan import I32, I64, RequestPlan
from inferometer.perfmodel.types import Basis
from inferometer.records import raw_log, run_folder
from inferometer.records.run_folder import MANIFEST_NAME
from inferometer.stats.estimate import Estimate, Verdict

Metric: TypeAlias = Literal[
    "ttft_p50_s",
    "ttft_p95_s",
    "tpot_p50_s",
    "tpot_p95_s",
    "e2e_p50_s",
    "e2e_p95_s",
    "workflow_p50_s",
    "workflow_p95_s",
    "ttft_mean_s",
    "tpot_mean_s",
    "output_tokens_per_s",
    "completed_requests_per_s",
    "prefill_s",
    "decode_step_s",
]
"""A predicted metric; its unit is in the name."""

SealKind: TypeAlias = PlanKind | Literal["change"]
"""*change*: of a server's settings, as a diagnosis advises."""
SEAL_VERSION: Final = 1
_PATHS: Final = frozenset({"model", "fit", "gate", "groups"})
_FIRST_KEYS: Final[dict[str, object]] = {
    "model": None,
    "hardware": None,
    "fit": None,
    "dtype": None,
    "kv_dtype": None,
    "quantization": None,
    "tp": None,
    "policy": "vllm",
    "max_num_seqs": None,
    "max_num_batched_tokens": None,
    "max_model_len": None,
    "block_size": None,
    "num_blocks": None,
    "gpu_memory_utilization": 0.92,
    "own": {},
    "replicas": 1,
    "router": "least-loaded",
}
"""Keys of a plan's server that are part of its sum where they are left out: plans that were sealed
before there were others keep their sums."""
_MOST_SHOWN: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One load of a server, or one point of a sweep."""

    at: str
    """Name: ``2 requests/s``, ``4 users``, ``prompt 64, batch 1``."""
    asks: str
    """The exact question, in words."""
    sha256: str
    """Hash of all its requests, or of the point."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One number that is predicted.

    ``predicted`` has a 90 % interval; its unit is that of the metric.
    """

    at: str
    metric: Metric
    predicted: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseClaim:
    """Predicted verdict on the SLO at this load; *undecided* claims nothing."""

    at: str
    objective: str
    predicted: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeVersion:
    """The code that predicted."""

    version: str
    git_commit: str | None
    """With ``+changes`` where files differed from it; None outside a repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """The basis of the predictions."""

    basis: Basis
    subject: str
    """Model and device."""
    rests_on: str
    """Origin of its step times, KV cache and rules, in words."""
    sha256: str
    """Of the fit's file; without one, of the model and the device as the catalogue had them, and of
    the efficiencies in the package where step times are those of published rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """All predictions of an experiment."""

    experiment: str
    kind: SealKind
    sealed_utc: str
    code: CodeVersion
    plan_sha256: str
    belief: Belief
    questions: tuple[Question, ...]
    claims: tuple[Claim, ...]
    promises: tuple[PromiseClaim, ...]
    seal_version: int = SEAL_VERSION


def canonical(value: object) -> bytes:
    """Canonical JSON of these facts.

    Example
    -------
    >>> canonical({"b": 1, "a": [0.1]})
    b'{"a":[0.1],"b":1}'
    """
    return msgspec.json.encode(value, order="sorted")


def sha256_of(value: object) -> str:
    """The SHA-256 of facts, by their canonical JSON; of bytes as they are."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical(value)).hexdigest()


_NEWER: Final[dict[str, object]] = {
    "blocks": None,
    "stored_bits": (),
    "has_embedding_norm": False,
    "n_tower_weights": 0,
    "groups": (),
    "shared": None,
    "streams": None,
    "ngrams": None,
    "relative": None,
    "n_loops": 1,
}
"""Fields of models that are newer than the first seals, with their defaults."""
_NEWER_IN: Final[dict[str, dict[str, object]]] = {
    "attention": {"has_head_gate": False, "query_rank": None},
    "moe": {"latent_size": None, "n_empty_experts": 0, "has_latent_norms": False},
    "indexer": {"chooses_blocks": False, "key_tokens": 1, "has_key_gate": False},
    "recurrent": {"has_wide_decays": False, "has_qk_norm": False},
    "per_layer_inputs": {"n_streams": 1, "laurel_rank": None},
}
"""The same of parts of models, with their defaults."""


def model_facts(model: ModelSpec) -> dict[str, object]:
    """Fields of the model for a sum; newer ones only where they differ from their defaults."""
    facts: dict[str, object] = msgspec.to_builtins(model)
    del facts["float4_bits"]  # in no sum yet: plans of other formats would be refused as changed
    for part, newer in _NEWER_IN.items():
        if isinstance(known := facts.get(part), dict):
            facts[part] = {k: v for k, v in known.items() if k not in newer or v != newer[k]}
    return {
        name: value
        for name, value in facts.items()
        if name not in _NEWER or (value and value != _NEWER[name])
    }


def plan_sha256(plan: VerifyPlan) -> str:
    """SHA-256 of a plan as parsed.

    Comments, the order of its keys and the folder of its files do not matter. The fit's file and
    the workload's have sums of their own.
    """
    replace = msgspec.structs.replace
    paths = {name: Path(str(plan.server[name])).name for name in _PATHS & plan.server.keys()}
    server = _FIRST_KEYS | plan.server | paths
    server["gpu_memory_utilization"] = float(str(server["gpu_memory_utilization"]))
    traffic = (
        None
        if plan.traffic is None
        else replace(plan.traffic, workload=Path(plan.traffic.workload).name)
    )
    client = replace(plan.client, tokenizer=_name_of(plan.client.tokenizer))
    described = msgspec.to_builtins(replace(plan, traffic=traffic, client=client))
    if not plan.client.sends_priorities:  # as plans were before there was this key
        del described["client"]["sends_priorities"]
    return sha256_of(described | {"server": server})


def requests_sha256(requests: RequestPlan) -> str:
    """SHA-256 of every request: instant, lengths, predecessor and shared prefix.

    Seals are older than companions: where nobody has one, there is no such column.
    """
    digest = hashlib.sha256()
    for name in requests._fields:
        column: I32 | I64 = getattr(requests, name)
        if name == "accompanies" and (column < 0).all():
            continue
        digest.update(f"{name} {len(column)} {column.dtype.str} ".encode())
        digest.update(column.tobytes())
    return digest.hexdigest()


def _name_of(path: str | None) -> str | None:
    return None if path is None else Path(path).name


_DOOR: Final = Door(
    noun="seal",
    allowed="the file as it was written",
    refusal=RecordError,
    try_="a copy of it, or another folder with --out",
)

SEAL_NAME: Final = "seal.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """Content of ``seal.json``."""

    sha256: str
    seal: Seal


def write_seal(folder: Path, seal: Seal) -> None:
    """Write the seal into the folder, all or nothing.

    Raises
    ------
    RecordError
        The file cannot be written.
    """
    run_folder.make_folder(folder)
    stored = SealedFile(sha256=sha256_of(seal), seal=seal)
    run_folder.replace_file(
        folder / SEAL_NAME, msgspec.json.format(msgspec.json.encode(stored), indent=2) + b"\n"
    )


def read_seal(folder: Path) -> Seal | None:
    """The seal of this folder; None where nothing was sealed.

    Raises
    ------
    RecordError
        The file cannot be read, or was edited.
    """
    path = folder / SEAL_NAME
    if not path.exists():
        return None
    stored = _DOOR.json(_DOOR.bytes_of(path), SealedFile, where=str(path))
    if sha256_of(stored.seal) != stored.sha256:
        raise RecordError(
            "the seal was edited: its content and its SHA-256 differ",
            where=str(path),
            allowed="predictions as they were sealed",
            try_="the original file; its content is also in the ledger",
        )
    return stored.seal


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """A file of a run's folder, or another tool's file, and its SHA-256."""

    name: str
    sha256: str

    @property
    def is_raw_log(self) -> bool:
        """Is it a raw log? Those differ between any two runs."""
        return self.name.startswith(f"{raw_log.RAW_FOLDER}/")


def evidence_of(path: Path) -> tuple[FileSum, ...]:
    """Files of a run with their SHA-256: manifest, tables and raw logs, or the one file.

    Raises
    ------
    RecordError
        A file cannot be read.
    """
    if path.is_file() and path.name != MANIFEST_NAME:
        return (FileSum(name=path.name, sha256=run_folder.sum_of(path)),)
    folder = path.parent if path.is_file() else path
    fixed = [
        folder / name for name in (MANIFEST_NAME, run_folder.SUMS_NAME) if (folder / name).is_file()
    ]
    files = [*fixed, *raw_log.raw_logs(folder)]
    return tuple(
        FileSum(name=file.relative_to(folder).as_posix(), sha256=run_folder.sum_of(file))
        for file in files
    )


def refuse_changed(path: Path, stored: Sequence[FileSum], *, run_id: str) -> None:
    """Refuse a run whose files are not those in the ledger."""
    now = {one.name: one.sha256 for one in evidence_of(path)}
    changed = [one.name for one in stored if now.get(one.name) != one.sha256]
    if changed:
        more = f" and {len(changed) - _MOST_SHOWN} more" if len(changed) > _MOST_SHOWN else ""
        raise RecordError(
            f"{', '.join(changed[:_MOST_SHOWN])}{more} of run {run_id} changed since the ledger"
            " took the measurement in",
            where=str(path),
            allowed="the files as they were measured",
            try_="the original folder, from a backup",
        )


def shared_raw_log(evidence: Iterable[FileSum], known: Iterable[FileSum]) -> bool:
    """Do both lists have a raw log in common?"""
    sums = {one.sha256 for one in known if one.is_raw_log}
    return any(one.is_raw_log and one.sha256 in sums for one in evidence)
