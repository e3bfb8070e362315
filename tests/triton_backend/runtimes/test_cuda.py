"""Contract of CUDA adapters: the fake one, and the real one if there is a GPU."""

from collections.abc import Callable

import numpy as np
import pytest

from tests.fakes.cuda import HostCuda
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.cuda import Cuda, CudaError, open_cuda

SIZE = 4096


def adapters() -> list[Callable[[], Cuda]]:
    try:
        open_cuda()
    except InputError:
        return [HostCuda]
    return [HostCuda, open_cuda]


@pytest.fixture(params=adapters(), ids=lambda make: make.__name__)
def cuda(request: pytest.FixtureRequest) -> Cuda:
    return request.param()


def test_new_device_memory_is_zero_and_keeps_what_is_copied_in(cuda: Cuda) -> None:
    stream, device = cuda.new_stream(), cuda.allocate(SIZE)
    here, there = cuda.allocate_pinned(SIZE), cuda.allocate_pinned(SIZE)
    there[:] = 7
    cuda.copy_out(there.ctypes.data, device, SIZE, stream)
    cuda.synchronize(stream)
    assert not there.any()
    here[:] = np.arange(SIZE) % 251
    cuda.copy_in(device, here.ctypes.data, SIZE, stream)
    cuda.copy_out(there.ctypes.data, device, SIZE, stream)
    cuda.synchronize(stream)
    assert np.array_equal(here, there)
    for memory in (here, there):
        cuda.free_pinned(memory)
    cuda.free(device)
    cuda.free_stream(stream)


def test_captured_work_runs_when_launched_and_not_before(cuda: Cuda) -> None:
    stream, device = cuda.new_stream(), cuda.allocate(SIZE)
    here, there = cuda.allocate_pinned(SIZE), cuda.allocate_pinned(SIZE)

    def there_and_back() -> None:
        cuda.copy_in(device, here.ctypes.data, SIZE, stream)
        cuda.copy_out(there.ctypes.data, device, SIZE, stream)

    there_and_back()
    cuda.synchronize(stream)
    graph = cuda.capture(stream, there_and_back)
    here[:] = 5
    cuda.synchronize(stream)
    assert not there.any()
    cuda.launch(graph, stream)
    cuda.synchronize(stream)
    assert (there == 5).all()
    cuda.free_graph(graph)


def test_failure_while_capturing_leaves_the_stream_usable(cuda: Cuda) -> None:
    stream, device = cuda.new_stream(), cuda.allocate(SIZE)
    here = cuda.allocate_pinned(SIZE)

    def fails() -> None:
        message = "refused"
        raise CudaError(message)

    with pytest.raises(CudaError, match="refused"):
        cuda.capture(stream, fails)
    here[:] = 3
    cuda.copy_in(device, here.ctypes.data, SIZE, stream)
    here[:] = 0
    cuda.copy_out(here.ctypes.data, device, SIZE, stream)
    cuda.synchronize(stream)
    assert (here == 3).all()


def test_memory_that_exists_can_be_pinned_and_let_go(cuda: Cuda) -> None:
    memory = np.zeros(SIZE, np.uint8)
    cuda.register(memory.ctypes.data, memory.nbytes)
    cuda.unregister(memory.ctypes.data)


def test_time_on_the_gpu_is_positive_and_capability_has_two_parts(cuda: Cuda) -> None:
    stream = cuda.new_stream()
    assert cuda.elapsed_us(stream, lambda: None) >= 0
    assert len(cuda.compute_capability().split(".")) == 2
