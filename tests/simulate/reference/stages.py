"""When does a batch leave the devices of a replica, one after the other through the stages of its pipeline? In plain Python.

Stages have equal shares of the layers, so of a step's time; each works off batches in order. A
batch begins when the tokens are known that were sampled as many batches ago as there are stages
(``PPHandler.get_prev_sampled_outputs`` of vLLM 0.32.0): the next token of a request follows from
its last one. ``kernel/steps.py`` does the same on arrays.
"""

from collections import deque
from typing import NamedTuple


class Passage(NamedTuple):
    """From the first stage's begin to the last one's end."""

    start_ns: int
    end_ns: int


class Stages:
    """The stages of one replica; without pipeline parallelism there is one."""

    def __init__(self, n_stages: int) -> None:
        self._free_ns = [0] * n_stages
        self._sampled_ns = deque([0] * n_stages)

    def work(self, now_ns: int, duration_ns: int, *, is_sampling: bool) -> Passage:
        """A batch goes through all of them."""
        n_stages = len(self._free_ns)
        start_ns = end_ns = max(now_ns, self._sampled_ns.popleft(), self._free_ns[0])
        for stage in range(n_stages):
            share_ns = duration_ns * (stage + 1) // n_stages - duration_ns * stage // n_stages
            end_ns = self._free_ns[stage] = max(end_ns, self._free_ns[stage]) + share_ns
        self._sampled_ns.append(end_ns if is_sampling else 0)
        return Passage(start_ns, end_ns)
