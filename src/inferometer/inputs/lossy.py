"""Changes to a model that cost quality: quantised weights or KV cache, or 2:4 sparsity."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from inferometer.errors import SpecError

LossyFormat: TypeAlias = Literal["int8", "int4", "float8"]
CacheFormat: TypeAlias = Literal["int8", "float8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossyChange:
    """Changes to a model after loading; with the defaults nothing is changed.

    Weights of linear layers are rounded to nearest, without calibration; the embedding and the
    output head are unchanged, as in quantised checkpoints. int4 has a scale for each group of
    ``group_size`` weights of a row, int8 and float8 one for each row. Keys and values are rounded
    when they enter the cache: int8 with a scale for each head of a token, float8 (E4M3) with a
    scale of 1, which engines use without calibration.
    """

    weights: LossyFormat | None = None
    group_size: int = 128
    kv_cache: CacheFormat | None = None
    is_sparse: bool = False
    """2:4 sparsity: the two smallest of each four weights in a row are set to zero."""

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise SpecError(
                f"groups of {self.group_size}",
                where="--group-size",
                allowed="1 or more",
                try_="128",
            )
