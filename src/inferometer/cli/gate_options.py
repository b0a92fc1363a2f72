"""Which flags put a gate before the engines, and how is that gate named in a sentence?"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_args

import click
import msgspec

from inferometer.spec.gate import GateOrder, GateSpec, read_gate

_OPTIONS: Final = (
    click.option(
        "--gate",
        "gate_path",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Order, windows, limits, buckets and admission before the engine: a .toml file, see docs/gates.md.",
    ),
    click.option("--order", type=click.Choice(get_args(GateOrder)), help="Who goes in first: a gate that orders, or that of --gate."),
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
    return f"{gate.order}{bands}{lengths}{room}, {len(gate.classes)} classes and {len(gate.tenants)} tenants with rules"


def _gate(path: Path | None, order: GateOrder | None) -> GateSpec | None:
    if path is None:
        return None if order is None else GateSpec(order=order)
    gate = read_gate(path)
    return gate if order is None else msgspec.structs.replace(gate, order=order)


__all__ = ["gate_text", "takes_gate"]
