"""Tables handed over by address are the same tables."""

from typing import Any

import numpy as np
import pytest

from tests.fakes.plans import two_stages, two_tails
from triton_backend.scheduler.compiled import Integers, entry
from triton_backend.scheduler.plan_rows import build_topology
from triton_backend.scheduler.tables import (
    WORDS,
    Tables,
    addresses,
    lacks_batches,
    new_tables,
    tables_at,
)


@entry
def count_up(memory: Integers) -> int:
    """Change tables that are known by address alone."""
    tables = tables_at(memory)
    tables.counts[0]["served"] += len(tables.topology.vgpus)
    tables.paths[3, 1] = tables.topology.latency_us[1, 2]
    return tables.offers.shape[1]


def arrays(tables: Tables) -> list[Any]:
    return [*tables.topology, *tables[1:]]


def test_kernels_change_the_very_arrays_that_were_addressed() -> None:
    tables = new_tables(build_topology(two_stages()))
    memory = np.array(addresses(tables), dtype=np.int64)
    assert len(memory) == WORDS
    assert count_up(memory) == 3
    assert tables.counts[0]["served"] == 6
    assert tables.paths[3, 1] == tables.topology.latency_us[1, 2] > 0


def test_plain_python_finds_the_same_arrays() -> None:
    tables = new_tables(build_topology(two_stages()))
    again = tables_at(np.array(addresses(tables), dtype=np.int64))
    for one, other in zip(arrays(tables), arrays(again), strict=True):
        assert (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides)
        assert one.size == 0 or np.shares_memory(one, other)


def test_arrays_of_another_type_are_not_addressed() -> None:
    tables = new_tables(build_topology(two_stages()))
    with pytest.raises(TypeError, match="kernels expect"):
        addresses(tables._replace(paths=tables.paths.astype(np.int32)))


def test_a_dispatch_may_take_a_slot_for_itself_and_two_where_it_boards() -> None:
    """For a shared batch that it opens, and one for who gives up a place."""
    topology = build_topology(two_tails())
    tables = [new_tables(topology, batches=count) for count in (1, 2, 3)]
    assert [lacks_batches(one) for one in tables] == [True, True, False]
