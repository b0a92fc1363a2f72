"""Which files run, watch and check what a sizing decided?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from inferometer.api import deployment_folder
from inferometer.api.answer import Answer
from inferometer.api.question import Option, option
from inferometer.decide.artefacts.folder import PLAN_FILE, read_plan
from inferometer.decide.artefacts.packaging import Wishes
from inferometer.errors import SpecError
from inferometer.inputs.catalog import known_model
from inferometer.inputs.file_tables import text_of
from inferometer.inputs.plans import sizing_of
from inferometer.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployAnswer(Answer):
    """Files that were written."""

    table = "files"

    model_id: str
    hardware: str
    n_replicas: int
    n_spare: int
    files: tuple[deployment_folder.WrittenFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deploy:
    """The plan to deploy, and where."""

    plan: Annotated[Path, Option("", is_argument=True)]
    out: Annotated[Path, Option("Folder to write to.", is_common=True, metavar="DIR")]
    force: bool = option(False, "Overwrite what is in DIR.", is_common=True)
    served_name: str | None = option(
        None, "What clients call the model. [what vLLM loads]", "Model", metavar="NAME"
    )
    model_source: str | None = option(
        None,
        "What vLLM loads; a folder is where --model-claim is mounted. [its Hugging Face id]",
        "Model",
        is_common=True,
        metavar="ID_OR_FOLDER",
    )
    model_claim: str | None = option(
        None,
        "PersistentVolumeClaim that holds the weights. [its own, and a job that fills it]",
        "Model",
        metavar="NAME",
    )
    storage_class: str | None = option(
        None,
        "Storage class of the claim that is created; many nodes must be able to mount it. [the cluster's default]",
        "Model",
        metavar="NAME",
    )
    node_label: tuple[str, ...] = option(
        (), "Label of the nodes that have the device; repeatable.", "Hardware", metavar="KEY=VALUE"
    )
    image: str | None = option(
        None, "The container with vLLM. [vLLM's own for the device]", "Engine", metavar="NAME"
    )
    port: int = option(8000, "Port of each replica.", "Engine", least=1, most=65535)
    namespace: str = option("default", "Kubernetes namespace.", "Cluster", is_common=True)
    spare: int = option(
        0, "Replicas beyond those that the traffic needs.", "Cluster", is_common=True, least=0
    )
    most: int | None = option(
        None,
        "Replicas that an autoscaler may start. [no autoscaler]",
        "Cluster",
        is_common=True,
        least=1,
    )
    surge: int = option(0, "Replicas for which devices are free in a rollout.", "Cluster", least=0)
    backend: tuple[str, ...] = option(
        (),
        "A replica outside Kubernetes, for router and metrics; repeatable.",
        "Cluster",
        is_common=True,
        metavar="HOST:PORT",
    )
    given: frozenset[str] = frozenset()


def deploy(question: Deploy) -> DeployAnswer:
    """Write the files.

    Raises
    ------
    SpecError, SizingError
        The plan cannot be read, the folder is not free, or vLLM cannot run what was simulated.
    """
    path = question.plan / PLAN_FILE if question.plan.is_dir() else question.plan
    if path.suffix == ".toml":
        raise SpecError(
            "groups of replicas of different kinds are not deployed",
            where=str(path),
            allowed="the plan.json of inferometer size --out DIR: replicas of one kind",
            try_="inferometer size MODEL --gpus IDS --out DIR for the requests of each group",
        )
    model = known_model(str(path))
    text = text_of(
        path,
        noun="plan",
        endings="plan.json",
        try_=sizing_of("MODEL" if model is None else model.model_id),
    )
    fleet = read_plan(text, where=str(path))
    wishes = Wishes(
        served_name=question.served_name,
        model_source=question.model_source,
        namespace=question.namespace,
        port=question.port,
        image=question.image,
        n_spare=question.spare,
        n_surge=question.surge,
        n_most=question.most,
        model_claim=question.model_claim,
        storage_class=question.storage_class,
        node_labels=tuple(_node_label(one) for one in question.node_label),
        backends=question.backend,
    )
    files = deployment_folder.write_folder(question.out, fleet, wishes, is_forced=question.force)
    return DeployAnswer(
        model_id=fleet.model.model_id,
        hardware=fleet.hardware.name,
        n_replicas=fleet.n_replicas,
        n_spare=wishes.n_spare,
        files=files,
    )


def _node_label(text: str) -> tuple[str, str]:
    """Key and value of ``KEY=VALUE``, a label of Kubernetes nodes."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise SpecError(
            f"{text!r} is no label",
            where="--node-label",
            allowed="KEY=VALUE",
            try_="--node-label pool=h100",
        )
    return key, value


def deploy_text(answer: DeployAnswer) -> str:
    """The files with their purposes."""
    spare = f" and {answer.n_spare} spare" if answer.n_spare else ""
    replicas = f"{counted(answer.n_replicas, 'replica')}{spare}"
    heading = f"{replicas} of {answer.model_id} on {answer.hardware}"
    return "\n".join([heading, *(f"  {file.file}  {file.purpose}" for file in answer.files)])
