"""Do block times add up? The sum of a model's block times against the whole model as one stage.

A planner adds block latencies up. Where blocks fuse better together, or lose time at their edges,
the sum is off; the ratio says by how much, and is stored beside the cells.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.preparation.profiling.copies import Copies
from flows.preparation.profiling.measure import MeasureLimits
from flows.preparation.profiling.statistics import summarise
from triton_backend.contract.shares import share_of_divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class SumRatio:
    """`ratio` = sum of the blocks' mean latencies / mean latency of the whole stage (µs)."""

    model: str
    gpu_class: str
    vgpu_divisor: int
    batch: int
    blocks_us: float
    whole_us: float

    @property
    def ratio(self) -> float:
        """Above 1: the planner is pessimistic."""
        return self.blocks_us / self.whole_us


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTarget:
    """The artifact of all blocks of a model, and the sum of block latencies by (divisor, batch)."""

    model: str
    gpu_class: str
    artifact: Path
    blocks_us: Mapping[tuple[int, int], float]

    def of_one_block(self) -> list[SumRatio]:
        """The ratios where one block is the whole: nothing is left to measure."""
        return [
            self.ratio(divisor, batch, whole_us=block_us)
            for (divisor, batch), block_us in self.blocks_us.items()
        ]

    def ratio(self, divisor: int, batch: int, *, whole_us: float) -> SumRatio:
        """The ratio for a time of the whole (µs)."""
        return SumRatio(
            model=self.model,
            gpu_class=self.gpu_class,
            vgpu_divisor=divisor,
            batch=batch,
            blocks_us=self.blocks_us[divisor, batch],
            whole_us=whole_us,
        )


def measure_ratios(
    targets: list[WholeTarget],
    *,
    store: Callable[[SumRatio], None],
    limits: MeasureLimits | None = None,
    environment: Mapping[str, str] | None = None,
    processes: Copies | None = None,
) -> int:
    """Measure whole models and hand every ratio to `store`; how many were measured.

    `processes` are left running; None starts some and ends them.

    Raises:
        InputError: an artifact cannot be loaded.
    """
    asked, count = asdict(limits or MeasureLimits()), 0
    with Copies(environment) if processes is None else nullcontext(processes) as copies:
        for target in targets:
            for divisor, batch in target.blocks_us:
                copies.load(target.artifact, share_of_divisor(divisor), divisor)
                whole_us = summarise(copies.measure(batch, asked)).mean_us
                store(target.ratio(divisor, batch, whole_us=whole_us))
                count += 1
    return count
