"""Both forms of the gate behind one interface, and the smallest loop that keeps its contract.

Servers that take a known time.
"""

from heapq import heappop, heappush
from typing import NamedTuple

from from_python import from_python
from reference.gate import Gate

from inferometer.records.types import ABSENT
from inferometer.simulate.gate_config import NOTHING
from inferometer.simulate.kernel import gating
from inferometer.simulate.kernel.gate_state import new_gate_state
from inferometer.simulate.outcome import FAR_NS
from inferometer.simulate.pointers import pointed


class CompiledGate:
    def __init__(self, requests, config):
        self.state = new_gate_state(requests, config)
        self.handle = pointed(self.state)

    @property
    def wake_ns(self):
        return int(self.state.counters["wake_ns"][0])

    @property
    def n_waiting(self):
        return int(self.state.counters["n_waiting"][0])

    @property
    def reasons(self):
        return self.state.requests["reason"].tolist()

    def offer(self, index, now_ns):
        return from_python(gating.offer)(self.handle, index, now_ns)

    def shed(self, now_ns):
        return from_python(gating.shed)(self.handle, now_ns)

    def release(self, now_ns, n_room):
        return from_python(gating.release)(self.handle, now_ns, n_room)

    def gone(self, index, now_ns):
        from_python(gating.gone)(self.handle, index, now_ns)

    def ended(self, index, n_output_tokens, now_ns):
        from_python(gating.ended)(self.handle, index, n_output_tokens, now_ns)


FORMS = {"plain": Gate, "compiled": CompiledGate}


class Event(NamedTuple):
    """What a gate did, and when."""

    what: str
    index: int
    now_ns: int


class Passage(NamedTuple):
    """All that happened at a gate, in order, and why it turned away whom."""

    events: list[Event]
    reasons: list[int]

    def released(self):
        return [event.index for event in self.events if event.what == "in"]

    def times(self, what="in"):
        return {event.index: event.now_ns for event in self.events if event.what == what}


def drive(gate, requests, service_ns, n_servers):
    """Requests arrive and go away as asked, and each that is let in takes its time on one of so many servers."""
    arrivals = [(int(when), i) for i, when in enumerate(requests.arrival_ns)]
    departures = sorted(
        (int(when), i) for i, when in enumerate(requests.abort_ns) if when != ABSENT
    )
    ends, events, n_room = [], [], n_servers
    while True:
        now_ns = min(
            (times[0][0] for times in (arrivals, departures, ends) if times), default=FAR_NS
        )
        now_ns = min(now_ns, gate.wake_ns)
        if now_ns == FAR_NS:
            assert gate.n_waiting == 0, "a deadlock"
            return Passage(events, list(gate.reasons))
        while ends and ends[0][0] == now_ns:
            gate.ended(index := heappop(ends)[1], int(requests.output_tokens[index]), now_ns)
            n_room += 1
        while arrivals and arrivals[0][0] == now_ns:
            index = arrivals.pop(0)[1]
            if not gate.offer(index, now_ns):
                events.append(Event("refused", index, now_ns))
        while departures and departures[0][0] == now_ns:
            index = departures.pop(0)[1]
            was = gate.n_waiting
            gate.gone(index, now_ns)
            events += [Event("gone", index, now_ns)] * (was - gate.n_waiting)
        while (index := gate.shed(now_ns)) != NOTHING:
            events.append(Event("shed", index, now_ns))
        while (index := gate.release(now_ns, n_room)) != NOTHING:
            events.append(Event("in", index, now_ns))
            heappush(ends, (now_ns + int(service_ns[index]), index))
            n_room -= 1
        assert n_room >= 0
        assert gate.wake_ns > now_ns
