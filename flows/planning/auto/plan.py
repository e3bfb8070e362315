"""The planner `auto`: the plan that serves most, or costs least, of those that the others make.

Every planner of the product that is defined for the workload, its objective and the cluster makes a
plan with its own defaults. Each plan is then offered Poisson arrivals in the simulator, always the
same ones, so that equal inputs give equal plans.

For `throughput` of models each planner also plans with `MARGINS`, unless a margin is given: a large
one gives up rate that many GPUs would hold, a small one promises what few do not. All plans are
offered the same rates, in steps of `STEP` of the greatest that any promises; the highest at which
99 % are in time counts. Under a time limit every planner's own margin comes first, and what quick
planners leave of their parts goes to slow ones.

For the other objectives the least value of the plans that hold 99 % at `LOAD` of their planned
rates counts; where none holds, the plan that attains most. Of equals the plan with fewer stages is
taken. The plan states the planner that made it.

Not here: margins and batch-building rates by simulated goodput (`flows.planning.robust`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import nan

from flows.clock import Stopwatch
from flows.planning.engine.level import highest_above
from flows.planning.promises.attainment import LOAD
from flows.planning.registry import Inputs, Planner, PlanOptions, product_planners, refusal
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.goodput import ATTAINMENT
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

Answer = Plan | InfeasibleError | InputError
ARRIVALS = SimOptions(duration_s=10, seed=0, keep_uses=False)
MARGINS = (0.05, 0.1, 0.2)  # beside each planner's own
STEP, STEPS = 0.02, 75


def best_plan(make: Callable[[Inputs], Plan], inputs: Inputs) -> Plan:
    """The best plan of the planners that can plan the workload; its notes say how each did.

    Args:
        make: the plan of one planner.
        inputs: batch-building rates that are not given are derived for each planner; margins that
            are not given are each planner's own and, for throughput, `MARGINS`.

    Raises:
        InfeasibleError: no planner has a plan, with the reason of each.
        InputError: no planner is defined for what is asked together.
    """
    others = [each for each in product_planners().values() if each.plan is not None]
    asked = [each for each in others if able(each, inputs)]
    objective = inputs.options.objective
    if not asked:
        reason = f"auto: no planner has objective {objective} for this workload"
        raise InputError("option planner", reason)
    tries = [one for each in asked for one in _tries(each, inputs)]
    answers = _answers(make, inputs, tries)
    found = [answer for answer in answers if isinstance(answer, Plan)]
    errors: dict[str, InfeasibleError | InputError] = {}
    for one, answer in zip(tries, answers, strict=True):
        if not isinstance(answer, Plan):
            errors.setdefault(one.planner, answer)
    if not found:
        raise _no_plan(errors)
    planned = {plan.planner for plan in found}
    notes = [
        f"auto: {name} has no plan: {error}"
        for name, error in errors.items()
        if name not in planned
    ]
    judge = _most_served if objective == "throughput" else _least_held
    best, said = judge(found)
    known = best.certificate.get("notes", ())
    return replace(best, certificate={**best.certificate, "notes": [*known, *notes, *said]})


def _no_plan(errors: Mapping[str, InfeasibleError | InputError]) -> InputError:
    """The complaint of the first planner, and where others have another, of each."""
    first = next(iter(errors.values()))
    others = {name: error for name, error in errors.items() if str(error) != str(first)}
    if not others:
        return first
    names = ", ".join(name for name in errors if name not in others)
    reasons = [f"{name}: {error}" for name, error in others.items()]
    infeasible = any(isinstance(error, InfeasibleError) for error in errors.values())
    kind = InfeasibleError if infeasible else InputError
    return kind(first.where, "; ".join([f"{first.reason} ({names})", *reasons]))


def _answers(
    make: Callable[[Inputs], Plan], inputs: Inputs, tries: Sequence[PlanOptions]
) -> list[Answer]:
    """The answer of every try, in their order.

    A part of the time that is left is for each. Planners of whole models, which are quick, are
    listed last and asked first; to the first round all tries after it count as one.
    """
    names = [one.planner for one in tries]
    first = [number for number, name in enumerate(names) if name not in names[:number]]
    found: dict[int, Answer] = {}
    seconds: dict[str, float] = {}

    def ask(number: int, share: float) -> None:
        clock = Stopwatch()
        asked = replace(inputs, watch=inputs.watch.part(share), options=tries[number])
        try:
            found[number] = make(asked)
        except (InfeasibleError, InputError) as error:
            found[number] = error
        seconds.setdefault(names[number], clock.seconds())

    others = set(range(len(tries))) - set(first)
    for done, number in enumerate(reversed(first)):
        ask(number, 1 / (len(first) - done + bool(others)))
    in_order = sorted(others, key=lambda n: (seconds[names[n]], n))
    for done, number in enumerate(in_order):
        ask(number, 1 / (len(in_order) - done))
    return [found[number] for number in range(len(tries))]


def able(planner: Planner, inputs: Inputs) -> bool:
    """True if the planner is defined for the objective, the workload and the cluster."""
    workload, options = inputs.workload, inputs.options
    return (
        options.objective in planner.objectives
        and (not workload.models or "models" in planner.demands or workload.has_entries)
        and refusal(planner, inputs) is None
        and (not options.pinned_models or planner.pins)
    )


def _tries(planner: Planner, inputs: Inputs) -> list[PlanOptions]:
    """The options for a planner, with every margin that is tried where none was given."""
    options = inputs.options
    own = replace(
        options,
        planner=planner.name,
        own=dict(options.own),  # headroom, which every planner takes
        slo_margin=options.slo_margin if options.margin_given else nan,
        margin_given=True,
    )
    plain = not inputs.workload.has_entries and not inputs.workload.applications
    if options.margin_given or options.objective != "throughput" or not plain:
        return [own]
    others = [margin for margin in MARGINS if margin != own.slo_margin]
    return [own, *(replace(own, slo_margin=margin, margin_given=True) for margin in others)]


def _most_served(found: Sequence[Plan]) -> tuple[Plan, list[str]]:
    """The plan that holds the highest of rates that are the same for all, and notes on each."""
    reference = max(found, key=lambda plan: plan.objective.value)
    best, level = min(found, key=_stages), 0
    for plan in sorted(found, key=_stages):
        held = _held(plan, reference, level)
        if held > level:
            best, level = plan, held
    promised = [f"auto: {_name(plan)} promises {plan.objective.value:.6g}" for plan in found]
    rate = level * STEP * reference.objective.value
    return best, [
        *promised,
        f"auto: {_name(best)} is taken, {ATTAINMENT:.0%} in time at {rate:.6g}",
    ]


def _held(plan: Plan, reference: Plan, above: int) -> int:
    """The highest step of the reference's rates that a plan holds, if above a known one."""

    def holds(step: int) -> bool:
        at = replace(
            ARRIVALS, reference=reference, load_factor=step * STEP, give_up_below=ATTAINMENT
        )
        return simulate(plan, at).least_attainment >= ATTAINMENT

    return highest_above(holds, above, STEPS)


def _least_held(found: Sequence[Plan]) -> tuple[Plan, list[str]]:
    """The cheapest plan that holds its own rates, and notes on each."""
    at = replace(ARRIVALS, load_factor=LOAD)
    attained = [simulate(plan, at).least_attainment for plan in found]

    def rank(number: int) -> tuple[bool, float, int]:
        plan, share = found[number], attained[number]
        holds = share >= ATTAINMENT
        return holds, -plan.objective.value if holds else share, -_stages(plan)

    notes = [
        f"auto: {plan.planner} {plan.objective.value:.6g},"
        f" {share:.2%} in time at {LOAD} of the planned rates"
        for plan, share in zip(found, attained, strict=True)
    ]
    return found[max(range(len(found)), key=rank)], notes


def _stages(plan: Plan) -> int:
    return sum(len(pipeline.stages) for model in plan.models for pipeline in model.pipelines)


def _name(plan: Plan) -> str:
    return f"{plan.planner} with margin {plan.options['slo_margin']:g}"
