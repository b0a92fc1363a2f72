"""Who goes in when?

The gate before the engines in plain Python; ``gate_config`` tells its calls and their contract.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import chain

from inferometer.simulate.demand import Demand
from inferometer.simulate.gate_config import NOTHING, GateConfig, Reason, rules_by_index
from inferometer.simulate.kernel.gate_state import gate_columns, goes_by_deadline
from inferometer.simulate.outcome import FAR_NS
from reference.gate_tenants import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticket:
    """One who waits."""

    index: int
    class_index: int
    tenant: int
    band: int
    key: int
    arrival_ns: int
    expires_ns: int


class Gate:
    """All who wait, in one list, sorted anew whenever somebody is to go in."""

    def __init__(self, requests: Demand, config: GateConfig) -> None:
        self.reasons = [int(Reason.NONE)] * requests.n_requests
        self._config = config
        self._columns = gate_columns(requests, config)
        self._classes = rules_by_index(config.classes, self._columns.class_index, "class")
        self._tenants = [
            Tenant(rules)
            for rules in rules_by_index(config.tenants, self._columns.tenant_index, "tenant")
        ]
        self._last_served: Tenant | None = None
        self._ready: list[_Ticket] = []
        self._gathering: list[list[_Ticket]] = [[] for _ in self._classes]
        self._n_in_flight = [0] * len(self._classes)
        self._is_inside = [False] * requests.n_requests
        self._refill_ns = FAR_NS

    @property
    def n_waiting(self) -> int:
        """How many wait?"""
        return len(self._waiting())

    @property
    def wake_ns(self) -> int:
        """When is the gate to be asked again, if nothing happens before?"""
        windows = [self._window_end_ns(i) for i in range(len(self._classes))]
        return min(
            *windows, self._refill_ns, *(ticket.expires_ns for ticket in self._waiting()), FAR_NS
        )

    def offer(self, index: int, now_ns: int) -> bool:
        """A request arrives; is it let wait?"""
        reason = self._refusal(index)
        if reason is not Reason.NONE:
            self.reasons[index] = int(reason)
            return False
        ticket = self._ticket(index, now_ns)
        self._join_tenants(ticket.tenant)
        rules, gathering = self._classes[ticket.class_index], self._gathering[ticket.class_index]
        if rules.window_ns == 0:
            self._ready.append(ticket)
            return True
        gathering.append(ticket)
        if len(gathering) == rules.window_size:
            self._open(ticket.class_index)
        return True

    def shed(self, now_ns: int) -> int:
        """Who is turned away by now? ``NOTHING`` where nobody is."""
        expired = [ticket for ticket in self._waiting() if ticket.expires_ns <= now_ns]
        if not expired:
            return NOTHING
        ticket = min(expired, key=lambda one: (one.expires_ns, one.index))
        self._leave(ticket)
        self.reasons[ticket.index] = int(self._columns.shed_reason[ticket.index])
        return ticket.index

    def release(self, now_ns: int, n_room: int) -> int:
        """Who goes in now? ``NOTHING`` where nobody can.

        A tenant whose bucket does not pay for its first request sends none: a small one behind it
        would keep it out for ever.
        """
        for class_index in range(len(self._classes)):
            if self._window_end_ns(class_index) <= now_ns:
                self._open(class_index)
        self._refill_ns = FAR_NS
        penniless = set[int]()
        for ticket in sorted(self._ready, key=self._order) if n_room > 0 else ():
            if self._is_class_full(ticket.class_index) or ticket.tenant in penniless:
                continue
            paid_ns = self._tenants[ticket.tenant].payable_ns(self._price(ticket.index), now_ns)
            if paid_ns > now_ns:
                penniless.add(ticket.tenant)
                self._refill_ns = min(self._refill_ns, paid_ns)
                continue
            self._let_in(ticket)
            return ticket.index
        return NOTHING

    def gone(self, index: int, now_ns: int) -> None:  # noqa: ARG002 -- all calls tell the time
        """The client of one who waits went away."""
        for ticket in self._waiting():
            if ticket.index == index:
                self._leave(ticket)

    def ended(self, index: int, n_output_tokens: int, now_ns: int) -> None:  # noqa: ARG002
        """One who was let in has left the engine."""
        if not self._is_inside[index]:
            return
        self._is_inside[index] = False
        columns = self._columns
        self._n_in_flight[columns.class_index[index]] -= 1
        surplus = n_output_tokens - int(columns.expected_tokens[index])
        self._tenants[columns.tenant_index[index]].service += (
            self._config.output_token_weight * surplus
        )

    def _refusal(self, index: int) -> Reason:
        """Why is the newcomer turned away at once, if it is?"""
        config, columns = self._config, self._columns
        rules, tenant = (
            self._classes[columns.class_index[index]],
            self._tenants[columns.tenant_index[index]],
        )
        waiting = self._waiting()
        n_of_class = sum(ticket.class_index == columns.class_index[index] for ticket in waiting)
        n_tokens = sum(self._price(ticket.index) for ticket in waiting) + self._price(index)
        if columns.patience_ns[index] <= 0:
            return Reason.TOO_LATE
        if not tenant.can_ever_pay(self._price(index)):
            return Reason.TOO_LARGE
        if 0 < rules.max_queue <= n_of_class:
            return Reason.CLASS_QUEUE_FULL
        if 0 < config.max_queue <= len(waiting):
            return Reason.QUEUE_FULL
        return Reason.TOKENS_FULL if 0 < config.max_queued_tokens < n_tokens else Reason.NONE

    def _ticket(self, index: int, now_ns: int) -> _Ticket:
        columns = self._columns
        patience_ns = int(columns.patience_ns[index])
        return _Ticket(
            index=index,
            class_index=int(columns.class_index[index]),
            tenant=int(columns.tenant_index[index]),
            band=int(columns.band[index]),
            key=int(columns.key[index]) + (now_ns if goes_by_deadline(self._config) else 0),
            arrival_ns=now_ns,
            expires_ns=FAR_NS if patience_ns == FAR_NS else now_ns + patience_ns,
        )

    def _order(self, ticket: _Ticket) -> tuple[int, Fraction, int, int, int]:
        """Who goes before whom? The smaller."""
        service = (
            self._tenants[ticket.tenant].share if self._config.order == "fair" else Fraction(0)
        )
        return (ticket.band, service, ticket.key, ticket.arrival_ns, ticket.index)

    def _price(self, index: int) -> int:
        return int(self._columns.prompt_tokens[index] + self._columns.max_tokens[index])

    def _waiting(self) -> list[_Ticket]:
        return [*self._ready, *chain.from_iterable(self._gathering)]

    def _is_class_full(self, class_index: int) -> bool:
        return 0 < self._classes[class_index].max_in_flight <= self._n_in_flight[class_index]

    def _window_end_ns(self, class_index: int) -> int:
        rules, gathering = self._classes[class_index], self._gathering[class_index]
        if not gathering:
            return FAR_NS
        window_ns = rules.window_ns
        if rules.widest_at:
            n_in_flight = min(self._n_in_flight[class_index], rules.widest_at)
            window_ns += (rules.widest_window_ns - rules.window_ns) // rules.widest_at * n_in_flight
        return gathering[0].arrival_ns + window_ns

    def _open(self, class_index: int) -> None:
        self._ready += self._gathering[class_index]
        self._gathering[class_index] = []

    def _let_in(self, ticket: _Ticket) -> None:
        self._leave(ticket)
        self._is_inside[ticket.index] = True
        self._n_in_flight[ticket.class_index] += 1
        tenant, columns = self._tenants[ticket.tenant], self._columns
        tenant.pay(self._price(ticket.index))
        tenant.service += int(columns.prompt_tokens[ticket.index])
        tenant.service += self._config.output_token_weight * int(
            columns.expected_tokens[ticket.index]
        )

    def _leave(self, ticket: _Ticket) -> None:
        """One waits no more."""
        queue = self._ready if ticket in self._ready else self._gathering[ticket.class_index]
        queue.remove(ticket)
        if all(other.tenant != ticket.tenant for other in self._waiting()):
            self._last_served = self._tenants[ticket.tenant]

    def _join_tenants(self, tenant: int) -> None:
        """A tenant who was away gets no credit for that: it begins where the least served of those who wait is."""
        waiting = [ticket.tenant for ticket in self._waiting()]
        if tenant in waiting:
            return
        there = [self._tenants[other] for other in waiting]
        if not there and self._last_served is not None:
            there = [self._last_served]
        if there:
            self._tenants[tenant].lift(min(other.share for other in there))
