"""Which servers, classes, tenants, model name and faults does an emulated server have?"""

import math
import re
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from inferometer import suggestions
from inferometer.api.cluster import Gate, Servers, gate_of
from inferometer.errors import SpecError
from inferometer.inputs.gate import OTHERS, GateSpec
from inferometer.perfmodel.steptime_terms import slowed
from inferometer.simulate.demand import demand
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import Fleet, Placement
from inferometer.simulate.live_front import Kind
from inferometer.units import NS_PER_S, parse_bytes, parse_duration_s

# Which faults does an emulated server commit, how often, and on which requests?
#
# Read from text such as `reset:0.02(after=5)`.


FaultKind: TypeAlias = Literal[
    "http-429",
    "http-500",
    "http-503",
    "redirect-loop",
    "gzip-bomb",
    "never-answers",
    "endless-headers",
    "slow-headers",
    "stall",
    "reset",
    "truncated-sse",
    "missing-done",
    "malformed-json",
    "invalid-utf8",
    "huge-chunk",
    "wrong-usage",
    "no-usage",
    "error-event",
    "comments",
    "split-writes",
    "tokens-per-chunk",
]
_WHERE: Final = "--fault"
_RULE: Final = re.compile(
    r"(?P<kind>[a-z0-9-]+)(?:=(?P<count>\d+))?(?::(?P<share>[0-9.eE+-]+%?))?(?:\((?P<options>[^()]*)\))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One kind of fault: its share of the requests, and its options."""

    kind: FaultKind
    share_fraction: float = 1.0
    after_tokens: int = 3
    """Tokens before a reset, stall, truncation or bad event."""
    hold_ns: int = 2 * NS_PER_S
    """Duration of a stall or of slow headers."""
    retry_after_ns: int = NS_PER_S
    size_bytes: int = 16 * 2**20
    """Size of a huge chunk, of an unpacked bomb, or of endless headers until the server stops."""
    count: int = 1
    """Tokens per chunk; or by how many tokens the usage is wrong."""

    def __post_init__(self) -> None:
        if not 0 <= self.share_fraction <= 1:
            raise SpecError(
                f"{self.kind}:{self.share_fraction}",
                where=_WHERE,
                allowed="a share from 0 to 1, or 0% to 100%",
                try_=suggestions.flags("--fault", f"{self.kind}:0.05"),
            )
        if self.count < 1:
            raise SpecError(f"{self.kind}={self.count}", where=_WHERE, allowed="1 or more")


class Faults(NamedTuple):
    """Faults of one request."""

    strike: FaultRule | None
    """The one fault that a request has at most: of the first rule that draws it."""
    tokens_per_chunk: int = 1


def parse_faults(text: str) -> tuple[FaultRule, ...]:
    """Rules of text such as ``http-429:0.05(retry_after=1s), tokens-per-chunk=4``.

    A share is between 0 and 1 (all requests where there is none); the options in brackets are
    ``after`` (tokens), ``for``, ``retry_after``, ``bytes`` and ``count``.

    Raises
    ------
    SpecError
        An unknown fault or option, or a value that cannot be.

    Example
    -------
    >>> [(rule.kind, rule.share_fraction, rule.after_tokens) for rule in parse_faults("reset:0.02(after=5), http-500")]
    [('reset', 0.02, 5), ('http-500', 1.0, 3)]
    """
    return tuple(_rule(part) for part in _split(text) if part)


def draw_faults(rules: tuple[FaultRule, ...], seed: int, number: int) -> Faults:
    """Draw the faults of the request with this number; deterministic for a seed."""
    if not rules:
        return Faults(None)
    chances = np.random.default_rng((seed, number, 1)).random(len(rules)).tolist()
    hits = [
        rule for rule, chance in zip(rules, chances, strict=True) if chance < rule.share_fraction
    ]
    strikes = [rule for rule in hits if rule.kind != "tokens-per-chunk"]
    chunks = [rule.count for rule in hits if rule.kind == "tokens-per-chunk"]
    return Faults(strikes[0] if strikes else None, chunks[0] if chunks else 1)


def _split(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text)]


def _rule(text: str) -> FaultRule:
    match = _RULE.fullmatch(text)
    kinds = get_args(FaultKind)
    kind = next((known for known in kinds if match is not None and known == match["kind"]), None)
    if match is None or kind is None:
        raise SpecError(
            f"{text!r} is no fault",
            where=_WHERE,
            allowed=", ".join(kinds),
            try_=suggestions.nearest("--fault", re.split(r"[:=(]", text)[0], kinds)
            or suggestions.flags("--fault", "reset:0.02(after=5)"),
        )
    changes: dict[str, int | float] = {}
    if match["share"] is not None:
        changes["share_fraction"] = _number(match["share"], text)
    if match["count"] is not None:
        changes["count"] = int(match["count"])
    for option in filter(None, (part.strip() for part in (match["options"] or "").split(","))):
        name, _, value = option.partition("=")
        changes |= _option(name.strip(), value.strip(), text)
    return FaultRule(kind=kind, **changes)  # type: ignore[arg-type]


def _option(name: str, value: str, text: str) -> dict[str, int]:
    if name == "after":
        return {"after_tokens": _whole(value, text)}
    if name == "count":
        return {"count": _whole(value, text)}
    if name == "for":
        return {"hold_ns": round(parse_duration_s(value, where=f"{_WHERE} {text}") * NS_PER_S)}
    if name == "retry_after":
        return {
            "retry_after_ns": round(parse_duration_s(value, where=f"{_WHERE} {text}") * NS_PER_S)
        }
    if name == "bytes":
        return {"size_bytes": parse_bytes(value, where=f"{_WHERE} {text}")}
    raise SpecError(
        f"{name!r} of {text!r}",
        where=_WHERE,
        allowed="after, for, retry_after, bytes, count",
        try_=suggestions.flags("--fault", "stall:0.01(for=3s)"),
    )


def _whole(value: str, text: str) -> int:
    if not value.isdigit():
        raise SpecError(
            f"{value!r} in {text!r} is no whole number",
            where=_WHERE,
            allowed="0 or more",
            try_="--fault 'stall:0.01(after=3)'",
        )
    return int(value)


def _number(value: str, text: str) -> float:
    try:
        return float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except ValueError as problem:
        raise SpecError(
            f"{value!r} in {text!r} is no share",
            where=_WHERE,
            allowed="0 to 1, or 5%",
            try_="--fault http-429:0.05",
        ) from problem


LOOPBACK: Final = "127.0.0.1"
DEFAULT_MEAN_TOKENS: Final = 128.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorPlan:
    """Everything an emulated server needs to start.

    Two servers with the same plan draw the same for their n-th requests.
    """

    model_name: str
    fleet: Fleet
    host: str = LOOPBACK
    port: int = 0
    """Port; 0: any free one."""
    seed: int = 0
    mean_output_tokens: float | None = DEFAULT_MEAN_TOKENS
    """Mean length of answers (geometric); None: always ``max_tokens``."""
    faults: tuple[FaultRule, ...] = ()
    time_scale_ratio: float = 1.0
    """Factor on each step's time."""
    emission_log: Path | None = None
    otlp_endpoint: str | None = None
    """Collector of the answers' spans; None: no spans."""
    tokenizer: Path | None = None
    """A ``tokenizer.json``; None: a token is a word between spaces."""
    class_names: tuple[str, ...] = (OTHERS,)
    tenant_names: tuple[str, ...] = (OTHERS,)
    """Tenants that the gate and the router know; all others count as one more, the last."""
    for_s: float | None = None
    """Stop by itself after this time."""
    enable_prompt_tokens_details: bool = False
    """Do replies name the cached tokens of prompts?"""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_scale_ratio) and self.time_scale_ratio > 0):
            raise SpecError(
                f"time scale {self.time_scale_ratio}",
                where="--time-scale",
                allowed="above 0",
                try_="--time-scale 1",
            )
        if self.mean_output_tokens is not None and not self.mean_output_tokens >= 1:
            raise SpecError(
                f"answers of {self.mean_output_tokens} tokens",
                where="the emulator's plan",
                allowed="1 or more on average",
            )
        if any(getattr(one, "kv_pools", ()) for one in self.fleet.engines):
            raise SpecError(
                "kv_pools",
                where="the emulator's plan",
                allowed="none: inferometer simulate divides KV caches",
            )
        if not 0 <= self.port <= 65535:
            raise SpecError(
                f"port {self.port}",
                where="the emulator's plan",
                allowed="0 (any free one) to 65535",
            )

    @property
    def config(self) -> EngineConfig:
        """The engine of the replicas that generate answers."""
        return self.fleet.replicas.engine

    @property
    def max_model_len(self) -> int:
        """Longest context that every replica takes; of groups of replicas, that one of them takes."""
        limits = [one.max_model_len for one in self.fleet.engines]
        return min(limits) if self.fleet.placement is None else max(limits)

    @property
    def wall_fleet(self) -> Fleet:
        """The fleet with step times on the wall clock: ``time_scale_ratio`` applied."""
        ratio, fleet = self.time_scale_ratio, self.fleet
        prefill, placement = fleet.prefill, fleet.placement
        if prefill is not None:
            prefill = replace(prefill, step_times=slowed(prefill.step_times, ratio))
        if placement is not None:
            groups = (
                replace(one, step_times=slowed(one.step_times, ratio)) for one in placement.groups
            )
            placement = replace(placement, groups=tuple(groups))
        times = slowed(fleet.step_times, ratio)
        return replace(fleet, step_times=times, prefill=prefill, placement=placement)

    def kind_of(self, class_name: str | None, tenant_name: str | None) -> Kind:
        """Number of this class and tenant, by which gate and router know a request."""
        return Kind(
            class_index=_place(class_name, self.class_names),
            tenant_index=_place(tenant_name, self.tenant_names),
        )


def _place(name: str | None, names: tuple[str, ...]) -> int:
    """Index of a class or tenant; unknown ones are the last."""
    return names.index(name) if name in names else len(names) - 1


class Known(NamedTuple):
    """Classes and tenants that gate, ``--class-replicas`` or groups name; all others are last."""

    class_names: tuple[str, ...]
    class_slos: tuple[str | None, ...]
    tenant_names: tuple[str, ...]


class ServedFleet(NamedTuple):
    """The simulated fleet with the classes and tenants that its gate and router know."""

    fleet: Fleet
    known: Known


def served_fleet(servers: Servers, gate: Gate, seed: int) -> ServedFleet:
    """The servers of a plan behind their gate; classes without replicas of their own use all.

    Raises
    ------
    SpecError
        The gate's file cannot be read, or has rules by deadlines and no class with one; groups
        keep sessions, or do not take every request.
    """
    spec = gate_of(gate)
    known = _known(servers, spec)
    named, anywhere = dict(servers.named_replicas), tuple(range(servers.n_replicas))
    by_class = tuple(named.get(one, anywhere) for one in known.class_names) if named else ()
    rules = replace(servers.rules, seed=seed, class_replicas=by_class)
    servers = servers._replace(rules=rules)
    if servers.groups is not None:
        named_groups = replace(
            servers.groups, class_names=known.class_names, tenant_names=known.tenant_names
        )
        servers = servers._replace(groups=named_groups)
        _check_groups(named_groups.placement, known)
    return ServedFleet(servers.fleet(servers.gate_rules(spec, known)), known)


def _check_groups(placement: Placement, known: Known) -> None:
    """Refuse groups that leave requests out, or need facts that requests do not state."""
    if placement.keeps_sessions:
        raise SpecError(
            "keep_sessions = true: a request over HTTP does not name the session it continues",
            where="--groups",
            allowed="keep_sessions = false",
        )
    lengths = {1}
    for group in placement.groups:
        lengths |= {max(group.min_prompt_tokens, 1), (group.max_prompt_tokens or 0) + 1}
    kinds = list(
        product(sorted(lengths), range(len(known.class_names)), range(len(known.tenant_names)))
    )
    n_tokens, classes, tenants = (np.array(column, np.int32) for column in zip(*kinds, strict=True))
    once = [1] * len(kinds)
    placement.group_of(
        demand([0] * len(kinds), n_tokens, once, class_index=classes, tenant_index=tenants)
    )


def _known(servers: Servers, gate: GateSpec | None) -> Known:
    groups = () if servers.groups is None else servers.groups.groups
    by_rules = [name for name, _ in servers.named_replicas]
    by_rules += [name for group in groups for name in group.classes]
    by_rules += [name for group in groups for name, _ in group.weights]
    by_gate = [] if gate is None else [one.name for one in gate.classes]
    tenants = [] if gate is None else [one.name for one in gate.tenants]
    tenants += [name for group in groups for name in group.tenants]
    classes = tuple(dict.fromkeys(one for one in [*by_gate, *by_rules] if one != OTHERS))
    return Known(
        class_names=(*classes, OTHERS),
        class_slos=(None,) * (len(classes) + 1),
        tenant_names=(*dict.fromkeys(one for one in tenants if one != OTHERS), OTHERS),
    )
