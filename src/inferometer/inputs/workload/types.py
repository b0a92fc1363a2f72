"""Types of workloads: arrivals, classes of requests, sessions, tenants, replayed traces.

These are the tables of a workload file, key for key; ``reading`` reads them, ``drawing`` draws
requests from them.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from inferometer.inputs.objectives import ClassObjective, class_objectives
from inferometer.inputs.workload.distributions import (
    Distribution,
    Natural,
    NotNegative,
    Positive,
    Rate,
    Tagged,
)

TraceFormat: TypeAlias = Literal[
    "azure",
    "mooncake",
    "llmservingsim",
    "sharegpt",
    "openai-batch",
    "prompts",
    "aiperf",
    "otel",
    "inferometer",
    "table",
]
Process: TypeAlias = Literal["poisson", "gamma", "constant"]


class Ramp(Tagged, frozen=True, kw_only=True, tag="ramp"):
    """The rate ramps from ``from_ratio`` to ``to_ratio`` times ``rate_per_s`` in ``over_s``."""

    from_ratio: NotNegative
    to_ratio: NotNegative = 1.0
    over_s: Positive


class Bursts(Tagged, frozen=True, kw_only=True, tag="bursts"):
    """``on_ratio`` times ``rate_per_s`` for ``on_s``, ``off_ratio`` times it for ``off_s``, and again."""

    on_s: Positive
    off_s: Positive
    on_ratio: Positive
    off_ratio: NotNegative = 0.0


class Points(Tagged, frozen=True, kw_only=True, tag="points"):
    """``ratios`` times ``rate_per_s``, as steps or straight lines, repeated each ``repeat_s``."""

    at_s: tuple[NotNegative, ...]
    ratios: tuple[NotNegative, ...]
    interpolation: Literal["steps", "lines"] = "steps"
    repeat_s: Positive | None = None


Profile: TypeAlias = Ramp | Bursts | Points


class OpenArrivals(Tagged, frozen=True, kw_only=True, tag="open"):
    """Requests arrive whether or not earlier ones are done.

    ``rate_per_s`` counts requests; sessions of several turns begin at a correspondingly lower rate.
    ``burstiness_ratio`` is the shape of the gamma process, as ``--burstiness`` of vLLM's ``bench
    serve``: the gaps' coefficient of variation is 1 / its square root.
    """

    rate_per_s: Rate = 1.0
    process: Process = "poisson"
    burstiness_ratio: Annotated[float, msgspec.Meta(ge=1e-3, le=1e6)] = 1.0
    profile: Profile | None = None
    source: str | None = None


class ClosedArrivals(Tagged, frozen=True, kw_only=True, tag="closed"):
    """``concurrency`` users; each sends, waits for the end, thinks, and sends again.

    They start evenly over ``start_over_s``.
    """

    concurrency: Natural
    think_s: Distribution | None = None
    start_over_s: NotNegative = 0.0
    source: str | None = None


class TraceArrivals(Tagged, frozen=True, kw_only=True, tag="trace"):
    """The arrival times of a trace, ``speed_up_ratio`` times as fast; lengths are the classes'."""

    path: str
    format: TraceFormat | None = None
    speed_up_ratio: Rate = 1.0
    source: str | None = None


class AtOnce(Tagged, frozen=True, kw_only=True, tag="at_once"):
    """All requests arrive at the start: an offline batch."""

    source: str | None = None


Arrivals: TypeAlias = OpenArrivals | ClosedArrivals | TraceArrivals | AtOnce


class Exact(Tagged, frozen=True, kw_only=True, tag="exact"):
    """The client's limit is exactly the output length."""


class Cap(Tagged, frozen=True, kw_only=True, tag="cap"):
    """A fixed limit on output tokens; longer answers are cut."""

    tokens: Natural


class Multiple(Tagged, frozen=True, kw_only=True, tag="multiple"):
    """The client's limit is this multiple of the output length."""

    ratio: Annotated[float, msgspec.Meta(ge=1, le=1e6)]


MaxTokens: TypeAlias = Exact | Cap | Multiple


class Sessions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conversations: each turn's prompt is the conversation so far plus new tokens.

    New tokens are the class's ``prompt_tokens``, in later turns ``later_prompt_tokens`` if given.
    A session ends early if a turn with its answer would exceed ``max_context_tokens``; its first
    turn is always kept.
    """

    turns: Distribution
    think_s: Distribution
    later_prompt_tokens: Distribution | None = None
    max_context_tokens: Natural | None = None
    source: str | None = None


class FanOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each turn is an agent's workflow: planner, parallel subtasks, and a synthesis after them.

    The planner has the class's lengths. A subtask's prompt is ``prompt_tokens``, behind the
    planner's prompt and answer where ``shares_prefix``; that of the synthesis is the planner's
    prompt and answer, and the answers of all subtasks or else ``synthesis_prompt_tokens``. It
    answers ``synthesis_output_tokens`` or else the class's. ``think_s`` is the time (of tools) before
    each subtask and before the synthesis; by default none.
    """

    subtasks: Distribution
    prompt_tokens: Distribution
    output_tokens: Distribution
    shares_prefix: bool = True
    synthesis_prompt_tokens: Distribution | None = None
    synthesis_output_tokens: Distribution | None = None
    think_s: Distribution | None = None
    source: str | None = None


class Beams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each request is a beam search of ``width`` beams, as vLLM 0.32.0 sends it to its engine.

    For each token it sends a request of one token for each beam, and waits for all of them
    (``vllm/entrypoints/generate/beam_search/online.py``); the first token is one request. A search
    never ends early: it takes ``max_tokens`` steps, whatever ``output_tokens`` is. ``think_s`` after
    the last of them it sends the next ones, ``apart_s`` after one another: medians of vLLM's server
    in front of a tiny model on two busy CPU cores, widths 2 to 8.
    """

    width: Annotated[int, msgspec.Meta(ge=2, le=1000)]
    think_s: NotNegative = 8e-4
    apart_s: NotNegative = 2e-4
    source: str | None = None


class SystemPrompts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``n_prompts`` different texts; each session begins with one, before ``prompt_tokens``.

    The frequency of the k-th most popular is proportional to k^-exponent.
    """

    n_prompts: Natural = 1
    popularity_exponent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    tokens: Distribution
    source: str | None = None


class RequestClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of request: share of sessions, lengths, priority, patience.

    ``correlation_ratio`` is that of the normal scores of prompt and output length (a Gaussian
    copula). A smaller ``priority`` is more urgent. ``slo`` is passed on as text. ``concurrency``:
    users of a closed loop who send only requests of this class. All classes have it or none;
    arrivals are then closed, and another total ``concurrency`` is divided in the same proportions.
    ``weight_ratio`` is then the class's part of the requests that are drawn.
    """

    name: str
    prompt_tokens: Distribution
    output_tokens: Distribution
    weight_ratio: NotNegative = 1.0
    concurrency: Natural | None = None
    correlation_ratio: Annotated[float, msgspec.Meta(ge=-1, le=1)] = 0.0
    max_tokens: MaxTokens = msgspec.field(default_factory=Exact)
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)] = 0
    slo: str | None = None
    patience_s: Distribution | None = None
    sessions: Sessions | None = None
    fan_out: FanOut | None = None
    beams: Beams | None = None
    system_prompts: SystemPrompts | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        excluded = (self.fan_out, self.patience_s)
        if self.beams is not None and excluded != (None, None):
            raise ValueError("a class with beams has neither fan_out nor patience_s")


class Tenants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``n_tenants`` tenants; the share of the k-th is proportional to k^-exponent."""

    n_tenants: Natural
    popularity_exponent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0


class TraceSource(Tagged, frozen=True, kw_only=True, tag="file"):
    """A trace to replay, with its own arrivals unless the workload has ``arrivals``.

    ``jitter_s`` spreads instants that the trace rounded down to multiples of it.
    ``hash_block_tokens``: tokens of a Mooncake block. ``is_sorted`` = false sorts the rows first.
    ``skip_empty`` leaves out requests without prompt or output, and says how many.
    ``output_tokens`` is the output length where the trace has none.
    """

    path: str
    format: TraceFormat | None = None
    speed_up_ratio: Rate = 1.0
    jitter_s: NotNegative = 0.0
    hash_block_tokens: Natural = 512
    is_sorted: bool = True
    skip_empty: bool = False
    turns: Literal["all", "first"] = "all"
    think_s: Distribution | None = None
    output_tokens: Natural | None = None


class ServeGenSource(Tagged, frozen=True, kw_only=True, tag="servegen"):
    """ServeGen's per-client rates and length tables, drawn from; each client is a tenant.

    ``without_lengths``: treatment of clients without length tables: ``refuse``, ``drop`` them, or
    ``pool`` the tables of the others.
    """

    rates_path: str
    lengths_path: str
    start_s: NotNegative = 0.0
    rate_ratio: Rate = 1.0
    without_lengths: Literal["refuse", "drop", "pool"] = "refuse"


Replay: TypeAlias = TraceSource | ServeGenSource


UNNAMED: Final = "workload"


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests drawn from ``classes`` at ``arrivals``, or those of a ``replay``.

    Ends after ``n_requests``, or with the last request that arrives within ``duration_s``, whichever
    is first.
    """

    name: str = UNNAMED
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    n_requests: Natural | None = None
    duration_s: Positive | None = None
    arrivals: Arrivals | None = None
    classes: tuple[RequestClass, ...] = ()
    tenants: Tenants | None = None
    replay: Replay | None = None
    note: str | None = None

    @property
    def class_objectives(self) -> tuple[ClassObjective, ...]:
        """SLOs of the classes that have their own."""
        return class_objectives((one.name, one.slo) for one in self.classes)

    def __post_init__(self) -> None:
        if bool(self.classes) == (self.replay is not None):
            raise ValueError("a workload has either classes or a replay")
        if self.replay is not None and self.tenants is not None:
            raise ValueError("a replay has the tenants of its trace")
        if self.classes and not any(one.weight_ratio for one in self.classes):
            raise ValueError("every class has weight 0: no request can come")
        names = [one.name for one in self.classes]
        if len(set(names)) < len(names):
            raise ValueError(f"two classes have one name: {', '.join(names)}")
        with_users = [one.name for one in self.classes if one.concurrency is not None]
        if with_users and len(with_users) < len(self.classes):
            raise ValueError(f"of the classes only {', '.join(with_users)} has a concurrency")
        if with_users and self.arrivals is None:
            n_users = sum(one.concurrency or 0 for one in self.classes)
            closed = ClosedArrivals(concurrency=n_users)
            msgspec.structs.force_setattr(self, "arrivals", closed)
        if with_users and not isinstance(self.arrivals, ClosedArrivals):
            raise ValueError(
                "classes with a concurrency, whose users wait for answers, and arrivals that do not:"
                " closed arrivals or none, --concurrency instead of --rate"
            )
