"""Runs turned into what reports show: simulations, the gateway's event files.

Here: what knows another part's form. The event files are read as lines of JSON
(kinds and fields of `core.events` and `core.decisions`), because the offline half does not load
the online code.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.reporting.data import LoadPoint, Outcomes, Uses, VariantCurve
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_MS
from triton_backend.serve_folder.line_files import files_in_order
from triton_backend.simulator.offered import POISSON
from triton_backend.simulator.results import SimResult
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions
from triton_backend.simulator.world import LATE, SERVED

# Of names with variants: times their planned rate
LOADS = (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)
SECONDS, LEAST_SECONDS, SEED = 20.0, 1.0, 0
MOST_REQUESTS = 60_000  # of a plan at its rates, in one run: all runs together take seconds


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


def variant_curves(plan: Plan) -> tuple[VariantCurve, ...]:
    """Every name with variants against its load, simulated; none of plans too large for that.

    Under the plan's policies: Poisson arrivals of `LOADS` times the planned rate of these names,
    and everything else at its own.
    """
    served = {model.name for model in plan.models}
    stated = {
        name: {one.name: one.accuracy or 0.0 for one in own if one.name in served}
        for name, own in plan.workload.variants.items()
        if name in served and plan.own_rate_rps(name) > 0
    }
    stated = {name: own for name, own in stated.items() if len(own) > 1}
    seconds = seconds_of(plan)
    if not stated or not seconds:
        return ()
    runs = [
        simulate(
            plan,
            SimOptions(
                arrivals=POISSON,
                rate_factors=dict.fromkeys(stated, load),
                duration_s=seconds,
                seed=SEED,
                keep_uses=False,
            ),
        ).variants
        for load in LOADS
    ]
    return tuple(
        VariantCurve(
            name=name,
            rate_rps=plan.own_rate_rps(name),
            accuracies=accuracies,
            points=tuple(
                LoadPoint(
                    load=load,
                    accuracy=run[name].accuracy,
                    in_time=run[name].outcome.attainment,
                )
                for load, run in zip(LOADS, runs, strict=True)
            ),
            duration_s=seconds,
        )
        for name, accuracies in stated.items()
    )


def seconds_of(plan: Plan, most_requests: int = MOST_REQUESTS) -> float:
    """How long each load is simulated (s, whole ms); 0 where that would take too long."""
    rate_rps = math.fsum(model.throughput_rps for model in plan.models)
    seconds = min(SECONDS, most_requests / rate_rps) if rate_rps > 0 else 0.0
    return math.floor(seconds * 1e3) / 1e3 if seconds >= LEAST_SECONDS else 0.0


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
