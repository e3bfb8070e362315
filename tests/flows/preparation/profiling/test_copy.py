"""When a cell is measured well enough, on a clock that only moves when the stage waits."""

from pathlib import Path

import pytest

from flows.preparation.profiling.copy import Copy
from tests.fakes.clock import VirtualClock
from tests.triton_backend.runtimes.stages import spec, write_crops
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.runtimes.base import Artifact

LIMITS = {"warm_up": 2, "min_runs": 5, "max_runs": 40, "max_seconds": 1.0, "interval": 0.05}


def copy_of(folder: Path, clock: VirtualClock, noise_sigma: float) -> Copy:
    Artifact(
        runtime="emulated",
        gpu_class="c",
        inputs=(spec("x"),),
        outputs=(spec("y"),),
        max_batch=2,
        options={"latency_us_by_batch": [1_000, 50_000], "noise_sigma": noise_sigma},
    ).write(folder)
    copy = Copy(clock)
    copy.load(folder, 1)
    return copy


def test_equal_times_need_the_fewest_runs(tmp_path: Path) -> None:
    clock = VirtualClock()
    assert copy_of(tmp_path, clock, 0.0).measure(1, LIMITS) == [1_000] * 5
    assert clock.at_us == 7_000  # two runs warmed up


def test_unequal_times_are_repeated_until_the_interval_is_narrow(tmp_path: Path) -> None:
    samples = copy_of(tmp_path, VirtualClock(), 0.1).measure(1, LIMITS)
    assert 5 < len(samples) < 40


def test_runs_end_at_the_cap(tmp_path: Path) -> None:
    copy = copy_of(tmp_path, VirtualClock(), 2.0)
    assert len(copy.measure(1, LIMITS)) == 40


@pytest.mark.parametrize(("max_seconds", "runs"), [(0.0, 5), (0.62, 13)])
def test_runs_end_when_the_time_is_up_but_not_before_the_fewest(
    tmp_path: Path, max_seconds: float, runs: int
) -> None:
    copy = copy_of(tmp_path, VirtualClock(), 0.0)
    # Nothing is narrow enough for an interval below zero.
    asked = LIMITS | {"max_seconds": max_seconds, "interval": -1.0}
    assert len(copy.measure(2, asked)) == runs


def test_loading_another_stage_gives_the_first_one_back(tmp_path: Path) -> None:
    clock = VirtualClock()
    copy = copy_of(tmp_path, clock, 0.0)
    copy.load(tmp_path, 2)
    assert copy.measure(1, LIMITS) == [1_000] * 5
    copy.close()


def test_a_stage_whose_rows_vary_has_room_for_them(tmp_path: Path) -> None:
    write_crops(tmp_path / "crops", most=4)
    copy = Copy(VirtualClock())
    copy.load(tmp_path / "crops", WHOLE_GPU)
    assert copy.measure(3, LIMITS) == [0] * 5  # the clock stands still
    copy.close()
