"""Piccolo as a planner, and any other rules as one: options to rules, machines to a plan.

Such planners bill by occupancy and count gathering as their rules do; their bound is the cost of
their own plan, so it says nothing of others (the exact planner is `pool`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from flows.clock import Stopwatch
from flows.planning.applications.heuristics import ABLATIONS, PICCOLO, Rules, solve
from flows.planning.applications.outcome import answer, decided_by_sets, out_of_reach
from flows.planning.applications.tables import demanded, line_problem, machine_tables
from flows.planning.inputs import require_rates
from flows.planning.promises.headroom import HEADROOM
from flows.planning.registry import Inputs, Option, Outcome, Planner, Trace
from triton_backend.contract.errors import InputError

_GATHERING = {"tc": "tc-tail", "dt": "dt", "2d": "2d"}
_PICCOLO_OPTIONS = (
    Option(
        name="without",
        default="",
        help=f"Leave out {', '.join(ABLATIONS)} (several: with commas).",
    ),
    Option(
        name="max_configs",
        default=0,
        choices=(0, 1, 2),
        help="Most configurations of a module; 0 for any number.",
    ),
    Option(
        name="quantum",
        default=0.0,
        least=0.0,
        most=1e3,
        help="Budgets are multiples of so many seconds, all tried; 0: by latency-cost efficiency.",
    ),
)


def _piccolo_rules(own: dict[str, Any]) -> Rules:
    rules = PICCOLO
    for name in filter(None, str(own["without"]).split(",")):
        if name not in ABLATIONS:
            reason = f"{name!r} is none of {', '.join(ABLATIONS)}"
            raise InputError("option without", reason)
        rules = replace(rules, **ABLATIONS[name])
    if own["max_configs"]:
        rules = replace(rules, most_configurations=own["max_configs"])
    return replace(rules, quantum_us=round(own["quantum"] * 1e6))


def _plan(rules_of: Callable[[dict[str, Any]], Rules], inputs: Inputs) -> Outcome:
    options = inputs.options
    require_rates(inputs.workload, options.objective)
    classes = inputs.cluster.gpu_classes
    if all(gpu_class.vgpu_percents for gpu_class in classes):
        reason = f"class {classes[0].name} is cut into percents: pool plans it"
        raise InputError("option planner", f"{options.planner} plans equal parts, {reason}")
    lines, laps = demanded(inputs), Stopwatch()
    rules = rules_of(dict(options.own))
    problem = line_problem(inputs, lines)
    tables = machine_tables(inputs, problem)
    rates = [demand.rate_rps or 0.0 for demand in lines.demands]
    trace = Trace(status="by rule")
    trace.seconds["enumerate"] = laps.restart()
    served = solve(lines, tables, rates, rules, inputs.watch)
    trace.seconds["solve"] = laps.restart()
    if served is None:
        raise out_of_reach(lines, problem)
    trace.notes.append(f"{options.planner} follows rules; its bound is its own cost")
    gathering = _GATHERING[rules.rule]
    decided = decided_by_sets(problem, lines, served.sets, served.cost, trace, gathering)
    decided = replace(decided, settled={"gathering": gathering, "billing": "occupancy"})
    return answer(decided, inputs, lines, problem, served.times)


def planner_by_rules(name: str, rules: Rules) -> Planner:
    """A planner of applications that follows the same rules whatever its options say."""
    return _planner(name, lambda _: rules)


def _planner(
    name: str, rules_of: Callable[[dict[str, Any]], Rules], options: tuple[Option, ...] = ()
) -> Planner:
    return Planner(
        name=name,
        plan=partial(_plan, rules_of),
        space="rules",
        objectives=("cost",),
        demands=("models", "applications"),
        options=options,
        most_stages=1,
        rates_from=(),
    )


PLANNERS = (_planner("piccolo", _piccolo_rules, (*_PICCOLO_OPTIONS, HEADROOM)),)
