"""Parameters of the Prefect deployments: typed, so that the server's page shows a form.

Here: names, defaults, limits and descriptions. Not here: what is done with them.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.device_class import DeviceClass
from flows.preparation.profiling.class_profile import ClassProfile, ClassRequest
from flows.state import warehouse_path


class Parameters(BaseModel):
    """Base: a field nobody knows is an error."""

    model_config = ConfigDict(extra="forbid")

    warehouse: Path = Field(default_factory=warehouse_path, description="The DuckDB file.")


class PrepareParameters(Parameters):
    """Of `prepare-model`."""

    model: Path = Field(description="The ONNX file.")
    name: str = Field(description="What the model is called from here on.")
    cluster: Path = Field(description="cluster.yaml; its classes are measured.")
    blocks: int = Field(default=10, ge=1, le=64)
    max_batch: int = Field(default=8, ge=1, le=256)


class CpuRuntime(BaseModel):
    """The CPU that stands for a class, as cluster.yaml states it."""

    model_config = ConfigDict(extra="forbid")

    cores: list[int]
    threads: int = 1
    stretch: float = 1.0


class ProfileClassParameters(BaseModel):
    """Of `profile-class`; `prepare-model` fills them in."""

    model_config = ConfigDict(extra="forbid")

    split: Path = Field(description="Folder of the split model, as the worker's host sees it.")
    gpu_class: str
    divisors: list[int] = Field(default=[1])
    runtime: CpuRuntime | None = Field(default=None, description="None: a GPU of the host.")
    known: list[dict[str, Any]] = Field(default=[], description="Cells measured before.")

    @classmethod
    def of(cls, request: ClassRequest) -> "ProfileClassParameters":
        """The same as the server takes it."""
        device = request.device
        return cls(
            split=request.split.resolve(),
            gpu_class=request.gpu_class,
            divisors=list(request.divisors),
            runtime=device and CpuRuntime(**device.to_options()),
            known=ClassProfile(cells=request.known).to_rows(),
        )

    def request(self) -> ClassRequest:
        """Inverse of `of`.

        Raises:
            InputError: the runtime's cores are not here.
        """
        runtime = self.runtime
        return ClassRequest(
            split=self.split,
            gpu_class=self.gpu_class,
            divisors=tuple(self.divisors),
            device=runtime and DeviceClass.from_options(self.gpu_class, runtime.model_dump()),
            known=ClassProfile.from_rows(self.known).cells,
        )


class PlanParameters(Parameters):
    """Of `plan`."""

    cluster: Path
    workload: Path
    planner: Literal["pool", "no-partitioning", "dart-r"] = "pool"
    objective: Literal["throughput", "cost", "power"] = "throughput"
    max_partitions: int = Field(default=2, ge=1, le=4)
    slo_margin: float = Field(default=0.4, ge=0, lt=1)
    solver: Literal["highs", "gurobi"] = "highs"
    time_limit_s: float | None = Field(default=None, gt=0)
    overflow: bool = Field(
        default=False, description="Free GPUs run whole models beside the plan and promise nothing."
    )
    previous: str | None = Field(default=None, description="Id of the plan in force.")


class WhatIfParameters(Parameters):
    """Of `whatif`."""

    cluster: Path
    workload: Path
    vary: str = Field(description="What is varied, as in `poolpipe whatif --vary`.")
    values: list[float] = Field(min_length=1)
    planners: list[Literal["pool", "no-partitioning", "dart-r"]] = ["pool"]
    objective: Literal["throughput", "cost", "power"] = "throughput"
    max_partitions: int = Field(default=2, ge=1, le=4)
    slo_margin: float = Field(default=0.4, ge=0, lt=1)
    time_limit_s: float | None = Field(default=None, gt=0)
    runner: Literal["threads", "dask"] = Field(
        default="threads", description="`dask` for large sweeps; needs poolpipe[dask]."
    )
    workers: int = Field(default=2, ge=1, le=256, description="Threads, or processes of Dask.")
    dask_address: str | None = Field(default=None, description="Of a Dask scheduler that runs.")


class RolloutParameters(Parameters):
    """Of `rollout`."""

    plan_id: str = Field(description="Id of a stored plan, or the beginning of it.")
    bake_seconds: float = Field(default=30.0, ge=0)
    attainment_target: float = Field(default=0.95, gt=0, le=1)
    reason: str = "requested"


class ReplanParameters(Parameters):
    """Of `replan`."""

    cluster: Path
    workload: Path = Field(description="Models and SLOs; rates come from what was measured.")
    history_hours: float = Field(default=24.0, gt=0)
    quantile: float = Field(default=0.99, gt=0, le=1)
    headroom: float = Field(default=1.1, gt=0)
    objective: Literal["throughput", "cost", "power"] = "throughput"
    goodput_gain: float = Field(default=0.02, ge=0)
    gpu_gain: float = Field(default=0.05, ge=0)
    max_partitions: int = Field(default=2, ge=1, le=4)
    slo_margin: float = Field(default=0.4, ge=0, lt=1)
    bake_seconds: float = Field(default=30.0, ge=0)
    advisory: bool = Field(default=False, description="Everything but the rollout.")


class IngestParameters(Parameters):
    """Of `ingest-stats`."""

    folder: Path | None = Field(
        default=None, description="Serve folder whose event files are read; the project's own."
    )
    cluster: Path | None = Field(
        default=None,
        description="GPUs it has and the served plan's lacks, or the reverse: an event.",
    )
    watched_minutes: int = Field(
        default=10, ge=1, description="Ended minutes in which the conditions below are looked for."
    )
    attainment_target: float = Field(
        default=0.99, gt=0, le=1, description="A model under it is an event."
    )
    share_shift: float = Field(
        default=0.2, gt=0, le=1, description="So much of the load on other models is an event."
    )


class PruneParameters(Parameters):
    """Of `prune`."""

    keep_days: float = Field(default=90.0, gt=0)
