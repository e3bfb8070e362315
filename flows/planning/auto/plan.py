"""The planner `auto`: the plan that serves most, or costs least, of those that the others make.

Every planner of the product that is defined for the workload, its objective and the cluster makes a
plan with its own defaults. Each plan is then offered Poisson arrivals in the simulator, always the
same ones, so that equal inputs give equal plans. For `throughput` the greatest product of value and
load factor at which 99 % are in time counts. For the other objectives the least value of the plans
that hold 99 % at `LOAD` of their planned rates counts; where none holds, the plan that attains
most. Of equals the plan with fewer stages is taken. The plan states the planner that made it.

Not here: margins and batch-building rates by simulated goodput (`flows.planning.robust`).
"""

from collections.abc import Callable
from dataclasses import replace
from math import nan

from flows.planning.promises.attainment import LOAD
from flows.planning.registry import Inputs, Planner, PlanOptions, product_planners
from flows.planning.subclusters.variants import takes
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.goodput import ATTAINMENT, find_goodput
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

ARRIVALS = SimOptions(duration_s=5, seed=0, keep_uses=False)

Rank = tuple[bool, float, int]


def best_plan(
    make: Callable[[Inputs, PlanOptions], Plan], inputs: Inputs, options: PlanOptions
) -> Plan:
    """The best plan of the planners that can plan the workload; its notes say what each serves.

    Args:
        make: the plan of one planner.
        inputs: batch-building rates that are not given are derived for each planner.
        options: margins that are not given are each planner's own.

    Raises:
        InfeasibleError: no planner has a plan; the reason of the first one.
        InputError: no planner is defined for what is asked together.
    """
    others = [each for each in product_planners().values() if each.plan is not None]
    asked = [each for each in others if able(each, inputs, options)]
    if not asked:
        raise InputError(
            "option planner",
            f"auto: no planner has objective {options.objective} for this workload",
        )
    found: list[tuple[Rank, Plan]] = []
    notes: list[str] = []
    errors: list[InfeasibleError | InputError] = []
    for number, each in enumerate(asked):
        watch = inputs.watch.part(1 / (len(asked) - number))
        try:
            plan = make(replace(inputs, watch=watch), _asked(options, each))
        except (InfeasibleError, InputError) as error:
            errors.append(error)
            notes.append(f"auto: {each.name} has no plan: {error}")
            continue
        rank, said = _ranked(plan)
        found.append((rank, plan))
        notes.append(f"auto: {each.name} {plan.objective.value:.6g}, {said}")
    if not found:
        raise errors[0]
    _, best = max(found, key=lambda each: each[0])
    known = best.certificate.get("notes", ())
    return replace(best, certificate={**best.certificate, "notes": [*known, *notes]})


def able(planner: Planner, inputs: Inputs, options: PlanOptions) -> bool:
    """True if the planner is defined for the objective, the workload and the cluster."""
    workload = inputs.workload
    divided = any(each.mig is not None for each in inputs.cluster.gpu_classes)
    return (
        options.objective in planner.objectives
        and (not workload.applications or "applications" in planner.demands)
        and (not workload.has_entries or "entries" in planner.demands)
        and (not workload.models or "models" in planner.demands or workload.has_entries)
        and takes(planner, workload)
        and (not divided or planner.mig)
        and (not options.pinned_models or planner.pins)
    )


def _asked(options: PlanOptions, planner: Planner) -> PlanOptions:
    """The options for a planner, with its own margin where none was given."""
    margin = options.slo_margin if options.margin_given else nan
    own = dict(options.own)  # headroom, which every planner takes
    return replace(options, planner=planner.name, own=own, slo_margin=margin, margin_given=True)


def _ranked(plan: Plan) -> tuple[Rank, str]:
    """The rank of a plan, the greatest is the best, and what it serves in the simulator."""
    stages = sum(len(pipeline.stages) for model in plan.models for pipeline in model.pipelines)
    value = plan.objective.value
    if plan.objective.name == "throughput":
        held = find_goodput(plan, ARRIVALS).load_factor
        return (True, value * held, -stages), f"{ATTAINMENT:.0%} in time at {held:.2f} of it"
    attained = simulate(plan, replace(ARRIVALS, load_factor=LOAD)).least_attainment
    holds = attained >= ATTAINMENT
    rank = (holds, -value if holds else attained, -stages)
    return rank, f"{attained:.2%} in time at {LOAD} of the planned rates"
