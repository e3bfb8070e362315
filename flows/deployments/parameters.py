"""Parameters of the Prefect deployments: typed, so that the server's page shows a form.

Here: names, defaults, limits and descriptions, where no dataclass of options states them already.
Not here: what is done with them. Every flow's process imports this file; what turns parameters into
a step's own options is imported by the flow that does so.
"""

from collections.abc import Mapping
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar, get_origin

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from flows.operations.replanning.options import (
    AutoscaleOptions,
    ForecastOptions,
    SteerOptions,
    Thresholds,
)
from flows.options import Option, asked, options_given
from flows.planning.options import SWEPT, CommonOptions
from flows.preparation.interference.options import FitOptions
from flows.release.rollout.options import RolloutMode, RolloutOptions
from flows.state import warehouse_path
from triton_backend.contract.shares import LOADED, WHOLE_GPU, Part

if TYPE_CHECKING:
    from flows.operations.replanning.replan import ReplanOptions
    from flows.planning import PlanOptions
    from flows.preparation.profiling.class_profile import ClassRequest
    from flows.preparation.splitting.split import SplitChoices
    from triton_backend.contract.plan import Plan


class Parameters(BaseModel):
    """Base: an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    warehouse: Path = Field(default_factory=warehouse_path, description="The DuckDB file.")

    flags: ClassVar[Mapping[str, str]] = {}  # field by flag of the command line

    @classmethod
    def field_of(cls, flag: str) -> str | None:
        """The field that is this option on the command line; None where there is none."""
        plain = flag.removeprefix("--").replace("-", "_")
        return cls.flags.get(flag) or (plain if plain in cls.model_fields else None)

    def given(self, declaring: type[Any]) -> dict[str, Any]:
        """Options of a class by name, those alone that have a value here."""
        return options_given(declaring, dict(self))


Form = TypeVar("Form", bound=Parameters)


def form(base: type[Form], *options: tuple[Option, ...]) -> type[Form]:
    """Parameters as of `base`, and a field for every option: its kind, range, default and help."""
    fields: dict[str, Any] = {
        each.name: (
            _kind(each),
            Field(default=None if each.unset else each.default, description=each.help),
        )
        for several in options
        for each in several
    }
    made = create_model(base.__name__, __base__=base, **fields)
    flags = {each.flag: each.name for several in options for each in several if each.flag}
    made.flags = {**base.flags, **flags}
    return made


def _kind(option: Option) -> Any:
    """An option as pydantic reads it."""
    kind: Any = list[str] if get_origin(option.value) is tuple else option.value
    if option.choices:
        kind = Literal[option.choices]
    elif kind in (int, float):
        least, most = (None if isinf(limit) else limit for limit in (option.least, option.most))
        kind = Annotated[kind, Field(ge=least, le=most)]
    if option.value is not option.kind:
        kind = dict[str, kind]
    return kind | None if option.unset else kind


MOST_NIGHTLY_BAKE_S = 12 * 3600

Precision = Literal["fp32", "fp16"]
PRECISION = "Of engines: classes without a `runtime` in cluster.yaml are measured in TensorRT."


class PrepareParameters(Parameters):
    """Of `prepare-model`."""

    model: Path = Field(description="The ONNX file.")
    name: str = Field(description="What the model is called from here on.")
    cluster: Path = Field(description="cluster.yaml; its classes are measured.")
    blocks: int = Field(default=10, ge=1, le=64)
    max_batch: int = Field(default=8, ge=1, le=256)
    layer_times: Path | None = Field(
        default=None,
        description="File of `poolpipe layer-times` to balance blocks by; by default this CPU's.",
    )
    precision: Precision = Field(default="fp32", description=PRECISION)
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
        from flows.input_shapes import read_shapes
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
    """The onnxruntime device of a class, as cluster.yaml states it."""

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
    precision: Precision = Field(default="fp32", description=PRECISION)
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
            precision=request.precision,
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
            precision=self.precision,
            known=ClassProfile.from_rows(self.known).cells,
        )


class ImportParameters(Parameters):
    """Of `import-profiles`."""

    folder: Path = Field(description="As of `poolpipe profiles import`, as the worker sees it.")


class FitParameters(form(Parameters, asked(FitOptions))):
    """Of `fit-interference`."""

    folder: Path | None = Field(
        default=None, description="Folder of tables; by default the warehouse's are used."
    )

    def options(self) -> FitOptions:
        """Which pairs, and how."""
        return FitOptions(**self.given(FitOptions))


class PlanningParameters(form(Parameters, asked(CommonOptions, instead="as before"))):
    """How to plan; what is not given is as by default, or as in the plan that is replaced."""

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
        own = dict(self.planner_options or {})
        if self.overflow is not None:
            own["overflow"] = self.overflow
        return base.changed(own, self.given(CommonOptions))


class PlanParameters(PlanningParameters):
    """Of `plan`."""

    cluster: Path
    workload: Path
    previous: str | None = Field(
        default=None, description="The plan in force: a file, an id, or the beginning of one."
    )


class WhatIfParameters(form(Parameters, asked(CommonOptions, *SWEPT))):
    """Of `whatif`."""

    cluster: Path
    workload: Path
    vary: str = Field(description="What is varied, as in `poolpipe whatif --vary`.")
    values: list[float] = Field(min_length=1)
    planners: list[str] = Field(default=["pool"])
    runner: Literal["threads", "dask"] = Field(
        default="threads", description="`dask` for large sweeps; needs poolpipe[dask]."
    )
    workers: int = Field(default=2, ge=1, le=256, description="Threads, or processes of Dask.")
    dask_address: str | None = Field(default=None, description="Of a Dask scheduler that runs.")


class RolloutParameters(form(Parameters, asked(RolloutOptions))):
    """Of `rollout`."""

    plan_id: str = Field(description="A file, the id of a stored plan, or the beginning of one.")
    way: RolloutMode = Field(
        default=RolloutMode.IN_PLACE,
        description="With work in flight, without plans between, or when all in flight has ended.",
    )

    def options(self) -> RolloutOptions:
        """How to roll out."""
        return RolloutOptions(way=self.way, **self.given(RolloutOptions))


class ReplanParameters(
    form(
        PlanningParameters,
        asked(ForecastOptions),
        asked(Thresholds),
        asked(RolloutOptions, "bake_seconds"),
    )
):
    """Of `replan`; how to plan is as the plan in force was planned, but for what is given."""

    cluster: Path
    workload: Path = Field(description="Models and SLOs; rates come from what was measured.")
    advisory: bool = Field(default=False, description="Everything but the rollout.")

    @field_validator("bake_seconds", check_fields=False)
    @classmethod
    def _ends_in_time(cls, seconds: float) -> float:
        if seconds > MOST_NIGHTLY_BAKE_S:
            reason = f"{seconds:g} is not within 0 and {MOST_NIGHTLY_BAKE_S}"
            raise ValueError(f"{reason}, so that a night ends before the next one")
        return seconds

    def options(self, in_force: "Plan | None") -> "ReplanOptions":
        """A request for replanning; options not given are those of the plan in force.

        Raises:
            InputError: as `planning`.
        """
        from flows.operations.replanning.planner import options_of
        from flows.operations.replanning.replan import ReplanOptions

        return ReplanOptions(
            forecast=ForecastOptions(**self.given(ForecastOptions)),
            thresholds=Thresholds(**self.given(Thresholds)),
            planning=self.planning(options_of(in_force)),
        )

    def rollout(self, reason: str) -> RolloutOptions:
        """How a plan that is worth it is rolled out."""
        return RolloutOptions(
            reason=reason, bake_seconds=self.given(RolloutOptions)["bake_seconds"]
        )


class LoopParameters(Parameters):
    """Of a loop that follows the load of the running system."""

    cluster: Path | None = Field(
        default=None,
        description="A cluster.yaml whose runtimes build missing stages; without it none is built.",
    )


class AutoscaleParameters(form(LoopParameters, asked(AutoscaleOptions))):
    """Of `autoscale`."""

    def options(self) -> AutoscaleOptions:
        """How often, on how many GPUs, and how long."""
        return AutoscaleOptions(**self.given(AutoscaleOptions))


class SteerParameters(form(LoopParameters, asked(SteerOptions))):
    """Of `steer`."""

    def options(self) -> SteerOptions:
        """How long."""
        return SteerOptions(**self.given(SteerOptions))


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
