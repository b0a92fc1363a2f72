"""How is the answer of a sizing written as a folder that deploys, watches and checks it?"""

from collections.abc import Sequence
from pathlib import Path

from inferometer import __version__
from inferometer.api.cluster import Cluster
from inferometer.api.deployment_folder import write_folder
from inferometer.api.fleet import FleetOptions
from inferometer.api.gate import Gate
from inferometer.api.prefill_pool import PrefillReplicas
from inferometer.api.progress import talk
from inferometer.api.sizing import pick_of
from inferometer.api.sizing_cautions import cautions_of
from inferometer.decide.artefacts.folder import README_FILE
from inferometer.decide.artefacts.packaging import Wishes
from inferometer.decide.artefacts.planning import fleet_of
from inferometer.decide.sizing_types import Done, SizingQuestion
from inferometer.errors import SpecError


def check_written(options: FleetOptions) -> None:
    """Refuse, before the search, a fleet of which the files would leave something out.

    Raises
    ------
    SpecError
        Nothing that is written, HAProxy or ``vllm serve``, does what was asked for.
    """
    cluster, default = options.cluster, Cluster()
    prefix_rules = ("prefix_threshold", "balance_abs", "balance_rel")
    refused = {
        "--gate, --order": (
            options.gate != Gate(),
            "HAProxy sends requests on as they come: a gate needs a gateway that is set up by hand",
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
    """Write the folder of what a sizing picked; nothing where it picked nothing."""
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
