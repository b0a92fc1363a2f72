"""Where is a request in its life, and where is its KV cache, with vLLM's names?"""

from enum import IntEnum


class Status(IntEnum):
    """Where is a request in its life?"""

    UNSEEN = 0
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3
    STOPPED = 4
    LENGTH = 5
    ABORTED = 6
    REJECTED = 7
    PREFILLED = 8
    """Done where it was, to go on at a decode replica."""

    @property
    def is_finished(self) -> bool:
        """Will nothing happen to it any more?"""
        return self >= Status.STOPPED


class Stage(IntEnum):
    """Where is the KV cache of a request whose prompt another replica computes?"""

    ABSENT = 0
    FOR_ROOM = 1
    """It waits where it was computed, until there are blocks for it."""
    MOVING = 2
    RECEIVED = 3
    """It is there, and the request waits for a seat."""
    OVER = 4
    """The request has gone on, or away."""
