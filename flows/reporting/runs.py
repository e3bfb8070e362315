"""Runs turned into what reports show: a simulation's result, the gateway's event files.

Here: the two conversions that know another part's form. The event files are read as lines of JSON
(kinds and fields of `core.events` and `core.decisions`), because the offline half does not load
the online code.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.reporting.data import Outcomes, Uses
from triton_backend.contract.errors import InputError
from triton_backend.contract.units import US_PER_MS
from triton_backend.serve_folder.line_files import files_in_order
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.world import LATE, SERVED


def outcomes_of_simulation(result: SimResult) -> Outcomes:
    """Counts, latencies and uses of a simulation."""
    return Outcomes.from_simulation(
        result.to_dict(), simulated_latencies(result), uses=uses_of_simulation(result)
    )


def simulated_latencies(result: SimResult) -> dict[str, NDArray[np.float64]]:
    """Latency (ms) of every answered request per model and application."""
    rows = result.requests
    answered = rows[np.isin(rows["outcome"], (SERVED, LATE))]
    latency_ms = (answered["finish_us"] - answered["arrival_us"]) / US_PER_MS
    plan, found = result.plan, dict[str, NDArray[np.float64]]()
    for column, every in (("model", plan.models), ("application", plan.applications)):
        found |= {one.name: latency_ms[answered[column] == i] for i, one in enumerate(every)}
    return found


def uses_of_simulation(result: SimResult) -> Uses | None:
    """When each vGPU ran which batch; None where the simulation did not keep it."""
    rows = result.uses
    if len(rows) == 0:
        return None
    return Uses(**{name: rows[name].astype(np.int64) for name in Uses.__slots__})


_COLUMNS = ("vgpu", "model", "batch_id", "start_us", "end_us", "samples")


@dataclass(slots=True)
class _Reading:
    """Dispatches seen and the uses made of them, under one plan and generation."""

    # batch id: vGPUs of its path, model, samples
    hops: dict[int, tuple[list[int], int, int]] = field(
        default_factory=dict[int, tuple[list[int], int, int]]
    )
    shared_batches: dict[int, list[list[int]]] = field(
        default_factory=dict[int, list[list[int]]]
    )  # rows
    rows: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])  # as `_COLUMNS`
    matches: bool = True

    def take(self, line: dict[str, Any], plan_id: str) -> None:
        """One line of the log."""
        kind = line["t"]
        if kind == "Plan":
            self.matches = line["plan_id"] == plan_id
            self.hops.clear()
        elif kind == "Dispatch":
            vgpus = [hop["vgpu"] for hop in line["hops"]]
            self.hops[line["batch_id"]] = vgpus, line["model"], line["samples"]
        elif kind == "StageDone" and self.matches:
            batch_id, stage = line["batch_id"], line["stage"]
            vgpus, model, samples = self.hops.get(batch_id, ([], 0, 0))
            if stage < len(vgpus):
                times = line["start_us"], line["end_us"]
                self.rows.append((vgpus[stage], model, batch_id, *times, samples))
        elif kind == "SharedBatch":
            self.shared_batches[line["shared_batch_id"]] = line["members"]
        elif kind == "SharedBatchDone":
            places = self.shared_batches.pop(line["shared_batch_id"], [])
            if self.matches and places and places[0][0] in self.hops:
                batch_id, stage, *_ = places[0]
                vgpus, model, _ = self.hops[batch_id]
                times, samples = (line["start_us"], line["end_us"]), sum(s[-1] for s in places)
                self.rows.append((vgpus[stage], model, line["shared_batch_id"], *times, samples))


def uses_of_events(folder: Path, plan_id: str, *, from_us: int = 0, to_us: int = 2**62) -> Uses:
    """When each vGPU really ran which batch, from the gateway's event files.

    Args:
        folder: with `events-*.jsonl`.
        plan_id: what else was served is left out.
        from_us: on the host's monotonic clock, for instance a load run's start.
        to_us: the same, its end.

    Raises:
        InputError: a line is not an event.
    """
    reading = _Reading()
    for path, number, text in _lines(files_in_order(folder, "events")):
        try:
            reading.take(json.loads(text), plan_id)
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path}, line {number}", f"not an event: {error!r}") from error
    table = np.asarray(reading.rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
    columns = dict(zip(_COLUMNS, table.T, strict=True))
    within = (columns["end_us"] > from_us) & (columns["start_us"] < to_us)
    return Uses(**{name: column[within] for name, column in columns.items()})


def _lines(paths: Iterable[Path]) -> Iterator[tuple[Path, int, str]]:
    """Whole lines; the last one of a file that is being written may be cut, and is left out."""
    for path in paths:
        with path.open() as file:
            for number, line in enumerate(file, start=1):
                if line.endswith("\n"):
                    yield path, number, line
