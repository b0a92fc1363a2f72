"""What has a tenant got, and what may it still have? Its bucket of tokens and its service so far.

Compiled.
"""

from typing import Final

from inferometer.simulate.compiling import compiled
from inferometer.simulate.gate_config import NOTHING
from inferometer.simulate.kernel.gate_state import GateState
from inferometer.units import NS_PER_S

_NS_PER_S: Final = NS_PER_S


@compiled
def can_ever_pay(gate: GateState, i_tenant: int, n_tokens: int) -> bool:
    """Does the full bucket hold so many?"""
    tenant = gate.tenants[i_tenant]
    can: bool = tenant.tokens_per_s == 0 or n_tokens * _NS_PER_S <= tenant.burst
    return can


@compiled
def payable_ns(gate: GateState, i_tenant: int, n_tokens: int, now_ns: int) -> int:
    """When are so many in the bucket? No more than it ever holds."""
    tenant = gate.tenants[i_tenant]
    rate = tenant.tokens_per_s
    if rate == 0:
        return now_ns
    to_full_ns = -((tenant.level - tenant.burst) // rate)
    if now_ns - tenant.filled_ns >= to_full_ns:  # the product could exceed int64
        tenant.level = tenant.burst
    else:
        tenant.level += (now_ns - tenant.filled_ns) * rate
    tenant.filled_ns = now_ns
    lacking = max(n_tokens * _NS_PER_S - tenant.level, 0)
    when_ns: int = now_ns - (-lacking // rate)
    return when_ns


@compiled
def pay(gate: GateState, i_tenant: int, n_tokens: int) -> None:
    """Take so many out."""
    tenant = gate.tenants[i_tenant]
    if tenant.tokens_per_s > 0:
        tenant.level -= n_tokens * _NS_PER_S


@compiled
def join(gate: GateState, i_tenant: int) -> None:
    """One more of this tenant waits.

    If it was away, it begins where the least served of those who wait is (VTC's counter lift).
    """
    tenant = gate.tenants[i_tenant]
    tenant.n_waiting += 1
    if not gate.rules[0].is_fair or tenant.n_waiting > 1:
        return
    least = gate.counters[0].last_served
    if gate.counters[0].n_waiting > 0:
        least = _least_served(gate, i_tenant)
    if least != NOTHING:
        other = gate.tenants[least]
        tenant.service = max(tenant.service, other.service * tenant.weight // other.weight)


@compiled
def leave(gate: GateState, i_tenant: int) -> None:
    """One less of this tenant waits."""
    tenant = gate.tenants[i_tenant]
    tenant.n_waiting -= 1
    if tenant.n_waiting == 0:
        gate.counters[0].last_served = i_tenant


@compiled
def _least_served(gate: GateState, newcomer: int) -> int:
    least = NOTHING
    for i_tenant in range(len(gate.tenants)):
        tenant = gate.tenants[i_tenant]
        if i_tenant != newcomer and tenant.n_waiting > 0:
            best = gate.tenants[max(least, 0)]
            if least == NOTHING or tenant.service * best.weight < best.service * tenant.weight:
                least = i_tenant
    return least
