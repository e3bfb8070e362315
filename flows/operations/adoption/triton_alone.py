"""Triton alone on a plan's GPUs, simulated: whole models behind its dynamic batcher.

Triton is tuned by a grid search before it is compared: of instances and preferred batch sizes (a
planner of whole models, four SLO margins, any number of instances a GPU or one) and the maximum
queue delay. The configuration that holds the highest load on some arrivals is chosen, and shown on
others, on which the plan is simulated, too. Both sides get the same rates.

Not here: the batcher (`triton_backend.simulator.papers.triton`), the picture (`flows.reporting`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from flows.planning import PlanOptions, make_plan
from flows.planning.engine.level import last
from flows.planning.stored_plans import load_interference, load_profiles
from flows.reporting.data import BesideTriton, LoadPoint
from flows.reporting.runs import seconds_of
from flows.workspace import Workspace
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

TRITON = "triton"  # the policy's name in the simulator
MARGINS = (0.0, 0.05, 0.1, 0.2)
DELAYS = (0.0, 0.1)  # shares of each SLO
WHOLE_MODELS = ("no-partitioning",)
LOADS = tuple(round(0.1 * step, 1) for step in range(1, 16))  # times the plan's rates
TUNED_ON, SHOWN = 1, 0  # seeds of the arrivals
NO_PLAN = "none: whole models have no plan within their SLOs"
MOST_REQUESTS = 20_000  # at the plan's rates, in one run: all runs together take seconds

Planned = Callable[[PlanOptions, Cluster], Plan]
"""A plan under options on a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One configuration of Triton.

    Attributes:
        plan: its instances and planned batches.
        margin: share of each SLO that the plan keeps free.
        whole: whether it has one instance a GPU.
        delay_share: the maximum queue delay, in shares of each SLO.
    """

    name: str
    plan: Plan
    margin: float
    whole: bool
    delay_share: float

    def served(self, options: SimOptions) -> SimOptions:
        """The same scenario under this configuration."""
        return replace(options, policy=TRITON, batch_timeout_share=self.delay_share)


def one_instance(cluster: Cluster) -> Cluster:
    """The cluster with whole GPUs alone."""
    classes = tuple(
        replace(each, vgpu_divisors=(1,), vgpu_percents=()) for each in cluster.gpu_classes
    )
    return replace(cluster, gpu_classes=classes)


def choices(
    planned: Planned, cluster: Cluster, planners: Sequence[str] = WHOLE_MODELS
) -> Iterator[Choice]:
    """The grid; margins and instances that have no plan are left out."""
    instances = (("any instances", cluster), ("one instance", one_instance(cluster)))
    for planner in planners:
        for margin in MARGINS:
            for label, place in instances:
                try:
                    plan = planned(PlanOptions(planner=planner, slo_margin=margin), place)
                except (InfeasibleError, InputError):
                    continue
                for share in DELAYS:
                    yield Choice(
                        name=f"{planner}, margin {margin}, {label}, delay {share}",
                        plan=plan,
                        margin=margin,
                        whole=place is not cluster,
                        delay_share=share,
                    )


def beside_triton_of(work: Workspace, plan: Plan) -> BesideTriton | None:
    """The comparison for a plan whose models are profiled in the project; None where it has none.

    Applications, entries and variants have no counterpart in Triton's batcher, and a plan may be
    too large to be simulated in a moment.
    """
    if plan.applications or plan.workload.has_entries or plan.workload.variants:
        return None
    try:
        profiles, _ = load_profiles(work, plan.cluster, plan.workload)
    except InputError:
        return None
    return beside_triton(plan, profiles, load_interference(work))


def beside_triton(
    plan: Plan,
    profiles: Mapping[str, ModelProfile],
    interference: Mapping[str, InterferenceModel] | None = None,
) -> BesideTriton | None:
    """Shares in time of a plan and of Triton alone at the same rates, by load.

    Returns:
        None where one run would take too long.
    """
    seconds = seconds_of(plan, MOST_REQUESTS)
    if not seconds:
        return None
    base = SimOptions(reference=plan, duration_s=seconds, seed=SHOWN, keep_uses=False)

    def planned(options: PlanOptions, cluster: Cluster) -> Plan:
        return make_plan(profiles, cluster, plan.workload, options, interference=interference)

    best, chosen = -1, None
    for choice in choices(planned, plan.cluster):
        found = _highest(choice, base, max(best, 0))
        if found > best:
            best, chosen = found, choice
    return BesideTriton(
        configuration=NO_PLAN if chosen is None else chosen.name,
        rate_rps=sum(model.throughput_rps for model in plan.models),
        duration_s=seconds,
        plan=_curve(plan, base),
        triton=_curve(chosen.plan, chosen.served(base)) if chosen else _points(0.0 for _ in LOADS),
    )


def _highest(choice: Choice, base: SimOptions, above: int) -> int:
    """How many of `LOADS` a configuration holds; `above` are known to be held by another."""
    options = replace(choice.served(base), seed=TUNED_ON, give_up_below=ATTAINMENT)

    def holds(count: int) -> bool:
        run = simulate(choice.plan, replace(options, load_factor=LOADS[count - 1]))
        return run.least_attainment >= ATTAINMENT

    if above == len(LOADS) or not holds(above + 1):
        return above
    return last(holds, above + 1, len(LOADS) + 1)


def _curve(plan: Plan, options: SimOptions) -> tuple[LoadPoint, ...]:
    """The least share in time of all models, load by load."""
    return _points(
        simulate(plan, replace(options, load_factor=load)).least_attainment for load in LOADS
    )


def _points(shares: Iterable[float]) -> tuple[LoadPoint, ...]:
    return tuple(
        LoadPoint(load=load, accuracy=None, in_time=share)
        for load, share in zip(LOADS, shares, strict=True)
    )
