"""A worker whose runtime copies to a GPU: batches leave its shared memory without another copy."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.fakes.cuda import HostCuda
from tests.fakes.engine import NumpyEngine
from tests.triton_backend.serving.small_plans import BATCH, model, plan, stage, tensor
from tests.triton_backend.serving.system import LocalSystem, wait_for
from triton_backend.runtimes.base import Artifact
from triton_backend.runtimes.tensorrt.runtime import TensorrtRuntime
from triton_backend.serving.front.replies import Refusal
from triton_backend.serving.worker.process import StageWorker, health_row
from triton_backend.serving.worker.stage import Loaded

pytestmark = pytest.mark.slow

X, Y = tensor("x", 3), tensor("y", 3)
PATIENT_US = 2_000_000


def double(arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[np.generic]]:
    return {"y": 2 * arrays["x"].astype(np.float32)}


def gpu_runtime(cuda: HostCuda) -> TensorrtRuntime:
    batches = tuple(range(1, BATCH + 1))
    artifact = Artifact(
        runtime="tensorrt",
        gpu_class="FAST",
        inputs=(X,),
        outputs=(Y,),
        max_batch=BATCH,
        options={"batches": list(batches)},
    )
    return TensorrtRuntime(artifact, NumpyEngine(cuda, batches, (X, Y), double), cuda)


@pytest.fixture
def system(tmp_path: Path) -> Iterator[LocalSystem]:
    """One stage on one vGPU, emulated until a test brings its own worker."""
    one = model("double", (stage((0, 10), "FAST", 0),), inputs=(X,), outputs=(Y,))
    made = LocalSystem(tmp_path / "serve", plan(one, gpus=1))
    made.stop_worker(1, 0)
    wait_for(lambda: made.status()["workers"]["up"] == 0)
    yield made
    made.stop()


def serve_with(system: LocalSystem, runtime: TensorrtRuntime) -> None:
    deployment = system.deployment
    (row,) = deployment.rows_of(0)
    loaded, health = [Loaded.of(deployment, row, runtime)], health_row(deployment, 0)
    system.run_worker(StageWorker(deployment, 0, loaded, health, system.clock))
    wait_for(lambda: system.status()["workers"]["up"] == 1)


def answer_of(system: LocalSystem, x: NDArray[np.float32]) -> NDArray[np.generic]:
    answer = system.ask("double", {"x": x}, PATIENT_US)()
    assert not isinstance(answer, Refusal)
    return answer["y"]


def test_batches_are_copied_to_the_gpu_straight_from_shared_memory(system: LocalSystem) -> None:
    cuda = HostCuda()
    serve_with(system, gpu_runtime(cuda))
    (start, size), *more = cuda.registered.items()
    assert not more
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(answer_of(system, x), 2 * x)
    assert cuda.copied_from
    assert all(start <= address < start + size for address in cuda.copied_from)
    system.stop_worker(1, 0)
    assert not cuda.registered
    assert not cuda.held


def test_memory_that_cannot_be_pinned_is_reported_and_served_from(
    system: LocalSystem, caplog: pytest.LogCaptureFixture
) -> None:
    cuda = HostCuda(registers=False)
    serve_with(system, gpu_runtime(cuda))
    assert "copied once more" in caplog.text
    x = np.ones((1, 3), np.float32)
    np.testing.assert_array_equal(answer_of(system, x), 2 * x)
