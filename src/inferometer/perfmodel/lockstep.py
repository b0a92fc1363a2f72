"""How long does a step take in which replicas of the attention layers wait for one another, and share the experts?

vLLM's data parallelism with expert parallelism: each of D replicas schedules requests of its own
and holds 1/D of the experts; in every layer the tokens of all replicas go to the experts and back,
so all take each step together, as long as the busiest does (``DPEngineCoreProc.run_busy_loop`` of
vLLM 0.32.0). Attention, dense matrices and logits are a replica's own: their time depends on its
own requests. The experts' depends on the rows of all: ``steptime_arrays.group_step_duration_s``
takes both. That tokens choose all experts alike is assumed; a device whose experts are chosen more
often takes longer.
"""

import numpy as np

from inferometer.errors import SpecError
from inferometer.perfmodel.communication import all_gather
from inferometer.perfmodel.steptime import StepTimeModel
from inferometer.perfmodel.steptime_arrays import StepTimeArrays, arrays_of
from inferometer.perfmodel.weights import Linear, expected_experts, linear_bits, linears
from inferometer.spec.types import DTYPE_BITS


def lockstep_arrays(model: StepTimeModel, *, n_replicas: int) -> StepTimeArrays:
    """Step times of a replica of the group, for its own statistics and the rows of all; of one replica alone, its own.

    Two exchanges in each layer of experts: every replica's rows are gathered by all, and results
    are summed and scattered.

    Raises
    ------
    SpecError
        A dense model (its replicas need not wait for one another), or replicas that are themselves
        split.
    """
    spec, physical = model.model, model.physical()
    if n_replicas == 1:
        return arrays_of(model)
    if spec.moe is None or model.engine.tensor_parallel_size > 1:
        raise SpecError(
            "replicas in lockstep",
            where=spec.model_id,
            allowed="a mixture of experts, each replica on one device",
        )
    whole = arrays_of(model)
    experts = [part for part in linears(spec) if part.n_copies > 1]
    dense = [part for part in linears(spec) if part.n_copies == 1]
    rows = np.exp(whole.read_log_rows)
    expert_bytes = np.array(
        [sum(_read_bytes(part, model, float(count)) for part in experts) for count in rows]
    )
    dense_bytes = sum(_read_bytes(part, model, 1.0) for part in dense)
    expert_flop, dense_flop = (
        sum(2.0 * part.n_in * part.n_out * part.n_active_copies * part.n_layers for part in parts)
        for parts in (experts, dense)
    )
    n_sparse = spec.n_layers - spec.moe.n_dense_layers
    sent_bytes = (
        2
        * n_sparse
        * all_gather(spec.hidden_size * DTYPE_BITS[model.engine.dtype] / 8, n_replicas).sent_bytes
    )
    return whole._replace(
        read_s=(dense_bytes + expert_bytes / n_replicas) / physical.weight_bytes_per_s
        + physical.floor_s,
        matmul_row_s=dense_flop / physical.matmul_flop_per_s,
        expert_row_s=expert_flop / n_replicas / physical.matmul_flop_per_s,
        message_s=2 * n_sparse * physical.message_s,
        link_row_s=sent_bytes / physical.link_bytes_per_s,
    )


def _read_bytes(part: Linear, model: StepTimeModel, n_rows: float) -> float:
    """Bytes of a matrix that so many rows read, of its copies only those that some row is routed to."""
    touched = (
        expected_experts(part.n_copies, part.n_active_copies, round(n_rows))
        if part.n_copies > 1
        else part.n_copies
    )
    return linear_bits(part, model.engine) / 8 * part.n_weights * touched / part.n_copies
