"""What to simulate, and the rates that follow from it."""

from dataclasses import dataclass

from triton_backend.contract.errors import InputError
from triton_backend.contract.plan import Plan
from triton_backend.scheduler.policies.registry import POLICIES, SIMULATOR_ONLY
from triton_backend.simulator.failures import Failure
from triton_backend.simulator.offered import POISSON, Arrivals

SIMULATED = (*POLICIES, *SIMULATOR_ONLY)  # every policy a simulation can run


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChange:
    """At `at_s` the flush begins; when nothing is in flight any more `plan` takes over."""

    at_s: float
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOptions:
    """What to simulate.

    Attributes:
        policy: name of the dispatch policy, one of `SIMULATED`.
        arrivals: the process, or a trace.
        load_factor: share of the reference plan's throughput that is offered.
        rate_rps: requests/s over all models instead, shared as the reference plan's throughput.
        reference: whose throughput that is; None = the plan simulated.
        models: names of the models that get load; None = all.
        nic: "shared" or "isolated".
        count_io: reserve the transfers of the input and of the answer too.
        admission: refuse what the gateway refuses under overload.
        latency_noise_cv: coefficient of variation of a stage's run time; the mean is the table's.
        failures: what is gone when.
        change: a change of plan in the middle.
        keep_uses: record every use of a vGPU.
    """

    policy: str = "reservation"
    arrivals: Arrivals = POISSON
    load_factor: float = 1.0
    rate_rps: float | None = None
    reference: Plan | None = None
    models: tuple[str, ...] | None = None
    nic: str = "shared"
    count_io: bool = False
    admission: bool = False
    duration_s: float = 30.0
    seed: int = 0
    latency_noise_cv: float = 0.0
    failures: tuple[Failure, ...] = ()
    change: PlanChange | None = None
    keep_uses: bool = True

    def __post_init__(self) -> None:
        if self.policy not in SIMULATED:
            raise InputError("policy", f"{self.policy!r} is none of {', '.join(SIMULATED)}")
        for name in ("load_factor", "rate_rps", "latency_noise_cv"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise InputError(name, f"{value} is not a number that is 0 or more")
        if not 0 < self.duration_s < float("inf"):
            raise InputError("duration", f"{self.duration_s} s is not positive")
        if self.seed < 0:
            raise InputError("seed", f"{self.seed} is negative")


def rates_of(plan: Plan, options: SimOptions) -> dict[str, float]:
    """Requests/s offered to every loaded model of the plan.

    Raises:
        InputError: a model is not in the plan or its reference, or that serves nothing.
    """
    reference = options.reference or plan
    chosen = options.models if options.models is not None else tuple(m.name for m in plan.models)
    rates: dict[str, float] = {}
    for name in chosen:
        plan.model(name)
        rates[name] = reference.model(name).throughput_rps
    if options.rate_rps is None:
        return {name: rate * options.load_factor for name, rate in rates.items()}
    total = sum(rates.values())
    if total <= 0:
        raise InputError("rate", "the reference plan serves nothing, its models share no rate")
    return {name: options.rate_rps * rate / total for name, rate in rates.items()}
