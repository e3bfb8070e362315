"""Profiles from measured cells."""

import numpy as np
import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import (
    LatencyCell,
    ModelProfile,
    ProfileKey,
    ProfileTable,
    Utilisation,
    loaded,
    profile_from_cells,
    with_utilisation,
)
from triton_backend.contract.shares import LOADED, SOLO, WHOLE_GPU


def cells(gpu_class: str, *latency_us: tuple[float, ...]) -> list[LatencyCell]:
    """Rows are blocks, columns batches from 1."""
    return [
        LatencyCell(gpu_class, WHOLE_GPU, LOADED, block, batch, value)
        for block, row in enumerate(latency_us)
        for batch, value in enumerate(row, 1)
    ]


def test_a_stage_takes_the_sum_of_its_blocks() -> None:
    profile, warnings = profile_from_cells(
        "m", cells("A", (10, 15), (0.2, 5), (7.5, 9)), (100, 200)
    )
    assert warnings == []
    assert profile.blocks == 3
    table = profile.tables[ProfileKey("A", WHOLE_GPU)]
    assert table.stage_latency_us((0, 3)).tolist() == [19, 29]
    assert table.stage_latency_us((1, 2)).tolist() == [1, 5]
    assert (table.largest, profile.table("A", 150)) == (2, None)


def test_a_class_with_gaps_is_left_out_and_said_so() -> None:
    usable, broken = cells("A", (1, 2), (1, 2)), cells("B", (1, 2), (1, 2))[1:]
    profile, warnings = profile_from_cells("m", usable + broken, (9,))
    assert set(profile.tables) == {ProfileKey("A", WHOLE_GPU)}
    assert "m: 1/1 of B left out: 1 cells missing" in warnings[0]


def test_a_batch_that_was_not_measured_takes_as_long_as_the_next_larger_one() -> None:
    measured = [
        LatencyCell("A", 60, SOLO, block, batch, 10.0 * batch)
        for block in (0, 1)
        for batch in (1, 2, 5)
    ]
    profile, warnings = profile_from_cells("m", measured, (9,))
    assert warnings == []
    table = profile.tables[ProfileKey("A", 60, SOLO)]
    assert table.stage_latency_us((0, 2)).tolist() == [20, 40, 100, 100, 100]
    assert table.batches == (1, 2, 5)
    assert list(profile.cells()) == measured


def test_measured_batches_rise_to_the_largest() -> None:
    with pytest.raises(InputError, match=r"\[2, 1\] do not rise to the largest, 2"):
        ModelProfile(
            name="m",
            boundary_bytes=(),
            tables={ProfileKey("A", 60): ProfileTable(latency_us=np.ones((1, 2)), measured=(2, 1))},
        )


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_bad_latencies_leave_a_class_out(bad: float) -> None:
    _, warnings = profile_from_cells("m", cells("A", (1,)) + cells("B", (bad,)), ())
    assert "B" in warnings[0]


def test_a_latency_of_nothing_counts_as_the_least() -> None:
    profile, warnings = profile_from_cells("m", cells("A", (0, 2)), ())
    assert warnings == []
    assert profile.tables[ProfileKey("A", WHOLE_GPU)].stage_latency_us((0, 1)).tolist() == [1, 2]


def test_latency_that_falls_with_batch_is_kept_and_said_so() -> None:
    profile, warnings = profile_from_cells("m", cells("A", (5, 4)), ())
    (said,) = warnings
    assert said == (
        "m: 1/1 of A: a larger batch was faster than a smaller one in 1 of 2 measurements, first"
        " batch 2 of block 0: noise, or a better kernel; plans use what was measured"
    )
    assert profile.tables[ProfileKey("A", WHOLE_GPU)].latency_us.tolist() == [[5, 4]]


def test_nothing_usable_or_a_block_outside_is_an_error() -> None:
    with pytest.raises(InputError, match="no usable cells"):
        profile_from_cells("m", cells("A", (float("nan"),)), ())
    with pytest.raises(InputError, match="block 1 outside"):
        profile_from_cells("m", cells("A", (1,), (1,)), ())


def test_tables_must_fit_the_blocks() -> None:
    with pytest.raises(InputError, match="2 blocks, expected 1"):
        ModelProfile(name="m", boundary_bytes=(), tables=loaded({("A", 1): np.ones((2, 1))}))
    with pytest.raises(InputError, match="below 1"):
        ModelProfile(name="m", boundary_bytes=(), tables=loaded({("A", 1): np.zeros((1, 1))}))
    with pytest.raises(InputError, match="block_memory_bytes"):
        ModelProfile(
            name="m",
            boundary_bytes=(),
            tables=loaded({("A", 1): np.ones((1, 1))}),
            block_memory_bytes=(1, 2),
        )


def test_what_cells_use_is_known_of_a_table_up_to_its_largest_batch_or_left_out() -> None:
    whole = [c._replace(l2=0.1 * c.batch, dram=0.2) for c in cells("A", (10, 15), (5, 6))]
    profile, warnings = profile_from_cells("m", whole, (100,))
    table = profile.tables[ProfileKey("A", WHOLE_GPU)]
    assert warnings == []
    assert table.l2 is not None
    assert table.l2.tolist() == [[0.1, 0.2], [0.1, 0.2]]
    some = [c._replace(l2=None) if (c.block, c.batch) == (1, 2) else c for c in whole]
    _, (warning,) = profile_from_cells("m", some, (100,))
    assert "utilisation left out: not known of block 1, batch 2" in warning


def test_cells_are_given_what_is_known_of_their_block_or_of_every_one() -> None:
    known = [
        Utilisation("A", WHOLE_GPU, None, 1, 0.1, 0.2),
        Utilisation("A", WHOLE_GPU, 1, 1, 0.3, 0.4),
    ]
    found = with_utilisation(cells("A", (10, 15), (5, 6)), known)
    assert [(c.block, c.batch, c.l2, c.dram) for c in found] == [
        (0, 1, 0.1, 0.2),
        (0, 2, None, None),
        (1, 1, 0.3, 0.4),
        (1, 2, None, None),
    ]


def test_a_part_alone_stands_for_itself_and_busy_copies_for_it_where_it_is_not_known() -> None:
    def one(latency_us: float, l2: float | None = None, dram: float | None = None) -> ProfileTable:
        used = [None if value is None else np.full((1, 1), value) for value in (l2, dram)]
        return ProfileTable(latency_us=np.full((1, 1), latency_us), l2=used[0], dram=used[1])

    profile = ModelProfile(
        name="m",
        boundary_bytes=(),
        tables={
            ProfileKey("A", WHOLE_GPU, SOLO): one(10, l2=0.5, dram=0.25),
            ProfileKey("A", 150, SOLO): one(20, l2=0.3, dram=0.2),
            ProfileKey("A", 150, LOADED): one(25),
            ProfileKey("A", 60, LOADED): one(70),
        },
    )

    def latency(share: int, basis: str) -> float | None:
        table = profile.table("A", share, basis)
        return None if table is None else float(table.latency_us[0, 0])

    assert [latency(share, SOLO) for share in (300, 150, 60)] == [10, 20, 70]
    assert [latency(share, LOADED) for share in (300, 150, 60)] == [10, 25, 70]
    assert latency(75, SOLO) is None
    assert profile.utilisation("A", 150) == ([0.3], [0.2])
    assert profile.utilisation("A", 60) == ([0.1], [0.05])  # of the whole GPU's, its share
    assert ProfileKey("A", WHOLE_GPU, LOADED) in profile.tables  # one spelling for a whole GPU
