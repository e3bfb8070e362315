"""The array types of planning: real numbers and whole ones; their shapes stand in docstrings."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FAR = 1e300
"""A cost beyond any, in arrays that kernels add up."""
