"""The scenario of a simulation, and its rates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from triton_backend.contract.applications import ApplicationPlan
from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.late_rules import (
    LEADS,
    NAMES,
    check_bound_late,
    check_changes,
)
from triton_backend.scheduler.policies.registry import POLICIES, SIMULATOR_ONLY
from triton_backend.scheduler.topology import QueuePolicy
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.offered import POISSON, ROWS, Arrivals, Instant, Stated
from triton_backend.simulator.world import OFF, OVERLAP, PLANNED

INTERFERENCE = {"planned": PLANNED, "overlap": OVERLAP, "off": OFF}
PAPERS = "triton_backend.simulator.papers"
SIMULATED = (*POLICIES, *SIMULATOR_ONLY)  # every policy a simulation can run


def from_papers(name: str) -> ModuleType:
    """A module of `papers/`, loaded when asked for.

    That of a policy of `SIMULATOR_ONLY`.
    """
    return import_module(f"{PAPERS}.{name.replace('-', '_')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """At `at_s` another plan takes over, its new workers up by then, with work in flight.

    Attributes:
        flush: nothing is dispatched from `at_s` on, and `plan` takes over, with new workers only,
            when nothing is in flight any more (the migration of the PPipe paper).
    """

    at_s: float
    plan: Plan
    flush: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.at_s < float("inf"):
            raise InputError("change of plan", f"at {self.at_s} s: not a number that is 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """The scenario.

    Attributes:
        policy: name of the dispatch policy of all models, one of `SIMULATED`; None: what the plan
            says of each.
        heads, rank, target: rules of late binding in place of the policy's own
            (`scheduler.policies.late_rules`).
        batch_timeout_ms, batch_timeout_share: of `timeout`: a time, or a share of each SLO.
        lead_us, lead_us_per_sample: how long before its start a late batch is sent.
        arrivals: the process, or a trace.
        load_factor: share of the reference plan's throughput that is offered.
        rate_rps: requests/s over all models instead, shared as the reference plan's throughput.
        reference: whose throughput that is; None = the plan simulated.
        models: names of the models that get load; None = all, or none where applications are named.
        applications: the same of applications; None = all, or none where models are named.
        rate_factors: offered over planned rate of models and applications, by name; 1 for others.
        low_load_factor: share of a model's planned rate that is offered as low requests on top.
        rows: how rows of modules are drawn where they vary, one of `offered.ROWS`.
        nic: "shared" or "isolated".
        count_io: reserve the transfers of the input and of the answer too.
        shared_batches: batches join in stages that board, as is served; without, each runs there
            alone.
        admission: refuse what the gateway refuses under overload.
        latency_factor: true run times over those of the table, which the scheduler plans with.
        latency_noise_cv: coefficient of variation of a stage's run time around that.
        measured: where run times are not those of the table, guards and expected times follow what
            is measured, as in a gateway; else deadlines and table stay.
        interference: how vGPUs of a GPU slow each other down, one of `INTERFERENCE`.
        interference_noise: 90th percentile of a run's relative deviation from that, where it is
            overlap.
        failures: what is gone when.
        changes: of plan, in the order of their instants.
        keep_uses: record every use of a vGPU.
        give_up_below: the run may end as soon as a model or an application surely attains less;
            its result is then of what has happened, and attains less too.
    """

    policy: str | None = None
    heads: str | None = None
    rank: str | None = None
    target: str | None = None
    batch_timeout_ms: float | None = None
    batch_timeout_share: float | None = None
    lead_us: int = 0
    lead_us_per_sample: int = 0
    arrivals: Arrivals = POISSON
    load_factor: float = 1.0
    rate_rps: float | None = None
    reference: Plan | None = None
    models: tuple[str, ...] | None = None
    applications: tuple[str, ...] | None = None
    rate_factors: Mapping[str, float] = field(default_factory=dict[str, float])
    low_load_factor: float = 0.0
    rows: str = "poisson"
    nic: str = "shared"
    count_io: bool = False
    shared_batches: bool = True
    admission: bool = False
    duration_s: float = 30.0
    seed: int = 0
    latency_factor: float = 1.0
    latency_noise_cv: float = 0.0
    measured: bool = True
    interference: str = "planned"
    interference_noise: float = 0.0
    failures: tuple[Failure, ...] = ()
    changes: tuple[PlanChange, ...] = ()
    keep_uses: bool = True
    give_up_below: float | None = None

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_factors()
        instants = [change.at_s for change in self.changes]
        if instants != sorted(instants):
            raise InputError("changes of plan", f"their instants {instants} are not in order")
        for name, known in (
            ("policy", SIMULATED),
            ("interference", INTERFERENCE),
        ):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise InputError(name, f"{value!r} is none of {', '.join(known)}")
        if self.interference_noise and self.interference != "overlap":
            raise InputError("interference_noise", "is of interference overlap")
        if self.interference != "planned" and self.policy in SIMULATOR_ONLY:
            raise InputError("interference", f"is not simulated under the policy {self.policy}")
        if self.low_load_factor and self.policy in SIMULATOR_ONLY:
            raise InputError("low_load_factor", f"is not of the policy {self.policy}")
        if self.low_load_factor and isinstance(self.arrivals, Instant | Stated):
            raise InputError("low_load_factor", "is of arrivals at a rate")
        check_changes(self.late_binding)

    def _check_factors(self) -> None:
        if not 0 < self.latency_factor < float("inf"):
            raise InputError("latency_factor", f"{self.latency_factor} is not positive")
        for name, factor in self.rate_factors.items():
            if not 0 <= factor < float("inf"):
                raise InputError(f"rate_factors.{name}", f"{factor} is not 0 or more")

    def _check_numbers(self) -> None:
        for name in (
            "load_factor",
            "low_load_factor",
            "rate_rps",
            "latency_noise_cv",
            "interference_noise",
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(name, f"{value} is not a number that is 0 or more")
        if not 0 < self.duration_s < float("inf"):
            raise InputError("duration", f"{self.duration_s} s is not positive")
        if self.rows not in ROWS:
            raise InputError("rows", f"{self.rows!r} is none of {', '.join(ROWS)}")
        if self.seed < 0:
            raise InputError("seed", f"{self.seed} is negative")

    @property
    def measures(self) -> bool:
        """True if runs last other than their table says and this is measured."""
        exact = self.latency_factor == 1 and self.latency_noise_cv == 0
        return self.measured and not (exact and self.interference == "planned")

    def policy_of(self, plan: Plan) -> str:
        """The policies that run, as results name them."""
        return self.policy or policies_of(plan)

    def check_policies(self, policies: Sequence[QueuePolicy]) -> None:
        """Rules of late binding are given only where they change something.

        Raises:
            InputError: one is given, and no model is bound late.
        """
        check_bound_late(self.late_binding, policies)

    @property
    def late_binding(self) -> dict[str, Any]:
        """The changes to rules of late binding that are given, by name."""
        found = {name: getattr(self, name) for name in NAMES}
        return {
            name: value
            for name, value in found.items()
            if value is not None and (value or name not in LEADS)
        }


def policies_of(plan: Plan) -> str:
    """The policies that a plan states, each once."""
    return ", ".join(dict.fromkeys(model.policy for model in plan.models))


def rates_of(plan: Plan, options: SimOptions) -> dict[str, float]:
    """Requests/s offered to every loaded model and application of the plan.

    A model's rate in a plan with applications is what its modules leave: its own clients'.

    Raises:
        InputError: one is not in the plan or its reference, or that serves nothing.
    """
    reference = options.reference or plan
    models, names = loaded(plan, options)
    rates: dict[str, float] = {}
    for name in models:
        plan.model(name)
        rates[name] = reference.own_rate_rps(name)
    for name in names:
        planned_application(plan, name)
        rates[name] = planned_application(reference, name).application.rate_rps or 0.0
    for name, factor in options.rate_factors.items():
        if name not in rates:
            raise InputError("rate_factors", f"{name!r} is none of {', '.join(rates)}")
        rates[name] *= factor
    if options.rate_rps is None:
        return {name: rate * options.load_factor for name, rate in rates.items()}
    total = sum(rates.values())
    if total <= 0:
        raise InputError("rate", "the reference plan serves nothing, its models share no rate")
    return {name: options.rate_rps * rate / total for name, rate in rates.items()}


def low_rates_of(plan: Plan, options: SimOptions) -> dict[str, float]:
    """Low requests/s offered to every loaded model; none to applications.

    Raises:
        InputError: they are asked for, and no model that gets load has a rate of its own.
    """
    if not options.low_load_factor:
        return {}
    reference = options.reference or plan
    models, _ = loaded(plan, options)
    rates = {name: reference.own_rate_rps(name) * options.low_load_factor for name in models}
    if not any(rates.values()):
        reason = "requests of applications are never low, and no model has load of its own"
        raise InputError("low_load_factor", reason)
    return rates


def loaded(plan: Plan, options: SimOptions) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the models and of the applications that get load."""
    if options.models is None and options.applications is None:
        of = plan.workload.models if plan.applications else plan.models
        asked = {model.name for model in of} - plan.workload.variant_of.keys()
        models = tuple(model.name for model in plan.models if model.name in asked)
        return models, tuple(planned.name for planned in plan.applications)
    return options.models or (), options.applications or ()


def planned_application(plan: Plan, name: str) -> ApplicationPlan:
    """The application of that name.

    Raises:
        InputError: the plan has none.
    """
    for planned in plan.applications:
        if planned.name == name:
            return planned
    names = ", ".join(planned.name for planned in plan.applications) or "none"
    raise InputError(f"plan {plan.plan_id}", f"no application {name!r}; it has {names}")
