"""Cells are measured one by one in processes of their own, and can be resumed."""

import os
from dataclasses import asdict
from pathlib import Path

import pytest

from flows.preparation.profiling.copies import Copies
from flows.preparation.profiling.measure import (
    CellKey,
    MeasuredCell,
    MeasureLimits,
    ProfileTarget,
    cells_of,
    measure_cells,
)
from flows.preparation.profiling.ratio import SumRatio, WholeTarget, measure_ratios
from flows.preparation.profiling.statistics import summarise
from tests.triton_backend.runtimes.stages import write_doubling
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.shares import LOADED, WHOLE_GPU

QUICK = MeasureLimits(warm_up=1, min_runs=3, max_runs=4, max_seconds=1.0)
CORE = min(os.sched_getaffinity(0))


def target(folder: Path, block: int, shares: tuple[int, ...] = (300,)) -> ProfileTarget:
    if not folder.exists():
        write_doubling(folder, cores=[CORE], threads=1, stretch=1.0)
    return ProfileTarget(
        model="m",
        block=block,
        gpu_class="cpu",
        artifact=folder,
        parts=tuple((share, LOADED) for share in shares),
        batches=(1, 3),
    )


@pytest.mark.slow
def test_every_cell_is_measured_and_stored_in_order(tmp_path: Path) -> None:
    targets = [target(tmp_path / "a", 0, (300, 150)), target(tmp_path / "b", 1, (300, 150))]
    stored: list[MeasuredCell] = []
    seen: list[tuple[int, int, CellKey]] = []
    count = measure_cells(
        targets,
        done=(),
        store=stored.append,
        progress=lambda done, total, key: seen.append((done, total, key)),
        limits=QUICK,
    )
    assert count == 8
    assert [cell.key for cell in stored] == cells_of(targets)
    assert seen == [(i, 8, cell.key) for i, cell in enumerate(stored)]
    assert [cell.artifact for cell in stored] == ["a"] * 4 + ["b"] * 4
    for cell in stored:
        assert 3 <= cell.latency.runs <= 4
        assert 0 < cell.latency.p50_us <= cell.latency.p99_us


@pytest.mark.slow
def test_an_interrupted_measurement_goes_on_where_it_stopped(tmp_path: Path) -> None:
    targets = [target(tmp_path / "a", 0), target(tmp_path / "b", 1)]
    first: list[MeasuredCell] = []

    def store_then_stop(cell: MeasuredCell) -> None:
        first.append(cell)
        if len(first) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure_cells(targets, done=(), store=store_then_stop, limits=QUICK)
    second: list[MeasuredCell] = []
    done = {cell.key for cell in first}
    assert measure_cells(targets, done=done, store=second.append, limits=QUICK) == 1
    assert [cell.key for cell in (*first, *second)] == cells_of(targets)


def test_what_is_done_starts_no_process(tmp_path: Path) -> None:
    targets = [target(tmp_path / "a", 0)]

    def never(cell: MeasuredCell) -> None:
        raise AssertionError(cell)

    assert measure_cells(targets, done=set(cells_of(targets)), store=never) == 0


@pytest.mark.slow
def test_an_artifact_that_cannot_be_loaded_stops_the_measurement(tmp_path: Path) -> None:
    broken = target(tmp_path / "a", 0)
    (tmp_path / "a" / "m.onnx").unlink()
    with pytest.raises(InputError, match=r"profile: .*model file 'm\.onnx' is missing"):
        measure_cells([broken], done=(), store=lambda _: None, limits=QUICK)


@pytest.mark.slow
def test_a_copy_that_dies_is_reported(tmp_path: Path) -> None:
    copies = Copies({"PYTHONHASHSEED": "not a number"})
    with copies, pytest.raises(PoolPipeError, match="a profiling process ended with code"):
        copies.load(tmp_path, WHOLE_GPU, 1)


@pytest.mark.slow
def test_each_copy_has_the_environment_of_its_share(tmp_path: Path) -> None:
    write_doubling(tmp_path / "a", cores=[CORE], threads=1, stretch=1.0)

    def seen(copies: Copies) -> list[str]:
        return [
            Path(f"/proc/{each.pid}/environ").read_text().partition("PART=")[2].partition("\0")[0]
            for each in copies.processes
        ]

    with Copies(lambda share: {"PART": str(share)}) as copies:
        copies.load_each([(tmp_path / "a", 120), (tmp_path / "a", 180)])
        assert seen(copies) == ["120", "180"]
        first, second = copies.processes
        copies.load_each([(tmp_path / "a", 150), (tmp_path / "a", 180)])
        assert seen(copies) == ["150", "180"]
        assert copies.processes[0] is not first
        assert copies.processes[1] is second
        assert len(copies.measure(1, asdict(QUICK), 0, {1: 3})) >= QUICK.min_runs


@pytest.mark.slow
def test_blocks_are_compared_with_the_whole(tmp_path: Path) -> None:
    write_doubling(tmp_path / "whole", cores=[CORE], threads=1, stretch=1.0)
    found: list[SumRatio] = []
    whole = WholeTarget(
        model="m",
        gpu_class="cpu",
        artifact=tmp_path / "whole",
        blocks_us={(1, 1): 500.0, (2, 3): 800.0},
    )
    assert measure_ratios([whole], store=found.append, limits=QUICK) == 2
    assert [(r.vgpu_divisor, r.batch, r.blocks_us) for r in found] == [(1, 1, 500.0), (2, 3, 800.0)]
    assert all(r.ratio == r.blocks_us / r.whole_us > 0 for r in found)


def test_a_summary_of_known_times() -> None:
    summary = summarise([90, 100, 110, 100])
    assert (summary.mean_us, summary.p50_us, summary.runs) == (100.0, 100.0, 4)
    assert summary.p99_us == pytest.approx(109.7)
    # Student's t with 3 degrees of freedom: 3.182; standard deviation 8.165.
    assert summary.ci_relative == pytest.approx(3.182 * 8.165 / 2 / 100, rel=1e-3)


def test_one_run_says_nothing_about_the_spread() -> None:
    assert summarise([5]).ci_relative == float("inf")
