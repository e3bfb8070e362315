"""Enumeration: every configuration of every model that meets its SLO, as flat arrays.

A configuration is a batch size, cuts, and a vGPU type (class and size) per stage. It is feasible
when Σ stage latency + Σ transfer + gathering time ≤ (1 - margin) · SLO. No Python object is made
per configuration. And back: what a plan in force runs, as configurations.
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.planning.inputs import ModelArrays, Problem
from flows.planning.solver.arrays import Floats, Ints
from flows.planning.solver.tolerances import ROUND_OFF_US
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Pipeline, Plan, Pool
from triton_backend.contract.units import us_to_ms

CHUNK_CELLS = 4_000_000  # configurations looked at in one array, to bound memory
MOST_ENUMERATED = 1_000_000_000  # configurations looked at: minutes
MOST_BYTES = 9 << 30  # of feasible configurations and the table that they are joined into


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """Feasible configurations with n rows, padded to the largest number of stages S.

    Attributes:
        model: [n] model number.
        batch: [n] batch size.
        stages: [n] number of stages.
        types: [n, S] vGPU type of each stage; 0 beyond `stages`.
        cuts: [n, S + 1] block where each stage starts, then where the last one ends.
        rate_rps: [n, S] samples/s of one vGPU of each stage; infinite beyond `stages`.
        usage: [n, C] GPUs of each class per sample/s.
        enumerated: configurations looked at, feasible or not.
    """

    model: Ints
    batch: Ints
    stages: Ints
    types: Ints
    cuts: Ints
    rate_rps: Floats
    usage: Floats
    enumerated: int

    def __len__(self) -> int:
        return len(self.model)

    def take(self, rows: Ints) -> "Columns":
        """The configurations of those rows, in that order."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _BY_ROW})

    def counts(self, rows: Ints, vgpus: Ints) -> Ints:
        """[n, S] vGPUs of the configurations of those rows, which may repeat; 0 of all others."""
        found = np.zeros(self.types.shape, dtype=np.int64)
        np.add.at(found[:, : vgpus.shape[1]], rows, vgpus)
        return found

    def usage_of_types(self, types: int) -> Floats:
        """[n, types] vGPUs of every type per sample/s."""
        used = np.zeros((len(self), types))
        row, stage = np.nonzero(np.isfinite(self.rate_rps))
        np.add.at(used, (row, self.types[row, stage]), 1.0 / self.rate_rps[row, stage])
        return used


Counted = tuple[Columns, Ints]
"""Configurations, and vGPUs [n, S] of their stages."""

_BY_ROW = ("model", "batch", "stages", "types", "cuts", "rate_rps", "usage")
_PADDING = {"types": 0, "cuts": 0, "rate_rps": np.inf}  # of stages that there are not


def joined(parts: Sequence[Columns]) -> Columns:
    """Configurations one below the other, as wide as the widest."""
    width = max(columns.types.shape[1] for columns in parts)

    def wide(columns: Columns, name: str) -> Any:
        more = width - columns.types.shape[1]
        values = getattr(columns, name)
        if name not in _PADDING or not more:
            return values
        return np.pad(values, ((0, 0), (0, more)), constant_values=_PADDING[name])

    arrays = {name: np.concatenate([wide(c, name) for c in parts]) for name in _BY_ROW}
    return Columns(**arrays, enumerated=sum(columns.enumerated for columns in parts))


def stacked(parts: Sequence[Counted]) -> Counted:
    """The same with their vGPUs."""
    found = joined([columns for columns, _ in parts])
    width = found.types.shape[1]
    counts = [np.pad(g, ((0, 0), (0, width - g.shape[1]))) for _, g in parts]
    return found, np.concatenate(counts)


def best_of_each(keys: Sequence[Ints], *values: Floats | Ints) -> Ints:
    """Rows of the least values among those of equal keys, by keys; a value decides over later ones.

    Args:
        keys: each [n].
        values: each [n].
    """
    order = np.lexsort((*values[::-1], *keys[::-1]))
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = np.any([key[order][1:] != key[order][:-1] for key in keys], axis=0)
    return order[first]


def latencies_us(problem: Problem, columns: Columns) -> Floats:
    """[n] stages and transfers of every configuration, without gathering."""
    total = np.zeros(len(columns))
    for number, model in enumerate(problem.models):
        rows = np.flatnonzero(columns.model == number)
        row_of = np.zeros(len(problem.types), dtype=np.int64)
        row_of[model.types] = np.arange(len(model.types))
        for s in range(columns.types.shape[1]):
            here = rows[columns.stages[rows] > s]
            kind, batch = columns.types[here, s], columns.batch[here] - 1
            first, last = columns.cuts[here, s], columns.cuts[here, s + 1]
            total[here] += model.latency_us[row_of[kind], first, last, batch]
            if s:
                before = problem.type_class[columns.types[here, s - 1]]
                total[here] += model.transfer_us[before, problem.type_class[kind], first, batch]
    return total


def enumerate_columns(
    problem: Problem, max_partitions: int, optional: Container[int] = ()
) -> Columns:
    """All feasible configurations with at most `max_partitions` stages.

    Args:
        problem: models and GPUs.
        max_partitions: stages at most.
        optional: numbers of models that may have none.

    Raises:
        InfeasibleError: a model has none; the message carries its best reachable latency.
        InputError: there are more than can be looked at or kept.
    """
    looked_at = sum(_most(model, max_partitions) for model in problem.models)
    if looked_at > MOST_ENUMERATED:
        raise _too_many(max_partitions, f"{looked_at:,} configurations to look at")
    parts: list[Columns] = []
    kept_bytes = kept = widest = 0
    for number, model in enumerate(problem.models):
        best_us, before = np.inf, kept
        for stages in range(1, min(max_partitions, model.blocks) + 1):
            for part, excess_us in _parts(problem, number, stages):
                best_us = min(best_us, excess_us)
                parts.append(part)
                kept += len(part)
                kept_bytes += sum(getattr(part, name).nbytes for name in _BY_ROW)
                widest = max(widest, stages)
                row_bytes = np.dtype(np.float64).itemsize * (3 * widest + 4 + len(problem.classes))
                if kept_bytes + kept * row_bytes > MOST_BYTES:
                    gib = MOST_BYTES >> 30
                    raise _too_many(max_partitions, f"more than {gib} GiB of them")
        if kept == before and number not in optional:
            _raise_infeasible(model, best_us, max_partitions)
    return joined(parts)


def _most(model: ModelArrays, max_partitions: int) -> int:
    """Configurations of a model, feasible or not."""
    return model.batches * sum(
        len(model.types) ** stages * comb(model.blocks - 1, stages - 1)
        for stages in range(1, min(max_partitions, model.blocks) + 1)
    )


def _too_many(max_partitions: int, reason: str) -> InputError:
    return InputError(
        "option max_partitions",
        f"pipelines of at most {max_partitions} stages make {reason}: "
        "ask for fewer stages, or offer fewer GPU classes or vGPU sizes",
    )


def _parts(problem: Problem, number: int, stages: int) -> Iterator[tuple[Columns, float]]:
    """Feasible configurations of one model with one number of stages.

    With them the time (µs) by which the fastest, feasible or not, exceeds what it may take.
    """
    model = problem.models[number]
    most = max(1, CHUNK_CELLS // model.batches)
    shape = (len(model.types),) * stages
    count = len(model.types) ** stages
    every = combinations(range(1, model.blocks), stages - 1)
    while inner := list(islice(every, most)):
        cuts = np.zeros((len(inner), stages + 1), dtype=np.int64)
        cuts[:, 1:-1] = inner
        cuts[:, -1] = model.blocks
        step = max(1, most // len(cuts))
        for at in range(0, count, step):
            sequences = np.unravel_index(np.arange(at, min(at + step, count)), shape)
            yield _feasible(problem, number, np.stack(sequences, axis=1), cuts)


def _feasible(problem: Problem, number: int, sequences: Ints, cuts: Ints) -> tuple[Columns, float]:
    """Sum latencies and transfers over [sequence, cut, batch] and keep what fits."""
    model = problem.models[number]
    classes = problem.type_class[model.types]
    stages = sequences.shape[1]
    total = np.zeros((len(sequences), len(cuts), model.batches))
    for s in range(stages):
        chosen = sequences[:, s, None]
        total += model.latency_us[chosen, cuts[None, :, s], cuts[None, :, s + 1]]
        if s:
            before = classes[sequences[:, s - 1, None]]
            total += model.transfer_us[before, classes[chosen], cuts[None, :, s]]
    excess = total - model.limit_us
    measured = np.isfinite(total)
    row, cut, batch = np.nonzero(excess <= ROUND_OFF_US)
    rate_rps, bounded = _rates(model, sequences[row], cuts[cut], batch)
    if bounded.any():
        row, cut, batch, rate_rps = (
            row[~bounded],
            cut[~bounded],
            batch[~bounded],
            rate_rps[~bounded],
        )
    types = model.types[sequences[row]]
    gpus, kind = 1.0 / (rate_rps * problem.type_divisor[types]), problem.type_class[types]
    of_class = [np.where(kind == c, gpus, 0.0).sum(axis=1) for c in range(len(problem.classes))]
    columns = Columns(
        model=np.full(len(row), number),
        batch=batch + 1,
        stages=np.full(len(row), stages),
        types=types,
        cuts=cuts[cut],
        rate_rps=rate_rps,
        usage=np.stack(of_class, axis=1),
        enumerated=int(np.count_nonzero(measured)),
    )
    return columns, float(excess.min())


def _rates(
    model: ModelArrays, types: Ints, cuts: Ints, batch: Ints
) -> tuple[Floats, NDArray[np.bool_]]:
    """[n, stages] samples/s of one vGPU: min(batch / latency, uplink, downlink).

    And [n] whether links bound a vGPU of a size that no link may bound.
    """
    rate = np.empty(types.shape)
    bounded = np.zeros(len(types), dtype=np.bool_)
    for s in range(types.shape[1]):
        latency = model.latency_us[types[:, s], cuts[:, s], cuts[:, s + 1], batch]
        rate[:, s] = (batch + 1) * 1e6 / latency
        alone = rate[:, s].copy()
        for side in (s, s + 1):
            np.minimum(rate[:, s], model.link_rps[types[:, s], cuts[:, side]], out=rate[:, s])
        bounded |= model.unlinked[types[:, s]] & (rate[:, s] < alone)
    return rate, bounded


def _raise_infeasible(model: ModelArrays, excess_us: float, max_partitions: int) -> None:
    allowed = float(model.limit_us[0])
    if not np.isfinite(excess_us):
        reason = "no pipeline fits the memory of any GPU class"
    else:
        reason = (
            f"no pipeline of at most {max_partitions} stages is fast enough: the best takes "
            f"{us_to_ms(allowed + excess_us):.3f} ms where SLO less margin allow "
            f"{us_to_ms(allowed):.3f} ms"
        )
    raise InfeasibleError(f"workload model {model.name!r}", reason)


# Configurations of a plan in force

Allocation = tuple[Ints, Ints]
"""Configurations [n] and their vGPUs [n, S]."""


def row_of(
    problem: Problem, columns: Columns, model: int, pipeline: Pipeline, pools: Sequence[Pool]
) -> int | None:
    """The configuration of a model's pipeline whose stages have these pools.

    None where there is none. `columns` are sorted by model.
    """
    stages = pipeline.stages
    if len(stages) > columns.types.shape[1]:
        return None
    first, end = np.searchsorted(columns.model, (model, model + 1))
    types = problem.type_numbers
    wanted = [types.get((p.gpu_class, p.divisor or 0), -1) for p in pools]
    cuts = [0, *(s.blocks[1] for s in stages)]
    same = (
        (columns.batch[first:end] == pipeline.batch)
        & (columns.stages[first:end] == len(stages))
        & np.all(columns.types[first:end, : len(stages)] == wanted, axis=1)
        & np.all(columns.cuts[first:end, : len(cuts)] == cuts, axis=1)
    )
    rows = np.flatnonzero(same)
    return int(first + rows[0]) if len(rows) else None


def allocations_in_force(
    plan: Plan, problem: Problem, columns: Columns
) -> list[tuple[int, Allocation]]:
    """Models with what they run, those of whose pipelines all still are configurations."""
    found: list[tuple[int, Allocation]] = []
    numbers = {model.name: number for number, model in enumerate(problem.models)}
    for model in (m for m in plan.models if m.name in numbers):
        number = numbers[model.name]
        rows: list[int | None] = []
        vgpus: list[list[int]] = []
        for pipeline in (p for p in model.pipelines if p.throughput_rps):
            pools = [plan.pool_of(stage) for stage in pipeline.stages]
            rows.append(row_of(problem, columns, number, pipeline, pools))
            vgpus.append([pool.vgpus for pool in pools])
        known = [row for row in rows if row is not None]
        if known and len(known) == len(rows):
            counts = np.zeros((len(rows), columns.types.shape[1]), dtype=np.int64)
            for at, row in enumerate(vgpus):
                counts[at, : len(row)] = row
            found.append((number, (np.array(known), counts)))
    return found
