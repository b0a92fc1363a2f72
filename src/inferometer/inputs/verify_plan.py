"""Plans of ``inferometer verify``: server, loads or points, and SLO.

These are the tables of a plan of ``inferometer verify``, key for key, and ``read_plan`` reads one.
A plan has either ``[traffic]``, loads that are replayed against a server, or ``[points]``, prefills
and decodes of a sweep. Its servers are described by the flags of ``inferometer simulate``.
``inferometer size --out`` writes a plan of its chosen deployment.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.file_tables import table_from_text, text_of
from inferometer.inputs.foreign_bytes import path_named
from inferometer.inputs.load_plan import Endpoint, PromptForm
from inferometer.inputs.workload.distributions import Natural

PlanKind: TypeAlias = Literal["load", "sweep"]
SIZED_PLAN: Final = "verify.toml"
"""File name in the folder of ``inferometer size --out``."""

Positive: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]


Setting: TypeAlias = bool | int | float | str
ServerTable: TypeAlias = dict[str, Setting | list[str] | dict[str, Setting]]
"""The servers that are simulated: keys are the flags of ``inferometer simulate`` that describe
servers (``max_num_seqs``, ``replicas``, ``gate``, ``groups``), with the same meaning; ``own`` are
the engine's other settings, as with ``--set``. ``api.verify_belief`` checks them."""
_PATHS: Final = ("fit", "gate", "groups")


class Traffic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Loads: a workload at several rates or users, the same for simulator and server.

    ``workload`` is a preset, a workload file or a trace. It ends after ``n_requests``, or with the
    last request within ``duration_s`` (only for open loops: the number of requests of a closed
    loop depends on the server). A trace without a load keeps its own arrival times.
    """

    workload: str = "chat"
    rates_per_s: tuple[Positive, ...] = ()
    concurrencies: tuple[Natural, ...] = ()
    n_requests: Natural | None = None
    duration_s: Positive | None = None
    seed: Annotated[int, msgspec.Meta(ge=0)] | None = None
    slo: str | None = None

    def __post_init__(self) -> None:
        if self.concurrencies and self.n_requests is None:
            raise ValueError(
                "a closed loop needs n_requests: how many come in a time depends on the server"
            )
        if self.concurrencies and self.duration_s is not None:
            raise ValueError("a closed loop ends after n_requests, not after a duration_s")
        for name in ("rates_per_s", "concurrencies"):
            loads = getattr(self, name)
            if len(set(loads)) < len(loads):
                raise ValueError(f"the same load twice in {name}")


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How requests are sent: the flags of ``inferometer load``.

    ``served_model`` defaults to the model's id.
    """

    served_model: str | None = None
    endpoint: Endpoint = "completions"
    prompts: PromptForm = "words"
    tokenizer: str | None = None
    processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    drain_s: Positive = 60.0
    timeout_s: Positive = 600.0
    sends_priorities: bool = False


class Points(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Points of a sweep: each batch size at each prompt length."""

    prompt_tokens: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]
    batch_sizes: Annotated[tuple[Natural, ...], msgspec.Meta(min_length=1)]
    gen_tokens: Annotated[int, msgspec.Meta(ge=2)] = 32


class VerifyPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan: either ``traffic`` or ``points``, for the ``server`` that is simulated.

    ``name`` is the experiment's name in the ledger.
    """

    name: str
    server: ServerTable
    traffic: Traffic | None = None
    points: Points | None = None
    client: Client = msgspec.field(default_factory=Client)

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("the experiment has no name")
        if "model" not in self.server:
            raise ValueError("[server] names no model")
        if (self.traffic is None) == (self.points is None):
            raise ValueError("a plan has either [traffic] or [points]")

    @property
    def model(self) -> str:
        """The model's name, or its folder."""
        return str(self.server["model"])

    @property
    def kind(self) -> PlanKind:
        """Kind of plan: loads of a server, or points of a sweep."""
        return "load" if self.traffic is not None else "sweep"


def read_plan(path: Path) -> VerifyPlan:
    """The plan of a TOML file, such as the ``verify.toml`` of ``inferometer size --out``.

    The paths in it are relative to its folder.

    For the ``plan.json`` of ``inferometer size --out`` the ``verify.toml`` beside it is read.

    Raises
    ------
    SpecError
        The file cannot be read, or a key or value is invalid: the message names file, key, value
        and the allowed ones.
    """
    if path.suffix.lower() == ".json":
        path = _beside(path)
    text = text_of(
        path,
        noun="plan",
        endings=".toml",
        try_=f"{sizing_of('MODEL')}; docs/verify.md shows a plan",
    )
    return _rooted(plan_from_text(text, where=str(path)), path.parent)


def sizing_of(model: str) -> str:
    """The command that writes ``plan.json`` and ``verify.toml`` of this model."""
    traffic = ("--rate", 1, "--slo", "ttft:p95<1s", "--gpus", "h100_sxm")
    return suggestions.command("size", model, *traffic, "--out", "plan")


def _beside(path: Path) -> Path:
    plan = path.with_name(SIZED_PLAN)
    if not plan.is_file():
        raise SpecError(
            f"{path.name} has no {SIZED_PLAN} beside it, in which inferometer size writes what to"
            " verify",
            where=str(path),
            allowed=(
                "a TOML plan (docs/verify.md), or a plan.json of inferometer size with its"
                f" {SIZED_PLAN}; sizings by a fit have none"
            ),
            try_=suggestions.command("deploy", path, "--out", path.with_name(f"{path.stem}-files")),
        )
    return plan


def plan_from_text(text: str, *, where: str) -> VerifyPlan:
    """The plan that this TOML describes.

    Raises
    ------
    SpecError
        An invalid key or value; the message has ``where``, the name of the text.

    Example
    -------
    >>> points = "points = {prompt_tokens = [8], batch_sizes = [1]}"
    >>> plan_from_text(f"name = 'x'; server = {{model = 'm'}}; {points}".replace("; ", chr(10)), where="here").kind
    'sweep'
    """
    return table_from_text(text, VerifyPlan, where=where)


def _rooted(plan: VerifyPlan, folder: Path) -> VerifyPlan:
    """The plan with paths relative to the working folder; presets and names stay."""
    replace = msgspec.structs.replace
    client, traffic = plan.client, plan.traffic
    server = plan.server | {
        name: str(folder / str(plan.server[name])) for name in _PATHS if name in plan.server
    }
    if path_named(str(folder / plan.model), where="server.model").exists():
        server["model"] = str(folder / plan.model)
    if client.tokenizer is not None:
        client = replace(client, tokenizer=str(folder / client.tokenizer))
    if (
        traffic is not None
        and path_named(str(folder / traffic.workload), where="traffic.workload").is_file()
    ):
        traffic = replace(traffic, workload=str(folder / traffic.workload))
    return replace(plan, server=server, client=client, traffic=traffic)
