"""Which pairs are measured: cuts in two, and every two models in them; and what runs them."""

from itertools import product
from pathlib import Path

import pytest

from flows.device_class import DeviceClass
from flows.preparation.building.tensorrt.engines import EngineOptions
from flows.preparation.building.tensorrt.requests import (
    BuildReport,
    EngineFailure,
    EngineRequest,
    EngineResult,
)
from flows.preparation.profiling import pairs
from flows.preparation.profiling.gpu import ProfiledGpu
from flows.preparation.profiling.pairs import (
    PairKey,
    Side,
    cuts_in_two,
    on_cores,
    on_gpu,
    pairs_of,
)
from flows.preparation.splitting.split import split_model
from flows.state import ProjectState
from flows.workspace import Workspace
from tests.flows.preparation.building.tensorrt import stage_models as models
from triton_backend.contract.cluster import GpuClass
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.mps import SHARE, VISIBLE, MpsDaemon


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(state=ProjectState(home=tmp_path / "home"), warehouse=tmp_path / "w.duckdb")


def cut(*percents: int, partitions: tuple[tuple[int, ...], ...] = (), most: int = 2) -> GpuClass:
    return GpuClass(
        name="G",
        vgpu_divisors=(),
        vgpu_percents=percents,
        partitions=partitions,
        max_vgpus_per_gpu=most,
    )


def test_a_gpu_is_cut_in_two_so_that_neither_part_can_be_larger() -> None:
    assert cuts_in_two(cut(20, 40, 50, 60, 80)) == [(60, 240), (120, 180), (150, 150)]
    assert cuts_in_two(cut(30, 100)) == [(90, 90)]
    assert cuts_in_two(cut(60, 100)) == []


def test_listed_partitions_say_which_parts_meet() -> None:
    gpu_class = cut(20, 30, 50, partitions=((20, 30, 50), (50, 50), (20, 20)), most=3)
    assert cuts_in_two(gpu_class) == [(60, 60), (60, 90), (60, 150), (90, 150), (150, 150)]


def test_every_two_models_meet_once_in_every_cut_and_batch() -> None:
    found = pairs_of(cut(40, 60), ["a", "b"], {"a": (1, 2), "b": (1,)})
    sides = [Side(m, b, s) for m, b in (("a", 1), ("a", 2), ("b", 1)) for s in (120, 180)]
    every = {
        PairKey("G", *sorted((one, other)))
        for one, other in product(sides, sides)
        if one.share + other.share == 300
    }
    assert set(found) == every
    assert len(found) == len(every)


@pytest.mark.parametrize(
    ("gpu_class", "reason"),
    [
        (GpuClass(name="G"), "has no vgpu_percents"),
        (cut(40, 60, most=1), "one vGPU only"),
        (cut(60, 80), "one vGPU only"),
    ],
)
def test_a_class_without_pairs_is_named(gpu_class: GpuClass, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        pairs_of(gpu_class, ["a"], {"a": (1,)})


@pytest.mark.long
def test_parts_of_a_gpu_run_the_whole_engine_under_mps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workspace: Workspace
) -> None:
    split = split_model(
        models.convolutions(tmp_path / "m.onnx"), name="m", out=tmp_path / "split", blocks=2
    )
    requests = [
        EngineRequest(stage=f"m blocks [{first}, {last})", onnx=tmp_path, gpu_class="L4")
        for first, last in ((0, 1), (1, 2), (0, 2))
    ]
    results = tuple(
        EngineResult(request=one, key=str(n), folder=tmp_path / str(n), seconds=None)
        for n, one in enumerate(requests)
    )
    failure = EngineFailure(request=requests[2], node="n", reason="too large")
    reports = [
        BuildReport(library="t", library_version="1", results=results, failures=()),
        BuildReport(library="t", library_version="1", results=results[:2], failures=(failure,)),
    ]

    def next_report(*_: object) -> BuildReport:
        return reports.pop(0)

    monkeypatch.setattr(pairs, "engine_step", next_report)
    gpu = ProfiledGpu(name="GPU-1", daemon=MpsDaemon.in_folder(tmp_path / "mps", ()))
    device = on_gpu(workspace, "L4", gpu, EngineOptions())
    assert device.whole(split) == tmp_path / "2"
    environment = device.environment(120)
    assert (environment[VISIBLE], environment[SHARE]) == ("GPU-1", "40")
    with pytest.raises(InputError, match="too large"):
        device.whole(split)


def test_onnxruntime_divides_no_gpu(workspace: Workspace) -> None:
    with pytest.raises(InputError, match="are measured with --runtime tensorrt"):
        on_cores(workspace, DeviceClass(name="P4", provider="cuda"))
