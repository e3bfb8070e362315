"""What a planner may be told besides profiles, cluster and workload.

Here: the options, their checks and their plain form (stored with every plan).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.workload import MOST_RPS

PLANNERS = ("pool", "no-partitioning", "dart-r")
OBJECTIVES = ("throughput", "cost", "power")
SOLVERS = ("highs", "gurobi")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """How to plan.

    Attributes:
        objective: `throughput` maximises the lowest throughput / weight; `cost` and `power`
            minimise the hourly cost or the watts of the GPUs used at the rates of the workload.
        max_partitions: most stages of a pipeline.
        slo_margin: share of every SLO kept free for waiting that the plan does not see.
        slo_margins: the same for single models, by name; they override `slo_margin`.
        time_limit_s: wall time for the integer programs; None leaves it to the node limit, which
            makes plans repeatable.
        node_limit: most branch-and-bound nodes of an integer program; None sets it by size.
        relative_gap: proof at which the search ends.
        max_columns: most configurations handed to an integer program; None sets it by stages.
        allowed_classes: GPU classes a model may use, by model; models not named may use all.
        excluded_classes: GPU classes a model must not use, by model; `*` speaks for all models.
        minimum_rps: rate that a model must keep at least (requests/s), by model.
        previous: the plan in force; among plans as good, the one that moves fewer GPUs is taken.
        pinned_models: models that keep their pipelines and pools as in `previous`.
        overflow: let GPUs that the plan leaves free run whole models beside it, within the SLO less
            a quarter of the margin; they promise nothing (`overflow`).

    Raises:
        InputError: a value is out of range.
    """

    planner: str = "pool"
    objective: str = "throughput"
    max_partitions: int = 2
    slo_margin: float = 0.4
    slo_margins: Mapping[str, float] = field(default_factory=dict[str, float])
    solver: str = "highs"
    time_limit_s: float | None = None
    node_limit: int | None = None
    relative_gap: float = 1e-4
    max_columns: int | None = None
    allowed_classes: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    excluded_classes: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )
    minimum_rps: Mapping[str, float] = field(default_factory=dict[str, float])
    previous: Plan | None = None
    pinned_models: tuple[str, ...] = ()
    overflow: bool = False

    def __post_init__(self) -> None:
        for name, known in (("planner", PLANNERS), ("objective", OBJECTIVES), ("solver", SOLVERS)):
            value = getattr(self, name)
            if value not in known:
                raise InputError(f"option {name}", f"{value!r} is none of {', '.join(known)}")
        for name in ("max_partitions", "node_limit", "max_columns", "time_limit_s"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"option {name}", f"{value} is not positive")
        shares = {"slo_margin": self.slo_margin, "relative_gap": self.relative_gap}
        shares |= {f"slo_margins.{model}": margin for model, margin in self.slo_margins.items()}
        for name, share in shares.items():
            if not 0 <= share < 1:
                raise InputError(f"option {name}", f"{share} is not in [0, 1)")
        for model, rate in self.minimum_rps.items():
            if not 0 <= rate <= MOST_RPS:
                raise InputError(f"option minimum_rps.{model}", f"{rate} is not a rate")

    def margin(self, model: str) -> float:
        """Share of the SLO of a model that is kept free."""
        return self.slo_margins.get(model, self.slo_margin)

    def class_allowed(self, model: str, gpu_class: str) -> bool:
        """Whether a model may run on a class."""
        excluded = (*self.excluded_classes.get("*", ()), *self.excluded_classes.get(model, ()))
        allowed = self.allowed_classes.get(model)
        return gpu_class not in excluded and (allowed is None or gpu_class in allowed)

    def to_dict(self) -> dict[str, Any]:
        """Plain form, as in `plan.json`; tables that are empty are left out."""
        out: dict[str, Any] = {
            "max_partitions": self.max_partitions,
            "slo_margin": self.slo_margin,
            "objective": self.objective,
            "solver": self.solver,
            "time_limit_s": self.time_limit_s,
            "node_limit": self.node_limit,
            "relative_gap": self.relative_gap,
            "max_columns": self.max_columns,
        }
        for name in ("slo_margins", "minimum_rps"):
            if getattr(self, name):
                out[name] = dict(sorted(getattr(self, name).items()))
        for name in ("allowed_classes", "excluded_classes"):
            table: Mapping[str, tuple[str, ...]] = getattr(self, name)
            if table:
                out[name] = {key: list(value) for key, value in sorted(table.items())}
        if self.overflow:
            out["overflow"] = True
        if self.pinned_models:
            out["pinned_models"] = sorted(self.pinned_models)
        if self.previous is not None:
            out["previous"] = self.previous.plan_id
        return out
