"""The runtime on a GPU made of host memory, and the door to the libraries."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes.cuda import HostCuda
from tests.fakes.engine import NumpyEngine
from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.contract.tensors import TensorSpec
from triton_backend.runtimes.base import Artifact, Tensors
from triton_backend.runtimes.cuda import CudaError
from triton_backend.runtimes.tensorrt.library import load_library
from triton_backend.runtimes.tensorrt.runtime import TensorrtRuntime

X = TensorSpec(name="x", dtype="FP32", shape=(-1, 3))
INTEGERS = TensorSpec(name="i", dtype="INT64", shape=(-1, 2))
SKIP = TensorSpec(name="skip", dtype="FP32", shape=(-1, 5))
Y = TensorSpec(name="y", dtype="FP32", shape=(-1, 3))
Z = TensorSpec(name="z", dtype="FP16", shape=(-1, 2, 2))
BATCHES = (1, 2, 4)


def artifact() -> Artifact:
    return Artifact(
        runtime="tensorrt",
        gpu_class="L4",
        inputs=(X, INTEGERS, SKIP),
        outputs=(Y, Z, SKIP),
        max_batch=4,
        options={"batches": list(BATCHES), "forwarded": ["skip"], "unused": ["skip"]},
    )


def compute(arrays: Tensors) -> dict[str, NDArray[np.generic]]:
    x, i = arrays["x"].astype(np.float32), arrays["i"].astype(np.int64)
    half = (x[:, :1] + i.sum(axis=1, keepdims=True)).astype(np.float16)
    return {"y": 2 * x, "z": np.repeat(half, 4, axis=1).reshape(-1, 2, 2)}


class Bench:
    """A runtime with its fake GPU and engine."""

    def __init__(
        self,
        *,
        captures: bool = True,
        refuses: bool = False,
        registers: bool = True,
        use_graphs: bool = True,
    ) -> None:
        self.cuda = HostCuda(captures=captures, registers=registers)
        self.engine = NumpyEngine(
            self.cuda, BATCHES, (X, INTEGERS, Y, Z), compute, refuses_capture=refuses
        )
        self.runtime = TensorrtRuntime(artifact(), self.engine, self.cuda, use_graphs=use_graphs)
        self.engine.ran.clear()

    def check(self, batch: int) -> None:
        rng = np.random.default_rng(batch)
        given = {
            "x": rng.standard_normal((batch, 3), dtype=np.float32),
            "i": rng.integers(0, 9, (batch, 2)),
            "skip": rng.standard_normal((batch, 5), dtype=np.float32),
        }
        out = {
            "y": np.empty((batch, 3), np.float32),
            "z": np.empty((batch, 2, 2), np.float16),
            "skip": np.empty((batch, 5), np.float32),
        }
        self.runtime.run(given, out)
        expected = compute(given) | {"skip": given["skip"]}
        for name, array in out.items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize(("batch", "planned"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_batch_runs_as_the_next_planned_size(batch: int, planned: int) -> None:
    bench = Bench()
    bench.check(batch)
    assert bench.engine.ran == [planned]
    assert len(bench.cuda.launched) == 1


def test_padding_does_not_leak_between_batches() -> None:
    bench = Bench()
    for batch in (4, 3, 1, 2, 3):
        bench.check(batch)


def test_batch_beyond_the_largest_planned_one_is_refused() -> None:
    with pytest.raises(InputError, match="5 samples, built for at most 4"):
        Bench().check(5)


def test_every_size_is_warmed_up_once_when_loaded() -> None:
    cuda = HostCuda()
    engine = NumpyEngine(cuda, BATCHES, (X, INTEGERS, Y, Z), compute)
    TensorrtRuntime(artifact(), engine, cuda)
    assert engine.ran == [1, 2, 4]


@pytest.mark.parametrize(
    ("bench", "reason"),
    [
        (Bench(captures=False), "cudaStreamEndCapture"),
        (Bench(refuses=True), "TensorRT says"),
    ],
)
def test_failed_capture_is_reported_and_runs_without_graph(bench: Bench, reason: str) -> None:
    bench.check(3)
    assert set(bench.runtime.graph_fallbacks) == {1, 2, 4}
    assert all(reason in text for text in bench.runtime.graph_fallbacks.values())
    assert not bench.cuda.launched


def test_failed_capture_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Bench(captures=False)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "batch 4 runs without a CUDA graph" in caplog.text


def test_graphs_can_be_left_out() -> None:
    bench = Bench(use_graphs=False)
    bench.check(4)
    assert not bench.cuda.launched
    assert not bench.runtime.graph_fallbacks


def test_registered_memory_is_copied_from_directly() -> None:
    bench = Bench()
    segment = np.zeros(4096, np.uint8)
    bench.runtime.register(segment)
    given = {
        "x": segment[:24].view(np.float32).reshape(2, 3),
        "i": np.ones((2, 2), np.int64),
        "skip": np.zeros((2, 5), np.float32),
    }
    given["x"][...] = 3
    out = {
        "y": segment[1024:1048].view(np.float32).reshape(2, 3),
        "z": np.empty((2, 2, 2), np.float16),
        "skip": np.empty((2, 5), np.float32),
    }
    bench.runtime.run(given, out)
    assert given["x"].ctypes.data in bench.cuda.copied_from
    assert given["i"].ctypes.data not in bench.cuda.copied_from
    np.testing.assert_array_equal(out["y"], np.full((2, 3), 6, np.float32))


def test_memory_that_cannot_be_registered_says_so_and_still_works() -> None:
    bench = Bench(registers=False)
    with pytest.raises(CudaError, match="cudaHostRegister"):
        bench.runtime.register(np.zeros(64, np.uint8))
    bench.check(2)


def test_close_gives_everything_back() -> None:
    bench = Bench()
    bench.runtime.register(np.zeros(64, np.uint8))
    bench.check(4)
    bench.runtime.close()
    assert bench.engine.closed
    assert not bench.cuda.held
    assert not bench.cuda.registered


def test_compute_and_layer_times_come_from_the_gpu() -> None:
    bench = Bench()
    assert bench.runtime.compute_us(4) == 100.0
    assert bench.runtime.layer_times_us(4) == {"layer": 100.0}
    assert bench.engine.ran == [4, 4]


def test_array_of_another_shape_or_type_never_reaches_the_gpu() -> None:
    bench = Bench()
    x, i = np.zeros((2, 3), np.float32), np.zeros((2, 2), np.int64)
    skip = np.zeros((2, 5), np.float32)
    out = {"y": np.zeros((2, 3), np.float32), "z": np.zeros((2, 2, 2), np.float16), "skip": skip}
    for wrong in (x[:, :2], x.astype(np.float64)):
        with pytest.raises(InvariantError, match="tensor 'x' is"):
            bench.runtime.run({"x": wrong, "i": i, "skip": skip}, out)
    with pytest.raises(InvariantError, match="tensor 'i' is missing"):
        bench.runtime.run({"x": x, "skip": skip}, out)
    assert not bench.cuda.copied_from


def test_where_no_tensorrt_is_both_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"):
        monkeypatch.setitem(sys.modules, name, None)
    for asked in (None, "tensorrt", "tensorrt-rtx"):
        with pytest.raises(InputError, match=r"\[tensorrt\].*\[tensorrt-rtx\]"):
            load_library(asked)


def test_the_library_that_is_there_is_taken_and_the_data_centre_one_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = {name: SimpleNamespace(__version__=name) for name in ("tensorrt", "tensorrt_rtx")}
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert (load_library().name, load_library("tensorrt-rtx").version) == (
        "tensorrt",
        "tensorrt_rtx",
    )
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    assert load_library().name == "tensorrt-rtx"
