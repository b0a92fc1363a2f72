"""What is known of one limit or switch of a server that was loaded, not opened?"""

from dataclasses import dataclass
from typing import Final, Literal

from inferometer.simulate.deployment import Pace

_ALIKE_BOTH_WAYS: Final = ("async_scheduling",)
"""Where load tests leave such a switch open, step times stand in for it, and do so under other loads."""
_OPEN_RATIO: Final = 4
"""A limit of which no upper end is known is simulated so much larger too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobFit:
    """A limit or a switch of the server's scheduler, under vLLM's name, and what the load tests say of it."""

    name: str
    value: int | bool
    """What a simulation takes."""
    low: int | None
    high: int | None
    """Ends of the interval of 90 %; None: the load tests set none on that side."""
    told_by: Literal["load", "server", "assumed"]
    said: str
    """In words."""
    probe: str | None
    """A load test that would tell more."""

    def at(self, pace: Pace) -> int | bool:
        """As a simulation takes it, and both ends of what the load tests leave open: the loosest limit is the fast end."""
        if pace == "likely":
            return self.value
        if isinstance(self.value, bool):
            is_open = self.told_by == "assumed" and self.name not in _ALIKE_BOTH_WAYS
            return pace == "fast" if is_open else self.value
        high = _OPEN_RATIO * self.value if self.high is None and self.low is not None else self.high
        return max(self.value, high or self.value) if pace == "fast" else min(self.value, self.low or self.value)


__all__ = ["KnobFit"]
