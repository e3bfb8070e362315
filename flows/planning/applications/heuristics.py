"""Piccolo's planner as rules over one table of machines.

Planners it is compared with are other rules. A planner is a `Rules`: which machines it knows
(batching, several vGPUs on a GPU, several classes), how it counts the worst-case latency, how many
configurations a module may have, how it splits the latency, how often it hands remaining latency
out again, whether it adds dummies (paper: table III). Errors of the paper that are repaired:
`splitting` (Algorithm 2), `machines` (what is counted).

Where Algorithm 1 fails for a residual rate that is too small, dummies are tried, else whole
machines of the configuration that the split chose are paid: ⌈T / t⌉.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from flows.planning.applications.division import Separate, Stair, Staircase, divide, of_sets
from flows.planning.applications.lines import Lines
from flows.planning.applications.machines import (
    Group,
    Machine,
    MachineSet,
    begun,
    closed,
    padded,
    ranked,
)
from flows.planning.applications.splitting import Split, Tables, latency_cost, throughput
from flows.planning.solver.tolerances import ROUNDING
from flows.planning.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a heuristic planner.

    Attributes:
        rule: how worst-case latency is counted: `tc`, `dt`, `2d` (`machines`).
        most_configurations: of one module; None for any number.
        split: how the latency is divided among modules (`splitting`).
        quantum_us: budgets are multiples of it and found by trying all; 0: by `split`.
        reassign: how often remaining latency is handed out again; None: until none helps.
    """

    batching: bool = True
    spatial: bool = True
    hetero: bool = True
    rule: str = "tc"
    most_configurations: int | None = None
    split: Split = latency_cost
    quantum_us: int = 0
    reassign: int | None = None
    dummies: bool = True


PICCOLO = Rules()
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "batching": {"batching": False},
    "spatial": {"spatial": False},
    "hetero": {"hetero": False},
    "reassign": {"reassign": 0},
    "dummies": {"dummies": False},
    "tc": {"rule": "2d"},
    "lc": {"split": throughput},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """The machines of every line."""

    sets: tuple[MachineSet, ...]

    @property
    def cost(self) -> float:
        """Price of what is occupied."""
        return sum(served.cost for served in self.sets)

    @property
    def times(self) -> tuple[int, ...]:
        """The latency of each (µs)."""
        return tuple(served.time_us for served in self.sets)


def solve(
    lines: Lines,
    tables: Tables,
    rates: Sequence[float],
    rules: Rules = PICCOLO,
    watch: Watch | None = None,
) -> Served | None:
    """The plan of these rules; None where they find none.

    A planner of one hardware type uses the one whose plan is cheapest.

    Args:
        lines: paths and limits.
        tables: machines of every line.
        rates: rows/s of every line.
        rules: the planner.
        watch: ends it earlier.
    """
    tables = [_known(table, rules) for table in tables]
    if not rules.hetero:
        names = dict.fromkeys(machine.gpu_class for table in tables for machine in table)
        plans = [
            solve(
                lines,
                [tuple(m for m in table if m.gpu_class == name) for table in tables],
                rates,
                replace(rules, hetero=True),
                watch,
            )
            for name in names
        ]
        found = [plan for plan in plans if plan is not None]
        return min(found, key=lambda plan: plan.cost, default=None)
    if not all(tables):
        return None
    if rules.quantum_us:
        budgets = _quantized(lines, tables, rates, rules, watch)
    else:
        budgets = rules.split(lines, tables, rates, rules.rule)
    if budgets is None:
        return None
    sets = [
        _filled(table, rate, budget, rules)
        for table, rate, budget in zip(tables, rates, budgets, strict=True)
    ]
    whole = [served for served in sets if served is not None]
    if len(whole) < len(sets):
        return None
    return _reassigned(lines, tables, rates, rules, whole)


def _known(table: tuple[Machine, ...], rules: Rules) -> tuple[Machine, ...]:
    return ranked(
        [
            machine
            for machine in table
            if (rules.batching or machine.batch == 1) and (rules.spatial or machine.divisor == 1)
        ]
    )


def _quantized(
    lines: Lines,
    tables: Tables,
    rates: Sequence[float],
    rules: Rules,
    watch: Watch | None,
) -> Sequence[int] | None:
    """The best budgets of which each is a multiple of the quantum (Nexus; Picc-q)."""

    def steps(line: int) -> Staircase[Stair]:
        return of_sets(
            lambda budget_us, _: _filled(tables[line], rates[line], budget_us, rules),
            rules.quantum_us,
        )

    oracle = Separate([steps(line) for line in range(len(lines))])
    found = divide(lines, oracle, ROUNDING, watch)
    return None if found is None else found.times


def _filled(
    table: tuple[Machine, ...], rate_rps: float, budget_us: float, rules: Rules
) -> MachineSet | None:
    """The machines of a line within its budget; whole ones if rates of parts are too small."""
    served, left = begun(table, rate_rps, budget_us, rules.rule, rules.most_configurations)
    if left <= ROUNDING * rate_rps:
        return padded(table, served, rate_rps, budget_us) if rules.dummies else served
    ways = [_whole_machines(table, rate_rps, budget_us, rules.rule)]
    if rules.dummies:
        ways.append(closed(table, served, rate_rps, budget_us))
    found = [way for way in ways if way is not None]
    best = min(found, key=lambda way: way.cost, default=None)
    return padded(table, best, rate_rps, budget_us) if best and rules.dummies else best


def _whole_machines(
    table: tuple[Machine, ...], rate_rps: float, budget_us: float, rule: str
) -> MachineSet | None:
    """⌈T / t⌉ whole machines of the best configuration that keeps the budget at full machines."""
    for machine in table:
        count = ceil(rate_rps / machine.rate_rps * (1 - ROUNDING))
        served = count * machine.rate_rps
        latency_us = machine.latency_us(rule, served, machine.rate_rps)
        if latency_us <= budget_us * (1 + ROUNDING):
            group = Group(machine=machine, machines=float(count), latency_us=latency_us)
            return MachineSet(groups=(group,), dummy_rps=served - rate_rps)
    return None


def _reassigned(
    lines: Lines,
    tables: Tables,
    rates: Sequence[float],
    rules: Rules,
    sets: list[MachineSet],
) -> Served:
    """Latency that sets do not use goes to the line that saves most with all of its room."""
    left = rules.reassign
    while left != 0:
        left = None if left is None else left - 1
        best: tuple[float, int, MachineSet] | None = None
        for line, room in enumerate(lines.room([served.time_us for served in sets])):
            changed = _filled(tables[line], rates[line], room, rules)
            if changed is None:
                continue
            saved = sets[line].cost - changed.cost
            if saved > ROUNDING and (best is None or saved > best[0]):
                best = (saved, line, changed)
        if best is None:
            break
        sets[best[1]] = best[2]
    return Served(sets=tuple(sets))
