"""Which fleet does an emulated server serve, and which classes and tenants does it know?"""

from typing import NamedTuple

from inferometer.api.cluster import Gate, Servers, gate_of
from inferometer.inputs.gate import OTHERS, GateSpec
from inferometer.simulate import gate_config
from inferometer.simulate.fleet import Fleet


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
