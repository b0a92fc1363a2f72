"""The real engine loop of vLLM 0.32.0 (``EngineCore.step`` and ``step_with_batch_queue``) on a clock of our own.

Only the device is replaced: a batch takes what its rows and requests cost, and asking for a result
moves the clock to its end. Runs in vLLM's environment; ``record_vllm_traces.py loop`` compares it
with both simulators.
"""

import queue
from collections import deque

from reference.stages import Stages
from vllm.v1.engine.core import EngineCore
from vllm_driver import VllmDriver

from inferometer.records.types import ABSENT
from inferometer.simulate.step_cost import duration_ns


class Device:
    """Works off one batch after the other; knows what each takes."""

    def __init__(self, driver: VllmDriver, cost) -> None:
        self.now_ns, self.stages = 0, Stages(driver.case.config.pipeline_parallel_size)
        self.on_wait = lambda: None
        self._driver, self._cost = driver, cost
        self._last = None
        self.drafted = frozenset()

    def execute_model(self, scheduler_output, non_block):
        assert non_block
        chosen = scheduler_output.num_scheduled_tokens
        yields = self._driver.yields(scheduler_output, self.drafted)
        took_ns = (
            duration_ns(self._cost, len(chosen), 0, sum(chosen.values()), 0, 0) if chosen else 0
        )
        is_sampling = any(n_drafts is not None for n_drafts in yields.values())
        passage = self.stages.work(self.now_ns, took_ns, is_sampling=is_sampling)
        self._last = Result(self, passage.end_ns, yields)
        return self._last

    def take_draft_token_ids(self):
        return self._driver.drafts(list(self._last.yields))

    def sample_tokens(self, _grammar, non_block=True):
        assert non_block
        return self._last


class Result:
    def __init__(self, device, end_ns, yields):
        self._device, self._end_ns, self.yields = device, end_ns, yields

    def result(self):
        self._device.now_ns = max(self._device.now_ns, self._end_ns)
        self._device.on_wait()
        return self._device._driver.sampled(self.yields)


class Loop(EngineCore):
    """The real loop, without the start-up that wants a model."""

    def __init__(self, case, requests, factory, cost) -> None:
        self.driver = VllmDriver(case, factory)
        self.scheduler = self.driver.scheduler
        self.vllm_config = self.scheduler.vllm_config
        self.model_executor = self.device = Device(self.driver, cost)
        self.device.on_wait = self.hand_in_aborts
        self.aborts_queue = queue.Queue()
        self.batch_queue_size = case.config.depth
        self.batch_queue = deque(maxlen=self.batch_queue_size) if case.config.depth > 1 else None
        self.is_mm_encoder_only = self.is_pooling_model = self.log_stats = False
        self.check_for_draft_tokens = case.config.num_speculative_tokens > 0
        self.async_scheduling = case.config.async_scheduling
        self._weight_version = None
        self.arrival_ns = requests.arrival_ns.tolist()
        self.departures = deque(
            sorted((when, i) for i, when in enumerate(requests.abort_ns.tolist()) if when != ABSENT)
        )
        self.late_aborts = []
        self.n_arrived = 0

    def shutdown(self):
        """Nothing was started."""

    def hand_in_aborts(self):
        """Aborts are put into both queues.

        The engine looks at one before tokens are processed, at the other before it schedules.
        """
        while self.departures and self.departures[0][0] <= self.device.now_ns:
            _, index = self.departures.popleft()
            self.aborts_queue.put([f"{index:06d}"])
            self.late_aborts.append(f"{index:06d}")

    def take_in(self):
        while (
            self.n_arrived < len(self.arrival_ns)
            and self.arrival_ns[self.n_arrived] <= self.device.now_ns
        ):
            self.driver.add(self.n_arrived)
            self.n_arrived += 1
        self.hand_in_aborts()
        self.abort_requests(self.late_aborts)
        self.late_aborts = []

    def run(self, max_steps=5000):
        """When did each request get its first and its last token? ABSENT where it did not."""
        n_requests = len(self.arrival_ns)
        first, last = [ABSENT] * n_requests, [ABSENT] * n_requests
        step = self.step if self.batch_queue is None else self.step_with_batch_queue
        for _ in range(max_steps):
            self.take_in()
            if not self.scheduler.has_requests() and not self.batch_queue:
                if self.n_arrived == n_requests:
                    break
                self.device.now_ns = self.arrival_ns[self.n_arrived]
                continue
            self.device.drafted = {
                f"{i:06d}"
                for i, request in enumerate(self.driver.requests)
                if request.spec_token_ids
            }
            outputs, is_executed = step()
            if self.batch_queue is None:
                self.post_step(is_executed)
            for output in (outputs or {}).values():
                for part in output.outputs:
                    index = int(part.request_id)
                    if part.new_token_ids and first[index] == ABSENT:
                        first[index] = self.device.now_ns
                    if part.finish_reason is not None and part.new_token_ids:
                        last[index] = self.device.now_ns
        return first, last


__all__ = ["Loop"]
