"""Array types of table columns."""

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bools: TypeAlias = NDArray[np.bool_]
F64: TypeAlias = NDArray[np.float64]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
I8: TypeAlias = NDArray[np.int8]
Texts: TypeAlias = NDArray[np.str_]

ELEMENTS: Final[dict[object, "np.dtype[Any]"]] = {
    Bools: np.dtype(np.bool_),
    F64: np.dtype(np.float64),
    I32: np.dtype(np.int32),
    I64: np.dtype(np.int64),
    I8: np.dtype(np.int8),
    Texts: np.dtype(np.str_),
}
"""Element types of array type hints, by text: numpy's versions differ in how they print them."""
