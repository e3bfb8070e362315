"""Parameters of the Prefect deployments: typed, so that the server's page shows a form.

Here: names, defaults, limits and descriptions. Not here: what is done with them. Every flow's process
imports this file; what turns parameters into a step's own options is imported by the flow that does so.
"""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from flows.state import warehouse_path
from triton_backend.contract.shares import LOADED, WHOLE_GPU, Part
from triton_backend.contract.workload import MOST_STAGES

if TYPE_CHECKING:
    from flows.operations.replanning.replan import ReplanOptions
    from flows.planning import PlanOptions
    from flows.preparation.profiling.class_profile import ClassRequest
    from flows.preparation.splitting.split import SplitChoices
    from triton_backend.contract.plan import Plan


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
    input_shapes: dict[str, str] = Field(
        default={}, description="Sizes of inputs without the batch, as 3x320x320."
    )
    input_ranges: dict[str, str] = Field(
        default={}, description="Values of inputs, as 0..255, both included."
    )
    samples: Path | None = Field(default=None, description="Samples to check with, .npz.")

    def choices(self) -> "SplitChoices":
        """Sizes and values as a split takes them.

        Raises:
            InputError: a text is no shape or no range.
        """
        from flows.preparation.splitting.inputs.sizes import read_shapes
        from flows.preparation.splitting.inputs.values import read_ranges
        from flows.preparation.splitting.split import SplitChoices

        shapes = [f"{name}={sizes}" for name, sizes in self.input_shapes.items()]
        ranges = [f"{name}={limits}" for name, limits in self.input_ranges.items()]
        return SplitChoices(
            input_shapes=read_shapes(shapes, "input_shapes"),
            input_ranges=read_ranges(ranges, "input_ranges"),
            samples=self.samples,
        )


class OnnxRuntime(BaseModel):
    """What runs a class in onnxruntime, as cluster.yaml states it."""

    model_config = ConfigDict(extra="forbid")

    provider: Literal["cpu", "cuda"] = "cpu"
    cores: list[int] = []
    threads: int = 1
    stretch: float = 1.0


class ProfileClassParameters(BaseModel):
    """Of `profile-class`; `prepare-model` fills them in."""

    model_config = ConfigDict(extra="forbid")

    split: Path = Field(description="Folder of the split model, as the worker's host sees it.")
    gpu_class: str
    parts: list[Part] = Field(default=[(WHOLE_GPU, LOADED)], description="Shares and bases.")
    runtime: OnnxRuntime | None = Field(
        default=None, description="None: engines on a GPU of the host."
    )
    known: list[dict[str, Any]] = Field(default=[], description="Cells measured before.")

    @classmethod
    def of(cls, request: "ClassRequest") -> "ProfileClassParameters":
        """The same as the server takes it."""
        from flows.preparation.profiling.class_profile import ClassProfile

        device = request.device
        return cls(
            split=request.split.resolve(),
            gpu_class=request.gpu_class,
            parts=list(request.parts),
            runtime=device and OnnxRuntime(**device.to_options()),
            known=ClassProfile(cells=request.known).to_rows(),
        )

    def request(self) -> "ClassRequest":
        """Inverse of `of`.

        Raises:
            InputError: the runtime's cores are not here.
        """
        from flows.device_class import DeviceClass
        from flows.preparation.profiling.class_profile import ClassProfile, ClassRequest

        runtime = self.runtime
        return ClassRequest(
            split=self.split,
            gpu_class=self.gpu_class,
            parts=tuple(self.parts),
            device=runtime and DeviceClass.from_options(self.gpu_class, runtime.model_dump()),
            known=ClassProfile.from_rows(self.known).cells,
        )


class PlanningParameters(Parameters):
    """How to plan; what is not given is as by default, or as in the plan that is replaced."""

    planner: str | None = Field(default=None, description="A name of `poolpipe planners`.")
    objective: Literal["throughput", "cost", "power", "gpus"] | None = None
    max_partitions: int | None = Field(
        default=None, ge=1, le=MOST_STAGES, description="Most stages."
    )
    slo_margin: float | None = Field(
        default=None, ge=0, lt=1, description="Share of every SLO that is kept free."
    )
    slo_margins: dict[str, float] | None = Field(
        default=None, description="The same for single models."
    )
    solver: Literal["highs", "gurobi"] | None = None
    time_limit_s: float | None = Field(default=None, gt=0)
    gap: float | None = Field(default=None, ge=0, lt=1, description="Proof that is enough.")
    allowed_classes: dict[str, list[str]] | None = Field(
        default=None, description="GPU classes that a model may use, by model."
    )
    excluded_classes: dict[str, list[str]] | None = Field(
        default=None, description="GPU classes that a model must not use; `*` stands for all."
    )
    minimum_rps: dict[str, float] | None = Field(
        default=None, description="Rate that a model keeps at least."
    )
    pinned_models: list[str] | None = Field(
        default=None, description="Models that keep their pools as in the previous plan."
    )
    overflow: bool | None = Field(
        default=None, description="Free GPUs run whole models beside the plan and promise nothing."
    )
    planner_options: dict[str, Any] | None = Field(
        default=None, description="Options of the planner itself, by name."
    )

    def planning(self, base: "PlanOptions") -> "PlanOptions":
        """The options of `base` with what is given here in their place.

        Raises:
            InputError: the planner is not known, or does not take an option.
        """
        given: dict[str, Any] = {
            name: value for name in _PLANNING if (value := getattr(self, name)) is not None
        }
        for name in ("allowed_classes", "excluded_classes"):
            if name in given:
                given[name] = {key: tuple(value) for key, value in given[name].items()}
        if "pinned_models" in given:
            given["pinned_models"] = tuple(given["pinned_models"])
        if self.planner is not None and self.planner != base.planner:
            base = base.for_planner(self.planner)
        own = dict(self.planner_options or {})
        if self.overflow is not None:
            own["overflow"] = self.overflow
        return replace(base, own={**base.own, **own}, **given)


_PLANNING = (
    "objective",
    "max_partitions",
    "slo_margin",
    "slo_margins",
    "solver",
    "time_limit_s",
    "gap",
    "allowed_classes",
    "excluded_classes",
    "minimum_rps",
    "pinned_models",
)


class PlanParameters(PlanningParameters):
    """Of `plan`."""

    cluster: Path
    workload: Path
    previous: str | None = Field(
        default=None, description="The plan in force: a file, an id, or the beginning of one."
    )


class WhatIfParameters(Parameters):
    """Of `whatif`."""

    cluster: Path
    workload: Path
    vary: str = Field(description="What is varied, as in `poolpipe whatif --vary`.")
    values: list[float] = Field(min_length=1)
    planners: list[str] = ["pool"]
    objective: Literal["throughput", "cost", "power", "gpus"] = "throughput"
    max_partitions: int = Field(default=2, ge=1, le=MOST_STAGES)
    slo_margin: float | None = Field(default=None, ge=0, lt=1)
    time_limit_s: float | None = Field(default=None, gt=0)
    runner: Literal["threads", "dask"] = Field(
        default="threads", description="`dask` for large sweeps; needs poolpipe[dask]."
    )
    workers: int = Field(default=2, ge=1, le=256, description="Threads, or processes of Dask.")
    dask_address: str | None = Field(default=None, description="Of a Dask scheduler that runs.")


class RolloutParameters(Parameters):
    """Of `rollout`."""

    plan_id: str = Field(description="A file, the id of a stored plan, or the beginning of one.")
    bake_seconds: float = Field(default=30.0, ge=0)
    attainment_target: float = Field(default=0.95, gt=0, le=1)
    reason: str = "requested"
    way: Literal["in-place", "in-place-only", "flush"] = Field(
        default="in-place",
        description="With work in flight, without plans between, or when all in flight has ended.",
    )


class ReplanParameters(PlanningParameters):
    """Of `replan`; how to plan is as the plan in force was planned, but for what is given."""

    cluster: Path
    workload: Path = Field(description="Models and SLOs; rates come from what was measured.")
    history_hours: float = Field(default=24.0, gt=0)
    quantile: float = Field(default=0.99, gt=0, le=1)
    headroom: float = Field(default=1.1, gt=0)
    goodput_gain: float = Field(default=0.02, ge=0)
    gpu_gain: float = Field(default=0.05, ge=0)
    bake_seconds: float = Field(default=30.0, ge=0)
    advisory: bool = Field(default=False, description="Everything but the rollout.")

    def options(self, in_force: "Plan | None") -> "ReplanOptions":
        """What is asked of replanning, with every option of the plan in force kept.

        Raises:
            InputError: as `planning`.
        """
        from flows.operations.replanning.decide import Thresholds
        from flows.operations.replanning.forecast import ForecastOptions
        from flows.operations.replanning.replan import ReplanOptions, options_of

        return ReplanOptions(
            history=timedelta(hours=self.history_hours),
            forecast=ForecastOptions(quantile=self.quantile, headroom=self.headroom),
            thresholds=Thresholds(goodput_gain=self.goodput_gain, gpu_gain=self.gpu_gain),
            planning=self.planning(options_of(in_force)),
        )


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
