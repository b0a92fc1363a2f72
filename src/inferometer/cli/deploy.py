"""inferometer deploy: which files run, watch and check what a sizing decided?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from inferometer.api import deployment_folder
from inferometer.cli import answer, flags
from inferometer.decide.artefacts.folder import read_plan
from inferometer.decide.artefacts.packaging import Wishes
from inferometer.errors import SpecError
from inferometer.inputs.file_tables import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployAnswer:
    """What was written."""

    model_id: str
    hardware: str
    n_replicas: int
    n_spare: int
    files: tuple[deployment_folder.WrittenFile, ...]


ANSWER = DeployAnswer


@click.command(
    "deploy",
    short_help="Write what runs, watches and checks a plan of inferometer size.",
    epilog="""\b
Examples:
  inferometer deploy plan/plan.json --out files --namespace llm --spare 1
  inferometer deploy plan/plan.json --out files --force --backend 10.0.0.1:8000 --backend 10.0.0.2:8000
""",
)
@click.argument("plan", type=click.Path(path_type=Path), metavar="PLAN")
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), metavar="DIR", help="Where to."
)
@click.option("--force", is_flag=True, help="Over what is in DIR.")
@click.option(
    "--served-name", metavar="NAME", help="What clients call the model. [what vLLM loads]"
)
@click.option(
    "--model-source", metavar="ID_OR_FOLDER", help="What vLLM loads. [the model's Hugging Face id]"
)
@click.option("--namespace", default="default", show_default=True, help="Of Kubernetes.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="Of each replica.",
)
@click.option(
    "--image", metavar="NAME", help="The container with vLLM. [vLLM's own for the device]"
)
@click.option(
    "--spare",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Replicas beyond those that the traffic needs.",
)
@click.option(
    "--most",
    type=click.IntRange(min=1),
    help="Replicas that an autoscaler may start. [no autoscaler]",
)
@click.option(
    "--surge",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Replicas for which devices are free in a rollout.",
)
@click.option(
    "--model-claim",
    metavar="NAME",
    help="PersistentVolumeClaim that holds the weights. [its own, and a job that fills it]",
)
@click.option(
    "--storage-class",
    metavar="NAME",
    help="Of its own claim; many nodes must mount it. [the cluster's default]",
)
@click.option(
    "--node-label",
    multiple=True,
    metavar="KEY=VALUE",
    help="Of the nodes that have the device; repeatable.",
)
@click.option(
    "--backend",
    multiple=True,
    metavar="HOST:PORT",
    help="A replica outside Kubernetes, for router and metrics; repeatable.",
)
@flags.json_option
def command(plan: Path, **flags: Any) -> None:
    """Write the files that run, watch and check PLAN, the plan.json of `inferometer size --out DIR`.

    vllm serve command, Kubernetes objects, router, Prometheus rules and alerts, Grafana dashboard,
    load test, and the assumptions in words.
    """
    fleet = read_plan(text_of(plan, noun="plan", endings="plan.json"), where=str(plan))
    wishes = Wishes(
        served_name=flags["served_name"],
        model_source=flags["model_source"],
        namespace=flags["namespace"],
        port=flags["port"],
        image=flags["image"],
        n_spare=flags["spare"],
        n_surge=flags["surge"],
        n_most=flags["most"],
        model_claim=flags["model_claim"],
        storage_class=flags["storage_class"],
        node_labels=tuple(_label(text) for text in flags["node_label"]),
        backends=flags["backend"],
    )
    files = deployment_folder.write_folder(flags["out"], fleet, wishes, is_forced=flags["force"])
    said = DeployAnswer(
        model_id=fleet.model.model_id,
        hardware=fleet.hardware.name,
        n_replicas=fleet.n_replicas,
        n_spare=wishes.n_spare,
        files=files,
    )
    answer.give(said, as_json=flags["as_json"], show=_shown)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise SpecError(
            f"{text!r} is no label",
            where="--node-label",
            allowed="KEY=VALUE",
            try_="--node-label pool=h100",
        )
    return key, value


def _shown(said: DeployAnswer) -> str:
    spare = f" and {said.n_spare} spare" if said.n_spare else ""
    heading = f"{said.n_replicas}{spare} replicas of {said.model_id} on {said.hardware}"
    return "\n".join([heading, *(f"  {file.file}  {file.says}" for file in said.files)])
