"""Three ways to run a stage on a GPU, tried in order: TensorRT, onnxruntime's CUDA, torch's CUDA.

For `scripts/gpu/check.py`: each path opens an ONNX stage and can run it, time it on the GPU, and
say whether it has CUDA graphs. The first that works on this card is used, and the check says which.
"""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from flows.clock import Stopwatch
from flows.preparation.building.tensorrt.build import build_engines
from flows.preparation.building.tensorrt.network import require_supported
from flows.preparation.building.tensorrt.requests import EngineRequest, EngineSettings
from triton_backend.contract.errors import InputError, PoolPipeError
from triton_backend.contract.units import US_PER_MS, US_PER_S
from triton_backend.runtimes.base import NUMPY_DTYPES, Artifact
from triton_backend.runtimes.cuda import open_cuda
from triton_backend.runtimes.tensorrt.library import load_library
from triton_backend.runtimes.tensorrt.runtime import TensorrtRuntime, open_tensorrt

Arrays = Mapping[str, NDArray[Any]]
CLASS = "this-gpu"
BATCHES = (1, 2, 4, 8, 16)
TIMED_RUNS = 30
WARM_UP_RUNS = 5
ORT_PROVIDERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "cuda": ("CUDAExecutionProvider", {"use_tf32": 0}),
    "cpu": ("CPUExecutionProvider", {}),
}


class OpenStage(Protocol):
    """A stage on the GPU; `inputs` names the tensors it takes."""

    inputs: tuple[str, ...]

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """One batch, host to host."""
        ...

    def compute_us(self, inputs: Arrays) -> float:
        """Median time of one batch on the GPU, copies to and from the host apart."""
        ...

    def close(self) -> None:
        """Give the stage back."""
        ...


class GpuPath(Protocol):
    """One way to run stages."""

    name: str
    graphs: bool

    def open(self, onnx_file: Path, *, graphs: bool) -> OpenStage:
        """Load a stage; `graphs` asks for CUDA graphs, which must then be had."""
        ...


def find_path(work: Path, complaints: list[str], only: str | None = None) -> "GpuPath | None":
    """The first path that works here; why the others do not goes to `complaints`."""
    for name, make in PATHS.items():
        if only not in {None, name}:
            continue
        try:
            return make(work)
        except (ImportError, PoolPipeError, RuntimeError) as error:
            complaints.append(f"{name}: {' '.join(str(error).split())}")
    return None


def wall_us(stage: OpenStage, inputs: Arrays) -> float:
    """Median time of one batch from host arrays to host arrays."""
    times: list[float] = []
    for number in range(WARM_UP_RUNS + TIMED_RUNS):
        watch = Stopwatch()
        stage.run(inputs)
        if number >= WARM_UP_RUNS:
            times.append(watch.seconds() * US_PER_S)
    return statistics.median(times)


class TensorrtPath:
    """Engines built here, run by the product's own runtime."""

    name = "tensorrt"
    graphs = True

    def __init__(self, work: Path) -> None:
        """Find the library and a card it builds for."""
        self._work = work
        self.library = load_library()
        self.capability = open_cuda().compute_capability()
        require_supported(self.library, self.capability)
        self._settings = EngineSettings(
            library=self.library.name, compute_capabilities={CLASS: self.capability}
        )

    def artifact(self, onnx_file: Path) -> Path:
        """Build the engine of a stage, or find it built."""
        request = EngineRequest(
            stage=onnx_file.stem, onnx=onnx_file, gpu_class=CLASS, batches=BATCHES
        )
        report = build_engines([request], self._work, self._settings)
        if report.failures:
            raise InputError("engine", str(report.failures[0]))
        return report.results[0].folder

    def open(self, onnx_file: Path, *, graphs: bool) -> OpenStage:
        """Build and load."""
        folder = self.artifact(onnx_file)
        return TensorrtStage(
            open_tensorrt(folder, Artifact.read(folder), use_graphs=graphs), graphs=graphs
        )


class TensorrtStage:
    """The product's runtime behind the checks' protocol."""

    def __init__(self, runtime: TensorrtRuntime, *, graphs: bool) -> None:
        self.runtime = runtime
        self.inputs: tuple[str, ...] = tuple(spec.name for spec in runtime.inputs)
        if graphs and runtime.graph_fallbacks:
            raise InputError("CUDA graph", str(runtime.graph_fallbacks))

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """One batch into fresh arrays."""
        batch = len(next(iter(inputs.values())))
        out = {
            s.name: np.empty((batch, *s.shape[1:]), NUMPY_DTYPES[s.dtype])
            for s in self.runtime.outputs
        }
        self.runtime.run(inputs, out)
        return out

    def compute_us(self, inputs: Arrays) -> float:
        """Between two events on the GPU."""
        self.run(inputs)
        batch = len(next(iter(inputs.values())))
        times = [self.runtime.compute_us(batch) for _ in range(WARM_UP_RUNS + TIMED_RUNS)]
        return statistics.median(times[WARM_UP_RUNS:])

    def close(self) -> None:
        """Give the GPU's memory back."""
        self.runtime.close()


class OnnxruntimePath:
    """onnxruntime's CUDA provider, where the installed onnxruntime has it."""

    name = "onnxruntime-cuda"
    graphs = False

    def __init__(self, work: Path, device: str = "cuda") -> None:
        """Check that the provider is there; device `cpu` is for trying this out without a GPU."""
        import onnxruntime

        del work
        self._onnxruntime, self._device = onnxruntime, device
        self._provider, self._options = ORT_PROVIDERS[device]
        if self._provider not in onnxruntime.get_available_providers():
            raise InputError("onnxruntime", f"{onnxruntime.__version__} is built without CUDA")

    def open(self, onnx_file: Path, *, graphs: bool) -> OpenStage:
        """Load with CUDA; a session that fell back to the CPU is an error."""
        del graphs
        session = self._onnxruntime.InferenceSession(
            str(onnx_file), providers=[(self._provider, self._options)]
        )
        if self._provider not in session.get_providers():
            raise InputError("onnxruntime", "the CUDA provider did not load")
        return OnnxruntimeStage(session, self._device)


class OnnxruntimeStage:
    """A session with inputs and outputs held on the GPU while timing."""

    def __init__(self, session: Any, device: str) -> None:
        self._session, self._device = session, device
        self.inputs: tuple[str, ...] = tuple(i.name for i in session.get_inputs())
        self._outputs = [o.name for o in session.get_outputs()]

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """One batch, host to host."""
        values = self._session.run(self._outputs, dict(inputs))
        return dict(zip(self._outputs, values, strict=True))

    def compute_us(self, inputs: Arrays) -> float:
        """Wall time with tensors bound on the GPU."""
        import onnxruntime

        binding = self._session.io_binding()
        for name, array in inputs.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, self._device, 0)
            binding.bind_ortvalue_input(name, value)
        for name in self._outputs:
            binding.bind_output(name, self._device, 0)
        times: list[float] = []
        for _ in range(WARM_UP_RUNS + TIMED_RUNS):
            watch = Stopwatch()
            self._session.run_with_iobinding(binding)
            times.append(watch.seconds() * US_PER_S)
        return statistics.median(times[WARM_UP_RUNS:])

    def close(self) -> None:
        """Drop the session."""
        del self._session


class TorchPath:
    """torch's CUDA kernels driven node by node."""

    name = "torch-cuda"
    graphs = True

    def __init__(self, work: Path, device: str = "cuda") -> None:
        """Check that torch sees a GPU."""
        import torch  # pyright: ignore[reportMissingImports] -- not a dependency

        del work
        self._device = device
        if device == "cuda" and not torch.cuda.is_available():
            raise InputError("torch", f"{torch.__version__} sees no GPU")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False

    def open(self, onnx_file: Path, *, graphs: bool) -> OpenStage:
        """Load the graph."""
        return TorchStage(onnx_file, self._device, graphs=graphs)


class TorchStage:
    """A graph in torch, captured once per batch size where graphs are asked for."""

    def __init__(self, onnx_file: Path, device: str, *, graphs: bool) -> None:
        import torch  # pyright: ignore[reportMissingImports] -- not a dependency

        from scripts.gpu.torch_graph import TorchGraph

        self._torch, self._device, self._graphs = torch, device, graphs
        self._graph = TorchGraph(onnx_file, device)
        self.inputs: tuple[str, ...] = tuple(self._graph.inputs)
        self._captured: dict[int, tuple[Any, dict[str, Any], dict[str, Any]]] = {}

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        """One batch, host to host."""
        with self._torch.inference_mode():
            return {n: v.cpu().numpy() for n, v in self._launch(self._send(inputs)).items()}

    def compute_us(self, inputs: Arrays) -> float:
        """Between two events on the GPU."""
        torch = self._torch
        times: list[float] = []
        with torch.inference_mode():
            sent = self._send(inputs)
            for _ in range(WARM_UP_RUNS + TIMED_RUNS):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self._launch(sent)
                end.record()
                end.synchronize()
                times.append(begin.elapsed_time(end) * US_PER_MS)
        return statistics.median(times[WARM_UP_RUNS:])

    def close(self) -> None:
        """Drop graphs and weights."""
        self._captured.clear()
        del self._graph

    def _send(self, inputs: Arrays) -> dict[str, Any]:
        return {
            name: self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
            for name, array in inputs.items()
        }

    def _launch(self, sent: dict[str, Any]) -> dict[str, Any]:
        if not self._graphs:
            return self._graph.run(sent)
        batch = len(next(iter(sent.values())))
        if batch not in self._captured:
            self._captured[batch] = self._capture(sent)
        graph, inputs, outputs = self._captured[batch]
        for name, value in sent.items():
            inputs[name].copy_(value)
        graph.replay()
        return outputs

    def _capture(self, sent: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        torch = self._torch
        inputs = {name: value.clone() for name, value in sent.items()}
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                self._graph.run(inputs)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = self._graph.run(inputs)
        return graph, inputs, outputs


PATHS: dict[str, Callable[[Path], GpuPath]] = {
    path.name: path for path in (TensorrtPath, OnnxruntimePath, TorchPath)
}
