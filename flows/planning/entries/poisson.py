"""Headroom of entries for Poisson arrivals: the least factor that holds in the simulator."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from flows.planning.certificate import plan_identity
from flows.planning.registry import PlanOptions
from flows.planning.watch import Watch
from triton_backend.contract.errors import InfeasibleError, InputError
from triton_backend.contract.plan import Plan
from triton_backend.simulator.offered import POISSON as ARRIVALS
from triton_backend.simulator.run import simulate
from triton_backend.simulator.scenario import SimOptions

POISSON, NO_HEADROOM = "poisson99", "none"
ATTAINED, LOAD = 0.99, 0.9
_GRID, _MOST = 20, 80  # factors are 1 to 4 in steps of 1 / 20
_HOW = SimOptions(arrivals=ARRIVALS, load_factor=LOAD, duration_s=20, seed=0, keep_uses=False)


def factor_of(given: str) -> float:
    """Times the listed rates that pools carry.

    Raises:
        InputError: the text is no factor of 1 or more.
    """
    where = "option headroom"
    if given in (NO_HEADROOM, POISSON):
        return 1.0
    try:
        factor = float(given)
    except ValueError as error:
        reason = f"{given!r} is neither {NO_HEADROOM}, {POISSON} nor a factor"
        raise InputError(where, reason) from error
    if not 1 <= factor < float("inf"):
        raise InputError(where, f"{given} is below 1 or no number")
    return factor


def plan_for_poisson(
    made: Callable[[PlanOptions], Plan], options: PlanOptions, watch: Watch
) -> Plan:
    """The plan of the least factor that attains; `headroom_factor` of its options states it.

    It attains if every model answers 99 % in time of Poisson arrivals at 0.9 of its rates. Factors
    grow by doubled steps, then halves are tried. Where the GPUs are too few for a factor that
    attains, or the time is over, the plan that attains most is returned; its notes say so. Weights,
    which throughput plans, need no headroom.

    Raises:
        InfeasibleError: the cluster is too small for the rates as they are.
    """
    if options.objective == "throughput":
        return _as_asked(made(_with_factor(options, _GRID)), _GRID)
    tried: dict[int, tuple[float, Plan]] = {}
    fails, enough = _GRID - 1, _MOST + 1
    step, growth = _GRID, 1
    while enough - fails > 1 and (not tried or not watch.over()):
        try:
            plan = made(_with_factor(options, step))
        except InfeasibleError:
            if step == _GRID:
                raise
            enough = step
        else:
            attained = simulate(plan, _HOW).least_attainment
            tried[step] = attained, plan
            fails, enough = (fails, step) if attained >= ATTAINED else (step, enough)
        growth *= 2
        step = min(fails + growth, _MOST) if enough > _MOST else (fails + enough) // 2
    return _stated(tried)


def _with_factor(options: PlanOptions, step: int) -> PlanOptions:
    return replace(options, own={**options.own, "headroom": f"{step / _GRID:g}"})


def _stated(tried: Mapping[int, tuple[float, Plan]]) -> Plan:
    """The plan that attains by the least factor, or attains most, as one of `poisson99`."""
    able = [step for step in sorted(tried) if tried[step][0] >= ATTAINED]
    step = able[0] if able else max(sorted(tried), key=lambda each: tried[each][0])
    attained, plan = tried[step]
    if not able:
        note = (
            f"headroom: {attained:.2%} of Poisson arrivals at {LOAD:g} in time by a factor of "
            f"{step / _GRID:g}, not {ATTAINED:.0%}"
        )
        notes = [*plan.certificate.get("notes", ()), note]
        plan = replace(plan, certificate={**plan.certificate, "notes": notes})
    return _as_asked(plan, step)


def _as_asked(plan: Plan, step: int) -> Plan:
    """The plan of a factor as one for which the factor was sought, so that replanning seeks it."""
    options = {**plan.options, "headroom": POISSON, "headroom_factor": step / _GRID}
    plan = replace(plan, options=options)
    return replace(plan, plan_id=plan_identity(plan))
