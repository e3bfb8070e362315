"""Data of a report, plain, so that any run can be reported.

Here: the records every picture and page is drawn from, and the ways to make them from what the
load generator and the simulator give. Not here: drawing; where runs are stored.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flows.progress import Step
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.units import US_PER_MS

LAST_ANSWERED = 2  # outcomes of load records: 1 served, 2 late, 3 dropped, 4 failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOutcome:
    """Outcomes of one model's requests; offered = served + late + dropped + failed.

    Attributes:
        latencies_ms: of every answered request, where known.
        checked, wrong: answers compared with the unsplit model, and those that differed.
    """

    offered: int
    served: int
    late: int
    dropped: int
    failed: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    latencies_ms: NDArray[np.float64] | None = None
    checked: int = 0
    wrong: int = 0
    entries: Mapping[str, "ModelOutcome"] = field(default_factory=dict[str, "ModelOutcome"])

    @property
    def attainment(self) -> float | None:
        """Share of the offered requests answered in time."""
        return self.served / self.offered if self.offered else None

    @classmethod
    def from_summary(
        cls,
        row: Mapping[str, Any],
        latencies_ms: NDArray[np.float64] | None = None,
        entries: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> Self:
        """From what `load --json` or `simulate --json` says of a model, and of its entries."""
        latency = row.get("latency_ms") or {}
        checked = row.get("checked") or {}
        return cls(
            offered=row["offered"],
            served=row["served"],
            late=row["late"],
            dropped=row["dropped"],
            failed=row.get("failed", 0),
            p50_ms=latency.get("p50"),
            p99_ms=latency.get("p99"),
            latencies_ms=latencies_ms,
            checked=checked.get("responses", 0),
            wrong=checked.get("wrong", 0),
            entries={name: cls.from_summary(entry) for name, entry in entries.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """When each vGPU (numbered as in `Plan.vgpus`) ran which batch; one row per use of a vGPU.

    `model` is the number of the batch's model in the plan: a vGPU may serve several.
    """

    vgpu: NDArray[np.int64]
    model: NDArray[np.int64]
    batch_id: NDArray[np.int64]
    start_us: NDArray[np.int64]
    end_us: NDArray[np.int64]
    samples: NDArray[np.int64]

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, name)) for name in self.__slots__}
        if len(lengths) != 1:
            raise InputError("report", f"columns of uses have different lengths: {lengths}")

    def __len__(self) -> int:
        return len(self.vgpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """One run, measured or simulated.

    Attributes:
        label: how the report calls it ("measured", "simulated").
        note: what was offered, in words.
        uses: for the timeline, where known.
    """

    label: str
    duration_s: float
    models: Mapping[str, ModelOutcome]
    note: str = ""
    uses: Uses | None = None

    def of(self, name: str, entry: str | None = None) -> ModelOutcome | None:
        """Of a model or an application, or of one entry of a model; None where it is not known."""
        found = self.models.get(name)
        return found.entries.get(entry) if found is not None and entry is not None else found

    @property
    def attainment(self) -> float | None:
        """Over all models."""
        offered = sum(model.offered for model in self.models.values())
        served = sum(model.served for model in self.models.values())
        return served / offered if offered else None

    @classmethod
    def from_load(
        cls, summary: Mapping[str, Any], records: Path | None = None, *, uses: Uses | None = None
    ) -> Self:
        """From the object of `load --json` and the file of `load --records`."""
        latencies = latencies_of_load(records) if records else {}
        entries = summary.get("entries", {})
        arrivals, load_url = summary.get("arrivals", ""), summary.get("protocol", "")
        return cls(
            label="measured",
            duration_s=summary["duration_s"],
            models={
                name: ModelOutcome.from_summary(row, latencies.get(name), entries.get(name, {}))
                for name, row in summary["models"].items()
            },
            note=", ".join(part for part in (arrivals, load_url) if part),
            uses=uses,
        )

    @classmethod
    def from_simulation(
        cls,
        summary: Mapping[str, Any],
        latencies_ms: Mapping[str, NDArray[np.float64]] | None = None,
        *,
        uses: Uses | None = None,
    ) -> Self:
        """From the object of `simulate --json`, with latencies per model where kept."""
        latencies = latencies_ms or {}
        entries = summary.get("entries", {})
        return cls(
            label="simulated",
            duration_s=summary["duration_s"],
            models={
                name: ModelOutcome.from_summary(row, latencies.get(name), entries.get(name, {}))
                for name, row in (summary["models"] | summary.get("applications", {})).items()
            },
            note=f"policy {summary['policy']}" if "policy" in summary else "",
            uses=uses,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRow:
    """One block of a split model: its nodes, run time on the fastest class, bytes it hands on."""

    block: int
    first_node: str
    nodes: int
    share: float
    boundary_bytes: int | None = None
    boundary: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One load, as a factor of the planned rate.

    Attributes:
        accuracy: mean stated accuracy of answers in time; None where there is none.
        in_time: share of the requests.
    """

    load: float
    accuracy: float | None
    in_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCurve:
    """A name that several variants answer, at every load.

    Attributes:
        accuracies: as stated, by variant, the model of the name first.
        duration_s: of each simulation.
    """

    name: str
    rate_rps: float
    accuracies: dict[str, float]
    points: tuple[LoadPoint, ...]
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BesideTriton:
    """A plan and Triton alone on the same GPUs, simulated at the same rates.

    Attributes:
        configuration: of Triton, as a search chose it.
        rate_rps: the plan's, of all models.
        duration_s: of each simulation.
        plan, triton: at every load, the least share in time of all models.
    """

    configuration: str
    rate_rps: float
    duration_s: float
    plan: Sequence[LoadPoint]
    triton: Sequence[LoadPoint]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportData:
    """Everything one report shows; whatever is empty is left out of the page."""

    title: str
    plan: Plan
    created: str = ""
    measured: Outcomes | None = None
    simulated: Outcomes | None = None
    further: Sequence[Outcomes] = ()
    variants: Sequence[VariantCurve] = ()
    beside_triton: BesideTriton | None = None
    steps: Sequence[Step] = ()
    blocks: Mapping[str, Sequence[BlockRow]] = field(default_factory=dict[str, Sequence[BlockRow]])
    machine: Mapping[str, str] = field(default_factory=dict[str, str])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    notes: Sequence[str] = ()


def latencies_of_load(records: Path) -> dict[str, NDArray[np.float64]]:
    """Latency (ms) of every answered request per model, from a file of `load --records`.

    Raises:
        InputError: not such a file.
    """
    try:
        with records.open("rb") as file, np.load(file, allow_pickle=False) as saved:
            rows, names = saved["records"], saved["models"].tolist()
    except (OSError, KeyError, ValueError) as error:
        raise InputError(str(records), f"not a file of load records: {error}") from error
    answered = rows[rows["outcome"] <= LAST_ANSWERED]
    latency_ms = (answered["done_us"] - answered["intended_us"]) / US_PER_MS
    return {name: latency_ms[answered["model"] == i] for i, name in enumerate(names)}
