"""A model measured cell by cell, beside other users of the warehouse."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.device_class import DeviceClass
from flows.preparation.building.onnxruntime import OnnxRuntimeClass
from flows.preparation.profiling import model_profile
from flows.preparation.profiling.copies import Copies
from flows.preparation.profiling.measure import CellKey, MeasureLimits
from flows.preparation.profiling.model_profile import profile_step
from flows.preparation.splitting.stored_split import split_step
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.flows.preparation.splitting.tiny_models import residual_net

pytestmark = pytest.mark.slow
QUICK = MeasureLimits(warm_up=0, min_runs=1, max_runs=1, max_seconds=0.01)
WRITE = "import sys; from warehouse.db import open_warehouse; open_warehouse(sys.argv[1]).close()"


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return Workspace(state=ProjectState(home=tmp_path / "home"), warehouse=tmp_path / "w.duckdb")


def test_another_process_writes_to_the_warehouse_between_cells(
    work: Workspace, tmp_path: Path
) -> None:
    """A profile takes minutes: `plan` in the same folder need not wait for its end."""
    split = split_step(work, residual_net(tmp_path / "tiny.onnx"), "tiny", blocks=2, max_batch=2)
    cpu = OnnxRuntimeClass(device=DeviceClass(name="cpu", cores=(min(os.sched_getaffinity(0)),)))
    codes: list[int] = []

    def write_meanwhile(done: int, total: int, key: CellKey) -> None:
        del done, total, key
        command = [sys.executable, "-c", WRITE, str(work.warehouse)]
        codes.append(subprocess.run(command, capture_output=True, check=False).returncode)

    found = profile_step(work, split, [cpu], limits=QUICK, progress=write_meanwhile)
    assert codes == [0] * found.cells_measured == [0] * 4
    again = profile_step(work, split, [cpu], limits=QUICK)
    assert (again.cells_measured, again.cells_reused) == (0, 4)
    assert again.ratios.keys() == found.ratios.keys() == {("cpu", 1, 1)}


def test_blocks_are_held_against_the_whole_at_the_least_batch_that_was_measured(
    work: Workspace, tmp_path: Path
) -> None:
    split = split_step(work, residual_net(tmp_path / "tiny.onnx"), "tiny", blocks=2, max_batch=3)
    cpu = OnnxRuntimeClass(device=DeviceClass(name="cpu", cores=(min(os.sched_getaffinity(0)),)))
    for batch in (3, 2):
        found = profile_step(work, split, [cpu], batches=[batch], limits=QUICK)
        assert ("cpu", 1, batch) in found.ratios
    assert ("cpu", 1, 1) not in found.ratios


def test_the_one_block_of_a_model_is_not_measured_again_as_the_whole(
    work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        pytest.fail("the whole was measured")

    monkeypatch.setattr(model_profile, "measure_ratios", never)
    split = split_step(work, residual_net(tmp_path / "tiny.onnx"), "tiny", blocks=1, max_batch=1)
    cpu = OnnxRuntimeClass(device=DeviceClass(name="cpu", cores=(min(os.sched_getaffinity(0)),)))
    for measured in (1, 0):
        found = profile_step(work, split, [cpu], limits=QUICK)
        assert found.cells_measured == measured
        assert found.ratios == {("cpu", 1, 1): 1.0}


def test_processes_that_are_given_measure_one_model_after_the_other(
    work: Workspace, tmp_path: Path
) -> None:
    path = residual_net(tmp_path / "tiny.onnx")
    cpu = OnnxRuntimeClass(device=DeviceClass(name="cpu", cores=(min(os.sched_getaffinity(0)),)))
    seen: list[list[int]] = []
    with Copies() as processes:
        for name, blocks in (("one", 1), ("other", 2)):
            split = split_step(work, path, name, blocks=blocks, max_batch=1)
            found = profile_step(work, split, [cpu], limits=QUICK, processes=processes)
            assert found.cells_measured == blocks
            seen.append([process.pid for process in processes.processes])
    assert seen[0] == seen[1] != []


def test_an_interruption_loses_the_cell_that_was_being_measured(
    work: Workspace, tmp_path: Path
) -> None:
    split = split_step(work, residual_net(tmp_path / "tiny.onnx"), "tiny", blocks=2, max_batch=2)
    cpu = OnnxRuntimeClass(device=DeviceClass(name="cpu", cores=(min(os.sched_getaffinity(0)),)))

    def interrupt(done: int, total: int, key: CellKey) -> None:
        del total, key
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profile_step(work, split, [cpu], limits=QUICK, progress=interrupt)
    found = profile_step(work, split, [cpu], limits=QUICK)
    assert (found.cells_measured, found.cells_reused) == (1, 3)
