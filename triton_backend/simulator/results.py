"""The result of a simulation: records per request and use, and the figures made of them.

Conservation: of every model, offered = served + late + dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from triton_backend.contract.cluster import Cluster
from triton_backend.contract.decisions import DropReason
from triton_backend.contract.plan import Plan
from triton_backend.contract.shares import WHOLE_GPU
from triton_backend.contract.units import us_to_ms, us_to_s
from triton_backend.scheduler.compiled import NONE, Records
from triton_backend.scheduler.handover import Numbering
from triton_backend.simulator.world import DROPPED, LATE, SERVED

OPTIONAL = ("dispatch_us", "batch_id", "batch_samples")  # -1 where a request was in no batch
_OUTCOMES = {SERVED: "served", LATE: "late", DROPPED: "dropped"}


class Changed(NamedTuple):
    """A change of plan as it happened (µs).

    Attributes:
        start_us: when it was asked for; with a flush, from here on nothing was dispatched.
        swap_us: when the new plan took over.
        inherited: vGPUs that went on.
        in_flight: batches that did.
    """

    start_us: int
    swap_us: int
    inherited: int
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Highest load factor on the grid that held the attainment, and the rate it means."""

    load_factor: float
    rps: float

    def to_dict(self) -> dict[str, float]:
        """Plain form."""
        return {"load_factor": self.load_factor, "rps": self.rps}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResult:
    """Outcome of one model's requests; latencies of answered requests, None where there is none."""

    name: str
    offered: int
    served: int
    late: int
    dropped: int
    p50_ms: float | None
    p99_ms: float | None
    mean_batch: float | None

    @property
    def attainment(self) -> float:
        """Served in time / offered; 1 where nothing was offered."""
        return self.served / self.offered if self.offered else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "offered": self.offered,
            "served": self.served,
            "late": self.late,
            "dropped": self.dropped,
            "attainment": self.attainment,
            "latency_ms": {"p50": self.p50_ms, "p99": self.p99_ms},
            "mean_batch": self.mean_batch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionCost:
    """Calls into the scheduler that can lead to a decision; times where a clock was handed in."""

    count: int
    mean_us: float | None
    p99_us: float | None
    probes_per_dispatch: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "count": self.count,
            "mean_us": self.mean_us,
            "p99_us": self.p99_us,
            "probes_per_dispatch": self.probes_per_dispatch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """A finished run.

    Attributes:
        requests: `world.REQUEST_RECORD` rows by arrival.
        uses: `world.USE_RECORD` rows: which vGPU ran which batch when, by end.
        utilisation: busy time of a class's GPUs / time of all GPUs of that class in the cluster.
        link_utilisation: busy time / time, per link that carried anything.
        steps: events that happened.
        wall_seconds: of the event loop after warm-up, where a clock was handed in.
        changes: of plan, as they happened; uses number vGPUs and models by their `plan`.
        goodput: `goodput.goodput_report`, where it was asked for.
    """

    plan: Plan
    policy: str
    seed: int
    duration_s: float
    requests: Records
    uses: Records
    models: tuple[ModelResult, ...]
    utilisation: dict[str, float]
    link_utilisation: tuple[float, ...]
    decisions: DecisionCost
    steps: int
    wall_seconds: float | None
    changes: tuple[Changed, ...] = ()
    goodput: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def attainment(self) -> float:
        """Served in time / offered, over all models."""
        offered = sum(model.offered for model in self.models)
        return sum(model.served for model in self.models) / offered if offered else 1.0

    def to_dict(self) -> dict[str, Any]:
        """The object of `simulate --json`."""
        out: dict[str, Any] = {
            "policy": self.policy,
            "seed": self.seed,
            "duration_s": self.duration_s,
            "offered_rps": len(self.requests) / self.duration_s,
            "attainment": self.attainment,
            "models": {model.name: model.to_dict() for model in self.models},
            "utilisation": self.utilisation,
            "decisions": self.decisions.to_dict(),
            "wall_seconds": self.wall_seconds,
        }
        if self.goodput:
            out["goodput"] = self.goodput
        return out


def model_results(plan: Plan, requests: Records) -> tuple[ModelResult, ...]:
    """Figures per model of the plan."""
    return tuple(
        _model_result(model.name, requests[requests["model"] == number])
        for number, model in enumerate(plan.models)
    )


def _model_result(name: str, rows: Records) -> ModelResult:
    outcome = rows["outcome"]
    answered = rows[(outcome == SERVED) | (outcome == LATE)]
    batched = rows[rows["batch_id"] != NONE]
    p50 = p99 = mean_batch = None
    if len(answered):
        latency_us = answered["finish_us"] - answered["arrival_us"]
        p50, p99 = (us_to_ms(float(q)) for q in np.percentile(latency_us, [50, 99]))
    if len(batched):
        _, first = np.unique(batched["batch_id"], return_index=True)
        mean_batch = float(batched["batch_samples"][first].mean())
    return ModelResult(
        name=name,
        offered=len(rows),
        served=int((outcome == SERVED).sum()),
        late=int((outcome == LATE).sum()),
        dropped=int((outcome == DROPPED).sum()),
        p50_ms=p50,
        p99_ms=p99,
        mean_batch=mean_batch,
    )


def class_seconds(plan: Plan, busy_us: Records) -> dict[str, float]:
    """Busy GPU-seconds per class; a vGPU is as much of a GPU as its share says."""
    seconds = {gpu_class.name: 0.0 for gpu_class in plan.cluster.gpu_classes}
    for vgpu in plan.vgpus():
        pool = plan.pools[vgpu.pool]
        part = pool.share / WHOLE_GPU
        seconds[pool.gpu_class] += us_to_s(float(busy_us[vgpu.index])) * part
    return seconds


def guest_seconds(
    plans: Sequence[Plan], numbering: Numbering, busy_us: Records, first: int
) -> dict[str, float]:
    """The same of vGPUs that only earlier plans have, whose resources are numbered from `first` on."""
    seconds: dict[str, float] = {}
    seen: set[int] = set()
    for number, earlier in numbering.earlier.items():
        for vgpu in plans[number].vgpus():
            resource = int(earlier.vgpus[vgpu.index])
            if resource < first or resource in seen:
                continue
            seen.add(resource)
            pool = plans[number].pools[vgpu.pool]
            busy = us_to_s(float(busy_us[resource])) * pool.share / WHOLE_GPU
            seconds[pool.gpu_class] = seconds.get(pool.gpu_class, 0.0) + busy
    return seconds


def utilisation(cluster: Cluster, seconds: dict[str, float], span_us: int) -> dict[str, float]:
    """Busy GPU-seconds / GPU-seconds of all GPUs of a class in the cluster."""
    return {
        name: busy / (cluster.gpus(name) * us_to_s(span_us)) if busy else 0.0
        for name, busy in seconds.items()
        if name in {gpu_class.name for gpu_class in cluster.gpu_classes}
    }


def request_columns(result: SimResult) -> dict[str, NDArray[Any]]:
    """One row per request, by arrival.

    Returns:
        `request` (its number), `model`, `samples`, `arrival_us`, `deadline_us`, `dispatch_us`,
        `finish_us` (of the answer, or of the drop), `batch_id`, `batch_samples`, `outcome` (served,
        late, dropped) and `reason` (of a drop, else empty). Instants count from the run's start.
    """
    rows = result.requests
    names = np.asarray([model.name for model in result.plan.models], dtype=object)
    outcomes = np.asarray(["", *(_OUTCOMES[k] for k in sorted(_OUTCOMES))], dtype=object)
    reasons = np.asarray([reason.text for reason in DropReason], dtype=object)
    dropped = rows["outcome"] == DROPPED
    columns: dict[str, NDArray[Any]] = {
        "request": np.arange(len(rows)),
        "model": names[rows["model"]],
        "samples": rows["samples"],
        "arrival_us": rows["arrival_us"],
        "deadline_us": rows["deadline_us"],
        "dispatch_us": rows["dispatch_us"],
        "finish_us": rows["finish_us"],
        "batch_id": rows["batch_id"],
        "batch_samples": np.where(dropped, -1, rows["batch_samples"]),
        "outcome": outcomes[rows["outcome"]],
        "reason": np.where(dropped, reasons[rows["reason"]], ""),
    }
    return {name: np.ascontiguousarray(column) for name, column in columns.items()}
