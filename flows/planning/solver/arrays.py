"""The array types of planning: real numbers and whole ones; their shapes stand in docstrings."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
