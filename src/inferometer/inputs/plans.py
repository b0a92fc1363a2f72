"""Plans: of a sweep, of a load test, and of ``inferometer verify``.

The structs are the tables of a plan of ``inferometer verify``, key for key; ``read_plan`` reads one.
A plan has either ``[traffic]``, loads that are replayed against a server, or ``[points]``, prefills
and decodes of a sweep. Its servers are described by the flags of ``inferometer simulate``.
``inferometer size --out`` writes a plan of its chosen deployment.

The plan of a load test has no secrets: bearer tokens and header values come from the environment
and are neither printed nor stored.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
import numpy as np

from inferometer import suggestions
from inferometer.errors import SpecError
from inferometer.inputs.file_tables import table_from_text, text_of
from inferometer.inputs.foreign_bytes import path_named
from inferometer.inputs.types import SweepPlan, SweepPoint, SweepVisit
from inferometer.inputs.workload.distributions import Natural
from inferometer.inputs.workload.types import WorkloadSpec

Endpoint: TypeAlias = Literal["chat", "completions"]
PromptForm: TypeAlias = Literal["token-ids", "tokenizer", "trace", "words"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load test of one server, with all that is needed to repeat it."""

    url: str
    """Scheme, host, port and path prefix, such as ``http://127.0.0.1:8000``."""
    served_model: str
    """The model's name on the server."""
    endpoint: Endpoint
    workload: WorkloadSpec
    is_streaming: bool = True
    for_s: float | None = None
    """Requests are sent for this time; those then in flight have ``drain_s`` to finish."""
    drain_s: float = 60.0
    timeout_s: float = 600.0
    """A longer request is cancelled and recorded as such."""
    n_processes: int = 1
    max_connections: int | None = None
    """Most connections at once; None: one for each request in flight."""
    max_concurrency: int | None = None
    """Most requests in flight of an open loop; others wait at the client. None: no limit."""
    prompt_form: PromptForm = "words"
    """token-ids: exact lengths, if the server accepts ids; tokenizer: text of exact lengths by a
    local tokenizer; words: one word per requested token, whose true token count only the server's
    usage has; trace: the texts of the replayed file."""
    tokenizer: str | None = None
    """Folder or file of the local tokenizer."""
    text_seed: int | None = None
    """Seed of the prompts' words and token ids; None: the workload's."""
    repeats_prompts: bool = True
    """Prompts have the same words in each run; else new ones, which no server's prefix cache
    has from an earlier run."""
    ignores_eos: bool = True
    """Request answers of exactly the workload's lengths, as engines' own benchmarks do."""
    sends_priorities: bool = False
    """Does each body have the request's priority (smaller is more urgent)?"""
    extra_body: tuple[tuple[str, str], ...] = ()
    """Further keys of the request's body and their values as JSON, sorted; texts in them as
    ``without_secrets`` stores them."""
    header_names: tuple[str, ...] = ()
    """Names of the custom headers that were sent; values are not stored."""
    sends_bearer_token: bool = False
    verifies_tls: bool = True
    proxy: str | None = None
    """Without its credentials."""
    metrics_url: str | None = None
    """Where the server's metrics were scraped, without credentials and query."""


def most_in_flight(load: LoadPlan, n_processes: int, process_index: int) -> int | None:
    """A process's share of the concurrent requests, at least one; each has its connection."""
    caps = [cap for cap in (load.max_connections, load.max_concurrency) if cap is not None]
    if not caps:
        return None
    most = min(caps)
    return max(most // n_processes + (process_index < most % n_processes), 1)


_DIGEST_CHARACTERS: Final = 8


def without_secrets(load: LoadPlan) -> LoadPlan:
    """The plan without secrets, for the record.

    Texts in the body's extra keys may be tokens, so only a digest of each is stored.
    """
    return replace(
        load,
        extra_body=tuple(
            (name, body_value_without_secrets(value)) for name, value in load.extra_body
        ),
    )


def body_value_without_secrets(value: str) -> str:
    """A JSON value with texts replaced by short digests: they compare, but reveal nothing.

    >>> body_value_without_secrets('{"a": 0.5, "b": "token"}')
    '{"a":0.5,"b":"…3c469e9d"}'
    """
    return msgspec.json.encode(_without_texts(msgspec.json.decode(value))).decode()


def texts_of(value: str) -> tuple[str, ...]:
    """All texts in a JSON value, which may be secrets.

    >>> texts_of('{"a": 0.5, "b": ["one", {"c": "two"}]}')
    ('one', 'two')
    """
    return tuple(_texts(msgspec.json.decode(value)))


def _without_texts(value: object) -> object:
    match value:
        case str():
            return f"…{hashlib.sha256(value.encode()).hexdigest()[:_DIGEST_CHARACTERS]}"
        case list():
            return [_without_texts(one) for one in value]
        case dict():
            return {name: _without_texts(one) for name, one in value.items()}
        case _:
            return value


def _texts(value: object) -> list[str]:
    match value:
        case str():
            return [value]
        case list():
            return [text for one in value for text in _texts(one)]
        case dict():
            return [text for one in value.values() for text in _texts(one)]
        case _:
            return []


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


Axes: TypeAlias = Literal["grid", "separate"]


def sweep_points(
    *,
    prompts: Sequence[int],
    batches: Sequence[int],
    gen_tokens: int,
    axes: Axes,
    batch_prompt_tokens: int | None = None,
) -> tuple[SweepPoint, ...]:
    """The points of the full grid, or of two separate axes.

    All prompts at the smallest batch, all batches at one prompt length.

    That length is ``batch_prompt_tokens``, by default the smallest of ``prompts``.

    Example
    -------
    >>> len(sweep_points(prompts=(128, 256, 512), batches=(1, 2, 4), gen_tokens=32, axes="separate"))
    5
    """
    pairs = {(prompt, batch) for prompt in prompts for batch in batches}
    if axes == "separate":
        batch_axis_prompt = min(prompts) if batch_prompt_tokens is None else batch_prompt_tokens
        pairs = {(prompt, min(batches)) for prompt in prompts} | {
            (batch_axis_prompt, batch) for batch in batches
        }
    return tuple(
        SweepPoint(prompt_tokens=prompt, batch_size=batch, gen_tokens=gen_tokens)
        for prompt, batch in sorted(pairs)
    )


def shuffled(plan: SweepPlan) -> SweepPlan:
    """The same sweep with its points in an order that ``seed`` decides.

    Equal plans have the same order, so a run can be resumed.
    """
    order = np.random.default_rng(plan.seed).permutation(len(plan.points))
    return replace(plan, points=tuple(plan.points[index] for index in order))


def visits_of(plan: SweepPlan) -> tuple[SweepVisit, ...]:
    """Visits to the points, in order.

    Every other round runs backwards, so that a steady drift of the machine affects all points
    alike. After a point's first visit one warm-up suffices.
    """
    shares = [len(part) for part in np.array_split(np.arange(plan.n_reps), plan.n_rounds)]
    visits, n_before = list[SweepVisit](), 0
    for i_round, n_reps in enumerate(shares):
        n_warmup = plan.n_warmup if i_round == 0 else min(plan.n_warmup, 1)
        indices = range(len(plan.points))
        visits += [
            SweepVisit(
                number=i_round * len(plan.points) + index,
                point_index=index,
                first_repetition=n_before,
                n_warmup=n_warmup,
                n_reps=n_reps,
            )
            for index in (reversed(indices) if i_round % 2 else indices)
        ]
        n_before += n_warmup + n_reps
    return tuple(visits)
