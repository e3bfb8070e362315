"""A runtime without a model: it waits the profiled latency and passes tensors of the true shape.

Whole clusters run on one machine this way. Every output value of a sample is a small number that
depends on the sample's bytes in every input, so a mix-up of samples on the way can be seen.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.errors import InputError, InvariantError
from triton_backend.runtimes.base import Artifact, Runtime, Tensors, put_rows
from triton_backend.runtimes.clock import Clock

LATENCY_OPTION = "latency_us_by_batch"
ROWS_OPTION = "rows"
SHAPES_OPTION = "shapes"
INTERFERENCE_OPTION = "interference"
CHECKED_BYTES = 4096
LARGEST_VALUE = 128  # below it every datatype holds every whole number
LOOKS = 32  # at neighbours, at most, during a run without slow-down
LOOK_US = 1_000  # at least from one to the next

Pressing = Callable[[], float | None]
"""The pressure beside a stage on its GPU now; None if it is alone."""


class EmulatedRuntime:
    """A stage that waits. Options of its artifact.

    `latency_us_by_batch`: microseconds at batch 1, 2, …, of the vGPU size it stands for.
    `noise_sigma`: sigma of the lognormal factor (median 1) on each run; 0 or absent: none. `seed`:
    of the noise. `rows`: by output whose rows vary, the output of their counts and the mean
    (`drawn_rows`). `shapes`: by output that says shapes of rows (`applications.shape_name`), which
    there are and the share of each. `interference`: the factor that its latencies contain, and its
    susceptibility. A run then has the work that it has alone, done at 1 / max(1, susceptibility +
    pressure) beside others (`contract.profiles.InterferenceModel`).

    Args:
        artifact: what it stands for.
        clock: what waiting goes by.
        pressing: what runs beside it; None: its latencies hold whatever does.
    """

    def __init__(
        self, artifact: Artifact, *, clock: Clock, pressing: Pressing | None = None
    ) -> None:
        self.inputs = artifact.inputs
        self.outputs = artifact.outputs
        self._clock = clock
        latencies = artifact.options.get(LATENCY_OPTION)
        if not latencies or min(latencies) <= 0:
            raise InputError(
                f"emulated {artifact.gpu_class!r}", f"{LATENCY_OPTION} {latencies} is not positive"
            )
        self._latency_us = [float(value) for value in latencies]
        self._sigma = float(artifact.options.get("noise_sigma", 0.0))
        self._rows: Mapping[str, tuple[str, float]] = artifact.options.get(ROWS_OPTION, {})
        self._shapes: Mapping[str, tuple[Sequence[Sequence[int]], Sequence[float]]] = (
            artifact.options.get(SHAPES_OPTION, {})
        )
        self._noise = np.random.default_rng(int(artifact.options.get("seed", 0)))
        self._interference: tuple[float, float] | None = artifact.options.get(INTERFERENCE_OPTION)
        self._pressing = pressing

    def run(self, inputs: Tensors, out: Tensors) -> None:
        """Fill `out` and wait until the batch's latency has passed.

        Raises:
            InvariantError: the batch is larger than any latency known.
        """
        start_us = self._clock.now_us()
        first = inputs[self.inputs[0].name]
        batch = len(first)
        if not 1 <= batch <= len(self._latency_us):
            raise InvariantError(f"batch {batch}, latencies known up to {len(self._latency_us)}")
        latency_us = self._latency_us[batch - 1]
        if self._sigma > 0:
            latency_us *= math.exp(self._sigma * self._noise.standard_normal())
        marks = sample_marks([inputs[spec.name] for spec in self.inputs])
        for spec in self.outputs:
            target = out[spec.name]
            if target.ndim == len(spec.shape):
                for i, mark in enumerate(marks):
                    target[i] = mark
        for name, (counts, mean) in self._rows.items():
            target = out[name]
            most = target.shape[1]
            drawn = np.array([drawn_rows(mark, mean, most) for mark in marks])
            values = [row_mark(m, k) for m, n in zip(marks, drawn, strict=True) for k in range(n)]
            rows = np.empty((len(values), *target.shape[2:]), target.dtype)
            for row, value in zip(rows, values, strict=True):
                row[...] = value
            out[counts][:] = put_rows(rows, drawn, target)
        for name, (shapes, shares) in self._shapes.items():
            out[name][:] = [shapes[drawn_place(mark, shares)] for mark in marks]
        self._wait(start_us, latency_us)

    def _wait(self, start_us: int, latency_us: float) -> None:
        """Return when a run that began then has ended, beside whatever runs meanwhile."""
        if self._interference is None or self._pressing is None:
            self._clock.sleep_until_us(start_us + round(latency_us))
            return
        factor, susceptibility = self._interference
        rest_us, at_us = latency_us / factor, float(start_us)
        step_us = max(LOOK_US, rest_us / LOOKS)
        while rest_us > 0:
            pressure = self._pressing()
            pace = 1.0 if pressure is None else max(1.0, susceptibility + pressure)
            done_us = min(rest_us, step_us)
            rest_us, at_us = rest_us - done_us, at_us + done_us * pace
            self._clock.sleep_until_us(round(at_us))

    def register(self, memory: NDArray[np.uint8]) -> None:
        """Nothing is copied to a device."""

    def close(self) -> None:
        """Nothing was taken."""


def open_stage(folder: Path, artifact: Artifact, *, share: int, clock: Clock) -> Runtime:
    """Load an emulated stage; its latencies are those of its share already."""
    del folder, share
    return EmulatedRuntime(artifact, clock=clock)


def drawn_rows(mark: int, mean: float, most: int) -> int:
    """Rows that a sample of this mark gives: Poisson of this mean, at most `most`.

    That many if it is the mean.
    """
    if mean >= most:
        return most
    chance = _chance(mark)
    rows, reached = 0, math.exp(-mean)
    while reached < chance and rows < most:
        rows += 1
        # By logarithms: of a mean above 745 the first term is 0, and so would be each product.
        reached += math.exp(rows * math.log(mean) - mean - math.lgamma(rows + 1))
    return rows


def drawn_place(mark: int, shares: Sequence[float]) -> int:
    """Which of several sizes the row of a sample of this mark has, where they have these shares."""
    chance, reached = _chance(mark), 0.0
    for place, share in enumerate(shares):
        reached += share
        if chance < reached:
            return place
    return len(shares) - 1


def _chance(mark: int) -> float:
    return (zlib.crc32(bytes([mark])) + 0.5) / 2**32


def row_mark(mark: int, row: int) -> int:
    """The value of a row that a sample of this mark gives."""
    return (mark + 1 + row) % LARGEST_VALUE


def sample_marks(inputs: Sequence[NDArray[np.generic]]) -> list[int]:
    """A small number for each sample, made from its first bytes in every input."""
    sums = [0] * len(inputs[0])
    for samples in inputs:
        data = samples.data.cast("B")
        size = len(data) // len(samples)
        checked = min(size, CHECKED_BYTES)
        for i, at in enumerate(range(0, len(data), size)):
            sums[i] = zlib.crc32(data[at : at + checked], sums[i])
    return [one % LARGEST_VALUE for one in sums]
