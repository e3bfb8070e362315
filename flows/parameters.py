"""Parameters of the Prefect deployments: typed, so that the server's page shows a form.

Here: names, defaults, limits and descriptions. Not here: what is done with them.
"""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.state import warehouse_path


class Parameters(BaseModel):
    """Base: a field nobody knows is an error."""

    model_config = ConfigDict(extra="forbid")

    warehouse: Path = Field(default_factory=warehouse_path, description="The DuckDB file.")


class PrepareParameters(Parameters):
    """Of `prepare-model`."""

    model: Path = Field(description="The ONNX file.")
    name: str = Field(description="What the model is called from here on.")
    cluster: Path = Field(description="cluster.yaml whose classes state a runtime.")
    blocks: int = Field(default=10, ge=1, le=64)
    max_batch: int = Field(default=8, ge=1, le=256)


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
    previous: str | None = Field(default=None, description="Id of the plan in force.")


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
