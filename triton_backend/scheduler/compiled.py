"""How kernels are compiled: by the decorators here, every one of them.

A kernel is a plain function over integers and numpy arrays that makes no array. With
`NUMBA_DISABLE_JIT=1` it runs as written, with the same results; compiled, it is cached on disk
next to its source.

    entry     Python calls it            one per event of the scheduler, one per simulated run
    kernel    other kernels call it      compiled once, called
    inlined   other kernels call it      becomes part of each caller: short, or called once
"""

from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numba
from numba.core import types
from numba.core.dispatcher import Dispatcher

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

_sources: dict[Any, frozenset[str]] = {}  # per kernel, what its compiled form depends on


class _Kernel(Dispatcher):
    """Compiled once per type of its arguments: a constant is a number like any other."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """How a call from another kernel is typed; numba would compile anew for every constant."""
        return super().get_call_template(tuple(types.unliteral(a) for a in args), kws)


class _Inner(_Kernel):
    """A kernel that has no entry for Python, where it runs as written."""

    def __call__(self, *args: Any, **kws: Any) -> Any:
        return self.py_func(*args, **kws)


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A kernel that is called by other kernels."""
    return _compiled(function, inline=False, entry=False)


def inlined(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A kernel that becomes part of its callers.

    A call hands every array of `Tables` over one by one, which takes longer than a short kernel.
    """
    return _compiled(function, inline=True, entry=False)


def entry(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A kernel that Python calls, compiled on the first call.

    Unpacking every array for it takes a fifth of the time of compiling a kernel, so the others go
    without.
    """
    return _compiled(function, inline=False, entry=True)


def _compiled(
    function: Callable[Parameters, Result], *, inline: bool, entry: bool
) -> Callable[Parameters, Result]:
    # Without numba's runtime arrays are not reference-counted, which is sixteen times as fast:
    # kernels get all their arrays from the caller and hand them on from call to call.
    # What a closure closes over is in no cache key that survives the process, so only the kernel
    # that it becomes part of is cached.
    plain = cast("FunctionType", function)
    closed_over = [cell.cell_contents for cell in plain.__closure__ or ()]
    cached = not closed_over
    compile_lazily = cast("Any", numba.njit)(
        cache=cached,
        error_model="numpy",
        _nrt=False,
        forceinline=inline,
        no_cfunc_wrapper=True,
        no_cpython_wrapper=not entry,
    )
    compiled: Any = compile_lazily(function)
    if isinstance(compiled, Dispatcher):
        compiled.__class__ = _Kernel if entry else _Inner
    sources = _imported(plain.__globals__) | _imported(
        dict(zip(plain.__code__.co_freevars, closed_over, strict=True))
    )
    cache = getattr(compiled, "_cache", None)
    if cached and cache is not None:
        # numba looks only at the file of the kernel itself; kernels and constants from other
        # files end up in the compiled form too.
        cache_file = cache._cache_file  # noqa: SLF001 - numba offers no public way
        own = f"{function.__module__} {cache_file._source_stamp}"  # noqa: SLF001 - as above
        sources |= {own}
        cache_file._source_stamp = tuple(sorted(sources))  # noqa: SLF001 - as above
    _sources[compiled] = sources
    return cast("Callable[Parameters, Result]", compiled)


def _imported(names: dict[str, Any]) -> frozenset[str]:
    """What the kernels, constants and types among a module's globals depend on."""
    found: set[str] = set()
    for name, value in names.items():
        values: list[object] = [value]
        if isinstance(value, ModuleType):
            values = list(vars(value).values())
        elif isinstance(value, dict):  # the kernels of a registry
            values = list(cast("dict[object, object]", value).values())
        for used in values:
            if isinstance(used, Dispatcher):
                found |= _sources.get(used, frozenset())
        if isinstance(value, int | types.Type):
            found.add(f"{name} = {value}")
        if isinstance(value, type) and hasattr(value, "_fields"):
            found.add(f"{name} = {value._fields}")
    return frozenset(found)
