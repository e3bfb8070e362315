"""Plans chosen by what they serve in the simulator, not by what they promise.

A margin leaves room for waiting that the plan does not see; too much of it wastes GPUs, too little
misses deadlines. The batch-building rate says how long batches gather. Candidates differ in both;
each is planned, then offered Poisson arrivals in proportion to the weights. The plan kept is the
one with the highest *robust goodput*: the largest normalised rate at which every model answers 99 %
of its requests in time.

Margins for all models together are tried first, the planner's default before others, then margin
and rate change model by model. A candidate is left as soon as it does not attain just above the
best one. The wall-clock budget ends the search between two candidates with the best plan so far.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

from flows.clock import Stopwatch
from flows.planning.api import make_plan, with_rates
from flows.planning.certificate import plan_identity
from flows.planning.engine.level import highest_above
from flows.planning.promises.headroom import GRID, promising_less, without_headroom
from flows.planning.registry import Inputs, PlanOptions, planner_named
from flows.planning.watch import Watch
from triton_backend.contract.cluster import Cluster
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import DEFAULT_POLICY, Plan
from triton_backend.contract.profiles import InterferenceModel, ModelProfile
from triton_backend.contract.workload import Workload
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

MARGINS = (0.4, 0.3, 0.2, 0.5, 0.1)  # tried after the planner's default, which they must beat
CHANGES = ((-0.1, 1.0), (0.1, 1.0), (0.0, 0.7), (0.0, 1.4))  # of a margin; times a rate
_NOISE = 2e-3  # relative: gap of candidates, and an improvement that is none


def make_robust_plan(
    profiles: Mapping[str, ModelProfile],
    cluster: Cluster,
    workload: Workload,
    options: PlanOptions | None = None,
    *,
    interference: Mapping[str, InterferenceModel] | None = None,
    duration_s: float = 30.0,
    budget_s: float = 120.0,
) -> Plan:
    """The pool plan with the highest robust goodput among candidate margins and rates.

    The certificate's `robust` holds the goodput (normalised like the objective), the margins and
    batch-building rates chosen, and how many candidates were tried.

    Args:
        profiles: of the workload's models, by name.
        cluster: GPUs and nodes.
        workload: models with their SLOs and weights.
        options: how to plan.
        interference: how parts of a GPU slow each other down, by class, where that is known.
        duration_s: of arrivals that a candidate is offered.
        budget_s: wall time for all candidates together.

    Raises:
        InputError: another objective than throughput is asked for.
        InfeasibleError: no candidate margin leaves a model any pipeline.
    """
    options = options or PlanOptions()
    _check(options, workload)
    asked, options = options, without_headroom(options)
    watch = Stopwatch()
    inputs = Inputs(
        profiles=options.expected(profiles),
        cluster=cluster,
        workload=workload,
        options=options,
        watch=Watch(limit_s=options.time_limit_s),
    )
    rated, _ = with_rates(inputs)
    names, usual = [m.name for m in rated.models], planner_named(options.planner).slo_margin
    best: Plan | None = None
    goodput, margins, tried = 0.0, dict.fromkeys(names, usual), 0

    def better(others: Mapping[str, float], rates: Workload) -> bool:
        """Take the plan with these margins and rates if it serves more than the best one."""
        nonlocal best, goodput, margins, rated, tried
        late = best is not None and watch.seconds() >= budget_s
        if late or not all(0 <= margin < 1 for margin in others.values()):
            return False
        tried += 1
        own = replace(options, slo_margins=dict(others), gap=max(options.gap, _NOISE))
        try:
            plan = make_plan(profiles, cluster, rates, own, interference=interference)
        except InfeasibleError:
            return False
        beat = goodput * (1 + _NOISE)
        served = robust_goodput(plan, duration_s, beat) if plan.objective.value > beat else 0.0
        if served > beat:
            best, goodput, margins, rated = plan, served, others, rates
        return served > beat

    default = goodput if better(margins, rated) else None
    for margin in (margin for margin in MARGINS if margin != usual):
        better(dict.fromkeys(names, margin), rated)
    if best is None:
        raise InfeasibleError("--slo-margin auto", "no candidate serves 99 % at any load")
    for model, (step, factor) in product(names, CHANGES):
        changed = {**margins, model: round(margins[model] + step, 6)}
        better(changed, _rescaled(rated, model, factor))
    robust = {
        "goodput": goodput,
        "default_goodput": default,
        "slo_margins": dict(margins),
        "batch_building_rate_rps": {m.name: m.batch_building_rate_rps for m in rated.models},
        "candidates": tried,
        "budget_spent": watch.seconds() >= budget_s,
    }
    plan = replace(best, certificate={**best.certificate, "robust": robust})
    return promising_less(replace(plan, plan_id=plan_identity(plan)), asked)


def _check(options: PlanOptions, workload: Workload) -> None:
    if options.objective != "throughput":
        raise InputError("--slo-margin auto", "needs the objective 'throughput'")
    if workload.applications:
        raise InputError("--slo-margin auto", "is for models alone; the workload has applications")


def _rescaled(workload: Workload, model: str, factor: float) -> Workload:
    return replace(
        workload,
        models=tuple(
            replace(m, batch_building_rate_rps=m.batch_building_rate_rps * factor)
            if m.name == model and m.batch_building_rate_rps is not None
            else m
            for m in workload.models
        ),
    )


def robust_goodput(plan: Plan, duration_s: float, beat: float = 0.0) -> float:
    """Largest normalised rate, in steps of the plan's own, at which every model attains.

    Requests arrive in proportion to the weights. Halving assumes that what attains at some load
    attains below it. A plan that does not attain just above `beat` is not looked at further.
    Plans made for the default policy are tried under reservation, others under their own.
    """
    value = plan.objective.value
    low = int(beat / value * GRID)
    weights = {m.name: m.normaliser() for m in plan.workload.models}
    policy = "reservation" if plan.models[0].policy == DEFAULT_POLICY else None

    def attains(step: int) -> bool:
        """True if every model attains when so many steps × weight requests/s of each arrive."""
        rate = value * step / GRID
        offered = tuple(replace(m, throughput_rps=rate * weights[m.name]) for m in plan.models)
        how = SimOptions(
            duration_s=duration_s,
            seed=0,
            nic="shared",
            policy=policy,
            reference=replace(plan, models=offered),
            keep_uses=False,
        )
        result = simulate(plan, how)
        return min(model.attainment for model in result.models) >= ATTAINMENT

    return value * highest_above(attains, low, GRID) / GRID
