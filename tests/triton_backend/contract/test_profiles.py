"""Profiles from measured cells."""

import numpy as np
import pytest

from triton_backend.contract.errors import InputError
from triton_backend.contract.profiles import LatencyCell, ModelProfile, profile_from_cells


def cells(gpu_class: str, *latency_us: tuple[float, ...]) -> list[LatencyCell]:
    """Rows are blocks, columns batches from 1."""
    return [
        LatencyCell(gpu_class, 1, block, batch, value)
        for block, row in enumerate(latency_us)
        for batch, value in enumerate(row, 1)
    ]


def test_a_stage_takes_the_sum_of_its_blocks() -> None:
    profile, warnings = profile_from_cells(
        "m", cells("A", (10, 15), (0.2, 5), (7.5, 9)), (100, 200)
    )
    assert warnings == []
    assert profile.blocks == 3
    assert profile.stage_latency_us("A", 1, (0, 3)).tolist() == [19, 29]
    assert profile.stage_latency_us("A", 1, (1, 2)).tolist() == [1, 5]
    assert (profile.max_batch("A", 1), profile.max_batch("A", 2)) == (2, 0)


def test_a_class_with_gaps_is_left_out_and_said_so() -> None:
    usable, broken = cells("A", (1, 2), (1, 2)), cells("B", (1, 2), (1, 2))[1:]
    profile, warnings = profile_from_cells("m", usable + broken, (9,))
    assert set(profile.latency_us) == {("A", 1)}
    assert "B, vGPU 1/1 left out: 1 cells missing" in warnings[0]


def test_a_batch_that_was_not_measured_takes_as_long_as_the_next_larger_one() -> None:
    measured = [
        LatencyCell("A", 1, block, batch, 10.0 * batch) for block in (0, 1) for batch in (1, 2, 5)
    ]
    profile, warnings = profile_from_cells("m", measured, (9,))
    assert warnings == []
    assert profile.stage_latency_us("A", 1, (0, 2)).tolist() == [20, 40, 100, 100, 100]
    assert profile.batches("A", 1) == (1, 2, 5)
    assert list(profile.cells()) == measured


def test_measured_batches_rise_to_the_largest() -> None:
    with pytest.raises(InputError, match=r"\[2, 1\] do not rise to the largest, 2"):
        ModelProfile(
            name="m",
            boundary_bytes=(),
            latency_us={("A", 1): np.ones((1, 2))},
            measured={("A", 1): (2, 1)},
        )


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_bad_latencies_leave_a_class_out(bad: float) -> None:
    _, warnings = profile_from_cells("m", cells("A", (1,)) + cells("B", (bad,)), ())
    assert "B" in warnings[0]


def test_latency_that_falls_with_batch_is_kept_and_said_so() -> None:
    profile, warnings = profile_from_cells("m", cells("A", (5, 4)), ())
    assert "falls with batch" in warnings[0]
    assert profile.stage_latency_us("A", 1, (0, 1)).tolist() == [5, 4]


def test_nothing_usable_or_a_block_outside_is_an_error() -> None:
    with pytest.raises(InputError, match="no usable cells"):
        profile_from_cells("m", cells("A", (float("nan"),)), ())
    with pytest.raises(InputError, match="block 1 outside"):
        profile_from_cells("m", cells("A", (1,), (1,)), ())


def test_tables_must_fit_the_blocks() -> None:
    with pytest.raises(InputError, match="2 blocks, expected 1"):
        ModelProfile(name="m", boundary_bytes=(), latency_us={("A", 1): np.ones((2, 1))})
    with pytest.raises(InputError, match="below 1"):
        ModelProfile(name="m", boundary_bytes=(), latency_us={("A", 1): np.zeros((1, 1))})
    with pytest.raises(InputError, match="block_memory_bytes"):
        ModelProfile(
            name="m",
            boundary_bytes=(),
            latency_us={("A", 1): np.ones((1, 1))},
            block_memory_bytes=(1, 2),
        )
