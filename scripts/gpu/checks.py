"""The checks of `scripts/gpu/check.py`, in order; each returns pass, fail or only a figure."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.preparation.building.tensorrt.half import convert_chain
from flows.preparation.graphs.examples import write_example
from flows.preparation.splitting.extracting import extract_stage
from flows.preparation.splitting.model import SplitModel
from flows.preparation.splitting.running import (
    open_session,
    random_inputs,
    relative_error,
    run_session,
)
from flows.preparation.splitting.split import split_model
from scripts.gpu.copies import run_copies
from scripts.gpu.paths import BATCHES, Arrays, GpuPath, TensorrtPath, wall_us
from triton_backend.contract.errors import PoolPipeError
from triton_backend.contract.shares import share_of_divisor
from triton_backend.runtimes.cuda import Cuda
from triton_backend.runtimes.mps import MpsDaemon, gpu_environment

CHECKED_BATCH = 8
BLOCKS = 10
FP32_ERROR = 1e-3
SERVED_OVER_OWN, SPLIT_OVER_WHOLE, GRAPH_OVER_EAGER = 1.10, 1.15, 1.02
WANTED_ATTAINMENT = 0.99
DIVISORS = (1, 2, 3, 4)
SEED = 5


class Skipped(Exception):  # noqa: N818 -- not an error
    """A check that cannot be made here, with the reason."""


@dataclass(slots=True)
class Bench:
    """Common parts of the checks."""

    work: Path
    model: str
    quick: bool
    cuda: Cuda
    path: GpuPath | None = None
    complaints: list[str] = field(default_factory=list[str])
    split: SplitModel | None = None
    results: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @property
    def ready(self) -> tuple[GpuPath, SplitModel]:
        """Path and split model, or the reason to skip what needs them."""
        if self.path is None or self.split is None:
            raise Skipped("no path to this GPU: " + "; ".join(self.complaints))
        return self.path, self.split

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes that are timed."""
        return (1, CHECKED_BATCH) if self.quick else BATCHES

    def inputs(self, batch: int) -> Arrays:
        """Seeded samples of the model."""
        assert self.split is not None
        return random_inputs(self.split.inputs, batch, np.random.default_rng(SEED))

    def whole(self) -> Path:
        """The model as one stage."""
        assert self.split is not None
        return extract_stage(self.split, 0, self.split.blocks)

    def halves(self) -> list[Path]:
        """The model as two stages."""
        assert self.split is not None
        middle = self.split.blocks // 2
        return [
            extract_stage(self.split, 0, middle),
            extract_stage(self.split, middle, self.split.blocks),
        ]


Finding = tuple[bool | None, Any]  # pass or fail (None: only a figure), and the figure
Check = Callable[[Bench], Finding]


def check_device(bench: Bench) -> Finding:
    """Name, driver, memory as the driver says."""
    try:
        from flows.preparation.profiling.devices import list_devices

        return None, [device.to_dict() for device in list_devices()]
    except (PoolPipeError, ImportError) as error:
        capability = bench.cuda.compute_capability()
        return None, {"compute_capability": capability, "no_inventory": str(error)}


def check_cuda_door(bench: Bench) -> Finding:
    """Copies there and back by way of pinned memory, then the same from a captured graph."""
    cuda, size = bench.cuda, 1 << 20
    stream, device = cuda.new_stream(), cuda.allocate(size)
    here, there = cuda.allocate_pinned(size), cuda.allocate_pinned(size)
    here[:] = np.random.default_rng(SEED).integers(0, 255, size, np.uint8)

    def there_and_back() -> None:
        cuda.copy_in(device, here.ctypes.data, size, stream)
        cuda.copy_out(there.ctypes.data, device, size, stream)

    there_and_back()
    cuda.synchronize(stream)
    eager = bool(np.array_equal(here, there))
    graph = cuda.capture(stream, there_and_back)
    here[:] = here[::-1].copy()
    cuda.launch(graph, stream)
    cuda.synchronize(stream)
    captured = bool(np.array_equal(here, there))
    elapsed_us = cuda.elapsed_us(stream, lambda: cuda.launch(graph, stream))
    cuda.free_graph(graph)
    for memory in (here, there):
        cuda.free_pinned(memory)
    cuda.free(device)
    cuda.free_stream(stream)
    figure = {"eager": eager, "graph": captured, "mib_there_and_back_us": round(elapsed_us, 1)}
    return eager and captured, figure


def check_load(bench: Bench) -> Finding:
    """Split the model, find a path, build and load the whole model as one stage."""
    source = write_example(bench.model, bench.work / f"{bench.model}.onnx")
    bench.split = split_model(
        source, name=bench.model, out=bench.work / "models", blocks=BLOCKS, max_batch=CHECKED_BATCH
    )
    path, _ = bench.ready
    path.open(bench.whole(), graphs=False).close()
    figure: dict[str, Any] = {"path": path.name, "others": bench.complaints}
    if isinstance(path, TensorrtPath):
        figure |= {"library": f"{path.library.name} {path.library.version}"}
    return True, figure


def reference(stages: list[Path], inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Outputs of a chain by onnxruntime on the CPU."""
    at_hand: dict[str, NDArray[Any]] = dict(inputs)
    made: dict[str, NDArray[Any]] = {}
    for stage in stages:
        made = run_session(open_session(stage, str(stage)), at_hand)
        at_hand |= made
    return made


def on_gpu(bench: Bench, stages: list[Path], inputs: Arrays) -> dict[str, NDArray[Any]]:
    """Outputs of a chain of stages on the GPU."""
    path, _ = bench.ready
    at_hand: dict[str, NDArray[Any]] = dict(inputs)
    made: dict[str, NDArray[Any]] = {}
    for stage in stages:
        opened = path.open(stage, graphs=False)
        made = opened.run({name: at_hand[name] for name in opened.inputs})
        opened.close()
        at_hand |= made
    return made


def error_between(found: Arrays, expected: Arrays) -> float:
    """Largest relative error over the outputs."""
    return max(
        relative_error(found[n].astype(np.float32), expected[n].astype(np.float32))
        for n in expected
    )


def check_outputs(bench: Bench) -> Finding:
    """The whole model against onnxruntime on the CPU, in fp32 without TF32."""
    bench.ready  # noqa: B018 -- skips
    inputs = bench.inputs(CHECKED_BATCH)
    error = error_between(
        on_gpu(bench, [bench.whole()], inputs), reference([bench.whole()], inputs)
    )
    return error <= FP32_ERROR, {"relative_error": error}


def check_half(bench: Bench) -> Finding:
    """The model in fp16 with fp16 boundaries; the loss is reported, not judged."""
    bench.ready  # noqa: B018 -- skips
    chain = convert_chain(bench.halves(), bench.work / "half", samples=CHECKED_BATCH)
    inputs = bench.inputs(CHECKED_BATCH)
    error = error_between(
        on_gpu(bench, list(chain.stages), inputs), reference([bench.whole()], inputs)
    )
    return None, {"relative_error": error, "predicted_on_cpu": chain.loss.max_relative}


def check_split(bench: Bench) -> Finding:
    """Two stages against the whole, both on the GPU."""
    bench.ready  # noqa: B018 -- skips
    inputs = bench.inputs(CHECKED_BATCH)
    error = error_between(
        on_gpu(bench, bench.halves(), inputs), on_gpu(bench, [bench.whole()], inputs)
    )
    return error <= FP32_ERROR, {"relative_error": error}


def compute_us(bench: Bench, stages: list[Path], batch: int, *, graphs: bool) -> float:
    """Sum of the stages' times on the GPU."""
    path, _ = bench.ready
    at_hand: dict[str, NDArray[Any]] = dict(bench.inputs(batch))
    total_us = 0.0
    for stage in stages:
        opened = path.open(stage, graphs=graphs)
        given = {name: at_hand[name] for name in opened.inputs}
        total_us += opened.compute_us(given)
        at_hand |= opened.run(given)
        opened.close()
    return total_us


def check_latency(bench: Bench) -> Finding:
    """Whole model by batch: eager and, where the path has it, by CUDA graph."""
    path, _ = bench.ready
    table: dict[str, dict[str, float]] = {}
    good = True
    for batch in bench.batches:
        row = {"eager_us": compute_us(bench, [bench.whole()], batch, graphs=False)}
        if path.graphs:
            row["graph_us"] = compute_us(bench, [bench.whole()], batch, graphs=True)
            good = good and row["graph_us"] <= GRAPH_OVER_EAGER * row["eager_us"]
        table[str(batch)] = {name: round(us, 1) for name, us in row.items()}
    return good if path.graphs else None, table


def check_served(bench: Bench) -> Finding:
    """Host to host against the GPU's own time, at batch 8."""
    path, _ = bench.ready
    stage = path.open(bench.whole(), graphs=path.graphs)
    inputs = bench.inputs(CHECKED_BATCH)
    own_us, served_us = stage.compute_us(inputs), wall_us(stage, inputs)
    stage.close()
    ratio = served_us / own_us
    figure = {"own_us": round(own_us, 1), "served_us": round(served_us, 1), "ratio": ratio}
    return ratio <= SERVED_OVER_OWN, figure


def check_two_stages(bench: Bench) -> Finding:
    """Two stages on one GPU against the whole model, at batch 8."""
    path, _ = bench.ready
    whole_us = compute_us(bench, [bench.whole()], CHECKED_BATCH, graphs=path.graphs)
    two_us = compute_us(bench, bench.halves(), CHECKED_BATCH, graphs=path.graphs)
    ratio = two_us / whole_us
    return ratio <= SPLIT_OVER_WHOLE, {"whole_us": whole_us, "two_us": two_us, "ratio": ratio}


def check_blocks(bench: Bench) -> Finding:
    """Sum of all blocks against the whole model, which planners take to be equal."""
    path, split = bench.ready
    blocks = [extract_stage(split, i, i + 1) for i in range(split.blocks)]
    figure: dict[str, float] = {}
    for batch in (1, CHECKED_BATCH):
        whole_us = compute_us(bench, [bench.whole()], batch, graphs=path.graphs)
        figure[str(batch)] = compute_us(bench, blocks, batch, graphs=path.graphs) / whole_us
    return None, {"sum_over_whole_by_batch": figure}


def check_vgpus(bench: Bench) -> Finding:
    """One of v copies while the others run: under MPS with 100/v % each, and time-sliced."""
    path, _ = bench.ready
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    daemon = MpsDaemon.in_folder(Path(tempfile.mkdtemp(prefix="mps-")), ())
    table: dict[str, dict[str, float | str]] = {}
    path.open(bench.whole(), graphs=path.graphs).close()  # built before copies run
    for divisor in (1, 2, 3, 4):
        table[str(divisor)] = {
            "sliced_us": run_copies(
                bench.whole(), path.name, bench.work, (divisor, gpu_environment(gpu))
            )
        }
    try:
        daemon.start()
        for divisor in (1, 2, 3, 4):
            table[str(divisor)]["mps_us"] = run_copies(
                bench.whole(),
                path.name,
                bench.work,
                (divisor, daemon.environment(gpu, share_of_divisor(divisor))),
            )
    except PoolPipeError as error:
        return None, {"batch": CHECKED_BATCH, "by_divisor": table, "mps": str(error)}
    finally:
        daemon.stop()
    return True, {"batch": CHECKED_BATCH, "by_divisor": table}


def check_layers(bench: Bench) -> Finding:
    """Layer times of the GPU mapped to nodes, and the cuts they give against the CPU's."""
    from scripts.gpu.layers import gpu_cuts

    path, split = bench.ready
    if not isinstance(path, TensorrtPath):
        raise Skipped(f"{path.name} has no layer profiler")
    return None, gpu_cuts(path, split)


def check_gateway(bench: Bench) -> Finding:
    """Gateway and two pools of one vGPU each on this GPU, under Poisson load."""
    path, split = bench.ready
    if not isinstance(path, TensorrtPath):
        raise Skipped(f"workers have no runtime for {path.name}")
    from scripts.gpu.gateway import serve_two_pools

    attainment, figure = serve_two_pools(path, split, bench.work)
    return attainment >= 0.99, figure


CHECKS: dict[str, Check] = {
    "device": check_device,
    "cuda door": check_cuda_door,
    "build and load": check_load,
    "outputs against onnxruntime": check_outputs,
    "fp16": check_half,
    "split against whole": check_split,
    "latency by batch": check_latency,
    "served against own time": check_served,
    "two stages on one GPU": check_two_stages,
    "sum of blocks": check_blocks,
    "virtual GPUs": check_vgpus,
    "layer profile": check_layers,
    "gateway with two pools": check_gateway,
}
