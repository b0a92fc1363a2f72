"""Which flags put a gate before the engines, and how is that gate named in a sentence?"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args

import click
import msgspec
import numpy as np

from inferometer.records.types import Caution
from inferometer.spec.gate import GateOrder, GateSpec, read_gate
from inferometer.spec.workload.plan import DrawnWorkload

_OPTIONS: Final = (
    click.option(
        "--gate",
        "gate_path",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help=(
            "Order, windows, limits, buckets and admission before the engine: a .toml file, see"
            " docs/gates.md."
        ),
    ),
    click.option(
        "--order",
        type=click.Choice(get_args(GateOrder)),
        help="Who goes in first: a gate that orders, or that of --gate.",
    ),
)


def takes_gate(command: Callable[..., None]) -> Callable[..., None]:
    """Add the flags that describe a gate; the command gets ``gate: GateSpec | None``."""

    @functools.wraps(command)
    def with_gate(**flags: Any) -> None:
        command(gate=_gate(flags.pop("gate_path"), flags.pop("order")), **flags)

    wrapped: Callable[..., None] = with_gate
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


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
    """An order among tenants or by priority is that of arrival where all requests are of one tenant or of one priority."""
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


def _gate(path: Path | None, order: GateOrder | None) -> GateSpec | None:
    if path is None:
        return None if order is None else GateSpec(order=order)
    gate = read_gate(path)
    return gate if order is None else msgspec.structs.replace(gate, order=order)
