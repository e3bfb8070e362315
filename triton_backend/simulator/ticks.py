"""The CPU's cycle counter, for timing single decisions inside the compiled loop.

A cycle count is no time: a caller that wants microseconds hands in a clock and scales by it.
Results of a simulation never depend on it. Without the JIT there is no counter and every count is
0.
"""

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic, overload

from triton_backend.scheduler.compiled import entry


def cycles() -> int:
    """The counter now; 0 without the JIT."""
    return 0


@intrinsic
def _counter(_context: Any) -> Any:
    def emit(_target: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        word = ir.IntType(64)
        counter = builder.module.declare_intrinsic(
            "llvm.readcyclecounter", (), ir.FunctionType(word, ())
        )
        return builder.call(counter, ())

    return types.int64(), emit


@overload(cycles)
def _compiled_cycles() -> Any:
    read: Any = _counter

    def compiled() -> int:
        return read()

    return compiled


@entry
def cycles_now() -> int:
    """The counter now, for Python."""
    return cycles()
