"""How the core's kernels are compiled: one decorator, used for every one of them.

A kernel is a plain function over integers and numpy arrays that makes no array. With
`NUMBA_DISABLE_JIT=1` it runs as written, with the same results; compiled, it is cached on disk
beside its source.
"""

from collections.abc import Callable
from hashlib import sha256
from types import FunctionType, ModuleType
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

_digests: dict[Any, str] = {}


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile `function` on first call and cache the result on disk."""
    # Without numba's runtime arrays are not reference-counted, which is sixteen times as fast:
    # kernels get all their arrays from the caller and hand them on from call to call.
    compile_lazily = cast("Any", numba.njit)(cache=True, error_model="numpy", _nrt=False)
    compiled: Any = compile_lazily(function)
    digest = _digest(cast("FunctionType", function))
    _digests[compiled] = digest
    cache = getattr(compiled, "_cache", None)
    if cache is not None:
        # numba looks only at the file of the function itself; this also sees the kernels and
        # constants it uses from other files.
        cache_file = cache._cache_file  # noqa: SLF001 - numba offers no public way
        cache_file._source_stamp = (cache_file._source_stamp, digest)  # noqa: SLF001 - as above
    return cast("Callable[Parameters, Result]", compiled)


def _digest(function: FunctionType) -> str:
    """Changes when the code of a kernel changes, or of any kernel it calls, or a constant."""
    code = function.__code__
    parts = [code.co_code.hex(), repr(code.co_consts), repr(code.co_names)]
    for name in code.co_names:
        value: Any = function.__globals__.get(name)
        values = [value]
        if isinstance(value, ModuleType):
            values = [getattr(value, other, None) for other in code.co_names]
        for used in values:
            if isinstance(used, int):
                parts.append(repr(used))
            elif callable(used) and used in _digests:
                parts.append(_digests[used])
    return sha256("\n".join(parts).encode()).hexdigest()
