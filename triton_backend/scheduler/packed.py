"""Arrays by address: a tuple of arrays as kernels share it, at the cost of one pointer.

A tuple of arrays that is an argument costs each call a copy of all its addresses and lengths, for
LLVM as well as for the processor, and Python an object per array. So these are written down once,
as *words*, and kernels hand on where:

    words     | tables.topology.queues | ... | tables.intervals | ... | tables.counts   |
              | address  length        |     | address  length  |     | address  length |
                ^                                                       ^
    tables   ---+   tables.topology: the same place                     |
    tables.counts: read here, by every kernel that uses it -------------+

Words do not change while a kernel runs, so that LLVM reads those once that a kernel uses, and no
others. Attributes are all that kernels know of such a tuple: nothing indexes or replaces it.
Numbers keep no array alive: the holder of the words keeps the arrays too, or has both in one array
(`pack`).
"""

import ctypes
from math import prod
from typing import Any, cast
from zlib import crc32

import numpy as np
from llvmlite import ir
from numba import typeof
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import lower_builtin, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import register_model, type_callable
from numba.np.arrayobj import populate_array

from triton_backend.scheduler.compiled import Integers, inlined


class _Reference(types.Type):
    """A tuple of arrays, known by where its words begin.

    Its name is part of that of every kernel that gets one, thus short: numba and LLVM look kernels
    up by it.
    """

    def __init__(self, of: Any) -> None:
        self.of = of
        types_crc = crc32(str(of).encode())
        super().__init__(name=f"reference({of.instance_class.__name__}, {types_crc:x})")


@register_model(_Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.IntType(64).as_pointer())


@infer_getattr
class _ReferenceTyping(AttributeTemplate):
    key = _Reference

    def generic_resolve(self, value: Any, attr: str) -> Any:
        """Types of attributes: an array, or a tuple in turn."""
        if attr not in value.of.fields:
            return None
        kind = value.of[value.of.fields.index(attr)]
        return _Reference(kind) if isinstance(kind, types.BaseTuple) else kind


@lower_getattr_generic(_Reference)
def _read(context: Any, builder: Any, kind: Any, value: Any, attr: str) -> Any:
    place = kind.of.fields.index(attr)
    first = sum(map(_count, kind.of.types[:place]))
    field = kind.of[place]
    if isinstance(field, types.BaseTuple):
        return cgutils.gep_inbounds(builder, value, first)
    unchanged = builder.module.add_metadata([])

    def word(number: int) -> Any:
        loaded = builder.load(cgutils.gep_inbounds(builder, value, first + number))
        loaded.set_metadata("invariant.load", unchanged)
        return loaded

    array = context.make_array(field)(context, builder)
    size = context.get_abi_sizeof(context.get_data_type(field.dtype))
    shape = [word(1 + axis) for axis in range(field.ndim)]
    strides = [context.get_constant(types.intp, size)]
    for length in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], length))
    populate_array(
        array,
        data=builder.inttoptr(word(0), array.data.type),
        shape=shape,
        strides=strides,
        itemsize=context.get_constant(types.intp, size),
        meminfo=None,
    )
    return array._getvalue()  # noqa: SLF001 - numba's own code says it so


def _count(kind: Any) -> int:
    """Words of a type: an address and lengths for each of its arrays."""
    if isinstance(kind, types.BaseTuple):
        return sum(map(_count, cast("Any", kind).types))
    return 1 + kind.ndim


def words_of(arrays: Any, example: Any) -> list[int]:
    """Address and lengths of every array, in order.

    Raises:
        TypeError: one has another type, number of dimensions or order than in `example`, as which
            kernels read it.
    """
    if type(arrays) is not type(example):
        raise TypeError(f"{type(arrays).__name__}: kernels expect {type(example).__name__}")
    if isinstance(arrays, tuple):
        words: list[int] = []
        for part, like in zip(cast("tuple[Any]", arrays), example, strict=True):
            words += words_of(part, like)
        return words
    # Not by numba's types: naming them takes a hundred times as long, before each call.
    if arrays.dtype != example.dtype or arrays.ndim != example.ndim or not arrays.flags.carray:
        raise TypeError(f"an array is {typeof(arrays)}, kernels expect {typeof(example)}")
    return _words(arrays)


def _words(field: Any) -> list[int]:
    if isinstance(field, tuple):
        return [word for part in cast("tuple[Any]", field) for word in _words(part)]
    return [field.ctypes.data, *field.shape]


def by_address(example: Any) -> Any:
    """A function of kernels.

    Arrays as those of `example`, whose words memory begins with.
    """
    kind, count = typeof(example), len(_words(example))

    def found_at(memory: Integers) -> Any:
        words = iter(memory[:count].tolist())

        def built(like: Any) -> Any:
            if isinstance(like, tuple):
                parts = cast("tuple[Any]", like)
                return type(parts)(*[built(part) for part in parts])
            address = next(words)
            shape = [next(words) for _ in like.shape]
            size = prod(shape) * like.itemsize
            if size == 0:
                return np.zeros(shape, like.dtype)
            data = (ctypes.c_char * size).from_address(address)
            return np.frombuffer(data, like.dtype).reshape(shape)

        return built(example)

    @type_callable(found_at)
    def typed(context: Any) -> Any:
        del context

        def of_memory(memory: Any) -> Any:
            del memory
            return _Reference(kind)

        return of_memory

    @lower_builtin(found_at, types.Array)
    def compiled(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    del typed, compiled

    def at(memory: Integers) -> Any:
        return found_at(memory)

    return inlined(at)  # as a kernel of this file, on which the compiled form of others depends


# Arrays in one array: their words in it, and then themselves.


def pack(arrays: tuple[Any, ...]) -> Integers:
    """One array that holds all of these, and where in it they are."""
    words = [-(-array.nbytes // 8) for array in arrays]
    first = len(_words(arrays))
    memory = np.zeros(first + sum(words), dtype=np.int64)
    header: list[int] = []
    for array, length in zip(arrays, words, strict=True):
        header += [memory.ctypes.data + 8 * first, *array.shape]
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), dtype=np.uint8)
        memory[first : first + length].view(np.uint8)[: array.nbytes] = data
        first += length
    memory[: len(header)] = header
    return memory


def views(memory: Integers, example: Any) -> Any:
    """The arrays that memory holds, of types as in `example`; they keep it."""
    words = iter(memory[: len(_words(example))].tolist())
    found: list[Any] = []
    start = memory.ctypes.data
    for like in example:
        begin = (next(words) - start) // 8
        shape = [next(words) for _ in like.shape]
        size = prod(shape) * like.itemsize
        data = memory[begin : begin + -(-size // 8)].view(np.uint8)[:size]
        found.append(data.view(like.dtype).reshape(shape))
    return type(example)(*found)
