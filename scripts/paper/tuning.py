"""Both sides of a comparison with Triton, tuned alike: a grid search in the simulator.

A side's configuration is a plan and the rules that serve it. The one that holds the highest load is
chosen on some arrivals and reported on others. Nothing of the grid is screened out: a run ends as
soon as its verdict is sure (`SimOptions.give_up_below`), a configuration is searched only from the
best load found so far, and one that serves just like another is tried once. The choice is that of
whole runs.

    Triton      instances and preferred batch sizes by a planner of whole models (SLO margins x any
                number of instances a GPU, or one), times the maximum queue delay: 16 a planner
    PoolPipe    our planner (the same SLO margins), times the policies: 8
    auto        the plan of `--planner auto`, as it comes: nothing is searched

Not here: problems, and what is said of the results.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from flows.operations.adoption.triton_alone import MARGINS, choices
from flows.planning import PlanOptions, make_plan
from flows.planning.engine.level import last
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import Workload
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.papers.triton import TRITON
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

OURS = "PoolPipe"
POLICIES = ("reservation", "reservation-ahead")
LOADS = tuple(round(0.02 * step, 2) for step in range(1, 101))  # of the default plan's rate
TUNED_ON, REPORTED = (0,), (1, 2)  # seeds of the arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """A problem as both sides have it.

    Attributes:
        seconds: simulated at every point.
        interference: how parts of a GPU slow each other down, where that is known.
        triton: planners that place the instances of Triton.
        ours: our planner.
        policies: that our plans are tried with; None: what a plan says.
        latency_factor: true run times over those of the profiles, which neither side knows of.
        plan_seconds: that each plan of either side may take; None: limits of effort alone.
    """

    profiles: Mapping[str, ModelProfile]
    cluster: Cluster
    workload: Workload
    seconds: float
    interference: Mapping[str, InterferenceModel] = field(
        default_factory=dict[str, InterferenceModel]
    )
    triton: tuple[str, ...] = ("no-partitioning",)
    ours: str = "pool"
    policies: tuple[str | None, ...] = POLICIES
    latency_factor: float = 1.0
    plan_seconds: float | None = None

    def options(self, reference: Plan) -> SimOptions:
        """The scenario that all configurations share."""
        return SimOptions(
            duration_s=self.seconds,
            reference=reference,
            latency_factor=self.latency_factor,
            keep_uses=False,
            give_up_below=ATTAINMENT,
        )

    def plan(self, options: PlanOptions) -> Plan:
        """One plan of it.

        Raises:
            InfeasibleError: there is none.
            InputError: the planner is not for such a problem.
        """
        limited = replace(options, time_limit_s=self.plan_seconds)
        return make_plan(
            self.profiles, self.cluster, self.workload, limited, interference=self.interference
        )

    def planned(self, options: PlanOptions, cluster: Cluster) -> Plan:
        """One plan on another cluster."""
        return replace(self, cluster=cluster).plan(options)

    def reference(self) -> Plan:
        """Our default plan, whose rates are load 1."""
        return self.plan(PlanOptions(planner=self.ours))


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One configuration of one side.

    Attributes:
        margin: share of each SLO that its plan keeps free; None: the planner's own.
        whole: whether it has one instance a GPU, where it could have more.
    """

    name: str
    plan: Plan
    options: SimOptions
    margin: float | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The configuration that a side chose, and the load factor that it holds with other arrivals.

    Without a configuration where none holds the lowest load; the factor is then 0.
    """

    configuration: Configuration | None
    load: float

    @property
    def name(self) -> str:
        """Of the configuration."""
        return "none holds" if self.configuration is None else self.configuration.name


def configurations(demand: Demand, side: str, reference: Plan) -> Iterator[Configuration]:
    """The grid of one side; margins and instances that have no plan are left out."""
    base = demand.options(reference)
    if side == TRITON:
        yield from (
            Configuration(
                name=one.name,
                plan=one.plan,
                options=one.served(base),
                margin=one.margin,
                whole=one.whole,
            )
            for one in choices(demand.planned, demand.cluster, demand.triton)
        )
        return
    for margin in MARGINS:
        try:
            plan = demand.plan(PlanOptions(planner=demand.ours, slo_margin=margin))
        except (InfeasibleError, InputError):
            continue
        for policy in demand.policies:
            yield Configuration(
                name=f"{demand.ours}, margin {margin}, {policy or 'its own policy'}",
                plan=plan,
                options=replace(base, policy=policy),
                margin=margin,
            )


def unlike(grid: Iterable[Configuration]) -> Iterator[Configuration]:
    """Without those that serve just like one before: other margins often give the same plan."""
    known: list[tuple[object, ...]] = []
    for one in grid:
        rules = one.options.policy, one.options.batch_timeout_share
        served = (one.plan.pools, one.plan.models, *rules)
        if served not in known:
            known.append(served)
            yield one


def holds(configuration: Configuration, load: float, seeds: Sequence[int]) -> bool:
    """Every model answers `ATTAINMENT` in time, for all seeds."""
    return all(
        simulate(
            configuration.plan, replace(configuration.options, load_factor=load, seed=seed)
        ).least_attainment
        >= ATTAINMENT
        for seed in seeds
    )


def highest(configuration: Configuration, seeds: Sequence[int], above: int = 0) -> int:
    """How many of `LOADS` hold, by halving; `above` are known to, and one more must."""
    if above == len(LOADS) or not holds(configuration, LOADS[above], seeds):
        return above
    return last(
        lambda count: holds(configuration, LOADS[count - 1], seeds), above + 1, len(LOADS) + 1
    )


def tuned(demand: Demand, side: str, reference: Plan) -> Tuned:
    """The best configuration of a side."""
    best, chosen = 0, None
    for configuration in unlike(configurations(demand, side, reference)):
        found = highest(configuration, TUNED_ON, best)
        if found > best:
            best, chosen = found, configuration
    return Tuned(configuration=None, load=0.0) if chosen is None else _reported(chosen, best)


def automatic(demand: Demand, reference: Plan) -> Tuned:
    """The plan of `--planner auto` under its own policy; its name says which planner made it.

    It makes many plans, and may take as long as those of Triton's grid together.
    """
    seconds = demand.plan_seconds
    together = None if seconds is None else seconds * len(MARGINS) * len(demand.triton)
    plan = replace(demand, plan_seconds=together).plan(PlanOptions(planner="auto"))
    chosen = Configuration(name=plan.planner, plan=plan, options=demand.options(reference))
    return _reported(chosen, highest(chosen, REPORTED))


def _reported(chosen: Configuration, best: int) -> Tuned:
    """The load that a configuration holds on the arrivals that it was not chosen on."""
    # From there, not by halving: at the lowest loads one late request can be above a percent.
    while best and not holds(chosen, LOADS[best - 1], REPORTED):
        best -= 1
    while best < len(LOADS) and holds(chosen, LOADS[best], REPORTED):
        best += 1
    return Tuned(configuration=chosen, load=LOADS[best - 1] if best else 0.0)
