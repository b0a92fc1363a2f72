"""Which gate stands before the engines, and how is it named in a sentence?"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from inferometer.api.question import Option
from inferometer.inputs.gate import GateOrder, GateSpec, read_gate
from inferometer.inputs.workload.plan import DrawnWorkload
from inferometer.records.types import Caution


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What stands before the engines and decides which request goes in when."""

    gate: Annotated[
        Path | None,
        Option(
            "Order, windows, limits, buckets and admission before the engine: a .toml file, see"
            " docs/gates.md.",
            heading="Cluster",
            metavar="FILE",
        ),
    ] = None
    order: Annotated[
        GateOrder | None,
        Option(
            "Who goes in first: a gate that orders, or that of --gate.",
            heading="Cluster",
            is_common=True,
        ),
    ] = None


def gate_of(options: Gate) -> GateSpec | None:
    """The gate, if there is one.

    Raises
    ------
    SpecError
        Its file cannot be read.
    """
    if options.gate is None:
        return None if options.order is None else GateSpec(order=options.order)
    gate = read_gate(options.gate)
    return gate if options.order is None else msgspec.structs.replace(gate, order=options.order)


def gate_text(gate: GateSpec) -> str:
    """The gate's order and how much else it decides.

    Example
    -------
    >>> gate_text(GateSpec(order="fair", priority_bands=True, max_in_flight=8))
    'fair in priority bands, at most 8 in flight, 0 classes and 0 tenants with rules'
    """
    bands = " in priority bands" if gate.priority_bands and gate.order != "priority" else ""
    room = "" if gate.max_in_flight is None else f", at most {gate.max_in_flight} in flight"
    lengths = ", an oracle's lengths" if gate.lengths == "oracle" else ""
    return (
        f"{gate.order}{bands}{lengths}{room}, {len(gate.classes)} classes and {len(gate.tenants)}"
        " tenants with rules"
    )


def equals_cautions(gate: GateSpec | None, workload: DrawnWorkload) -> tuple[Caution, ...]:
    """A caution: with one tenant or one priority such an order is the order of arrival."""
    if gate is None:
        return ()
    has_bands = any(one.priority is not None for one in gate.classes)
    if gate.order == "fair" and len(np.unique(workload.plan.tenant_index)) < 2:
        what, remedy = "all requests are of one tenant", "a workload file with tenants"
    elif gate.order == "priority" and not has_bands and len(np.unique(workload.plan.priority)) < 2:
        what, remedy = (
            "all requests have the same priority",
            "a workload file whose classes have a priority",
        )
    else:
        return ()
    return (
        Caution(
            code="order unused",
            text=f"the order {gate.order} changed nothing: {what}",
            remedy=remedy,
        ),
    )
