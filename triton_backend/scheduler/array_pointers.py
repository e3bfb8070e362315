"""Tables by address: an event hands the kernels one array, not all of them.

Taking `Tables` apart touches an object per array, which costs a rare event more than what it does.
So the addresses and shapes of all arrays are written down once, and the kernel that gets the event makes
the same `Tables` of them again. Here: that, both ways. Not here: what the tables mean.
Whoever holds the addresses keeps the tables too: numbers keep no array alive.
"""

import ctypes
from typing import Any, cast

import numpy as np
from numba import typeof
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.extending import type_callable
from numba.np.arrayobj import populate_array

from triton_backend.scheduler.compiled import Integers, inlined
from triton_backend.scheduler.tables import Tables, new_tables
from triton_backend.scheduler.topology import PIPELINE, POOL, QUEUE_PLAN, STAGE, VGPU, Topology

EXAMPLE = new_tables(
    Topology(
        queues=np.zeros(1, dtype=QUEUE_PLAN),
        pipelines=np.zeros(1, dtype=PIPELINE),
        stages=np.zeros(1, dtype=STAGE),
        pools=np.zeros(1, dtype=POOL),
        vgpus=np.zeros(1, dtype=VGPU),
        latency_us=np.zeros((1, 1), dtype=np.int64),
        move_us=np.zeros((1, 1, 1), dtype=np.int64),
        answer_us=np.zeros((1, 1, 1), dtype=np.int64),
        path_us=np.zeros((1, 1), dtype=np.int64),
    )
)
TABLES: Any = typeof(EXAMPLE)
"""The type of all tables, as kernels know it."""


def addresses(tables: Tables) -> list[int]:
    """Address and lengths of every array, as `tables_at` reads them."""
    if typeof(tables) != TABLES:
        raise TypeError(f"tables are {typeof(tables)}, kernels expect {TABLES}")
    return _words(tables)


def _words(field: Any) -> list[int]:
    if isinstance(field, tuple):
        return [word for part in cast("tuple[Any]", field) for word in _words(part)]
    return [field.ctypes.data, *field.shape]


WORDS = len(addresses(EXAMPLE))


def _tables_at(memory: Integers) -> Tables:
    words = iter(memory[:WORDS].tolist())

    def built(like: Any) -> Any:
        if isinstance(like, tuple):
            parts = cast("tuple[Any]", like)
            return type(parts)(*[built(part) for part in parts])
        address = next(words)
        shape = [next(words) for _ in like.shape]
        size = int(np.prod(shape)) * like.itemsize
        data = (ctypes.c_char * size).from_address(address)
        return np.frombuffer(data, like.dtype).reshape(shape)

    return built(EXAMPLE)


@type_callable(_tables_at)
def _type_of(_context: Any) -> Any:
    return lambda _memory: TABLES  # type: ignore[no-any-return]


@lower_builtin(_tables_at, types.Array)
def _compiled(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The same in compiled code; what a kernel does not use is never read."""
    memory = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    words = iter(range(WORDS))

    def word() -> Any:
        return builder.load(cgutils.gep_inbounds(builder, memory, next(words)))

    def built(kind: Any) -> Any:
        if isinstance(kind, types.BaseTuple):
            return context.make_tuple(builder, kind, [built(part) for part in cast("Any", kind)])
        array = context.make_array(kind)(context, builder)
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        data = builder.inttoptr(word(), array.data.type)
        shape = [word() for _ in range(kind.ndim)]
        strides = [context.get_constant(types.intp, size)]
        for length in reversed(shape[1:]):
            strides.insert(0, builder.mul(strides[0], length))
        itemsize = context.get_constant(types.intp, size)
        populate_array(
            array, data=data, shape=shape, strides=strides, itemsize=itemsize, meminfo=None
        )
        return array._getvalue()  # noqa: SLF001 - numba's own code says it so

    return built(TABLES)


@inlined
def tables_at(memory: Integers) -> Tables:
    """The tables whose `addresses` the first `WORDS` integers of `memory` are."""
    return _tables_at(memory)
