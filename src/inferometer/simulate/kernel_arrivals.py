"""Who comes next, and what happens when a request ends? Compiled."""

from inferometer.simulate.compiling import compiled
from inferometer.simulate.kernel_state import State


@compiled
def end(state: State, index: int, status: int, when_ns: int) -> None:
    """A request ends, however it does."""
    request = state.requests[index]
    request.status = status
    request.finished_ns = when_ns


__all__ = ["end"]
