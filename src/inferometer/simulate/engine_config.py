"""Whose rules are simulated? The union of all engines' configurations, and how an engine is added.

Each engine's rules (its *policy*) exist twice, in plain Python and compiled, behind one seam; both
loops run any of them.

1. A frozen dataclass with the engine's own names, refusing what the engine refuses. It carries
   ``engine`` (a name to confess by),
   ``max_model_len``, ``max_prompt_tokens`` (longer ones are refused), ``step_budget_tokens`` (0:
   none), ``max_num_active`` (concurrent requests), ``depth`` (batches in flight), ``n_instances``
   (1, unless batches run side by side), ``block_size``, ``n_kv_blocks`` (that can hold tokens) and
   ``enable_prefix_caching``. It joins ``EngineConfig`` below.
2. A class with the methods of ``reference.policy.Policy``, and one line in
   ``reference.policy.policy_of``. ``reference.Scheduler``
   is the example; ``reference.batch.launch`` counts a request's tokens as computed.
3. A member of ``kernel.config.Kind`` and one case of its ``_own_columns``; columns that only it
   needs join ``kernel.config.Config``, arrays ``State``
   (empty for the others).
4. Functions ``add``, ``schedule``, ``update`` and ``abort``, one line each in ``kernel/policy.py``
   (compiled once per kind, without the
   others: ``kernel/loop.py``); what every step calls is ``compiling.inlined``. ``schedule`` fills a
   ``Batch`` and its ``Part``s (``kernel.vllm_schedule.launch`` does) and keeps ``n_running``,
   ``n_waiting``, ``n_free`` (KV blocks) and ``n_preempted`` true.
5. Who begins to run takes a seat (``kernel/seats.py``, ``reference.batch.Seats``: the lowest free
   one), who is done or thrown out
   gives it back: throw out before you admit, admit in the order of the batch. Who ends does so by
   ``kernel.arrivals.end``.
6. Whoever waits for a time, not for a client, says when to be asked again: ``wake_ns``, later than
   now.
7. A Hypothesis test holds the two equal to the nanosecond, worked examples hold both to the
   engine's rules.
"""

from typing import TypeAlias

from inferometer.simulate.batch_config import BatchConfig
from inferometer.simulate.scheduler_config import SchedulerConfig
from inferometer.simulate.sglang_config import SglangConfig
from inferometer.simulate.trtllm_config import TrtllmConfig

EngineConfig: TypeAlias = SchedulerConfig | TrtllmConfig | SglangConfig | BatchConfig


def n_stages_of(config: EngineConfig) -> int:
    """Through how many stages does a batch go, one after the other (pipeline parallelism)?"""
    return config.pipeline_parallel_size if isinstance(config, SchedulerConfig) else 1
