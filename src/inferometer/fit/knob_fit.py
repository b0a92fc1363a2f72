"""What is known of one limit or switch of a server that was loaded, not opened?"""

from dataclasses import dataclass
from typing import Literal


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
