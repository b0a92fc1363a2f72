"""Simulation of a published serving run: scheduler settings, prefixes, and a prior from kernels."""

from typing import Final, NamedTuple

from inferometer.errors import ModelError
from inferometer.fit.loads.load_tests import Replay
from inferometer.fit.sweeps.kernels import model_from_kernels
from inferometer.inputs.types import EngineSpec, HardwareSpec, ModelSpec
from inferometer.perfmodel.memory import USUAL_BEFORE, MemoryQuestion, n_kv_blocks_that_fit
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_levels import lockstep_arrays
from inferometer.records.imports.kernel_tables import KernelTables
from inferometer.records.imports.llmservingsim import BLOCK_TOKENS, PublishedServing
from inferometer.simulate.demand import SharedBlocks
from inferometer.simulate.scheduler_config import SchedulerConfig

_MAX_MODEL_LEN: Final = 32_768
"""vLLM takes the model's own; no request of the runs comes near either."""


class PublishedSubject(NamedTuple):
    """Set-up of a published run, and the prior of its step times."""

    replay: Replay
    prior: StepTimeModel


def published_subject(
    serving: PublishedServing, tables: KernelTables, hardware: HardwareSpec
) -> PublishedSubject:
    """Settings of the run as stated; KV blocks, which are not stated, as many as fit.

    Replicas that share experts take each step together, each with its own max_num_seqs, budget
    and blocks.

    Raises
    ------
    ModelError
        The catalogue does not know the model, or dense replicas, which are
        separate engines.
    """
    arguments, model = serving.arguments, serving.run.manifest.model
    if model is None:
        raise ModelError(
            f"the model {arguments.model} is not known",
            where=serving.run.manifest.run_id,
            allowed="a model of the catalogue",
        )
    n_replicas = arguments.data_parallel_size
    if n_replicas > 1 and not arguments.enable_expert_parallel:
        raise ModelError(
            f"{n_replicas} replicas that share no experts",
            where=serving.run.manifest.run_id,
            try_="simulate each alone",
        )
    engine = EngineSpec(
        engine="vllm",
        mode="compiled",
        dtype="bfloat16",
        device="cuda",
        tensor_parallel_size=arguments.tensor_parallel_size,
    )
    prefix = serving.prefix
    config = SchedulerConfig(
        num_blocks=_n_blocks(model, engine, hardware, serving),
        max_model_len=_MAX_MODEL_LEN,
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        enable_prefix_caching=prefix is not None,
    )

    n_linked = n_replicas * arguments.tensor_parallel_size
    return PublishedSubject(
        replay=Replay(
            config=config,
            shared=None if prefix is None else SharedBlocks(start=prefix.start, ids=prefix.ids),
            pricing=lambda steps: lockstep_arrays(steps, n_replicas=n_replicas),
            n_replicas=n_replicas,
            router="vllm-0.19",
        ),
        prior=model_from_kernels(
            model, engine, tables, hardware=hardware.hardware_id, n_linked=n_linked
        ),
    )


def _n_blocks(
    model: ModelSpec, engine: EngineSpec, hardware: HardwareSpec, serving: PublishedServing
) -> int:
    """More than the runs fill."""
    question = MemoryQuestion(
        model=model,
        engine=engine,
        hardware=hardware,
        context_tokens=1,
        prompt_tokens=serving.arguments.max_num_batched_tokens,
        max_step_tokens=serving.arguments.max_num_batched_tokens,
        block_tokens=BLOCK_TOKENS,
        utilization_fraction=USUAL_BEFORE.value,
        n_expert_shards=serving.arguments.data_parallel_size,
    )
    return n_kv_blocks_that_fit(question, max_num_seqs=serving.arguments.max_num_seqs)
