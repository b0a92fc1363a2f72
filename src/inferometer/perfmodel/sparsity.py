"""What does 2:4 structured sparsity save: of four neighbouring weights two are kept, with two bits each to say which?"""

from dataclasses import replace

from inferometer.perfmodel.types import StepWork
from inferometer.perfmodel.weights import step_weight_bytes, stored_weight_bits
from inferometer.spec.types import EngineSpec, ModelSpec


def sparse_stored_ratio(engine: EngineSpec) -> float:
    """How many bytes does a sparse matrix take for each byte of the dense one: (b/2 + 1) / b for weights of b bits?

    Source
    ------
    Mishra et al., Accelerating Sparse Deep Neural Networks (arXiv 2104.08378), section 3.

    Example
    -------
    >>> sparse_stored_ratio(EngineSpec(dtype="bfloat16"))
    0.5625
    """
    bits = stored_weight_bits(engine)
    return (bits / 2 + 1) / bits


def sparse_work(work: StepWork, model: ModelSpec, engine: EngineSpec, *, n_rows: int) -> StepWork:
    """The same step with all matrices of the layers sparse: half of their FLOP, fewer bytes; head, attention and cache as before.

    Half of the FLOP at the dense rate is what sparse tensor cores promise; measured kernels keep part of it.
    """
    in_layers = step_weight_bytes(model, engine, n_rows=n_rows, n_logit_positions=0)
    return replace(
        work,
        matmul_flop=work.matmul_flop / 2,
        weight_bytes=work.weight_bytes - in_layers * (1 - sparse_stored_ratio(engine)),
    )


__all__ = ["sparse_stored_ratio", "sparse_work"]
