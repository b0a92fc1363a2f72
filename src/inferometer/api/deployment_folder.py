"""Writing the folder of a deployment: all of it or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inferometer import __version__
from inferometer.api.cluster import Cluster, gate_of
from inferometer.api.fleet import FleetOptions, PrefillReplicas
from inferometer.api.progress import talk
from inferometer.api.sizing_answer import pick_of
from inferometer.api.sizing_cautions import cautions_of
from inferometer.decide.artefacts.folder import FILES, README_FILE, files_of
from inferometer.decide.artefacts.packaging import Fleet, Wishes, packaging_of
from inferometer.decide.artefacts.planning import fleet_of
from inferometer.decide.artefacts.router import gate_refusal
from inferometer.decide.sizing_types import Done, SizingQuestion
from inferometer.errors import SpecError
from inferometer.inputs.workload.types import WorkloadSpec
from inferometer.records import run_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One file and its purpose."""

    file: str
    purpose: str


def check_free(folder: Path, *, is_forced: bool) -> None:
    """Refuse a folder that is not empty, unless forced: before anything long is computed.

    Raises
    ------
    SpecError
        The folder is a file, or holds files and ``is_forced`` is not set.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(
            "this is a file", where=str(folder), allowed="a folder", try_="another name with --out"
        )
    if not is_forced and folder.is_dir() and any(folder.iterdir()):
        raise SpecError(
            "the folder is not empty",
            where=str(folder),
            allowed="a new folder",
            try_="another name with --out, or --force",
        )


def write_folder(
    folder: Path, fleet: Fleet, wishes: Wishes, *, is_forced: bool
) -> tuple[WrittenFile, ...]:
    """Write the files that deploy, watch and check the fleet; scripts can be run.

    A new folder appears when all of it is there.
    """
    check_free(folder, is_forced=is_forced)
    files = files_of(fleet, packaging_of(fleet, wishes))
    is_new = not folder.exists() or not any(folder.iterdir())
    target = folder.with_name(folder.name + run_folder.TEMPORARY_SUFFIX) if is_new else folder
    if is_new:
        run_folder.remove_folder(target)
    run_folder.make_folder(target)
    for name, text in files.items():
        run_folder.replace_file(target / name, text.encode())
        if name.endswith(".sh"):
            (target / name).chmod(0o755)
    if is_new:
        run_folder.move_into_place(target, folder)
    return tuple(
        WrittenFile(
            file=str(folder / name),
            purpose=FILES.get(name, "what was decided, and on what it rests"),
        )
        for name in files
    )


def check_written(options: FleetOptions, workload: WorkloadSpec) -> None:
    """Refuse, before the search, a fleet that the files could not describe in full.

    Raises
    ------
    SpecError
        Neither HAProxy nor ``vllm serve`` can do what the question requires.
    """
    cluster, default = options.cluster, Cluster()
    gate = gate_of(options.gate)
    no_gate = None if gate is None else gate_refusal(gate, workload)
    prefix_rules = ("prefix_threshold", "balance_abs", "balance_rel")
    refused = {
        "--gate, --order": (
            no_gate is not None,
            f"{no_gate}; such a gate needs a gateway that is set up by hand",
        ),
        "--prefill-replicas": (
            options.prefill != PrefillReplicas(),
            "prefill and decode replicas need a KV connector, which depends on the network",
        ),
        "--data-parallel-size": (
            cluster.data_parallel_size > 1,
            "the files start replicas one by one, not as a group that shares experts",
        ),
        "--class-replicas": (bool(cluster.class_replicas), "HAProxy knows no classes of requests"),
        "--prefix-threshold, --balance-abs, --balance-rel": (
            any(getattr(cluster, name) != getattr(default, name) for name in prefix_rules),
            "HAProxy knows no prefixes",
        ),
    }
    for flag, (is_asked, why) in refused.items():
        if is_asked:
            raise SpecError(
                f"files cannot be written: {why}", where=f"--out, {flag}", try_="size without --out"
            )


def write_answer(
    folder: Path,
    question: SizingQuestion,
    found: Sequence[Done],
    utilization_fraction: float,
    *,
    is_forced: bool,
) -> None:
    """Write the deployment folder of a sizing's pick; nothing without one."""
    pick = pick_of(found)
    if pick is None:
        talk(f"nothing meets the SLO: nothing is written to {folder}")
        return
    fleet = fleet_of(
        question,
        pick,
        utilization_fraction=utilization_fraction,
        cautions=cautions_of([pick]),
        tool_version=__version__,
    )
    write_folder(folder, fleet, Wishes(), is_forced=is_forced)
    talk(f"what runs, watches and checks it: {folder} (begin with {README_FILE})")
