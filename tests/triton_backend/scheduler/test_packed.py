"""Tuples of arrays that kernels get by address are the same arrays."""

from typing import NamedTuple

import numpy as np
import pytest

from triton_backend.scheduler.compiled import Integers, Records, entry, kernel
from triton_backend.scheduler.packed import by_address, pack, views, words_of

ROW = np.dtype([("value", np.int64), ("small", np.int32)])


class Inner(NamedTuple):
    """Arrays one level below."""

    grid: Integers
    cube: Integers


class Outer(NamedTuple):
    """Arrays before and after the others."""

    rows: Records
    inner: Inner
    last: Integers


def outer(rows: int = 3) -> Outer:
    return Outer(
        rows=np.zeros(rows, dtype=ROW),
        inner=Inner(
            grid=np.arange(6, dtype=np.int64).reshape(2, 3),
            cube=np.arange(24, dtype=np.int64).reshape(2, 3, 4),
        ),
        last=np.zeros(2, dtype=np.int64),
    )


EXAMPLE = outer()
outer_at = by_address(EXAMPLE)


@kernel
def _corner(inner: Inner) -> int:
    return inner.grid[1, 2] + inner.cube[1, 2, 3]


@entry
def change(memory: Integers) -> int:
    """Write into arrays that are known by address alone, and hand them on."""
    arrays = outer_at(memory)
    arrays.rows[len(arrays.rows) - 1]["small"] = 7
    arrays.last[1] = arrays.inner.cube.shape[1]
    for number in range(len(arrays.rows)):
        arrays.rows[number]["value"] += _corner(arrays.inner)
    return _corner(arrays.inner)


def words(arrays: Outer) -> Integers:
    return np.array(words_of(arrays, EXAMPLE), dtype=np.int64)


@pytest.mark.parametrize("rows", [1, 5])
def test_kernels_read_and_change_the_very_arrays(rows: int) -> None:
    arrays = outer(rows)
    assert change(words(arrays)) == 5 + 23
    assert arrays.rows["value"].tolist() == [28] * rows
    assert arrays.rows["small"].tolist() == [0] * (rows - 1) + [7]
    assert arrays.last.tolist() == [0, 3]


def test_other_words_are_read_at_the_next_call() -> None:
    one, other = outer(), outer()
    other.inner.grid[1, 2] = 100
    memory = words(one)
    assert change(memory) == 28
    memory[:] = words(other)
    assert change(memory) == 123
    assert one.rows["value"][0] == 28
    assert other.rows["value"][0] == 123


@pytest.mark.parametrize("rows", [0, 4])
def test_plain_python_finds_the_same_arrays(rows: int) -> None:
    arrays = outer(rows)
    again = outer_at(words(arrays))
    for one, found in zip(
        [arrays.rows, *arrays.inner, arrays.last],
        [again.rows, *again.inner, again.last],
        strict=True,
    ):
        assert (one.dtype, one.shape, one.strides) == (found.dtype, found.shape, found.strides)
        assert one.size == 0 or np.shares_memory(one, found)


@pytest.mark.parametrize(
    "last",
    [np.zeros(2, dtype=np.int32), np.zeros((2, 1), dtype=np.int64), np.zeros(4, np.int64)[::2]],
    ids=["type", "dimensions", "order"],
)
def test_other_arrays_than_kernels_expect_are_refused(last: Integers) -> None:
    with pytest.raises(TypeError, match="kernels expect"):
        words_of(outer()._replace(last=last), EXAMPLE)


def test_one_array_holds_a_tuple_and_its_words() -> None:
    inner = outer().inner
    memory = pack(inner)
    held: Inner = views(memory, inner)
    assert held.grid.tolist() == inner.grid.tolist()
    assert held.cube.tolist() == inner.cube.tolist()
    held.cube[0, 0, 0] = -5
    assert _corner_of(memory) == 28 - 5
    assert inner.cube[0, 0, 0] == 0


inner_at = by_address(EXAMPLE.inner)


@entry
def _corner_of(memory: Integers) -> int:
    inner = inner_at(memory)
    return _corner(inner) + inner.cube[0, 0, 0]
