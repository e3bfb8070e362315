"""Stages "on a GPU" that onnxruntime runs on the CPU: the second adapter of `scripts.gpu.paths`."""

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from flows.preparation.splitting.running import open_session, run_session
from scripts.gpu.paths import Arrays


class CpuStage:
    """A session; its time on the "GPU" is proportional to the batch."""

    def __init__(self, onnx_file: Path, *, graphs: bool) -> None:
        self._session = open_session(onnx_file, str(onnx_file))
        self._us_per_sample = 90.0 if graphs else 100.0
        self.inputs: tuple[str, ...] = tuple(i.name for i in self._session.get_inputs())
        self.closed = False

    def run(self, inputs: Arrays) -> dict[str, NDArray[Any]]:
        return run_session(self._session, inputs)

    def compute_us(self, inputs: Arrays) -> float:
        return self._us_per_sample * len(next(iter(inputs.values())))

    def close(self) -> None:
        self.closed = True


class CpuPath:
    """Opens stages and remembers them."""

    name = "cpu"
    graphs = True

    def __init__(self) -> None:
        self.opened: list[CpuStage] = []

    def open(self, onnx_file: Path, *, graphs: bool) -> CpuStage:
        self.opened.append(CpuStage(onnx_file, graphs=graphs))
        return self.opened[-1]
