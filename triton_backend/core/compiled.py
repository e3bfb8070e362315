"""How the core's kernels are compiled: one decorator, used for every one of them.

A kernel is a plain function over integers and numpy arrays. With `NUMBA_DISABLE_JIT=1` it runs as
written, with the same results; compiled, it is cached on disk beside its source.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numba

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

# Arrays and records as kernels see them. numpy's own types call an element "Any or an array", which
# fits no kernel: they index with numbers throughout.
Integers: TypeAlias = Any
Records: TypeAlias = Any
Record: TypeAlias = Any

FAR = 1 << 60
"""An instant (µs) that never comes: 36,000 years."""

NONE = -1
"""No index. Only inside arrays, where None cannot stand; never leaves the kernels."""


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` on first call and cache the result on disk."""
    compiled = numba.njit(cache=True, error_model="numpy")(function)
    return cast("Callable[Parameters, Result]", compiled)
