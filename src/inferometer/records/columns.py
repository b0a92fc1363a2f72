"""Which arrays are the columns of tables?"""

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
"""Of an array's hint: the versions of numpy write what is inside a hint differently."""
