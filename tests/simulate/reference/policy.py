"""What must an engine's rules be able to do, and which are these?

In plain Python; ``engine_config`` tells how to add some.
"""

from typing import Protocol

from inferometer.simulate.engine_config import EngineConfig
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.trtllm_config import TrtllmConfig
from reference.batch import Batch, Delivery
from reference.batches import BatchScheduler
from reference.request import Request
from reference.sglang import SglangScheduler
from reference.trtllm import TrtllmScheduler
from reference.vllm import Scheduler


class Policy(Protocol):
    """Call ``schedule``, compute, ``update``.

    With a depth of 2 ``schedule`` the next step before ``update`` of the last.
    """

    @property
    def n_waiting(self) -> int:
        """How many wait?"""
        ...

    @property
    def has_unfinished(self) -> bool:
        """Is anyone running or waiting?"""
        ...

    @property
    def n_kv_blocks_used(self) -> int:
        """How many blocks of KV cache are taken?"""
        ...

    @property
    def n_evicted(self) -> int:
        """How many blocks or pages of cached prefixes made room for others?"""
        ...

    def add(self, request: Request) -> None:
        """A request arrives; its status says whether it waits or is rejected."""
        ...

    def schedule(self, now_ns: int) -> Batch:
        """Decide the next step."""
        ...

    def update(self, batch: Batch) -> list[Delivery]:
        """Process what a step yielded: who got how many tokens, in order?

        Statuses say who has ended by that.
        """
        ...

    def abort(self, request: Request) -> None:
        """A client has gone, of a request that was added."""
        ...


def policy_of(config: EngineConfig) -> Policy:
    """The rules that this configuration asks for, with nobody there yet."""
    if isinstance(config, SchedulerConfig):
        return Scheduler(config)
    if isinstance(config, SglangConfig):
        return SglangScheduler(config)
    return TrtllmScheduler(config) if isinstance(config, TrtllmConfig) else BatchScheduler(config)
