"""Which arrays are the columns of tables?"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Bools: TypeAlias = NDArray[np.bool_]
F64: TypeAlias = NDArray[np.float64]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
I8: TypeAlias = NDArray[np.int8]
Texts: TypeAlias = NDArray[np.str_]
