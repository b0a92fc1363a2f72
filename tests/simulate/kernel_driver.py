"""The compiled scheduler behind the interface of ``stepping``."""

import numpy as np
from cases import Case
from from_python import from_python
from stepping import State

from inferometer.simulate.demand import SharedBlocks, demand, with_contents
from inferometer.simulate.kernel import requests as kernel_queue, vllm
from inferometer.simulate.kernel.state import new_state
from inferometer.simulate.outcome import Status
from inferometer.simulate.pointers import pointed


def demand_of(case: Case):
    requests = demand(
        [request.arrival for request in case.requests],
        [len(request.prompt) for request in case.requests],
        [len(request.outputs) for request in case.requests],
        max_tokens=[request.max_tokens for request in case.requests],
        priority=[request.priority for request in case.requests],
    )
    contents = case.contents()
    shared = SharedBlocks(
        start=np.concatenate([[0], np.cumsum([len(chain) for chain in contents])]).astype(np.int64),
        ids=np.array([content for chain in contents for content in chain], dtype=np.int64),
    )
    return with_contents(requests, case.config.block_size, shared)


class KernelDriver:
    def __init__(self, case: Case) -> None:
        self.case = case
        self.memory = new_state(demand_of(case), case.config, are_all=False)  # every free block
        self.memory.requests["status"] = int(Status.UNSEEN)
        self.handle = pointed(self.memory)
        self.counters = self.memory.counters[0]
        self.first, self.n_in_flight, self.slot = 0, 0, None

    def add(self, index):
        self.memory.requests["status"][index] = int(Status.WAITING)
        from_python(kernel_queue.add)(self.handle, index)

    def schedule(self):
        self.slot = (self.first + self.n_in_flight) % self.case.config.depth
        from_python(vllm.schedule)(self.handle, self.slot)
        self.n_in_flight += 1

    def update(self):
        self.slot = None
        from_python(vllm.update)(self.handle, self.first)
        self.first = (self.first + 1) % self.case.config.depth
        self.n_in_flight -= 1

    def abort(self, index):
        if self.memory.requests["status"][index] < int(Status.STOPPED):
            from_python(vllm.abort)(self.handle, index)

    def has_unfinished(self):
        return bool(self.counters["n_running"] + self.counters["n_waiting"])

    def state(self):
        memory, counters = self.memory, self.counters
        running = memory.queue.running[: counters["n_running"]].tolist()
        scheduled, preempted = (), ()
        if self.slot is not None:
            parts = memory.parts[self.slot][: memory.batches[self.slot]["n_parts"]]
            scheduled = tuple(
                zip(parts["request"].tolist(), parts["num_tokens"].tolist(), strict=True)
            )
            preempted = tuple(sorted(memory.queue.preempted[: counters["n_preempted"]].tolist()))
        return State(
            scheduled=scheduled,
            preempted=preempted,
            running=tuple(running),
            waiting=self.waiting(),
            computed=tuple(memory.requests["num_computed_tokens"][running].tolist()),
            blocks=tuple(self.blocks_of(index) for index in running),
            free_queue=self.free_queue(),
        )

    def waiting(self):
        memory, head, size = (
            self.memory,
            self.counters["waiting_head"],
            self.counters["waiting_size"],
        )
        places = (head + np.arange(size)) % len(memory.queue.waiting)
        indices = [
            index
            for index in memory.queue.waiting[places].tolist()
            if memory.requests["status"][index] < int(Status.STOPPED)
        ]
        assert len(indices) == self.counters["n_waiting"]
        if self.case.config.policy == "priority":
            indices.sort(key=lambda index: (memory.requests["priority"][index], index))
        return tuple(indices)

    def blocks_of(self, index):
        request, n_groups = self.memory.requests[index], self.case.config.n_kv_groups
        row = self.memory.memory.block_table[request["slot"]]
        tables = row[: request["num_blocks"] * n_groups].reshape(-1, n_groups)
        return tuple(tables.T.ravel().tolist())

    def free_queue(self):
        blocks, queue = self.memory.memory.blocks, []
        block = int(blocks["next"][0])
        while block:
            queue.append(block)
            block = int(blocks["next"][block])
        assert len(queue) == self.counters["n_free"]
        return tuple(queue)
