"""What does the scheduler know about a request? In plain Python, with vLLM's names."""

from collections.abc import Sequence

from inferometer.simulate.outcome import Status


class Request:
    """A request and what became of it so far.

    ``stop_tokens`` is where the model would stop by itself (an end-of-sequence token is its last
    one), ``max_tokens`` what the client allows: the scheduler knows only the latter beforehand.
    """

    __slots__ = (
        "arrival_ns",
        "blocks",
        "class_index",
        "contents",
        "has_padded_drafts",
        "index",
        "is_prefill_chunk",
        "max_tokens",
        "next_decode_eligible_step",
        "num_cached_blocks",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_host_blocks",
        "num_in_flight_tokens",
        "num_known_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_spec_tokens",
        "num_stale_output_tokens",
        "num_tokens",
        "priority",
        "shared_prefix_boundary",
        "slot",
        "status",
        "stop_tokens",
        "turn",
    )

    def __init__(
        self,
        index: int,
        *,
        arrival_ns: int,
        prompt: int,
        stop: int,
        max_tokens: int,
        priority: int,
        contents: Sequence[int],
        class_index: int = 0,
    ) -> None:
        self.index = index
        self.arrival_ns = arrival_ns
        self.num_prompt_tokens = prompt
        self.stop_tokens = stop
        self.max_tokens = max_tokens
        self.priority = priority
        self.contents = contents
        """What each full block of prompt and output holds."""
        self.class_index = class_index
        self.status = Status.UNSEEN
        self.num_tokens = prompt
        self.num_computed_tokens = 0
        self.num_spec_tokens = 0
        """Drafts that wait to be verified."""
        self.has_padded_drafts = False
        """Are they only there to fill the rows that such a request has?"""
        self.num_output_placeholders = 0
        """Tokens that batches in flight will yield (asynchronous scheduling)."""
        self.num_in_flight_tokens = 0
        self.num_stale_output_tokens = 0
        """Tokens in flight when the request was preempted: what they yield is delivered and
        counts no more."""
        self.is_prefill_chunk = True
        self.next_decode_eligible_step = 0
        self.num_preemptions = 0
        self.num_cached_tokens = 0
        """Tokens found in the prefix cache at the first admission."""
        self.slot = -1
        """Its slot in the batch; -1 where it does not run."""
        self.blocks: list[int] = []
        self.num_cached_blocks = 0
        self.shared_prefix_boundary = 0
        """How many of its first tokens are cached for full attention alone; 0 where windows have
        them too."""
        self.num_host_blocks = 0
        """Blocks in host memory, where it was swapped out."""
        self.num_known_tokens = 0
        """What SGLang last knew of its tokens; of one that waits, those that were not cached."""
        self.turn = 0
        """As which of all it came into SGLang's queue, the last time."""

    def start_over(self) -> None:
        """It will compute all of its tokens again; what is in flight yields tokens that count no more."""
        self.num_computed_tokens = 0
        self.num_stale_output_tokens = self.num_in_flight_tokens
        self.num_output_placeholders = 0

    def lose_place(self) -> None:
        """It has to go, and starts over."""
        self.status = Status.PREEMPTED
        self.start_over()
        self.is_prefill_chunk = True
        self.num_preemptions += 1

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated and delivered so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def order(self) -> tuple[int, int, int]:
        """The more urgent of two requests is the one whose order is smaller."""
        return (self.priority, self.arrival_ns, self.index)
