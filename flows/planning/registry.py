"""The interface of planners: inputs, options, result, and where planners are found.

A planner is a package below `flows.planning` whose `__init__` holds `PLANNERS`, a tuple of
`Planner`: adding one is a folder and a test. Each has one entry, `plan(inputs) -> Outcome`. What
all share is outside: profiles and placement, the certificate, the check (`verify`). Planners that
plans are only compared with lie in the folder `papers`, which is loaded when a name is not the
product's.

Here: what a planner is asked and what it answers, with the options' plain form (stored with every
plan). Not here: the options that all planners take (`options`), and any planning.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from math import isnan, nan
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from flows.options import Option, check_options, options_given, plain_options
from flows.planning.options import CommonOptions
from flows.planning.watch import Watch
from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import (
    DEFAULT_POLICY,
    Objective,
    PlacementRun,
    Plan,
    PoolInterference,
    StageMemory,
)
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import GATHERING, ModelDemand, Workload

DEFAULT_MARGIN = 0.4  # of planners that state none of their own (PPipe, section 7.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(CommonOptions):
    """How to plan, and with which planner's options.

    Attributes:
        objective: `throughput` maximises the lowest throughput / weight; `cost`, `power`, `gpus`
            and `share` minimise the hourly cost, the watts or the number of the GPUs used, or the
            percents of GPUs held, at the rates of the workload.
        slo_margin: not given (NaN), what the planner keeps by default.
        slo_margins: they override `slo_margin`.
        time_limit_s: None leaves it to limits of effort, which makes plans repeatable.
        gap: (bound - value) / value.
        allowed_classes: models not named may use all.
        previous: the plan in force; among plans as good, the one that moves fewer GPUs is taken.
        own: options that the planner itself declares, by name; all of them once this is built.
        margin_given: whether `slo_margin` is the caller's, not the planner's default.

    Raises:
        InputError: a value is out of range, or the planner does not take it.
    """

    previous: Plan | None = None
    own: Mapping[str, Any] = field(default_factory=dict[str, Any])
    margin_given: bool = field(default=True, compare=False)

    def __post_init__(self) -> None:
        planner = planner_named(self.planner)
        if isnan(self.slo_margin):
            object.__setattr__(self, "margin_given", False)
            object.__setattr__(self, "slo_margin", planner.slo_margin)
        check_options(self)
        object.__setattr__(self, "own", planner.checked(self))

    def for_planner(self, name: str) -> "PlanOptions":
        """The same, margin included, for another planner, whose own options are as by default."""
        return replace(self, planner=name, own={})

    def changed(self, own: Mapping[str, Any], given: Mapping[str, Any]) -> "PlanOptions":
        """With what is given in place of what is here.

        Another planner begins with its own defaults.

        Raises:
            InputError: as the class.
        """
        kept = self.own if given.get("planner", self.planner) == self.planner else {}
        margin = self.slo_margin if self.margin_given else nan
        usual: dict[str, Any] = {"slo_margin": margin, "margin_given": True, **given}
        return replace(self, own={**kept, **own}, **usual)

    def for_names(self, names: Collection[str]) -> "PlanOptions":
        """The same for a part of a workload: no table has another name, and none is pinned."""

        def kept(table: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in table.items() if name in {*names, "*"}}

        return replace(
            self,
            slo_margins=kept(self.slo_margins),
            allowed_classes=kept(self.allowed_classes),
            excluded_classes=kept(self.excluded_classes),
            minimum_rps=kept(self.minimum_rps),
            pinned_models=(),
            previous=None,
        )

    def margin(self, model: str) -> float:
        """Share of the SLO of a model that is kept free."""
        return self.slo_margins.get(model, self.slo_margin)

    def expected(self, profiles: Mapping[str, ModelProfile]) -> dict[str, ModelProfile]:
        """Profiles with the latencies planned for, `profile_factor` times those measured."""
        return {name: each.slower(self.profile_factor) for name, each in profiles.items()}

    def class_allowed(self, model: str, gpu_class: str) -> bool:
        """True if a model may run on a class."""
        excluded = (*self.excluded_classes.get("*", ()), *self.excluded_classes.get(model, ()))
        allowed = self.allowed_classes.get(model)
        return gpu_class not in excluded and (allowed is None or gpu_class in allowed)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `plan.json`; tables that are empty are left out."""
        out = plain_options(self)
        del out["planner"]  # a plan states it beside its options
        if self.profile_factor == 1:
            del out["profile_factor"]
        for option in planner_named(self.planner).options:
            if option.stated or self.own[option.name] != option.default:
                out[option.name] = self.own[option.name]
        if self.pinned_models:
            out["pinned_models"] = sorted(self.pinned_models)
        if self.previous is not None:
            out["previous"] = self.previous.plan_id
        return out

    @classmethod
    def from_dict(cls, planner: str, data: Mapping[str, Any]) -> "PlanOptions":
        """Options as a plan of that planner states them; the plan it came from is not kept.

        Raises:
            InputError: the planner is not known any more, or a value is out of range.
        """
        given = {"gap": data["relative_gap"], **data} if "relative_gap" in data else data
        names = [option.name for option in planner_named(planner).options]
        own = {name: given[name] for name in names if name in given}
        kept: dict[str, Any] = options_given(cls, given) | {"planner": planner, "own": own}
        return cls(**kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The inputs of a plan.

    Attributes:
        workload: with the batch-building rates in use.
        options: how to plan.
        watch: the clock that planning looks at; it reports progress.
        prove: whether a proof is wanted; without one, a good plan is enough.
        most: what a plan may cost: any up to this is as good as another, none above it is wanted.
        interference: how parts of a GPU slow each other down, by class; none where it is not known.
        module_transfers: whether transfers between modules of applications take time and links.
    """

    profiles: Mapping[str, ModelProfile]
    cluster: Cluster
    workload: Workload
    options: PlanOptions = field(default_factory=PlanOptions)
    watch: Watch = field(default_factory=Watch)
    prove: bool = True
    most: float | None = None
    interference: Mapping[str, InterferenceModel] = field(
        default_factory=dict[str, InterferenceModel]
    )
    module_transfers: bool = False

    def asking(self, **changes: Any) -> "Inputs":
        """The same with some options changed."""
        return replace(self, options=replace(self.options, **changes))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCut:
    """A pool of a planner that cuts and places GPUs itself.

    Attributes:
        share: of a GPU, in 300ths.
        interference: what its vGPUs press and feel, where the planner reckons with it; the seats in
            the order of models.
        starts_anywhere: every tail of a model may run here.
    """

    share: int
    placement: tuple[PlacementRun, ...]
    interference: PoolInterference | None = None
    starts_anywhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """Blocks [first, last) on so many vGPUs, each 1 / divisor of a GPU of the class.

    Attributes:
        shared: number of the pool that it shares; stages of one number have one class, divisor and
            count of vGPUs. None: a pool of its own.
        continues: name of the pool of the plan in force whose GPUs a shared pool goes on with.
        duty_cycle_us: how often its turn comes on a vGPU that is shared in turns.
        cut: what its pool is where the planner cuts and places GPUs itself; `divisor` then says
            nothing.
        latency_us_by_batch: where neighbours slow it down; None: as profiled.
        batch: planned here, where it differs from the pipeline's.
        boards: it joins batches with the other pipelines on its pool.
        memory: what it takes of its GPU; None: nothing of it is stated, or the whole model's on a
            shared pool.
        load_us: time of a load, where it is loaded on demand; every latency is that much longer.
    """

    blocks: tuple[int, int]
    gpu_class: str
    divisor: int
    vgpus: int
    shared: int | None = None
    continues: str | None = None
    duty_cycle_us: int | None = None
    cut: PlannedCut | None = None
    latency_us_by_batch: tuple[int, ...] | None = None
    batch: int | None = None
    boards: bool = False
    memory: StageMemory | None = None
    load_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPipeline:
    """Stages in order, for a model by its number in the workload, with the rate it promises.

    A pipeline of rate 0 promises nothing: it helps where the others are busy. `occupied_vgpus` says
    which part of its vGPUs is paid for, where billing is by occupancy; `entry` whose requests it
    takes.
    """

    model: int
    batch: int
    rate_rps: float
    stages: tuple[PlannedStage, ...]
    occupied_vgpus: float | None = None
    entry: str | None = None


@dataclass(slots=True)
class Trace:
    """The certificate of a run; `details` are the planner's own entries."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    configurations: dict[str, int] = field(default_factory=dict[str, int])
    notes: list[str] = field(default_factory=list[str])
    status: str = "optimal"
    details: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The decision of a planner.

    Attributes:
        promised_rps: by model in the workload's order; None where a model is promised all that its
            pipelines deliver.
        policy: the dispatch policy that it was planned for; `policies` those of single models, by
            number.
        whole_tables: stages state their latency of every batch that was measured, not only up to
            the planned one: policies of late binding may send more.
        lines: models that pipelines speak of, where applications make them other than the
            workload's.
        applications: as planned.
        settled: options that the planner chose by itself, as the plan states them.
        space: what the bound covers, where it is not what the planner's always does.
        waits: the accounting of waiting that it was planned by (`workload.WAITS`).
        prices: a bound of the objective, and the prices that prove it by weak duality
            (`verify.bound`).
        gathering_rule: at whose rate batches gather, where it is not the rate that the workload
            states.
    """

    pipelines: tuple[PlannedPipeline, ...]
    objective: Objective
    trace: Trace
    promised_rps: tuple[float, ...] | None = None
    policy: str = DEFAULT_POLICY
    policies: Mapping[int, str] = field(default_factory=dict[int, str])
    whole_tables: bool = False
    lines: tuple[ModelDemand, ...] | None = None
    applications: tuple[ApplicationPlan, ...] = ()
    settled: Mapping[str, Any] = field(default_factory=dict[str, Any])
    space: str | None = None
    waits: str = GATHERING
    gathering_rule: str | None = None
    prices: tuple[float, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """A planner by name.

    Attributes:
        plan: from inputs to what was decided; None: it asks the other planners (`auto.best_plan`).
        space: the plans that its bound covers; a bound of one space says nothing of another.
        objectives: the objectives it is defined for.
        demands: what a workload may ask of it: `models`, `entries`, `applications`, and
            `variants`, whose shares it decides.
        options: options of its own.
        most_stages: most stages of a pipeline, where the planner itself sets a limit.
        pins: whether it can leave pinned models as they are.
        rates_from: planners that derive batch-building rates where none are given: the first one
            that has a plan without gathering time.
        slo_margin: share of every SLO that it keeps free by default.
        mig: whether it plans classes whose cards are divided into MIG slices.
        for_entries: objectives that it is defined for where models list entries.
    """

    name: str
    plan: Callable[[Inputs], Outcome] | None
    space: str
    objectives: tuple[str, ...] = ("throughput",)
    demands: tuple[str, ...] = ("models",)
    options: tuple[Option, ...] = ()
    most_stages: int | None = None
    pins: bool = False
    rates_from: tuple[str, ...] = ("no-partitioning",)
    slo_margin: float = DEFAULT_MARGIN
    mig: bool = False
    for_entries: tuple[str, ...] = ()

    def checked(self, options: PlanOptions) -> dict[str, Any]:
        """The planner's own options with what is not given at its default.

        Raises:
            InputError: the planner does not take an option or the objective.
        """
        if options.objective not in self.objectives:
            known = " and ".join(self.objectives)
            raise InputError("option objective", f"{self.name} is defined for {known} alone")
        if options.pinned_models and not self.pins:
            raise InputError("option pinned_models", f"{self.name} plans every model again")
        declared = {option.name: option for option in self.options}
        for name in options.own:
            if name not in declared:
                known = ", ".join(declared) or "none of its own"
                raise InputError(
                    f"option {name}", f"{self.name} does not take it; it takes {known}"
                )
        return {
            name: option.checked(_spelled(option, options.own.get(name, option.default)))
            for name, option in declared.items()
        }


def _spelled(option: Option, value: Any) -> Any:
    """A number given for a text, as in plans of an option that was a number, as a text."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:g}" if number and option.value is str else value


@cache
def planners() -> Mapping[str, Planner]:
    """Every planner by name.

    The product's, then those of `papers`, each in the order of packages.
    """
    return {**product_planners(), **_planners_in("papers")}


@cache
def product_planners() -> Mapping[str, Planner]:
    """The planners to use, by name; none of `papers` is loaded for them."""
    return _planners_in()


def _planners_in(*folders: str) -> Mapping[str, Planner]:
    """Planners of the packages in a folder below this one."""
    found: dict[str, Planner] = {}
    package = ".".join((__name__.rpartition(".")[0], *folders))
    for module in iter_modules([str(Path(__file__).parent.joinpath(*folders))], f"{package}."):
        if module.ispkg and not module.name.endswith(".papers"):
            own: tuple[Planner, ...] = getattr(import_module(module.name), "PLANNERS", ())
            found |= {planner.name: planner for planner in own}
    return found


def planner_named(name: str) -> Planner:
    """A planner by its name; a name that is not the product's loads `papers`.

    Raises:
        InputError: there is none of that name.
    """
    found = product_planners().get(name) or planners().get(name)
    if found is None:
        raise InputError("option planner", f"{name!r} is none of {', '.join(planners())}")
    return found


def refusal(planner: Planner, inputs: Inputs) -> InputError | None:
    """Why a planner does not plan what a workload lists, or what a cluster is cut into.

    None where it does.
    """
    workload, objective = inputs.workload, inputs.options.objective
    divided = [c.name for c in inputs.cluster.gpu_classes if c.mig is not None]
    unshared = [
        name
        for name, own in workload.variants.items()
        if any(demand.normaliser() == 0 for demand in own)
    ]

    def of(able: Callable[[Planner], bool]) -> str:
        return ", ".join(other.name for other in product_planners().values() if able(other))

    def lacks(demand: str) -> bool:
        return demand not in planner.demands

    if workload.applications and lacks("applications"):
        known = of(lambda other: "applications" in other.demands)
        reason = f"plans models alone; applications are planned by {known}"
    elif workload.has_entries and lacks("entries"):
        known = of(lambda other: "entries" in other.demands)
        reason = f"plans whole models; entries are planned by {known}"
    elif divided and not planner.mig:
        known = of(lambda other: other.mig)
        reason = f"plans no MIG slices, which class {divided[0]} has; they are planned by {known}"
    elif unshared and lacks("variants"):
        known = of(lambda other: "variants" in other.demands)
        reason = (
            f"gives each variant GPUs of its own: state a share of each of {unshared[0]!r}, or "
            f"plan with {known}"
        )
    elif objective in planner.for_entries and not workload.has_entries:
        reason = f"{planner.name} is defined for {objective} where models list entries"
        return InputError("option objective", reason)
    else:
        return None
    return InputError("option planner", f"{planner.name} {reason}")
