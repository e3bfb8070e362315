"""How kernels are compiled: by the decorators here, every one of them.

A kernel is a plain function over integers and numpy arrays that makes no array. With
`NUMBA_DISABLE_JIT=1` it runs as written, with the same results.

    entry     Python calls it            one per event of the scheduler, one per simulated run
    kernel    other kernels call it      compiled once, called
    inlined   other kernels call it      becomes part of each caller: short, or called once

An entry is linked with all kernels below it, optimized as a whole, made machine code, and cached on
disk next to its source:

    [ run <- settle_queue <- probe ]      each kernel: typed and lowered once per process, no more;
        optimized, emitted, cached        LLVM would optimize it again in every caller of a caller

Of processes that want an entry at once, which is not cached yet, one compiles it; the others wait
and load it.

An index is not checked: one beyond its array reads or writes what lies there. With
`NUMBA_BOUNDSCHECK=1` it raises IndexError, and so does a negative one, which numba else counts from
the end: `NONE` is no index. What that compiles has cache files of its own.
"""

import fcntl
import gc
import logging
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import numba
from numba.core import config, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.dispatcher import Dispatcher
from numba.np import arrayobj

from triton_backend.scheduler.measured.compile_time import COMPILE_TIME

_LOG = logging.getLogger(__name__)

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

COMPILING_SECONDS = 60.0
"""How long a process waits for another that compiles what it wants.

That one may have been stopped.
"""

LOOK_SECONDS = 0.02

RARELY = (100_000, 50, 100)
"""Thresholds of Python's collector while numba compiles."""

BOUNDS_CHECKED = bool(cast("Any", config).BOUNDSCHECK)
"""True if this process compiles kernels with checks of every index."""

_sources: dict[Any, frozenset[str]] = {}  # per kernel, what its compiled form depends on


def _index_as_given(context: Any, builder: Any, kind: Any, index: Any, size: Any) -> Any:
    """An index as numba is to check it: not from the end where it is negative."""
    del size
    return context.cast(builder, index, kind, types.intp if kind.signed else types.uintp)


if BOUNDS_CHECKED:
    arrayobj.fix_integer_index = _index_as_given


class _Kernel(Dispatcher):
    """Compiled once per type of its arguments: a constant is a number like any other."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """How a call from another kernel is typed; numba would compile again for every constant."""
        return super().get_call_template(tuple(types.unliteral(a) for a in args), kws)


class _Entry(_Kernel):
    """A kernel that Python calls, cached on disk for all processes."""

    def compile(self, sig: Any) -> Any:
        """Compile or load.

        A scheduler, its standby and the simulator may all start with an empty cache.
        """
        own = cast("Any", self)
        cache = own._cache  # noqa: SLF001 - numba offers no public way
        key = cache._index_key(sig, own.targetctx.codegen())  # noqa: SLF001 - as above
        if key in cache._cache_file._load_index():  # noqa: SLF001 - as above
            return super().compile(sig)
        name = f"{self.py_func.__module__}.{self.py_func.__name__}"
        _LOG.info("compiling %s, once per machine", name)
        lock = Path(cache.cache_path) / f"{self.py_func.__name__}.lock"
        with COMPILE_TIME.counted(), _one_at_a_time(lock), _collecting_rarely():
            return super().compile(sig)


@contextmanager
def _one_at_a_time(path: Path) -> Generator[None]:
    """Among processes; no lock where the folder takes no file, and none after a while."""
    try:
        file = path.open("a")
    except OSError:
        yield
        return
    with file:
        for _ in range(round(COMPILING_SECONDS / LOOK_SECONDS)):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_SECONDS)
        yield


@contextmanager
def _collecting_rarely() -> Generator[None]:
    """Python's collector looks through what numba has made, nearly all of which lives.

    A fifth of the time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(*RARELY)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


class _Inner(_Kernel):
    """A kernel that has no entry for Python, where it runs as written."""

    def __call__(self, *args: Any, **kws: Any) -> Any:
        return self.py_func(*args, **kws)


class _Generator:
    """The kernels' code generator without machine code, thus without an environment's address."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    def set_env(self, *_: Any) -> None:
        """An environment serves kernels that Python calls."""


class _InnerLibrary(JITCodeLibrary):
    """Code that is only linked into its callers'.

    Were any of this not asked for, it would be slower.
    """

    @property
    def codegen(self) -> Any:
        return _Generator(self._codegen)

    def get_pointer_to_function(self, name: str) -> int:  # noqa: ARG002 - numba's own signature
        return 0

    def _optimize_final_module(self) -> None:
        """The entry's library does it."""

    def _finalize_final_module(self) -> None:
        self._finalized = True


class _InnerCompiler(Compiler):
    """Compiles to intermediate code and stops there."""

    def __init__(self, typing: Any, target: Any, library: Any, *others: Any) -> None:
        library = library or _InnerLibrary(target.codegen(), "kernel")
        super().__init__(typing, target, library, *others)


def kernel(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A kernel that is called by other kernels."""
    return _compiled(function, inline=False, entry=False)


def inlined(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A kernel that becomes part of its callers.

    Left to LLVM, which weighs every call, kernels take longer to compile and to run.
    """
    return _compiled(function, inline=True, entry=False)


def entry(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A kernel that Python calls, compiled on the first call.

    Unpacking every array for it takes a fifth of the time of compiling a kernel, so the others go
    without.
    """
    return _compiled(function, inline=False, entry=True)


def compile_for(function: Callable[..., Any], *arguments: object) -> None:
    """Compile an entry for arguments of such types, or load it from the cache, without a call."""
    if isinstance(function, Dispatcher):
        function.compile(tuple(map(cast("Any", numba).typeof, arguments)))


def _compiled(
    function: Callable[Parameters, Result], *, inline: bool, entry: bool
) -> Callable[Parameters, Result]:
    # Without numba's runtime arrays are not reference-counted, which is sixteen times as fast:
    # kernels get all their arrays from the caller and hand them on from call to call.
    plain = cast("FunctionType", function)
    compile_lazily = cast("Any", numba.njit)(
        cache=entry,
        error_model="numpy",
        _nrt=False,
        forceinline=inline,
        no_cfunc_wrapper=True,
        no_cpython_wrapper=not entry,
        pipeline_class=Compiler if entry else _InnerCompiler,
    )
    compiled: Any = compile_lazily(function)
    if not isinstance(compiled, Dispatcher):  # `NUMBA_DISABLE_JIT=1`
        return function
    compiled.__class__ = _Entry if entry else _Inner
    closed_over = [cell.cell_contents for cell in plain.__closure__ or ()]
    # numba looks only at the file of the kernel itself; kernels and constants from other files end
    # up in the compiled form too.
    cache: Any = cast("Any", compiled)._cache if entry else FunctionCache(function)  # noqa: SLF001 - numba offers no public way
    if BOUNDS_CHECKED:
        cache._cache_file = _checked_file(cache)  # noqa: SLF001 - as above
    own = cache._cache_file  # noqa: SLF001 - as above
    sources = frozenset({f"{function.__module__} {own._source_stamp}"})  # noqa: SLF001 - as above
    sources |= _imported(plain.__globals__)
    sources |= _imported(dict(zip(plain.__code__.co_freevars, closed_over, strict=True)))
    own._source_stamp = tuple(sorted(sources))  # noqa: SLF001 - as above
    _sources[compiled] = sources
    return cast("Callable[Parameters, Result]", compiled)


def _checked_file(cache: Any) -> Any:
    """Where a cache keeps what has checks of indices, of which numba's keys say nothing."""
    own = cache._cache_file  # noqa: SLF001 - numba offers no public way
    name = f"{cache._impl.filename_base}.checked"  # noqa: SLF001 - as above
    return IndexDataCacheFile(cache.cache_path, name, f"checked {own._source_stamp}")  # noqa: SLF001 - as above


def _is_integers(value: object) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(one, int) for one in cast("tuple[object, ...]", value)
    )


def _imported(names: dict[str, Any]) -> frozenset[str]:
    """Dependencies of the kernels, constants and types among a module's globals."""
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
        if isinstance(value, int | types.Type) or _is_integers(value):
            found.add(f"{name} = {value}")
        if isinstance(value, type) and hasattr(value, "_fields"):
            found.add(f"{name} = {value._fields}")
    return frozenset(found)
