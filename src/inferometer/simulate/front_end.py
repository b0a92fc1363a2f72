"""What does a client see of a server whose front end takes its time: HTTP, tokenising, a queue between processes?

The scheduler sees each request so much later than it was sent, and the client counts from the
sending. However fast a client is, who asks again when an answer ends is too late for the step that
is decided at that instant: the answer has to reach the client first.
"""

from typing import Final

from inferometer.records.columns import I64
from inferometer.records.types import ABSENT
from inferometer.simulate.demand import Demand
from inferometer.simulate.outcome import Simulation
from inferometer.units import NS_PER_S

_SOON_NS: Final = 1


def delayed(requests: Demand, front_end_s: float) -> Demand:
    """The requests as they come to the scheduler.

    One that follows another is sent when its client has seen the end of that.

    Example
    -------
    >>> from inferometer.simulate.demand import demand
    >>> delayed(demand([0, 5], [8, 8], [2, 2]), 1e-3).arrival_ns.tolist()
    [1000000, 1000005]
    """
    delay_ns = round(front_end_s * NS_PER_S)
    leaves = (requests.abort_ns != ABSENT) & (
        requests.follows < 0
    )  # a follower's patience begins with its own sending
    abort_ns = requests.abort_ns.copy()
    abort_ns[leaves] += delay_ns
    return requests._replace(
        arrival_ns=requests.arrival_ns + delay_ns,
        think_ns=_after(requests, delay_ns),
        abort_ns=abort_ns,
    )


def as_clients_see(simulation: Simulation, front_end_s: float) -> Simulation:
    """The same simulation of ``delayed`` requests, sent when their clients sent them."""
    delay_ns = round(front_end_s * NS_PER_S)
    if delay_ns == 0:
        return simulation
    table = simulation.requests
    sent = table._replace(
        intended_send_ns=table.intended_send_ns - delay_ns, sent_ns=table.sent_ns - delay_ns
    )
    return simulation._replace(requests=sent)


def _after(requests: Demand, delay_ns: int) -> I64:
    think_ns = requests.think_ns.copy()
    think_ns[requests.follows >= 0] += max(delay_ns, _SOON_NS)
    return think_ns
