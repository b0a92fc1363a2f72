"""How much memory will a simulation take, before it is begun?"""

from typing import Final, NamedTuple

_REQUEST_BYTES: Final = 600
"""Plan, demand, state and table of a request; measured as the growth of the resident set with
100,000 to 300,000 requests: 300 to 560."""
_CONTENT_BYTES: Final = 12
"""Of each full block of all prompts and outputs where prefixes are cached; measured: 9 to 12."""
_REPLICA_CONTENT_BYTES: Final = 9
"""Of each such block on each further replica: where its cache has it, and whether the router
knows it; by the size of the arrays."""
_KV_BLOCK_BYTES: Final = 24
"""``kernel.state.BLOCK``."""
_STEP_BYTES: Final = 190
"""A row of the log and of the table at once; measured."""


class MemoryNeed(NamedTuple):
    """Between which bounds does the need lie?

    How many steps there will be is not known: full batches take the fewest.
    """

    least_bytes: int
    most_bytes: int


def memory_need(
    *,
    n_requests: int,
    n_blocks: int = 0,
    n_output_tokens: int = 0,
    max_num_active: int = 1,
    n_replicas: int = 1,
    n_kv_blocks: int = 0,
) -> MemoryNeed:
    """The memory that ``n_requests`` take.

    ``n_blocks`` where prefixes are cached, ``n_output_tokens`` where steps are recorded.

    ``n_kv_blocks`` of each replica are there from the start.

    Example
    -------
    >>> memory_need(n_requests=10_000_000).least_bytes / 2**30 > 5
    True
    """
    content_bytes = _CONTENT_BYTES + (n_replicas - 1) * _REPLICA_CONTENT_BYTES
    fixed_bytes = (
        n_requests * _REQUEST_BYTES
        + n_blocks * content_bytes
        + n_kv_blocks * n_replicas * _KV_BLOCK_BYTES
    )
    fewest, most = n_output_tokens // max(max_num_active, 1), n_output_tokens
    return MemoryNeed(
        least_bytes=fixed_bytes + fewest * _STEP_BYTES, most_bytes=fixed_bytes + most * _STEP_BYTES
    )
