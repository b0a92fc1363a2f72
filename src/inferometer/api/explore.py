"""What would this server do under this traffic, around it, and what if one setting were another?

A state of the page is the values of ``Explore``: as a query of its URL, and as the command that
gives the same numbers with ``--json``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, get_args
from urllib.parse import parse_qsl, urlencode

from inferometer import suggestions
from inferometer.api.fleet import FleetOptions
from inferometer.api.model_options import SLO_OPTION
from inferometer.api.question import DURATION, Field, fields_of, option, question_of
from inferometer.api.server import Server
from inferometer.api.simulate import Simulate
from inferometer.api.workload import Workload
from inferometer.errors import SpecError
from inferometer.inputs import catalog
from inferometer.inputs.types import DType
from inferometer.inputs.workload import reading
from inferometer.simulate import engine_config
from inferometer.simulate.fleet import ROUTERS

N_REQUESTS: Final = 1000
"""Default number: enough for a 99th percentile, few enough to follow a slider."""
DEFAULTS: Final[Mapping[str, str]] = {
    "hardware": "h100_sxm",
    "rate": "10",
    "slo": "ttft:p95<1s, tpot:p95<100ms",
}
"""Options of a state that names no traffic."""
DEFAULT_MODEL: Final = "llama-3.1-8b"
_SWITCHES: Final = frozenset({"port", "export", "run"})
"""Options of the command only, not of a state."""
_KNOBS: Final = ("max_num_seqs", "max_num_batched_tokens", "num_blocks", "enable_chunked_prefill")
"""Settings with a field of their own on the page, which some policies do not have."""
_SPACE: Final = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explore:
    """A server under traffic, its SLO and its price."""

    server: Server
    workload: Workload = field(default_factory=Workload)
    fleet: FleetOptions = field(default_factory=FleetOptions)
    slo: Annotated[str | None, SLO_OPTION] = None
    usd_per_hour: float | None = option(
        None,
        "Price of one device per hour. [the catalogue's]",
        "Hardware",
        is_common=True,
        least=0,
        is_open=True,
    )
    run: tuple[Path, ...] = option(
        (),
        "A stored load test to show as a point on the plots; repeatable.",
        "Runs",
        is_common=True,
    )
    port: int = option(
        0, "Port of the page; 0: any free one.", is_common=True, least=0, most=65_535
    )
    export: Path | None = option(
        None,
        "Write the page, with the answers around this state, as one file, and exit.",
        is_common=True,
        metavar="FILE",
    )
    given: frozenset[str] = frozenset()

    @property
    def simulated(self) -> Simulate:
        """The question that ``inferometer simulate`` answers."""
        has_end = self.workload.has_end
        workload = self.workload if has_end else replace(self.workload, requests=N_REQUESTS)
        return Simulate(
            server=self.server, workload=workload, fleet=self.fleet, slo=self.slo, given=self.given
        )

    def at_load(self, load: float, n_requests: int) -> Simulate:
        """The same server at another rate, or number of users; the random numbers are the same."""
        requested = self.simulated
        key = "rate" if requested.workload.concurrency is None else "concurrency"
        changes: dict[str, Any] = {
            "requests": n_requests,
            "duration": None,
            key: load if key == "rate" else round(load),
        }
        return replace(requested, workload=replace(requested.workload, **changes))


def state_of(question: Explore) -> dict[str, Any]:
    """Options that differ from the defaults, by name."""
    state = dict[str, Any]()
    for one in _state_fields():
        owner: Any = question
        for name in one.group.split(".") if one.group else ():
            owner = getattr(owner, name)
        value = getattr(owner, one.name)
        if one.name == "requests" and not question.workload.has_end:
            value = N_REQUESTS
        if value != one.default and value is not None:
            state[one.name] = _written(one, value)
    return state


def query_of(state: Mapping[str, Any]) -> str:
    """The state as the query of a URL.

    Example
    -------
    >>> query_of({"model": "llama-3.1-8b", "rate": 5.0, "set": ["a=1", "b=2"]})
    'model=llama-3.1-8b&rate=5&set=a%3D1&set=b%3D2'
    """
    pairs = [
        (name, _text(part))
        for name, value in state.items()
        for part in (value if isinstance(value, list) else [value])
    ]
    return urlencode(pairs)


def values_of(query: str) -> dict[str, Any]:
    """The values of a query: text, or lists of it for options that repeat.

    Raises
    ------
    SpecError
        A name is none of a state's, or one stands there twice that does not repeat.

    Example
    -------
    >>> values_of("model=llama-3.1-8b&rate=5&set=a%3D1")
    {'model': 'llama-3.1-8b', 'rate': '5', 'set': ['a=1']}
    """
    known = {one.name: one for one in _state_fields()}
    values = dict[str, Any]()
    for name, text in parse_qsl(query, keep_blank_values=False):
        one = known.get(name)
        if one is None or (name in values and not one.is_many):
            raise SpecError(
                f"{name!r} {'twice' if one else 'is no part of a state'}",
                where="the address",
                allowed=", ".join(known),
            )
        if one.is_many:
            values.setdefault(name, []).append(text)
        else:
            values[name] = _SPACE.get(text, text) if one.kind is bool else text
    return values


def question_at(values: Mapping[str, Any], launched: Explore) -> Explore:
    """The question of a state that a browser requests.

    Files are read only if the command line named them: a page must not choose what is read.

    Raises
    ------
    SpecError
        A value cannot be, or names a file that the command line did not.
    """
    question = question_of(Explore, {**values, "run": list(launched.run)})
    named = [
        ("MODEL", question.server.model, launched.server.model, _is_model),
        ("--workload", question.workload.workload, launched.workload.workload, _is_workload),
        ("--fit", question.server.fit, launched.server.fit, None),
        ("--gate", question.fleet.gate.gate, launched.fleet.gate.gate, None),
    ]
    for flag, value, own, is_known in named:
        if value in {None, own} or (is_known is not None and is_known(str(value))):
            continue
        raise SpecError(
            f"{str(value)!r} is no name that is known",
            where=flag,
            allowed="names of the catalogue; files where the command line names them",
            try_=suggestions.command(
                "explore", *([value] if flag == "MODEL" else ["MODEL", flag, value])
            ),
        )
    return question


def command_of(question: Explore, verb: str = "explore", *more: str) -> str:
    """The command that gives this state's numbers with ``--json``."""
    state, words = state_of(question), list[object]()
    for one in _state_fields():
        if one.name not in state or (verb == "simulate" and one.name == "usd_per_hour"):
            continue
        value = state[one.name]
        for part in value if isinstance(value, list) else [value]:
            if one.option.is_argument:
                words.insert(0, part)
            else:
                words += [one.flag] if part is True else [one.flag, _text(part)]
    return suggestions.command(verb, *words, *more)


def choices() -> dict[str, list[str]]:
    """The words that the fields of the page offer."""
    return {
        "model": sorted(one.model_id for one in catalog.load_models()),
        "hardware": sorted(one.hardware_id for one in catalog.load_hardware()),
        "workload": list(reading.preset_names()),
        "policy": list(engine_config.ENGINE_NAMES),
        "router": list(ROUTERS),
        "dtype": list(get_args(DType)),
    }


def lacking() -> dict[str, list[str]]:
    """The fields of the page that a policy has no setting for, where there are any."""
    found = {
        engine: [name for name in _KNOBS if not engine_config.has_knob(engine, name)]
        for engine in engine_config.ENGINE_NAMES
    }
    return {engine: names for engine, names in found.items() if names}


def _state_fields() -> Sequence[Field]:
    return [one for one in fields_of(Explore) if one.name not in _SWITCHES]


def _written(one: Field, value: Any) -> Any:  # noqa: ANN401 -- as the field has it
    """A value as a state has it: numbers as they are, else as people type it."""
    if one.is_many:
        return [str(part) for part in value]
    if one.option.parse is not None:
        return f"{_text(value)}{'s' if one.option.parse is DURATION else 'B/s'}"
    return value if isinstance(value, bool | int | float) else str(value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _is_model(name: str) -> bool:
    return catalog.known_model(name) is not None


def _is_workload(text: str) -> bool:
    return text in reading.preset_names() or reading.lengths_table(text) is not None
