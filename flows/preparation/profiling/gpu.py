"""Measuring engines on a GPU: whole, and in v parts that all work at once under CUDA MPS."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from flows.preparation.profiling.measure import (
    CellKey,
    MeasureLimits,
    ProfileTarget,
    Progress,
    Store,
    measure_cells,
)
from triton_backend.contract.errors import InputError
from triton_backend.runtimes.mps import MpsDaemon, gpu_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledGpu:
    """`name`: uuid or index of a GPU, or uuid of a MIG slice.

    Its daemon runs while parts are measured and is stopped afterwards if nobody else uses it.
    """

    name: str
    daemon: MpsDaemon


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMeasured:
    """What was measured; `left_out` says why parts of the GPU were not, where they were asked for."""

    cells: int
    left_out: str | None = None


def measure_on_gpu(
    targets: Sequence[ProfileTarget],
    gpu: ProfiledGpu,
    *,
    done: Collection[CellKey],
    store: Store,
    progress: Progress | None = None,
    limits: MeasureLimits | None = None,
) -> GpuMeasured:
    """Measure every missing cell on one GPU; parts of it only where MPS works.

    Args:
        targets: built blocks of one GPU class.
        gpu: a GPU of that class.
        done: cells that are not measured again.
        store: is handed each cell at once.
        progress: called before each cell.
        limits: when a cell is measured well enough.

    Raises:
        InputError: an engine cannot be loaded on this GPU.
    """
    cells = 0
    for divisor in sorted({d for target in targets for d in target.divisors}):
        mine = [replace(t, divisors=(divisor,)) for t in targets if divisor in t.divisors]
        environment = gpu_environment(gpu.name)
        if divisor > 1:
            try:
                gpu.daemon.start()
            except InputError as error:
                return GpuMeasured(cells=cells, left_out=str(error))
            environment = gpu.daemon.environment(gpu.name, divisor)
        try:
            cells += measure_cells(
                mine,
                done=done,
                store=store,
                progress=progress,
                limits=limits,
                environment=environment,
            )
        finally:
            gpu.daemon.stop_if_idle()
    return GpuMeasured(cells=cells)
