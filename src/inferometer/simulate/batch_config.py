"""How is an engine set up that takes whole requests, whole batches at a time?

Static and dynamic batching, and none.

All three run a batch alike: one step computes all prompts, padded to the longest, then every step
computes one token of every row until the longest row stops. Rows that have stopped keep their slots
and are computed on. What differs is how a batch is formed. Memory is reserved for all rows at once,
each as long as the longest prompt and the longest answer that is allowed.
"""

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

from inferometer.errors import SpecError

TimeoutAction: TypeAlias = Literal["REJECT", "DELAY"]

_WHERE: Final = "the batcher's configuration"


class BatchRules(NamedTuple):
    """Rules of forming a batch, and of delivering its tokens; 0 means no such rule."""

    max_batch_size: int
    preferred_batch_size: tuple[int, ...] = ()
    max_delay_ns: int = 0
    timeout_ns: int = 0
    is_delaying: bool = False
    """After its queue timeout, does a request go to the end of the queue (or is refused)?"""
    max_queue_size: int = 0
    has_priorities: bool = False
    is_streaming: bool = True
    n_instances: int = 1
    """Batches that run side by side, each on a device of its own."""
    is_preserving: bool = False
    """No answer is given before those of all that left the queue earlier."""

    @property
    def largest(self) -> int:
        """Size of a batch that starts without further waiting."""
        return max(self.preferred_batch_size, default=self.max_batch_size)


class _OneBatchAtATime:
    """Properties that the simulation reads, for engines that run whole batches."""

    __slots__ = ()

    num_blocks: int
    max_model_len: int
    block_size: int
    enable_prefix_caching: ClassVar[bool] = False

    @property
    def rules(self) -> BatchRules:
        """Rules of forming a batch."""
        raise NotImplementedError

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that the server takes."""
        return self.max_model_len - 1

    @property
    def step_budget_tokens(self) -> int:
        """0: a batch is limited by its rows alone."""
        return 0

    @property
    def max_num_active(self) -> int:
        """The largest number of requests that run at once."""
        return self.rules.max_batch_size * self.rules.n_instances

    @property
    def n_instances(self) -> int:
        """The number of batches that run side by side."""
        return self.rules.n_instances

    @property
    def depth(self) -> int:
        """The largest number of batches in flight."""
        return self.rules.n_instances

    @property
    def n_kv_blocks(self) -> int:
        """The number of usable KV blocks."""
        return self.num_blocks * self.rules.n_instances

    def _check(self) -> None:
        rules = self.rules
        for name, value, least in (
            ("block_size", self.block_size, 1),
            ("max_model_len", self.max_model_len, 2),
            ("num_blocks", self.num_blocks, -(-self.max_model_len // max(self.block_size, 1))),
            ("max_batch_size", rules.max_batch_size, 1),
            ("the longest wait for a batch", rules.max_delay_ns, 0),
            ("the time-out of the queue", rules.timeout_ns, 0),
            ("max_queue_size", rules.max_queue_size, 0),
            ("instance_count", rules.n_instances, 1),
        ):
            if value < least:
                raise SpecError(f"{name} = {value}", where=_WHERE, allowed=f"{least} or more")
        if any(not 1 <= size <= rules.max_batch_size for size in rules.preferred_batch_size):
            text = f"preferred_batch_size = {list(rules.preferred_batch_size)}"
            raise SpecError(
                text, where=_WHERE, allowed=f"1 to max_batch_size = {rules.max_batch_size}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticBatching(_OneBatchAtATime):
    """First come, first served.

    What waits when the engine is idle, up to ``max_batch_size``, as ``generate`` of transformers
    does.

    With ``max_wait_ns`` a batch that is not full waits until its oldest request has waited so long.
    Tokens are streamed, or all answers are given when the batch is over.
    """

    num_blocks: int
    max_model_len: int
    max_batch_size: int = 8
    max_wait_ns: int = 0
    block_size: int = 16
    is_streaming: bool = True

    def __post_init__(self) -> None:
        self._check()

    @property
    def engine(self) -> str:
        """Name of the scheduling policy."""
        return "static batching"

    @property
    def rules(self) -> BatchRules:
        """Rules of forming a batch."""
        return BatchRules(
            max_batch_size=self.max_batch_size,
            max_delay_ns=self.max_wait_ns,
            is_streaming=self.is_streaming,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching(_OneBatchAtATime):
    """Triton's dynamic batcher before a model that runs a whole batch; names are Triton's, 0 and () mean: no such rule.

    ``instance_count`` is the ``count`` of its ``instance_group``: so many batches run side by side,
    each on a device of its own with ``num_blocks`` of memory, all from one queue; where several
    instances are idle the first takes the next batch. A batch is formed when an instance is idle;
    one that was formed but not begun is never grown. Answers are given when the batch is over,
    whichever is over first; with ``preserve_ordering`` in the order in which requests left the
    queue, so that a batch that is over sooner than one before it is kept back. It holds no memory
    and no instance meanwhile.
    """

    num_blocks: int
    max_model_len: int
    max_batch_size: int = 8
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    default_timeout_microseconds: int = 0
    timeout_action: TimeoutAction = "REJECT"
    max_queue_size: int = 0
    """Limit of each priority level."""
    has_priority_levels: bool = False
    instance_count: int = 1
    preserve_ordering: bool = False
    block_size: int = 16

    def __post_init__(self) -> None:
        self._check()

    @property
    def engine(self) -> str:
        """Name of the scheduling policy."""
        return "Triton's dynamic batcher" + f", {self.instance_count} instances" * (
            self.instance_count > 1
        )

    @property
    def rules(self) -> BatchRules:
        """Rules of forming a batch."""
        return BatchRules(
            max_batch_size=self.max_batch_size,
            preferred_batch_size=self.preferred_batch_size,
            max_delay_ns=self.max_queue_delay_microseconds * 1000,
            timeout_ns=self.default_timeout_microseconds * 1000,
            is_delaying=self.timeout_action == "DELAY",
            max_queue_size=self.max_queue_size,
            has_priorities=self.has_priority_levels,
            is_streaming=False,
            n_instances=self.instance_count,
            is_preserving=self.preserve_ordering,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBatching(_OneBatchAtATime):
    """One request at a time, first come, first served."""

    num_blocks: int
    max_model_len: int
    block_size: int = 16

    def __post_init__(self) -> None:
        self._check()

    @property
    def engine(self) -> str:
        """Name of the scheduling policy."""
        return "no batching"

    @property
    def rules(self) -> BatchRules:
        """Rules of forming a batch."""
        return BatchRules(max_batch_size=1)


BatchConfig: TypeAlias = StaticBatching | DynamicBatching | NoBatching
