"""What does 2:4 structured sparsity save: of four neighbouring weights two are kept?"""

from dataclasses import replace

from inferometer.perfmodel.types import StepWork
from inferometer.perfmodel.weights import step_weight_bytes
from inferometer.spec.types import EngineSpec, ModelSpec


def sparse_work(
    work: StepWork, model: ModelSpec, engine: EngineSpec, *, n_rows: int, rate_ratio: float
) -> StepWork:
    """The same step with the matrices of the layers sparse.

    Fewer bytes, and FLOP at ``rate_ratio`` times the dense rate.

    Head, attention and cache stay as they are. The saved bytes shorten a step that waits for its
    weights, so they help most at small batches; a step that waits for its FLOP gains only
    ``rate_ratio``: 2 on paper, much less in published kernels.
    """
    dense, sparse = (
        step_weight_bytes(model, engine, n_rows=n_rows, n_logit_positions=0, is_sparse=is_sparse)
        for is_sparse in (False, True)
    )
    return replace(
        work,
        matmul_flop=work.matmul_flop / rate_ratio,
        weight_bytes=work.weight_bytes - (dense - sparse),
    )
