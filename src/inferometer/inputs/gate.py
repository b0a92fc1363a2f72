"""How does the gate before the engines admit requests: order, windows, limits?

These are the tables of a gate file, key for key; ``read_gate`` reads one. They are here, not in
``simulate``, because a real gateway is configured from the same file: classes and tenants by name,
times in seconds. ``simulate.gate_rules`` converts the names to the indices of a workload.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from inferometer.inputs.file_tables import table_from_text, text_of
from inferometer.inputs.workload.distributions import Natural

GateOrder: TypeAlias = Literal[
    "fcfs", "priority", "shortest-remaining", "earliest-deadline", "least-slack", "fair"
]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
SecondsOrNone: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]

OTHERS: Final = "*"
"""The name of rules for all classes, or tenants, that have none of their own."""


class Admission(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits on the queue: its length, and the waiting time.

    ``max_queued_tokens`` counts prompts and ``max_tokens`` of all waiting requests. ``too_late``:
    ``keep`` requests that cannot meet their deadline any more, or reject them when it has
    ``passed``, or already when it is ``hopeless`` (the predicted first token is after it).
    """

    max_queue: Natural | None = None
    max_queued_tokens: Natural | None = None
    max_wait_s: Seconds | None = None
    too_late: Literal["keep", "passed", "hopeless"] = "keep"


class FirstToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Predicted time to first token of a request admitted now: a base plus a time per prompt token."""

    base_s: SecondsOrNone = 0.0
    per_prompt_token_s: SecondsOrNone = 0.0


class GateClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for one class of requests (``*``: for all others). Limits count all replicas together.

    A class with a window gathers requests until the oldest has waited ``window_s`` or
    ``window_size`` have come, then admits them together. ``widest_window_s``: with load the window
    grows, in proportion to the class's requests in flight, from ``window_s`` with none to this
    length with ``widest_at`` or more. ``max_tokens`` cuts answers.
    ``ttft_limit_s`` sets deadlines; without it, the limit of the class's ``slo`` in the workload
    does. ``priority``: the smaller, the more urgent; by default each request's own.
    """

    name: str
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    window_s: Seconds | None = None
    window_size: Natural | None = None
    widest_window_s: Seconds | None = None
    widest_at: Natural | None = None
    max_in_flight: Natural | None = None
    max_tokens: Natural | None = None
    max_queue: Natural | None = None
    max_wait_s: Seconds | None = None
    ttft_limit_s: Seconds | None = None

    def __post_init__(self) -> None:
        if self.window_size is not None and self.window_s is None:
            raise ValueError(
                "a window_size without window_s: the last requests would wait for ever"
            )
        if (self.widest_window_s is None) != (self.widest_at is None):
            raise ValueError("a window that grows has both widest_window_s and widest_at")
        if self.widest_window_s is not None and self.widest_window_s < (self.window_s or 1e9):
            raise ValueError(
                "widest_window_s below window_s, or without it: a window only grows with load"
            )


class Oversized(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Longer prompts are treated as requests of another class.

    ``class_name`` is a class of the workload or, like ``background``, one of the gate alone, with
    rules in ``classes``. The requests keep their own class in all results.
    """

    above_prompt_tokens: Natural
    class_name: str = "background"


class GateTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules for one tenant (``*``: for each of all others).

    Its token bucket, and its weight under fair sharing.

    A bucket holds ``burst_tokens``, full at first, and refills at ``tokens_per_s``; an admitted
    request takes out its prompt tokens and ``max_tokens``.
    """

    name: str
    tokens_per_s: Natural | None = None
    burst_tokens: Natural | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1

    def __post_init__(self) -> None:
        if (self.tokens_per_s is None) != (self.burst_tokens is None):
            raise ValueError("a bucket has both tokens_per_s and burst_tokens")


class GateSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A gate; absent rules do not apply.

    ``order`` of admissible requests; with ``priority_bands`` more urgent ones come first.
    ``lengths``: output lengths that the gate knows: ``declared`` (``max_tokens``) or, to see the
    gain of better knowledge, those of an ``oracle``. ``max_in_flight`` per replica; by default what
    the engine can admit soon. ``output_token_weight``: service of an output token relative to a
    prompt token (``fair``).
    """

    order: GateOrder = "fcfs"
    priority_bands: bool = False
    lengths: Literal["declared", "oracle"] = "declared"
    max_in_flight: Natural | None = None
    output_token_weight: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 2
    admission: Admission = msgspec.field(default_factory=Admission)
    first_token: FirstToken | None = None
    """None: predicted from the engine's step times."""
    oversized: Oversized | None = None
    classes: tuple[GateClass, ...] = ()
    tenants: tuple[GateTenant, ...] = ()

    def __post_init__(self) -> None:
        for noun, rules in (("classes", self.classes), ("tenants", self.tenants)):
            names = [one.name for one in rules]
            if len(set(names)) < len(names):
                raise ValueError(f"two {noun} have one name: {', '.join(names)}")
        over = self.oversized
        if over is not None and over.class_name not in {one.name for one in self.classes}:
            raise ValueError(
                f"oversized prompts go to class {over.class_name}, for which there are no rules"
            )


def read_gate(path: Path) -> GateSpec:
    """The gate that a TOML file describes.

    Raises
    ------
    SpecError
        The file cannot be read, or a key or value is invalid: the message names file, key, value
        and the allowed ones.
    """
    return gate_from_text(text_of(path, noun="gate", endings=".toml"), where=str(path))


def gate_from_text(text: str, *, where: str) -> GateSpec:
    """The gate that this TOML describes.

    Raises
    ------
    SpecError
        An invalid key or value; the message has ``where``, the name of the text.

    Example
    -------
    >>> gate_from_text("order = 'fair'", where="here").order
    'fair'
    """
    return table_from_text(text, GateSpec, where=where)
