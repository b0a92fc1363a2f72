"""What does an emulated server do: which fleet, classes, tenants, model's name and faults?"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from inferometer.api.cluster import Gate, Servers, gate_of
from inferometer.errors import SpecError
from inferometer.inputs.gate import OTHERS, GateSpec
from inferometer.perfmodel.steptime_arrays import slowed
from inferometer.serve.fault_specs import FaultRule
from inferometer.simulate import gate_config
from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.fleet import Fleet
from inferometer.simulate.live_front import Kind

LOOPBACK: Final = "127.0.0.1"
DEFAULT_MEAN_TOKENS: Final = 128.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorPlan:
    """All that an emulated server needs before it starts.

    Two servers with the same plan draw the same for their n-th requests.
    """

    model_name: str
    fleet: Fleet
    host: str = LOOPBACK
    port: int = 0
    """0: any that is free."""
    seed: int = 0
    mean_output_tokens: float | None = DEFAULT_MEAN_TOKENS
    """Answers end by themselves after so many tokens on average (geometric); None: never before
    ``max_tokens``."""
    faults: tuple[FaultRule, ...] = ()
    time_scale_ratio: float = 1.0
    """Each step takes so many times as long."""
    emission_log: Path | None = None
    otlp_endpoint: str | None = None
    """Where spans of the answers go; None: nowhere."""
    tokenizer: Path | None = None
    """A ``tokenizer.json``; None: a token is a word between spaces."""
    class_names: tuple[str, ...] = (OTHERS,)
    tenant_names: tuple[str, ...] = (OTHERS,)
    """Whom the gate and the router know, all others last."""
    for_s: float | None = None
    """Stop by itself after this time."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.time_scale_ratio) and self.time_scale_ratio > 0):
            raise SpecError(
                f"time scale {self.time_scale_ratio}",
                where="the emulator's plan",
                allowed="above 0",
            )
        if self.mean_output_tokens is not None and not self.mean_output_tokens >= 1:
            raise SpecError(
                f"answers of {self.mean_output_tokens} tokens",
                where="the emulator's plan",
                allowed="1 or more on average",
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
        """The longest context that all replicas take."""
        engines = (self.config,) if self.fleet.pools is None else self.fleet.pools.engines
        return min(one.max_model_len for one in engines)

    @property
    def wall_fleet(self) -> Fleet:
        """The fleet, its steps as long as they take on the wall clock."""
        ratio, prefill = self.time_scale_ratio, self.fleet.prefill
        if prefill is not None:
            prefill = replace(prefill, step_times=slowed(prefill.step_times, ratio))
        times = slowed(self.fleet.step_times, ratio)
        return replace(self.fleet, step_times=times, prefill=prefill)

    def kind_of(self, class_name: str | None, tenant_name: str | None) -> Kind:
        """What a gate and a router take a request for that says this of itself."""
        return Kind(
            class_index=_place(class_name, self.class_names),
            tenant_index=_place(tenant_name, self.tenant_names),
        )


def _place(name: str | None, names: tuple[str, ...]) -> int:
    """Whom no rule names is one of the others: the last."""
    return names.index(name) if name in names else len(names) - 1


class Known(NamedTuple):
    """Classes and tenants that the gate's file and ``--class-replicas`` name, all others last."""

    class_names: tuple[str, ...]
    class_slos: tuple[str | None, ...]
    tenant_names: tuple[str, ...]


class ServedFleet(NamedTuple):
    """What is simulated on the wall clock, and whom its gate and router know."""

    fleet: Fleet
    known: Known


def served_fleet(servers: Servers, gate: Gate, seed: int) -> ServedFleet:
    """These servers behind their gate; requests of classes without replicas may go to all.

    Raises
    ------
    SpecError
        The gate's file cannot be read, or has rules by deadlines and no class with one.
    """
    spec = gate_of(gate)
    known = _known(servers, spec)
    named, anywhere = dict(servers.rules.class_replicas), tuple(range(servers.n_replicas))
    by_class = tuple(named.get(one, anywhere) for one in known.class_names) if named else ()
    servers = servers._replace(seed=seed, class_replicas=by_class)
    if spec is None:
        return ServedFleet(servers.fleet(), known)
    pace = gate_config.first_token_pace(servers.deployment.step_times.likely)
    rules = gate_config.gate_rules(spec, known, pace, where="--gate")
    return ServedFleet(servers.fleet(rules), known)


def _known(servers: Servers, gate: GateSpec | None) -> Known:
    by_rules = [name for name, _ in servers.rules.class_replicas]
    by_gate = [] if gate is None else [one.name for one in gate.classes]
    tenants = [] if gate is None else [one.name for one in gate.tenants]
    classes = tuple(dict.fromkeys(one for one in [*by_gate, *by_rules] if one != OTHERS))
    return Known(
        class_names=(*classes, OTHERS),
        class_slos=(None,) * (len(classes) + 1),
        tenant_names=(*(one for one in tenants if one != OTHERS), OTHERS),
    )
